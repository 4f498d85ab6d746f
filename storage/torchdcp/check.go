package torchdcp

import (
	"context"
	"errors"
	"io/fs"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// checker compares data files with what the metadata says of them, and their
// records with the checksums that torch.save keeps.
type checker struct {
	a  *archive
	md *meta.Metadata

	once sync.Once
	held map[string][]held // by file
}

// held is a record of a file: chunk i of a tensor, or a value.
type held struct {
	e *meta.Entry
	i int
}

func (h held) loc() *meta.Location {
	if h.e.Bytes != nil {
		return &h.e.Bytes.Loc
	}
	return &h.e.Tensor.Locs[h.i]
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

// check is foreign.Source.Check. Records that cannot be read at all are told of
// by whoever reads what is in them.
func (c *checker) check(ctx context.Context, file string, problem func(fqn, text string)) (int64, error) {
	c.once.Do(c.index)
	if len(c.held[file]) == 0 {
		return 0, nil
	}
	r, err := c.a.store.Open(ctx, file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer r.Close()
	var unsummed int64
	for _, h := range c.held[file] {
		n, err := c.record(ctx, r, h, func(text string) { problem(h.e.FQN, text) })
		unsummed += n
		if err != nil && !errors.Is(err, storage.ErrCorrupt) && !errors.Is(err, storage.ErrVersion) {
			return unsummed, err
		}
	}
	return unsummed, nil
}

// record checks one record of the file that r reads, and returns how many bytes
// of its payload have no checksum.
func (c *checker) record(ctx context.Context, r blob.Reader, h held, problem func(text string)) (unsummed int64, err error) {
	most := int64(maxValue)
	if h.e.Tensor != nil {
		most = mostFor(h.e, h.i)
	}
	use := func(f *torchsave.File, read torchsave.ReadFunc) error {
		unsummed = f.Unsummed
		return f.Check(ctx, read, func(_ string, err error) { problem(err.Error()) })
	}
	if isPacked(h.loc()) {
		err = c.a.file(ctx, h.loc(), most, use)
		return min(unsummed, h.loc().Length), err // of what is stored
	}
	if err = c.a.check(h.loc()); err == nil {
		err = c.a.fileIn(ctx, r, h.loc(), use)
	}
	return unsummed, err
}
