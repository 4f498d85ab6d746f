package torchdcp

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/foreign"
)

// checker compares data files with what the metadata says of them, and their
// records with the checksums that torch.save keeps.
type checker struct {
	a  *archive
	md *meta.Metadata

	once sync.Once
	held map[string][]held // by file
}

// held is a record of a file: chunk N of a tensor, or a value.
type held foreign.ChunkID

func (h held) loc() *meta.Location {
	if h.Entry.Bytes != nil {
		return &h.Entry.Bytes.Loc
	}
	return &h.Entry.Tensor.Locs[h.N]
}

// most bounds the bytes of the record.
func (h held) most() int64 {
	if h.Entry.Bytes != nil {
		return maxValue
	}
	return mostFor(h.Entry, h.N)
}

// index sorts everything by the files that hold it.
func (c *checker) index() {
	c.held = map[string][]held{}
	for k := range c.md.Entries {
		e := &c.md.Entries[k]
		n := 1
		if e.Tensor != nil {
			n = len(e.Tensor.Locs)
		}
		for i := range n {
			h := held{e, i}
			c.held[h.loc().File] = append(c.held[h.loc().File], h)
		}
	}
}

// check is foreign.Source.Check. Records that cannot be read at all are reported
// by the reader of what is in them.
func (c *checker) check(ctx context.Context, file string, problem func(fqn, text string), found func(foreign.ChunkID, foreign.Chunk)) (int64, error) {
	c.once.Do(c.index)
	records := c.held[file]
	var unsummed atomic.Int64
	err := c.a.records(ctx, records, storage.ReadOptions{}, func(n int, f *torchsave.File, read torchsave.ReadFunc, err error) error {
		h := records[n]
		if err == nil {
			unsummed.Add(c.unsummed(h, f))
			err = f.Check(ctx, read, func(_ string, err error) { problem(h.Entry.FQN, err.Error()) })
		}
		if err == nil && h.Entry.Tensor != nil {
			t, err := tensorIn(f)
			if at, err := c.a.chunkOf(h.Entry, h.N, t, err); err == nil {
				found(foreign.ChunkID(h), at)
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

// unsummed returns how many bytes of the payload of a record have no checksum.
func (c *checker) unsummed(h held, f *torchsave.File) int64 {
	if isPacked(h.loc()) {
		return min(f.Unsummed, h.loc().Length) // of what is stored
	}
	return f.Unsummed
}
