package torchdcp

import (
	"context"
	"errors"
	"io/fs"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// mostOf bounds the bytes of the record of a chunk or value.
func mostOf(id reading.ChunkID) int64 {
	if id.Entry.Bytes != nil {
		return maxValue
	}
	return mostFor(id.Entry, id.N)
}

// checkFile is reading.Source.Check: it compares the records of a data file with the
// checksums that torch.save keeps. Records that cannot be read at all are found when
// chunks and values are located and decoded.
func (a *archive) checkFile(ctx context.Context, c *reading.FileCheck) (int64, error) {
	if err := c.Scan(ctx, nil); err != nil {
		return 0, err
	}
	var unsummed atomic.Int64
	err := a.records(ctx, c.Chunks, storage.ReadOptions{}, func(n int, f *torchsave.File, read torchsave.ReadFunc, err error) error {
		id := c.Chunks[n]
		if err == nil {
			unsummed.Add(payload(id.Loc(), f))
			err = f.Check(ctx, read, func(_ string, err error) { c.Problem(id.Entry.FQN, err.Error()) })
		}
		if err == nil && id.Entry.Tensor != nil {
			t, err := tensorIn(f)
			if at, err := a.chunkOf(id.Entry, id.N, t, err); err == nil {
				c.Found(id, at)
			}
		}
		return unreadable(err)
	})
	return unsummed.Load(), unreadable(err)
}

// unreadable returns err unless it means that a record cannot be read at all, or
// that its file is gone.
func unreadable(err error) error {
	if errors.Is(err, storage.ErrCorrupt) || errors.Is(err, storage.ErrVersion) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// payload returns how many bytes of tensors and values in a record have no
// checksum.
func payload(loc *meta.Location, f *torchsave.File) int64 {
	if isPacked(loc) {
		return min(f.Unsummed, loc.Length) // of the stored bytes
	}
	return f.Unsummed
}
