package delta

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"unique"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/segment"
	"github.com/cairn-ckpt/cairn/storage"
)

// Reader reads the file that a delta file stores. It implements blob.Reader.
type Reader struct {
	table  *Table
	name   string    // of the delta file, for errors
	size   int64     // of the delta file
	starts []int64   // of the segments, and the end of the last one
	files  []*bodies // by Body.File
	slow   bool      // requests to the store take long compared with the bytes that they read
	segs   *Segments
	past   []unique.Handle[origin] // of Table.Past, if there is a cache
	read   atomic.Int64            // bytes that were read from files

	mu     sync.Mutex
	closed bool            // guarded by mu
	kept   map[int]*[]byte // segments of which a part was read; guarded by mu
}

// bodies is a file with bodies.
type bodies struct {
	origin unique.Handle[origin] // if there is a cache
	open   func(context.Context) (blob.Reader, error)
	read   *atomic.Int64 // of the Reader

	mu sync.Mutex
	r  blob.Reader // nil: not opened yet, or closed; guarded by mu
}

// reader returns the opened file.
func (b *bodies) reader(ctx context.Context) (blob.Reader, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.r != nil {
		return b.r, nil
	}
	r, err := b.open(ctx)
	if err == nil {
		b.r = r
	}
	return r, err
}

// ReadAt reads from the file, which it opens if need be.
func (b *bodies) ReadAt(ctx context.Context, p []byte, off int64) error {
	r, err := b.reader(ctx)
	if err != nil {
		return err
	}
	return counting{r, b.read}.ReadAt(ctx, p, off)
}

func (b *bodies) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.r == nil {
		return nil
	}
	r := b.r
	b.r = nil
	return r.Close()
}

var (
	_ blob.Reader       = (*Reader)(nil)
	_ blob.DirectReader = (*Reader)(nil)
)

// firstRead is how many bytes at the end of a delta file are read at once.
const firstRead = 64 << 10

// ReadTable reads the table of a delta file.
func ReadTable(ctx context.Context, r blob.Reader) (*Table, error) {
	size := r.Size()
	if size < tailBytes {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrTable, size)
	}
	end := make([]byte, min(size, firstRead))
	if err := r.ReadAt(ctx, end, size-int64(len(end))); err != nil {
		return nil, err
	}
	tail := end[len(end)-tailBytes:]
	if string(tail[16:]) != magic {
		return nil, fmt.Errorf("%w: it does not end as a delta file does", ErrTable)
	}
	switch v := le32(tail[12:]); {
	case v < version:
		return nil, fmt.Errorf("%w: version %d of delta files, which was in no release: only the program that wrote it reads it", storage.ErrVersion, v)
	case v > version:
		return nil, fmt.Errorf("%w: version %d of delta files; this program reads version %d", storage.ErrVersion, v, version)
	}
	n := le64(tail)
	if n > MaxTable || int64(n) > size-tailBytes {
		return nil, fmt.Errorf("%w: a table of %d bytes in a file of %d", ErrTable, n, size)
	}
	body := size - tailBytes - int64(n)
	text := end[:len(end)-tailBytes]
	if int64(len(text)) >= int64(n) {
		text = text[int64(len(text))-int64(n):]
	} else {
		text = make([]byte, n)
		if err := r.ReadAt(ctx, text, body); err != nil {
			return nil, err
		}
	}
	if sum := crc32c.Checksum(text); sum != le32(tail[8:]) {
		return nil, fmt.Errorf("%w: its checksum is %08x, not %08x", ErrTable, sum, le32(tail[8:]))
	}
	return decode(text, body)
}

func le32(p []byte) uint32 {
	return uint32(p[0]) | uint32(p[1])<<8 | uint32(p[2])<<16 | uint32(p[3])<<24
}

func le64(p []byte) uint64 { return uint64(le32(p)) | uint64(le32(p[4:]))<<32 }

