package torchfile

import (
	"context"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// DescribeFSDP describes a checkpoint of FSDP. If each is set, the pickle of each file is decoded.
func DescribeFSDP(ctx context.Context, store blob.Store, each bool) (*reading.Source, error) {
	if each {
		return describeFSDP(ctx, store, OpenFiles)
	}
	return describeFSDP(ctx, store, openAlike)
}

// Groups returns the number of different pickles among files that are opened together.
func Groups(ctx context.Context, store blob.Store, names []string) (int, error) {
	files, lost, err := openAlike(ctx, store, names)
	if err == nil {
		err = lost.Err()
	}
	if err != nil {
		return 0, err
	}
	return len(newRanks(&fsdpItem{files: files}).groups), nil
}
