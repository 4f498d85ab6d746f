package native

import (
	"fmt"
	"math"
	"slices"
	"strconv"

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
	flagKeys         // a key for each chunk follows, empty if it has no key
	flagStorageData  // storage data for each chunk follows, empty if it has no data
	flagsKnown       = 1<<iota - 1
)

// The places of the bytes of a value.
const (
	bytesInline = 0
	bytesInFile = 1
	bytesKeyed  = 2 // in a file, under a key that follows
	bytesData   = 3 // storage data follows, and then one of the other places
)

// entryDecoder decodes the bodies of entries. It cuts its results from slabs, so that an
// entry costs few allocations.
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

// word returns p as a string. Few different strings occur, so it allocates each once.
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
	if flags&flagStorageData != 0 {
		for i := range t.Locs {
			setStorageData(&t.Locs[i], r.Bytes())
		}
	}

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

// detail returns the detail of a key, or nil.
func (d *entryDecoder) detail(key string) *meta.Detail {
	if key == "" {
		return nil
	}
	detail := &d.details.take(1)[0]
	detail.Key = key
	return detail
}

// setStorageData sets a copy of the storage data of l, unless it is empty.
func setStorageData(l *meta.Location, data []byte) {
	if len(data) > 0 {
		l.SetStorageData(slices.Clone(data))
	}
}

// lengths checks the chunks of t, sets their lengths and reads their checksums, which
// are the rest of the entry.
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
	var data []byte
	if where == bytesData {
		data, where = r.Bytes(), r.Byte()
	}
	defer func() { setStorageData(&v.Loc, data) }()

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
	all []uint32 // receives them
}

// count returns the number of checksums of a chunk of the given sizes, or fails
// if the entry cannot hold that number. No tile is larger than stripeBytes, so
// absurd sizes are refused before the grid is computed from them.
func (s *sumReader) count(sizes []int64, length int64, elem int) int64 {
	if length/stripeBytes > int64(s.r.Len()/crcSize) {
		s.r.Fail("no checksums for %d bytes", length)
		return 0
	}
	return gridOf(sizes, int64(elem)).tiles()
}

// take reads the n checksums of a chunk. For a chunk without bytes, the file holds one
// checksum, zero. So every chunk takes at least crcSize bytes, and a short input cannot
// decode to many chunks.
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

// pathForm says how an entry's path is stored.
type pathForm byte

const (
	// pathNone: there is no path.
	pathNone pathForm = 0
	// pathName: the path has one step, a key that equals the name.
	pathName pathForm = 1
	// pathCut: the path is the name, cut at some of its dots. The lengths of the
	// parts are stored, so a path of n steps takes about n bytes.
	pathCut pathForm = 2
	// pathSteps: the path cannot be derived from the name, so its steps are stored.
	pathSteps pathForm = 3
	// pathCutInts and pathStepsInts are the same for paths with integer keys: the kind
	// of a step takes two bits instead of one.
	pathCutInts   pathForm = 4
	pathStepsInts pathForm = 5
)

// The kinds of steps.
const (
	stepKey = iota
	stepPos
	stepInt
)

// pathFormOf returns the shortest form of the path of an entry.
func pathFormOf(fqn string, p meta.Path) pathForm {
	ints := slices.ContainsFunc(p, func(s meta.Step) bool { return s.Int })
	switch {
	case len(p) == 0:
		return pathNone
	case len(p) == 1 && p[0] == meta.Key(fqn):
		return pathName
	case p.FQN() == fqn && ints:
		return pathCutInts
	case p.FQN() == fqn:
		return pathCut
	case ints:
		return pathStepsInts
	}

	return pathSteps
}

// cut reports whether the steps are parts of the name.
func (f pathForm) cut() bool { return f == pathCut || f == pathCutInts }

// bits returns how many bits of a step's number are its kind.
func (f pathForm) bits() int {
	if f == pathCutInts || f == pathStepsInts {
		return 2
	}
	return 1
}

