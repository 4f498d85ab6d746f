package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/delta"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// Whole returns a view of a checkpoint in which all of its files are stored as they are
// and refer to no other folder. It returns store if that is so in the store itself, or if
// there is no checkpoint of this format that can be opened.
func Whole(ctx context.Context, store blob.Store) blob.Store {
	rec, err := readRecordOnly(ctx, store)
	if err != nil || len(rec.Coded) == 0 {
		return store
	}
	w, err := newWhole(store, rec, nil)
	if err != nil {
		return store
	}
	return w.view()
}

// whole is a store with a checkpoint that stores its data files as delta files. It shows the
// data files as if they were stored whole, and the record without references. Other names are
// those of the store. It is read-only. It is not a blob.Wrapper, because the store behind it
// has other objects.
type whole struct {
	blob.Store
	rec    *record                  // without references
	record []byte                   // its bytes
	coded  map[string]storage.Coded // by the name of the data file
	stored map[string]bool          // the names of the delta files
	hashed map[string]string        // the delta files with the hashes of data files, by the name of the data file
	bases  []baseFolder
	cache  *delta.Cache
}

var (
	_ blob.Store        = (*whole)(nil)
	_ blob.Locker       = (*whole)(nil)
	_ blob.FolderLister = (*whole)(nil)
	_ blob.Cooler       = (*whole)(nil)
)

// slowWhole is a whole over a store with expensive requests.
type slowWhole struct{ *whole }

var (
	_ blob.GapReader = slowWhole{}
	_ blob.Knower    = slowWhole{}
)

// ReadGap implements blob.GapReader.
func (w slowWhole) ReadGap() int64 {
	g, _ := blob.As[blob.GapReader](w.Store)
	return g.ReadGap()
}

// view returns w, with the capabilities of the store behind it.
func (w *whole) view() blob.Store {
	if _, slow := blob.As[blob.GapReader](w.Store); slow {
		return slowWhole{w}
	}
	return w
}

// newWhole returns the view of a checkpoint with the record rec.
func newWhole(store blob.Store, rec *record, segments *delta.Cache) (*whole, error) {
	w := &whole{Store: store, cache: segments, hashed: map[string]string{}, rec: rec.alone(), coded: map[string]storage.Coded{}, stored: map[string]bool{}, bases: rec.Bases}
	for _, c := range rec.Coded {
		w.coded[c.Name] = c
		w.stored[c.Stored] = true
	}

	for _, f := range rec.Hashes {
		w.hashed[strings.TrimSuffix(f.Name, deltaSuffix)+dataSuffix] = f.Name
	}

	var err error
	w.record, err = encodeRecord(w.rec)
	return w, err
}

// Create implements blob.Store.
func (w *whole) Create(_ context.Context, name string, _ *blob.CreateOptions) (blob.Writer, error) {
	return nil, w.readOnly("create", name)
}

// Remove implements blob.Store.
func (w *whole) Remove(_ context.Context, name string) error { return w.readOnly("remove", name) }

func (w *whole) readOnly(op, name string) error {
	return &blob.Error{Op: op, Store: w.String(), Name: name, Err: errors.ErrUnsupported}
}

// Open implements blob.Store.
func (w *whole) Open(ctx context.Context, name string) (blob.Reader, error) {
	if c, ok := w.coded[name]; ok {
		r, err := delta.Open(ctx, w.Store, c.Stored, w.segments(name))
		if err != nil {
			return nil, err
		}
		if r.Size() != c.Size {
			r.Close()
			return nil, fmt.Errorf("%w: %s of %s holds a file of %d bytes, the record says %d", storage.ErrCorrupt, c.Stored, w.Store, r.Size(), c.Size)
		}
		return r, nil
	}

	if w.stored[name] {
		return nil, &blob.Error{Op: "open", Store: w.String(), Name: name, Err: fs.ErrNotExist}
	}

	if stored, ok := w.hashed[name]; ok && w.cache != nil {
		// Without its hashes, the file is read as it is.
		if r, err := delta.Open(ctx, w.Store, stored, w.segments(name)); err == nil {
			if r.Size() == w.rec.sizes[name] {
				return r, nil
			}
			r.Close()
		}
	}

	r, err := w.Store.Open(ctx, name)
	if err != nil || name != recordName {
		return r, err
	}
	return &recordReader{Reader: r, data: w.record}, nil
}

// segments returns the segments of a data file in the cache.
func (w *whole) segments(name string) *delta.Segments { return segmentsOf(w.cache, w.Store, name) }

// segmentsOf returns the segments of a data file in a cache. Checkpoints of a run share the
// files of a rank and number.
func segmentsOf(c *delta.Cache, store blob.Store, name string) *delta.Segments {
	id, _ := saveOf(name)
	return c.Of(store, strings.TrimPrefix(name, id))
}

