package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// CheckHeld returns an error that wraps storage.ErrCorrupt unless the files that
// hold e are large enough for what the index says: a reader that is about to
// make room for a large tensor asks first, so that a false size costs nothing.
// It costs nothing for small ones.
func (c *Checkpoint) CheckHeld(ctx context.Context, e *meta.Entry) error {
	if e.Bytes != nil {
		if e.Bytes.Inline != nil {
			return nil
		}
		return checkHeld(ctx, c.store, e.NumBytes(), []meta.Location{e.Bytes.Loc})
	}
	return checkHeld(ctx, c.store, e.NumBytes(), e.Tensor.Locs)
}

// checkHeld returns an error unless each file of locs is large enough to hold
// what they say. size is the whole of it: what is smaller than a stripe is not
// worth the question.
func checkHeld(ctx context.Context, s blob.Store, size int64, locs []meta.Location) error {
	if size <= stripeBytes {
		return nil
	}
	sizes := map[string]int64{}
	for i := range locs {
		l := &locs[i]
		have, ok := sizes[l.File]
		if !ok {
			info, err := s.Stat(ctx, l.File)
			if err != nil {
				return goneError(ctx, s, l.File, err)
			}
			have, sizes[l.File] = info.Size, info.Size
		}
		if l.Length > have || l.Offset > have-l.Length {
			return fmt.Errorf("%w: %d bytes at %d of %s, which has %d", storage.ErrCorrupt, l.Length, l.Offset, l.File, have)
		}
	}
	return nil
}

// checkSizes returns an error unless all files that the record names are there,
// in their size.
func (c *Checkpoint) checkSizes(ctx context.Context) error {
	have, err := filesOf(ctx, c.store, c.rec.SaveID)
	if err != nil {
		return err
	}
	for _, f := range c.rec.Files {
		size, ok := have[f.Name]
		if !ok {
			return goneError(ctx, c.store, f.Name, fs.ErrNotExist)
		}
		if size != f.Size {
			return fmt.Errorf("%w: %s of %s has %d bytes, the record says %d", storage.ErrCorrupt, f.Name, c.store, size, f.Size)
		}
	}
	return nil
}

// filesOf returns the files of a save that are there, with their sizes.
func filesOf(ctx context.Context, s blob.Store, saveID string) (map[string]int64, error) {
	have := map[string]int64{}
	for info, err := range s.List(ctx, saveID) {
		if err != nil {
			return nil, err
		}
		if isOf(info.Name, saveID) {
			have[info.Name] = info.Size
		}
	}
	return have, nil
}

// isOf reports whether a file of that name belongs to that save.
func isOf(name, saveID string) bool {
	if id, _, _, ok := parseDataFileName(name); ok {
		return id == saveID
	}
	id, ok := parseIndexFileName(name)
	return ok && id == saveID
}

// goneError says what it means that a file of a save is not there: the save was
// replaced meanwhile, or a part of it is lost. Other errors stay as they are.
func goneError(ctx context.Context, s blob.Store, name string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if now, readErr := readRecord(ctx, s); readErr == nil {
		if _, named := now.size(name); !named {
			return fmt.Errorf("%w: %s now holds save %s, without %s: %v", storage.ErrChanged, s, now.SaveID, name, err)
		}
	}
	return fmt.Errorf("%w: %s of %s is gone: %w", storage.ErrCorrupt, name, s, err)
}
