package formats

import (
	"context"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// format is one format and how it is reached.
type format struct {
	name  string
	open  func(ctx context.Context, s blob.Store, o *Options) (storage.Checkpoint, error)
	write func(s blob.Store, o *WriterOptions) (storage.Writer, error)
}

// list is all formats. A new one takes a row here and a rule in Detect.
var list = []format{
	{Native, openNative, writeNative},
}

func openNative(ctx context.Context, s blob.Store, _ *Options) (storage.Checkpoint, error) {
	c, err := native.Open(ctx, s)
	if err != nil {
		return nil, err // not a nil *native.Checkpoint in an interface
	}
	return c, nil
}

func writeNative(s blob.Store, o *WriterOptions) (storage.Writer, error) {
	return native.NewWriter(s, &native.WriterOptions{
		FilesPerRank: o.Files, FileBytes: o.MaxFileBytes, BufferBytes: o.BufferBytes, FailIfExists: o.FailIfExists,
	}), nil
}