// Open returns a reader of the file that the delta file name in store holds. It opens the
// files that the table refers to, in folders beside the store. The errors of a missing or
// shorter file wrap storage.ErrCorrupt and name it.
//
// If segs is not nil, the reader uses the cache, and opens files when it needs them.
func Open(ctx context.Context, store blob.Store, name string, segs *Segments) (*Reader, error) {
	v := &Reader{name: name, segs: segs}
	_, v.slow = blob.As[blob.GapReader](store)
	own := &bodies{read: &v.read, open: func(ctx context.Context) (blob.Reader, error) { return store.Open(ctx, name) }}
	if v.table, v.size = segs.table(name); v.table == nil {
		r, err := own.reader(ctx)
		if err != nil {
			return nil, err
		}
		v.size = r.Size()
		if v.table, err = ReadTable(ctx, counting{r, &v.read}); err != nil {
			own.close()
			if errors.Is(err, ErrTable) {
				err = fmt.Errorf("%w: %s of %s: %w", storage.ErrCorrupt, name, store, err)
			}
			return nil, err
		}
		segs.keepTable(name, v.table, v.size)
	}
	v.starts = startsOf(v.table)
	v.files = append(v.files, own)
	for _, f := range v.table.Files {
		v.files = append(v.files, &bodies{read: &v.read, open: func(ctx context.Context) (blob.Reader, error) {
			r, err := openBeside(ctx, store, &f)
			if err != nil {
				return nil, fmt.Errorf("%s of %s: %w", name, store, err)
			}
			return r, nil
		}})
	}
	if segs != nil {
		for _, f := range v.table.Past {
			v.past = append(v.past, segs.origin(f))
		}
	}
	for i, b := range v.files {
		if segs != nil {
			b.origin = segs.origin(v.fileOf(i))
		} else if _, err := b.reader(ctx); err != nil {
			v.Close()
			return nil, err
		}
	}
	return v, nil
}

// fileOf returns the file of bodies with that Body.File.
func (r *Reader) fileOf(n int) File {
	if n == 0 {
		return File{Name: r.name, Size: r.size}
	}
	return r.table.Files[n-1]
}

// openBeside opens a file that a table refers to.
func openBeside(ctx context.Context, store blob.Store, f *File) (blob.Reader, error) {
	if f.Folder != "" {
		var err error
		if store, err = blob.Beside(store, f.Folder); err != nil {
			return nil, fmt.Errorf("it refers to the folder %s beside it, which cannot be opened: %w", f.Folder, err)
		}
	}
	r, err := blob.OpenKnown(ctx, store, blob.Info{Name: f.Name, Size: f.Size})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("it refers to %s of %s, which is gone: %w (%w)", f.Name, store, storage.ErrBaseGone, err)
	}
	if err != nil {
		return nil, err
	}
	if r.Size() != f.Size {
		r.Close()
		return nil, fmt.Errorf("it refers to %s of %s, which has %d bytes instead of %d: %w", f.Name, store, r.Size(), f.Size, storage.ErrBaseGone)
	}
	return &besideReader{r, f.Name, store}, nil
}

// besideReader is a file of another folder. Its errors name it.
type besideReader struct {
	blob.Reader
	name  string
	store blob.Store
}

func (r *besideReader) ReadAt(ctx context.Context, p []byte, off int64) error {
	err := r.Reader.ReadAt(ctx, p, off)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, blob.ErrChanged) || errors.Is(err, blob.ErrRange) {
		return fmt.Errorf("%w: %s of %s, to which the checkpoint refers: %w", storage.ErrCorrupt, r.name, r.store, err)
	}
	return err
}

// startsOf returns where the segments begin, and the end of the last one.
func startsOf(t *Table) []int64 {
	out := make([]int64, 1+len(t.Segments))
	for i := range t.Segments {
		out[i+1] = out[i] + int64(t.Segments[i].Len)
	}
	return out
}

// counting is a file that counts the bytes that are read.
type counting struct {
	blob.Reader
	read *atomic.Int64
}

func (r counting) ReadAt(ctx context.Context, p []byte, off int64) error {
	r.read.Add(int64(len(p)))
	return r.Reader.ReadAt(ctx, p, off)
}

// BytesRead returns the bytes that were read from files so far, with the table. They may be
// fewer or more than the bytes that ReadAt has returned.
func (r *Reader) BytesRead() int64 { return r.read.Load() }

// Size returns the size of the file that is stored.
func (r *Reader) Size() int64 { return r.table.Size }

// Close closes all files.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed, r.kept = true, nil
	var errs []error
	for _, f := range r.files {
		errs = append(errs, f.close())
	}
	return errors.Join(errs...)
}

// segmentAt returns the number of the segment that holds the byte at off.
func (r *Reader) segmentAt(off int64) int {
	return sort.Search(len(r.table.Segments), func(i int) bool { return r.starts[i+1] > off })
}

// readBytes is the most bytes that ReadAt puts together at once.
const readBytes = 8 << 20

