package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// readRecord reads the commit record at the root of s. A place without one is
// ErrNotFound, or ErrIncomplete where something of ours is there.
func readRecord(ctx context.Context, s blob.Store) (*record, error) {
	b, err := blob.ReadAll(ctx, s, recordName, maxRecordBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noRecord(ctx, s)
	}
	if errors.Is(err, blob.ErrTooLarge) {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	if err != nil {
		return nil, err
	}
	rec, err := decodeRecord(b)
	if err != nil {
		return nil, fmt.Errorf("%s of %s: %w", recordName, s, err)
	}
	return rec, nil
}

// lookAt is after how many files a place without a record is no longer searched
// for signs of a save: it may be anybody's folder.
const lookAt = 10_000

// noRecord says what a place without a record is.
func noRecord(ctx context.Context, s blob.Store) error {
	seen := 0
	for info, err := range s.List(ctx, "") {
		if err != nil {
			return err
		}
		if seen++; seen > lookAt {
			break
		}
		if _, ours := saveOf(info.Name); ours {
			return fmt.Errorf("%w: %s holds %s but no %s: the save did not finish, or the record was lost; 'cairn repair' can rebuild what the data files hold",
				storage.ErrIncomplete, s, info.Name, recordName)
		}
	}
	return fmt.Errorf("%w: %s holds no %s", storage.ErrNotFound, s, recordName)
}

// Checkpoint is an open checkpoint: its record is read, its index is read as
// far as it is asked for. Its methods are safe for concurrent use. It must be
// closed.
type Checkpoint struct {
	store blob.Store
	rec   *record
	file  blob.Reader
	index *indexFile
}

// openTries bounds how often a checkpoint may be replaced while it is opened.
const openTries = 10

// Open opens the checkpoint at the root of store.
func Open(ctx context.Context, store blob.Store) (*Checkpoint, error) {
	var c *Checkpoint
	var err error
	for range openTries {
		// Replaced between the two reads: the next try sees the new one.
		if c, err = open(ctx, store); !errors.Is(err, storage.ErrChanged) {
			break
		}
	}
	return c, err
}

func open(ctx context.Context, store blob.Store) (*Checkpoint, error) {
	rec, err := readRecord(ctx, store)
	if err != nil {
		return nil, err
	}
	f := rec.Files[0]
	r, err := store.Open(ctx, f.Name)
	if err != nil {
		return nil, goneError(ctx, store, f.Name, err)
	}
	c := &Checkpoint{store: store, rec: rec, file: r}
	if r.Size() != f.Size {
		err = fmt.Errorf("%w: it has %d bytes, the record says %d", storage.ErrCorrupt, r.Size(), f.Size)
	} else {
		c.index, err = openIndex(ctx, r)
	}
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("%s of %s: %w", f.Name, store, err)
	}
	return c, nil
}

// Close ends the use of the checkpoint.
func (c *Checkpoint) Close() error { return c.file.Close() }

// Storage describes the checkpoint as a whole.
func (c *Checkpoint) Storage() meta.Storage {
	r := c.rec
	return meta.Storage{
		ID: c.store.String(), SaveID: r.SaveID, Step: r.Step, Time: r.Time, WorldSize: r.WorldSize,
		Writer: r.Writer, Tags: r.Tags, Version: fmt.Sprintf("cairn %d", formatVersion),
	}
}

// Files returns the checkpoint's files, the index first.
func (c *Checkpoint) Files() []storage.File {
	out := make([]storage.File, len(c.rec.Files))
	for i, f := range c.rec.Files {
		out[i] = storage.File{Name: f.Name, Size: f.Size, CRC32C: f.CRC32C}
	}
	return out
}

// Find returns the entry of that name. It costs one read of the index at most.
func (c *Checkpoint) Find(ctx context.Context, fqn string) (*meta.Entry, bool, error) {
	e, ok, err := c.index.lookup(ctx, fqn)
	if err == nil && ok {
		err = c.checkEntry(e)
	}
	return e, ok, c.named(err)
}

// Metadata returns the whole description.
func (c *Checkpoint) Metadata(ctx context.Context) (*meta.Metadata, error) {
	entries, err := c.index.all(ctx)
	if err != nil {
		return nil, c.named(err)
	}
	// No byte is part of two entries, so that together they cannot be larger
	// than the files, and nobody makes room for more than there is.
	left := c.TotalBytes()
	for i := range entries {
		if err := c.checkEntry(&entries[i]); err != nil {
			return nil, c.named(err)
		}
		if left -= entries[i].NumBytes(); left < 0 {
			return nil, c.named(fmt.Errorf("%w: its entries have more bytes than the files", storage.ErrCorrupt))
		}
	}
	return &meta.Metadata{Entries: entries, PlannerData: c.rec.PlannerData, Storage: c.Storage()}, nil
}

// named says which file err is about.
func (c *Checkpoint) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s of %s: %w", c.rec.Files[0].Name, c.store, err)
}

// checkEntry refuses an entry that the record's files cannot hold, or that does
// not hold as many elements as it claims.
func (c *Checkpoint) checkEntry(e *meta.Entry) error {
	if e.Bytes != nil {
		if e.Bytes.Inline != nil {
			return nil
		}
		return c.checkLocation(e.FQN, &e.Bytes.Loc)
	}
	left, err := tensor.NumElements(e.Tensor.Shape)
	if err != nil {
		return fmt.Errorf("%w: %q: %w", storage.ErrCorrupt, e.FQN, err)
	}
	for i, b := range e.Tensor.Chunks {
		if left -= b.Volume(); left < 0 {
			break
		}
		if err := c.checkLocation(e.FQN, &e.Tensor.Locs[i]); err != nil {
			return err
		}
	}
	if left != 0 {
		return fmt.Errorf("%w: %q: its chunks are not the whole of %v", storage.ErrCorrupt, e.FQN, e.Tensor.Shape)
	}
	return nil
}

func (c *Checkpoint) checkLocation(fqn string, l *meta.Location) error {
	size, ok := c.rec.size(l.File)
	if !ok {
		return fmt.Errorf("%w: %q lies in %s, which the record does not name", storage.ErrCorrupt, fqn, l.File)
	}
	if l.Offset < 0 || l.Length < 0 || l.Offset > size || l.Length > size-l.Offset {
		return fmt.Errorf("%w: %q lies at %d+%d in %s, which has %d bytes", storage.ErrCorrupt, fqn, l.Offset, l.Length, l.File, size)
	}
	return nil
}

var _ storage.Checkpoint = (*Checkpoint)(nil)

// NewReader returns a reader of the checkpoint for one rank.
func (c *Checkpoint) NewReader(o storage.ReadOptions) storage.Reader {
	return NewReader(c.store, &ReaderOptions{BufferBytes: o.BufferBytes, Parallel: o.Parallel, TrustSizes: o.TrustSizes})
}
