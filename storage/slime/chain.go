package slime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/tensor"
)

// chain is a version with everything that it is made of.
type chain struct {
	versions []*version         // the newest first
	beside   []string           // the names of the folders beside the newest that it needs
	full     storage.Checkpoint // the full version at the end. Nil: version 0, which is not known
	root     string             // the name of the full version
	at       blob.Store         // of the full version
	md       *meta.Metadata     // of the full version
	// broken is why the version cannot be read, although its own files are sound. Such a
	// version can be listed, copied and removed.
	broken error
}

// follow reads the delta version in the folder of that name and the versions that it is
// based on.
func (f Format) follow(ctx context.Context, store blob.Store, name string) (*chain, error) {
	v, err := readVersion(ctx, store, name)
	if err != nil {
		return nil, err
	}
	c := &chain{versions: []*version{v}}
	err = f.extend(ctx, c, v.number-1, store)
	if errors.Is(err, storage.ErrCorrupt) || errors.Is(err, storage.ErrVersion) {
		c.broken, err = err, nil
	}
	return c, err
}

// extend reads version n and the versions that it is based on. near is a folder beside it.
func (f Format) extend(ctx context.Context, c *chain, n int64, near blob.Store) error {
	away := false // the folders are beside Base
	for ; ; n-- {
		if n == 0 && baseNumber(f.Base) != 0 {
			return f.noBase(c, away)
		}
		store, err := f.locate(ctx, n, near)
		if err != nil {
			return err
		}
		away = away || n == baseNumber(f.Base)
		name := folderName(store, n)
		if !away {
			c.beside = append(c.beside, name)
		}
		delta, err := IsDelta(ctx, store)
		if err != nil {
			return err
		}
		if !delta {
			return c.end(ctx, store, name, n == baseNumber(f.Base))
		}
		if n == 0 {
			return fmt.Errorf("the base %s is a delta version: %w", store, ErrBase)
		}
		v, err := readVersion(ctx, store, name)
		if err != nil {
			return err
		}
		c.versions, near = append(c.versions, v), store
	}
}

// noBase returns why the chain, which has no full version, cannot begin at Base. It returns nil
// if no base is given. reached means that Base is a version of the chain.
func (f Format) noBase(c *chain, reached bool) error {
	switch {
	case f.Base == "":
		return nil
	case reached:
		return fmt.Errorf("the base %s is a delta version, and no version before it is full: %w", blob.Redact(f.Base), ErrBase)
	}
	return fmt.Errorf("the base %s is not a version before %s: %w", blob.Redact(f.Base), c.needing(), ErrBase)
}

// locate returns the folder of version n: Base, or a folder beside near. If near is nil, it
// is beside Folder.
func (f Format) locate(ctx context.Context, n int64, near blob.Store) (blob.Store, error) {
	switch {
	case n == baseNumber(f.Base):
		return blob.OpenAddress(ctx, f.Base)
	case near == nil:
		dir, _ := blob.SplitAddress(f.Folder)
		return blob.OpenFolder(ctx, blob.JoinAddress(cmp.Or(dir, "."), Folder(n)))
	}
	return blob.Beside(near, Folder(n))
}

// folderName returns the name of the folder of version n.
func folderName(store blob.Store, n int64) string {
	if n > 0 {
		return Folder(n)
	}
	if _, name, err := blob.Parent(store); err == nil {
		return name
	}
	return store.String()
}

// end opens the full version at the end of the chain. base means that it is Format.Base.
func (c *chain) end(ctx context.Context, store blob.Store, name string, base bool) error {
	full, err := hf.Format{}.Open(ctx, store)
	missing := errors.Is(err, storage.ErrNotFound) || errors.Is(err, fs.ErrNotExist)
	switch {
	case missing && base:
		return fmt.Errorf("%w: the base %s holds no checkpoint of the format hf: %w", storage.ErrNotFound, store, ErrBase)
	case missing:
		return fmt.Errorf("%w: %s is missing, and %s needs it: %s holds no checkpoint", ErrChain, name, c.needing(), store)
	case errors.Is(err, storage.ErrIncomplete), errors.Is(err, storage.ErrCorrupt):
		return fmt.Errorf("%w: %s, which %s needs: %w", ErrChain, name, c.needing(), err)
	case err != nil:
		return err
	}
	c.full, c.root, c.at = full, name, store
	if c.md, err = full.Metadata(ctx); err == nil {
		err = c.md.CheckWhole(nil)
	}
	if err != nil {
		c.full = nil
		return errors.Join(fmt.Errorf("%w: %s: %w", ErrChain, name, err), full.Close())
	}
	return nil
}

// needing returns the name of the oldest version.
func (c *chain) needing() string {
	if len(c.versions) == 0 {
		return "the new version"
	}
	return c.versions[len(c.versions)-1].name
}

// history is a tensor and its differences since the full version.
type history struct {
	base   *meta.Entry // of the full version
	deltas []*delta    // the oldest first; nil: the tensor has not changed
	bytes  int64
}

// histories returns all tensors of the checkpoint, by name. A difference of a tensor that
// the full version does not have is an error.
func (c *chain) histories() (map[string]*history, error) {
	out := make(map[string]*history, len(c.md.Entries))
	for i := range c.md.Entries {
		e := &c.md.Entries[i]
		out[e.FQN] = &history{base: e, bytes: e.NumBytes()}
	}
	var errs []error
	for _, v := range slices.Backward(c.versions) {
		var unknown []string
		for name, d := range v.deltas {
			h := out[name]
			if h == nil {
				unknown = append(unknown, name)
				continue
			}
			h.deltas = append(h.deltas, d)
			if v.index.Metadata.Encoding == Overwrite && h.bytes > MaxOverwrite {
				errs = append(errs, fmt.Errorf("%w: %s changes %q of %d bytes, and positions have 32 bits", ErrChain, v.name, name, h.bytes))
			}
		}
		switch slices.Sort(unknown); len(unknown) {
		case 0:
		case 1:
			errs = append(errs, fmt.Errorf("%w: %s changes %q, which %s does not have", ErrChain, v.name, unknown[0], c.root))
		default:
			errs = append(errs, fmt.Errorf("%w: %s changes %d tensors that %s does not have, such as %q", ErrChain, v.name, len(unknown), c.root, unknown[0]))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return out, errors.Join(errs...)
}

// entry describes a tensor. Its place is its newest difference, or the place in the full
// version.
func (h *history) entry(own *version, root string) meta.Entry {
	t := *h.base.Tensor
	loc := meta.Location{}
	switch n := len(h.deltas); {
	case n > 0:
		d := h.deltas[n-1]
		loc = meta.Location{File: d.file, Offset: d.off, Length: d.length, Detail: &meta.Detail{}}
		if d.v != own {
			loc.File = d.v.name + "/" + d.file
		}
		loc.Detail.Transforms = []string{compression, d.v.index.Metadata.Encoding}
	case len(t.Locs) > 0:
		loc = t.Locs[0]
		loc.File = root + "/" + loc.File
	}
	t.Chunks, t.Locs = []tensor.Box{tensor.Whole(t.Shape)}, []meta.Location{loc}
	return meta.Entry{FQN: h.base.FQN, Tensor: &t}
}
