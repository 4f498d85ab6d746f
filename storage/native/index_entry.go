package native

import (
	"math"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The first byte of an entry's body: its kind, and its path form shifted by
// one.
const (
	kindTensor = 0
	kindBytes  = 1
	kindMask   = 1
)

// The flags of a tensor.
const (
	flagRequiresGrad = 1 << iota
	flagPinMemory
	flagMemoryFormat // a string follows
	flagLayout       // a string follows
	flagOneKey       // every chunk has the key that follows
	flagKeys         // a key for each chunk follows, empty where it has none
	flagsKnown       = 1<<iota - 1
)

// Where the bytes of a value are.
const (
	bytesInline = 0
	bytesInFile = 1
	bytesKeyed  = 2 // in a file, under a key that follows
)

// entryDecoder decodes the bodies of entries. It cuts what it returns from
// slabs, so that an entry costs few allocations.
type entryDecoder struct {
	files []string
	// chunks counts the chunks of the tensors that were decoded.
	chunks int

	steps   slab[meta.Step]
	tensors slab[meta.Tensor]
	values  slab[meta.Bytes]
	boxes   slab[tensor.Box]
	locs    slab[meta.Location]
	details slab[meta.Detail]
	ints    slab[int64]
	sums    slab[uint32]

	scratch []int64
	words   map[string]string
}

// slab cuts slices off larger allocations.
type slab[T any] struct {
	free []T
	grow int // the least to allocate at once
}

// take returns a slice of n zero values. It is never nil.
func (s *slab[T]) take(n int) []T {
	if n > len(s.free) || s.free == nil {
		s.free = make([]T, max(n, s.grow))
	}
	out := s.free[:n:n]
	s.free = s.free[n:]
	return out
}

// newEntryDecoder returns a decoder for many entries.
func newEntryDecoder(files []string) *entryDecoder {
	const some, many = 64, 512
	d := &entryDecoder{files: files}
	d.steps.grow, d.tensors.grow, d.values.grow = many, many, some
	d.boxes.grow, d.locs.grow = many, many
	d.ints.grow, d.sums.grow = 4*many, many
	return d
}

// word returns the string of p, which is one of few.
func (d *entryDecoder) word(p []byte) string {
	if s, ok := d.words[string(p)]; ok {
		return s
	}
	if d.words == nil {
		d.words = make(map[string]string)
	}
	s := string(p)
	d.words[s] = s
	return s
}

// decode decodes body into e.
func (d *entryDecoder) decode(fqn string, body []byte, e *meta.Entry) error {
	r := wire.NewReader(body)
	head := r.Byte()
	e.FQN = fqn
	e.Path = d.path(r, pathForm(head>>1), fqn)
	if head&kindMask == kindTensor {
		e.Tensor = d.tensor(r)
	} else {
		e.Bytes = d.bytes(r)
	}
	return r.Done()
}

func (d *entryDecoder) tensor(r *wire.Reader) *meta.Tensor {
	t := &d.tensors.take(1)[0]
	t.DType = tensor.DType(r.Byte())
	flags := r.Byte()
	if flags&^flagsKnown != 0 || flags&flagOneKey != 0 && flags&flagKeys != 0 {
		r.Fail("the unknown flags %#x", flags)
	}
	t.RequiresGrad, t.PinMemory = flags&flagRequiresGrad != 0, flags&flagPinMemory != 0
	if flags&flagMemoryFormat != 0 {
		t.MemoryFormat = d.word(r.Bytes())
	}
	if flags&flagLayout != 0 {
		t.Layout = d.word(r.Bytes())
	}
	t.Shape = d.ints.take(r.CountMax(tensor.MaxDims))
	for i := range t.Shape {
		t.Shape[i] = r.Size()
	}
	n := r.Count(crcSize)
	if _, err := tensor.NumBytes(t.DType, t.Shape); err != nil {
		r.Fail("%w", err)
	}
	if r.Err() == nil && n > 0 {
		d.chunksOf(r, t, n, flags)
	}
	return t
}

// chunksOf reads the n chunks of t.
func (d *entryDecoder) chunksOf(r *wire.Reader, t *meta.Tensor, n int, flags byte) {
	dims := len(t.Shape)
	// Each chunk has a row of offsets and sizes; the columns of the file are
	// the columns of these rows.
	rows := d.ints.take(2 * dims * n)
	for i := range 2 * dims {
		readColumn(r, rows[i:], 2*dims, n)
	}
	d.scratch = slices.Grow(d.scratch[:0], 2*n)[:2*n]
	files, offsets := d.scratch[:n], d.scratch[n:]
	readColumn(r, files, 1, n)
	readColumn(r, offsets, 1, n)
	if r.Err() != nil {
		return
	}
	t.Chunks, t.Locs = d.boxes.take(n), d.locs.take(n)
	for c := range n {
		row := rows[2*dims*c:][: 2*dims : 2*dims]
		t.Chunks[c] = tensor.Box{Offsets: row[:dims:dims], Sizes: row[dims:]}
		t.Locs[c].Offset = offsets[c]
		t.Locs[c].File = d.file(r, files[c])
	}
	d.keys(r, t.Locs, flags)
	d.lengths(r, t)
	d.chunks += n
}

// file returns the name of file number n.
func (d *entryDecoder) file(r *wire.Reader, n int64) string {
	if n >= int64(len(d.files)) {
		r.Fail("file %d of %d", n, len(d.files))
		return ""
	}
	return d.files[n]
}

// keys reads the keys of the chunks at locs.
func (d *entryDecoder) keys(r *wire.Reader, locs []meta.Location, flags byte) {
	if flags&flagOneKey != 0 {
		detail := d.detail(r.String())
		for i := range locs {
			locs[i].Detail = detail
		}
	}
	if flags&flagKeys != 0 {
		for i := range locs {
			locs[i].Detail = d.detail(r.String())
		}
	}
}

// detail returns the detail of a key, nil for none.
func (d *entryDecoder) detail(key string) *meta.Detail {
	if key == "" {
		return nil
	}
	detail := &d.details.take(1)[0]
	detail.Key = key
	return detail
}

// lengths checks the chunks of t, fills in their lengths and reads their
// checksums, which are all that is left of the entry.
func (d *entryDecoder) lengths(r *wire.Reader, t *meta.Tensor) {
	sums := sumReader{r: r, all: d.sums.take(r.Len() / crcSize)}
	var length, tiles int64
	for c := range t.Chunks {
		b, l := t.Chunks[c], &t.Locs[c]
		if err := b.Check(t.Shape); err != nil {
			r.Fail("chunk %d: %w", c, err)
			return
		}
		if c == 0 || !slices.Equal(b.Sizes, t.Chunks[c-1].Sizes) {
			length = b.Volume() * int64(t.DType.Size())
			tiles = sums.count(b.Sizes, length, t.DType.Size())
		}
		if !setLength(r, l, length) {
			return
		}
		l.Sums = sums.take(tiles)
	}
}

// setLength sets l's length, unless its end overflows.
func setLength(r *wire.Reader, l *meta.Location, length int64) bool {
	if l.Offset > math.MaxInt64-length {
		r.Fail("%d bytes at %d", length, l.Offset)
		return false
	}
	l.Length = length
	return r.Err() == nil
}

func (d *entryDecoder) bytes(r *wire.Reader) *meta.Bytes {
	v := &d.values.take(1)[0]
	v.Codec = d.word(r.Bytes())
	where := r.Byte()
	switch where {
	case bytesInline:
		p := r.Bytes()
		v.Inline = append(make([]byte, 0, len(p)), p...)
		v.Size = int64(len(p))
		return v
	case bytesInFile, bytesKeyed:
	default:
		r.Fail("the unknown place %d", where)
		return v
	}
	v.Size = r.Size()
	v.Loc.File = d.file(r, r.Size())
	v.Loc.Offset = r.Size()
	if where == bytesKeyed {
		v.Loc.Detail = d.detail(r.String())
	}
	if setLength(r, &v.Loc, v.Size) {
		sums := sumReader{r: r, all: d.sums.take(r.Len() / crcSize)}
		v.Loc.Sums = sums.take(sums.count([]int64{v.Size}, v.Size, 1))
	}
	return v
}

// sumReader reads the checksums at the end of an entry.
type sumReader struct {
	r   *wire.Reader
	all []uint32 // where they go
}

// count returns the number of checksums of a chunk of the given sizes, or fails
// where the entry cannot have so many. No tile is larger than stripeBytes, so
// absurd sizes are refused before the grid is computed from them.
func (s *sumReader) count(sizes []int64, length int64, elem int) int64 {
	if length/stripeBytes > int64(s.r.Len()/crcSize) {
		s.r.Fail("no checksums for %d bytes", length)
		return 0
	}
	return gridOf(sizes, int64(elem)).tiles()
}

// take reads the n checksums of a chunk. A chunk without bytes has the checksum
// of nothing in the file, so that every chunk has a part in it and few bytes
// cannot stand for many chunks.
func (s *sumReader) take(n int64) []uint32 {
	if n == 0 {
		if s.r.U32() != 0 {
			s.r.Fail("an empty chunk with a checksum")
		}
		return s.all[:0:0]
	}
	if n > int64(len(s.all)) {
		s.r.Fail("no checksums for a chunk")
		return nil
	}
	raw := s.r.Raw(int(n) * crcSize)
	if raw == nil {
		return nil
	}
	out := s.all[:n:n]
	s.all = s.all[n:]
	for i := range out {
		out[i] = leUint32(raw[i*crcSize:])
	}
	return out
}