// putPath writes p in its form. A step is a length or a position, and in the
// lowest bits its kind.
func putPath(w *wire.Writer, form pathForm, p meta.Path) error {
	if form == pathNone || form == pathName {
		return nil
	}

	w.Uvarint(uint64(len(p)))
	for _, s := range p {
		if err := s.Check(); err != nil {
			return err
		}

		n, kind := uint64(len(s.String())), uint64(stepKey)
		switch {
		case s.List && !form.cut():
			n, kind = uint64(s.Pos), stepPos
		case s.List:
			kind = stepPos
		case s.Int:
			kind = stepInt
		}

		if n<<form.bits()>>form.bits() != n {
			return fmt.Errorf("position %d in its path", n)
		}

		w.Uvarint(n<<form.bits() | kind)
		if !form.cut() && !s.List {
			w.B = append(w.B, s.Key...)
		}
	}

	return nil
}

// path reads the path that putPath wrote for the entry called fqn.
func (d *entryDecoder) path(r *wire.Reader, form pathForm, fqn string) meta.Path {
	switch {
	case form == pathNone:
		return nil
	case form == pathName:
		p := d.steps.take(1)
		p[0] = meta.Key(fqn)
		return p
	case form > pathStepsInts:
		r.Fail("the unknown path form %d", form)
		return nil
	}

	p := d.steps.take(r.Count(1))
	if len(p) == 0 {
		r.Fail("a path without steps")
	}

	rest := fqn
	for i := range p {
		v := r.Uvarint()
		n, kind := v>>form.bits(), v&(1<<form.bits()-1)
		var text string
		switch last := i == len(p)-1; {
		case !form.cut() && kind == stepPos:
			text = strconv.FormatUint(n, 10)
		case !form.cut() && n > uint64(r.Len()):
			r.Fail("a key of %d bytes, %d left", n, r.Len())
		case !form.cut():
			text = string(r.Raw(int(n)))
		case n > uint64(len(rest)) || last != (n == uint64(len(rest))) || !last && rest[n] != '.':
			r.Fail("a path that does not cut %q at its dots", fqn)
		case last:
			text = rest
		default:
			text, rest = rest[:n], rest[n+1:]
		}

		if r.Err() != nil {
			return nil
		}
		p[i] = stepFrom(r, text, kind)
	}

	return p
}

// stepFrom returns the step of that kind with the text s.
func stepFrom(r *wire.Reader, s string, kind uint64) meta.Step {
	if kind == stepPos {
		pos, err := strconv.Atoi(s)
		if err != nil || pos < 0 || strconv.Itoa(pos) != s {
			r.Fail("%q is not a position in a list", s)
		}
		return meta.Pos(pos)
	}

	step := meta.Step{Key: s, Int: kind == stepInt}
	if kind > stepInt {
		r.Fail("a step of kind %d", kind)
	}
	if err := step.Check(); err != nil {
		r.Fail("%w", err)
	}
	return step
}

// putColumn writes n values, which are not negative, as pairs: the difference from the
// value before (zero before the first), and how often that difference repeats. For any
// number of chunks of equal size at regular offsets, two pairs are enough.
func putColumn(w *wire.Writer, n int, value func(i int) int64) {
	var prev, delta int64
	run := uint64(0)
	for i := range n {
		v := value(i)
		if run > 0 && v-prev != delta {
			w.Varint(delta)
			w.Uvarint(run)
			run = 0
		}
		delta, prev = v-prev, v
		run++
	}

	if run > 0 {
		w.Varint(delta)
		w.Uvarint(run)
	}
}

// readColumn reads n values that putColumn wrote into dst[0], dst[stride] and so on.
// The caller has bounded n by the length of the input. readColumn fails if a value is
// negative or overflows: in both cases the sum is negative, because the value before is
// not.
func readColumn(r *wire.Reader, dst []int64, stride, n int) {
	v, at := int64(0), 0
	for n > 0 {
		delta := r.Varint()
		run := r.CountMax(n)
		if run == 0 {
			r.Fail("a run of no values")
			return
		}

		n -= run
		for range run {
			v += delta
			if v < 0 {
				r.Fail("a negative value in a column")
				return
			}
			dst[at] = v
			at += stride
		}
	}
}