// ReadAt implements blob.Reader.
func (r *Reader) ReadAt(ctx context.Context, p []byte, off int64) error {
	r.mu.Lock()
	closed := r.closed
	r.mu.Unlock()
	switch {
	case closed:
		return &blob.Error{Op: "read", Name: r.name, Err: blob.ErrClosed}
	case off < 0 || off > r.table.Size-int64(len(p)):
		return &blob.Error{Op: "read", Name: r.name, Err: fmt.Errorf("%w: %d bytes from %d of %d", blob.ErrRange, len(p), off, r.table.Size)}
	}
	for len(p) > 0 {
		i := r.segmentAt(off)
		n, err := r.readSome(ctx, p, off, i)
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// readSome reads the beginning of p, which begins in segment i, and returns its length.
func (r *Reader) readSome(ctx context.Context, p []byte, off int64, i int) (int, error) {
	if r.segs != nil {
		return r.readCached(ctx, p, off, i)
	}
	if n, file, at := r.plain(off, int64(len(p)), i); n > 0 {
		return int(n), r.files[file].ReadAt(ctx, p[:n], at)
	}
	s := &r.table.Segments[i]
	if off == r.starts[i] && s.Len <= len(p) {
		j, n := i, 0
		for j < len(r.table.Segments) && n+r.table.Segments[j].Len <= min(len(p), readBytes) {
			if m, _, _ := r.plain(r.starts[j], int64(len(p)-n), j); j > i && m > plainBytes {
				break
			}
			n += r.table.Segments[j].Len
			j++
		}
		return n, r.assemble(ctx, p[:n], i, j)
	}
	return r.readPart(ctx, p, off, i)
}

// readPart fills the beginning of p with bytes of segment i from off on.
func (r *Reader) readPart(ctx context.Context, p []byte, off int64, i int) (int, error) {
	size := r.table.Segments[i].Len
	r.mu.Lock()
	buf := r.kept[i]
	delete(r.kept, i)
	r.mu.Unlock()
	if buf == nil {
		buf = scratch.Get().(*[]byte)
		if err := r.assemble(ctx, (*buf)[:size], i, i+1); err != nil {
			scratch.Put(buf)
			return 0, err
		}
	}
	n := copy(p, (*buf)[off-r.starts[i]:size])
	if off+int64(n) == r.starts[i+1] || !r.keep(i, buf) {
		scratch.Put(buf)
	}
	return n, nil
}

// maxKept bounds the number of segments of which a part was read and that are kept for the
// rest.
const maxKept = 32

// keep keeps segment i, of which a part was read. It reports false if it does not.
func (r *Reader) keep(i int, buf *[]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) >= maxKept || r.kept[i] != nil || r.closed {
		return false
	}
	if r.kept == nil {
		r.kept = map[int]*[]byte{}
	}
	r.kept[i] = buf
	return true
}

// plainBytes is the length from which a range that is stored as it is gets a read of its
// own.
const plainBytes = 1 << 20

// scratch has buffers for one segment.
var scratch = sync.Pool{New: func() any { b := make([]byte, segment.MaxLen); return &b }}

// plain returns how many of the n bytes from off on are stored as they are, in one range of
// a file, and where. i is the segment that holds off.
func (r *Reader) plain(off, n int64, i int) (length int64, file int, at int64) {
	for ; length < n && i < len(r.table.Segments); i++ {
		s := &r.table.Segments[i]
		if len(s.Bodies) != 1 || s.Bodies[0].Kind != Whole {
			break
		}
		skip := off + length - r.starts[i]
		b := &s.Bodies[0]
		if length == 0 {
			file, at = b.File, b.Off+skip
		} else if b.File != file || b.Off != at+length {
			break
		}
		length += int64(s.Len) - skip
	}
	return min(length, n), file, at
}

// Cached implements blob.DirectReader.
func (r *Reader) Cached(off, n int64) bool {
	if off < 0 || n <= 0 || off > r.table.Size-n {
		return true
	}
	if r.segs != nil {
		return true
	}
	m, file, at := r.plain(off, n, r.segmentAt(off))
	d, ok := r.direct(file)
	return m < n || !ok || d.Cached(at, n)
}

// direct returns the reader of a file if it can read past the system's cache.
func (r *Reader) direct(file int) (blob.DirectReader, bool) {
	f, err := r.files[file].reader(context.Background()) // it is open
	if err != nil {
		return nil, false
	}
	if b, ok := f.(*besideReader); ok {
		f = b.Reader
	}
	d, ok := f.(blob.DirectReader)
	return d, ok
}

// ReadDirect implements blob.DirectReader.
func (r *Reader) ReadDirect(ctx context.Context, buf []byte, off, n int64) ([]byte, error) {
	if off >= 0 && n > 0 && off <= r.table.Size-n && r.segs == nil {
		if m, file, at := r.plain(off, n, r.segmentAt(off)); m == n {
			if d, ok := r.direct(file); ok {
				r.read.Add(n)
				return d.ReadDirect(ctx, buf, at, n)
			}
		}
	}
	return buf[:n], r.ReadAt(ctx, buf[:n], off)
}

// piece is a body on its way into a segment.
type piece struct {
	*Body
	seg  int // position of the segment
	nth  int // which of its bodies it is
	code []byte
}

// joinGap is the largest hole between two bodies that is read rather than skipped, and
// joinBytes bounds the bytes that are read at once.
const (
	joinGap   = 32 << 10
	joinBytes = 4 << 20
)

// stepBytes is how many bytes of a local file are read before they are patched. They are
// then still in the processor's cache.
const stepBytes = 512 << 10

// assemble fills p with the segments from i to j.
func (r *Reader) assemble(ctx context.Context, p []byte, i, j int) error {
	var pieces []piece
	for k := i; k < j; k++ {
		s := &r.table.Segments[k]
		for n := range s.Bodies {
			if b := &s.Bodies[n]; b.Kind != Whole {
				pieces = append(pieces, piece{Body: b, seg: k, nth: n})
			}
		}
	}
	free, err := r.fetch(ctx, pieces)
	defer free()
	if err != nil {
		return err
	}
	slices.SortFunc(pieces, func(a, b piece) int { return cmp.Or(cmp.Compare(a.seg, b.seg), cmp.Compare(a.nth, b.nth)) })
	for base := r.starts[i]; i < j; {
		// A range that is stored as it is, and the patches of its segments.
		b, n, first := &r.table.Segments[i].Bodies[0], int64(0), i
		for i < j && (r.slow || n < stepBytes) {
			c := &r.table.Segments[i].Bodies[0]
			if c.File != b.File || c.Off != b.Off+n {
				break
			}
			n += int64(c.Len)
			i++
		}
		at := r.starts[first] - base
		if err := r.files[b.File].ReadAt(ctx, p[at:at+n], b.Off); err != nil {
			return err
		}
		for ; len(pieces) > 0 && pieces[0].seg < i; pieces = pieces[1:] {
			q := &pieces[0]
			s := &r.table.Segments[q.seg]
			at := r.starts[q.seg] - base
			if err := segment.Patch(p[at:at+int64(s.Len)], q.code, s.Width); err != nil {
				return fmt.Errorf("%w: %s: the segment at %d: %w", storage.ErrCorrupt, r.name, r.starts[q.seg], err)
			}
		}
	}
	return nil
}

// fetch reads the codes of pieces, neighbours at once. The caller calls free when it does
// not need them any more.
func (r *Reader) fetch(ctx context.Context, pieces []piece) (free func(), err error) {
	var lent []*[]byte
	free = func() {
		for _, b := range lent {
			codes.Put(b)
		}
	}
	slices.SortFunc(pieces, func(a, b piece) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Off, b.Off)) })
	for k := 0; k < len(pieces); {
		first := &pieces[k]
		end, n := first.Off+int64(first.Len), k+1
		for n < len(pieces) && pieces[n].File == first.File && pieces[n].Off <= end+joinGap && pieces[n].Off+int64(pieces[n].Len)-first.Off <= joinBytes {
			end = max(end, pieces[n].Off+int64(pieces[n].Len))
			n++
		}
		buf := codes.Get().(*[]byte)
		lent = append(lent, buf)
		*buf = slices.Grow((*buf)[:0], int(end-first.Off))[:end-first.Off]
		if err := r.files[first.File].ReadAt(ctx, *buf, first.Off); err != nil {
			return free, err
		}
		for ; k < n; k++ {
			at := pieces[k].Off - first.Off
			pieces[k].code = (*buf)[at : at+int64(pieces[k].Len)]
		}
	}
	return free, nil
}

// codes has buffers for codes.
var codes = sync.Pool{New: func() any { return new([]byte) }}

// Origins returns the files that hold the n bytes from off on, apart from the delta file
// itself, as folder/name.
func (r *Reader) Origins(off, n int64) []string {
	var out []string
	for i := r.segmentAt(off); i < len(r.table.Segments) && r.starts[i] < off+n; i++ {
		for _, b := range r.table.Segments[i].Bodies {
			if b.File > 0 {
				f := &r.table.Files[b.File-1]
				out = append(out, f.Folder+"/"+f.Name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