// recordReader reads the record without references. The reader of the record itself
// tells its version.
type recordReader struct {
	blob.Reader
	data []byte
}

func (r *recordReader) Size() int64 { return int64(len(r.data)) }

// Version implements blob.VersionReader.
func (r *recordReader) Version() string {
	if v, ok := r.Reader.(blob.VersionReader); ok {
		return v.Version()
	}
	return ""
}

func (r *recordReader) ReadAt(_ context.Context, p []byte, off int64) error {
	if off < 0 || off > int64(len(r.data)-len(p)) {
		return &blob.Error{Op: "read", Name: recordName, Err: blob.ErrRange}
	}
	copy(p, r.data[off:])
	return nil
}

// OpenKnown implements blob.Knower.
func (w slowWhole) OpenKnown(ctx context.Context, o blob.Info) (blob.Reader, error) {
	if _, ok := w.coded[o.Name]; ok || o.Name == recordName || w.cache != nil && w.hashed[o.Name] != "" {
		return w.Open(ctx, o.Name)
	}
	return blob.OpenKnown(ctx, w.Store, o)
}

// Stat implements blob.Store.
func (w *whole) Stat(ctx context.Context, name string) (blob.Info, error) {
	c, ok := w.coded[name]
	switch {
	case ok:
		info, err := w.Store.Stat(ctx, c.Stored)
		if err != nil {
			return blob.Info{}, err
		}
		return blob.Info{Name: name, Size: c.Size, ModTime: info.ModTime}, nil
	case w.stored[name]:
		return blob.Info{}, &blob.Error{Op: "stat", Store: w.String(), Name: name, Err: fs.ErrNotExist}
	}

	info, err := w.Store.Stat(ctx, name)
	if err == nil && name == recordName {
		info.Size = int64(len(w.record))
	}
	return info, err
}

// List implements blob.Store.
func (w *whole) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		data := map[string]storage.Coded{} // by the name of the delta file
		for _, c := range w.coded {
			data[c.Stored] = c
		}

		var all []blob.Info
		for info, err := range w.Store.List(ctx, "") {
			if err != nil {
				yield(blob.Info{}, err)
				return
			}

			if c, ok := data[info.Name]; ok {
				info = blob.Info{Name: c.Name, Size: c.Size, ModTime: info.ModTime}
			} else if w.stored[info.Name] {
				continue
			}

			if info.Name == recordName {
				info.Size = int64(len(w.record))
			}
			if strings.HasPrefix(info.Name, prefix) {
				all = append(all, info)
			}
		}

		slices.SortFunc(all, func(a, b blob.Info) int { return strings.Compare(a.Name, b.Name) })
		for _, info := range all {
			if !yield(info, nil) {
				return
			}
		}
	}
}

// Folders implements blob.FolderLister.
func (w *whole) Folders(ctx context.Context, dir string) ([]string, error) {
	return blob.Folders(ctx, w.Store, dir)
}

// TryLock implements blob.Locker.
func (w *whole) TryLock(ctx context.Context, name string, note []byte) (blob.HeldLock, error) {
	l, ok := blob.As[blob.Locker](w.Store)
	if !ok {
		return nil, w.readOnly("lock", name)
	}
	return l.TryLock(ctx, name, note)
}

// Locks implements blob.Locker.
func (w *whole) Locks(ctx context.Context, dir string) ([]blob.Lock, error) {
	l, ok := blob.As[blob.Locker](w.Store)
	if !ok {
		return nil, nil
	}
	return l.Locks(ctx, dir)
}

// Cool implements blob.Cooler. It also drops the files that a data file refers to.
func (w *whole) Cool(ctx context.Context, name string) error {
	c, ok := w.coded[name]
	if !ok {
		return cool(ctx, w.Store, name)
	}

	errs := []error{cool(ctx, w.Store, c.Stored)}
	for _, b := range w.bases {
		at, err := blob.Beside(w.Store, b.Folder)
		errs = append(errs, err)
		for _, f := range b.Files {
			if err == nil {
				errs = append(errs, cool(ctx, at, f.Name))
			}
		}
	}

	return errors.Join(errs...)
}

func cool(ctx context.Context, s blob.Store, name string) error {
	c, ok := blob.As[blob.Cooler](s)
	if !ok {
		return &blob.Error{Op: "cool", Store: s.String(), Name: name, Err: errors.ErrUnsupported}
	}
	return c.Cool(ctx, name)
}

// damaged reports whether the record in a folder has another checksum of a file than the
// file's. It is false if that cannot be found out.
func damaged(ctx context.Context, store blob.Store, name string) bool {
	want, ok, err := StoredFile(ctx, store, name)
	if err != nil || !ok {
		return false
	}
	var crc uint32
	size, err := reading.Scan(ctx, store, name, func(p []byte, _ int64) { crc = crc32c.Update(crc, p) })
	return err == nil && (size != want.Size || crc != want.CRC32C)
}
