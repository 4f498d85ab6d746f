package foreign

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// Checkpoint is an open checkpoint of some format. Its methods are safe for
// concurrent use.
//
// Where records have checksums, whoever reads all bytes of one, in whatever parts
// and order, through one Checkpoint and its readers gets an error that wraps
// storage.ErrCorrupt if they are damaged: the read that is the last to touch the
// record, and every one after it. Slices that do not cover a record are not
// checked, nor are rows of less than 1 KiB that are read one by one, nor records
// that were forgotten because too many others were read in part since.
type Checkpoint struct {
	store blob.Store
	src   *Source
	md    *meta.Metadata   // the source's, with the place named
	sizes map[string]int64 // of the files
	sums  *sums            // of records that are being read
	watch *watch           // of the source; nil: none

	claimed sync.Once
	greedy  map[string]int64 // files whose chunks have too many bytes in sum, once claimed is done
}

var _ storage.Checkpoint = (*Checkpoint)(nil)

// Open returns the checkpoint that src describes, whose files are in store.
func Open(store blob.Store, src *Source) *Checkpoint {
	md := *src.Metadata
	if md.Storage.ID == "" {
		md.Storage.ID = store.String()
	}
	c := &Checkpoint{store: store, src: src, md: &md, sizes: make(map[string]int64, len(src.Files)), sums: newSums(), watch: src.watch}
	for _, f := range src.Files {
		c.sizes[f.Name] = f.Size
	}
	return c
}

// Storage describes the checkpoint as a whole.
func (c *Checkpoint) Storage() meta.Storage { return c.md.Storage }

// Files returns the checkpoint's files, those that describe it first.
func (c *Checkpoint) Files() []storage.File { return c.src.Files }

// TotalBytes returns the bytes of all files.
func (c *Checkpoint) TotalBytes() int64 {
	var n int64
	for _, f := range c.src.Files {
		n += f.Size
	}
	return n
}

// Metadata returns the source's description.
func (c *Checkpoint) Metadata(ctx context.Context) (*meta.Metadata, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return c.md, nil
}

// Find returns the entry of that name. It costs nothing.
func (c *Checkpoint) Find(ctx context.Context, fqn string) (*meta.Entry, bool, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, false, err
	}
	if m, ok := c.md.FindMissing(fqn); ok {
		return nil, false, fmt.Errorf("%q: %w", fqn, m.Err)
	}
	e, ok := c.md.Find(fqn)
	return e, ok, nil
}

// NewReader returns a reader of the checkpoint for one rank.
func (c *Checkpoint) NewReader(o storage.ReadOptions) storage.Reader {
	return &Reader{c: c, opts: o}
}

// Close ends the use of the checkpoint.
func (c *Checkpoint) Close() error { return nil }

// openFile opens a file of the checkpoint.
func (c *Checkpoint) openFile(ctx context.Context, name string) (blob.Reader, error) {
	r, err := c.store.Open(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s of %s is gone: %w", storage.ErrCorrupt, name, c.store, err)
	}
	// A record that holds data keeps its name when it is replaced.
	if w := c.watch; err == nil && w != nil && slices.Contains(w.names, name) && w.changed(ctx) {
		return nil, errors.Join(fmt.Errorf("%w: %s of %s", storage.ErrChanged, name, c.store), r.Close())
	}
	return r, err
}
