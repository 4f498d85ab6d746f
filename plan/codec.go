package plan

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// codecVersion is the first byte of every encoded plan. It makes ranks that run
// different builds fail with a clear error.
const codecVersion = 3

// SavePlanCodec encodes and decodes the save plans that ranks send to each other. It
// is safe for concurrent use. The zero value is ready for use. A codec from
// [NewSavePlanCodec] saves time and memory if many plans have equal descriptions.
type SavePlanCodec struct{ known *descriptions }

// descriptions are the descriptions that a codec has decoded.
type descriptions struct {
	mu      sync.RWMutex
	infos   map[string]*Info // by their record; guarded by mu
	records map[*Info]string // the inverse; guarded by mu
}

// NewSavePlanCodec returns a codec for the plans of many ranks: the plans that it
// decodes share equal descriptions, each of type [Info], and it does not encode
// these again.
func NewSavePlanCodec() SavePlanCodec {
	return SavePlanCodec{&descriptions{infos: map[string]*Info{}, records: map[*Info]string{}}}
}

// Encode encodes p. The error wraps ErrProtocol if an item has no description, or a
// box with different numbers of offsets and sizes.
func (c SavePlanCodec) Encode(p *SavePlan) ([]byte, error) {
	if c.known != nil {
		c.known.mu.RLock() // once for the whole plan
		defer c.known.mu.RUnlock()
	}

	w := wire.Writer{B: make([]byte, 0, 64+64*len(p.Items))}
	w.Byte(codecVersion)
	w.Bool(p.Unchanged)
	w.B = append(w.B, p.Fingerprint[:]...)
	w.Bytes(p.PlannerData)
	w.Bytes(p.StorageData)
	w.Uvarint(uint64(len(p.Absent)))

	for _, fqn := range p.Absent {
		w.String(fqn)
	}

	w.Uvarint(uint64(len(p.Values)))
	for _, v := range p.Values {
		w.String(v.FQN)
		w.U64(v.Hash)
	}

	w.Uvarint(uint64(len(p.Items)))
	var last *Info
	for i := range p.Items {
		it := &p.Items[i]
		if it.Info == nil || len(it.Box.Offsets) != len(it.Box.Sizes) {
			return nil, fmt.Errorf("%w: item %d of the plan has no description or no box", ErrProtocol, i)
		}

		w.Bool(it.Info == last)
		if it.Info != last {
			c.encodeInfo(&w, it.Info)
			last = it.Info
		}
		encodeItem(&w, it)
	}

	return w.B, nil
}

// The flags of an item, with its alias in the bits above them.
const (
	flagReplicated = 1 << iota
	flagMayDiffer
)

// encodeItem writes an item without its description.
func encodeItem(w *wire.Writer, it *WriteItem) {
	w.Byte(byte(it.Kind))
	w.Varint(int64(it.Hint))
	w.Uvarint(uint64(it.Size))

	flags := uint64(it.Alias) << 2
	if it.Replicated {
		flags |= flagReplicated
	}
	if it.MayDiffer {
		flags |= flagMayDiffer
	}

	w.Uvarint(flags)
	encodeInts(w, it.Box.Offsets)
	for _, n := range it.Box.Sizes {
		w.Varint(n)
	}
}

// encodeInfo writes in as bytes with their length, so that equal descriptions can be
// recognised by their bytes.
func (c SavePlanCodec) encodeInfo(w *wire.Writer, in *Info) {
	if c.known != nil {
		if record, ok := c.known.records[in]; ok {
			w.String(record)
			return
		}
	}
	r := wire.Writer{B: make([]byte, 0, 128)}
	encodeRecord(&r, in)
	w.Bytes(r.B)
}

func encodeRecord(w *wire.Writer, in *Info) {
	w.String(in.FQN)
	w.Bool(in.Path != nil)
	if in.Path != nil {
		w.Uvarint(uint64(len(in.Path)))
	}

	for _, s := range in.Path {
		w.Bool(s.List)
		w.Bool(s.Int)
		w.String(s.Key)
		w.Varint(int64(s.Pos))
	}

	w.Byte(byte(in.DType))
	w.Bool(in.RequiresGrad)
	w.Bool(in.PinMemory)
	w.String(in.MemoryFormat)
	w.String(in.Layout)
	w.String(in.Codec)
	encodeInts(w, in.Shape)
}

func encodeInts(w *wire.Writer, v []int64) {
	w.Uvarint(uint64(len(v)))
	for _, n := range v {
		w.Varint(n)
	}
}

// Decode is the inverse of Encode. It refuses items that no planner could have made, such as
// an item with a box outside of its tensor; the error wraps wire.ErrMalformed.
func (c SavePlanCodec) Decode(b []byte) (*SavePlan, error) {
	if c.known == nil {
		c = NewSavePlanCodec()
	}
	c.known.mu.RLock() // once for the whole plan
	defer c.known.mu.RUnlock()

	r := wire.NewReader(b)
	checkVersion(r)
	p := &SavePlan{Unchanged: r.Bool()}
	copy(p.Fingerprint[:], r.Raw(len(p.Fingerprint)))
	p.PlannerData = append([]byte(nil), r.Bytes()...)
	p.StorageData = append([]byte(nil), r.Bytes()...)

	for range r.Count(1) {
		p.Absent = append(p.Absent, r.String())
	}

	for range r.Count(9) {
		p.Values = append(p.Values, ValueHash{FQN: r.String(), Hash: r.U64()})
	}

	n := r.Count(minItemBytes)
	p.Items = make([]WriteItem, 0, n)
	d := itemDecoder{ints: ints{r: r}, known: c.known}
	for range n {
		p.Items = append(p.Items, d.item())
	}

	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("save plan: %w", err)
	}
	return p, nil
}

func checkVersion(r *wire.Reader) {
	if v := r.Byte(); v != codecVersion {
		r.Fail("the plan has version %d; all ranks must run the same build", v)
	}
}

// minItemBytes is the smallest size of an encoded WriteItem.
const minItemBytes = 6

// itemDecoder decodes the items of one plan.
type itemDecoder struct {
	ints
	known *descriptions
	last  *Info
}

func (d *itemDecoder) item() WriteItem {
	r := d.r
	if !r.Bool() {
		d.last = d.info(r.Bytes())
	}

	if d.last == nil {
		r.Fail("the first item has no description")
		return WriteItem{}
	}

	it := WriteItem{Info: d.last, Kind: Kind(r.Byte()), Hint: decodeHint(r), Size: r.Size()}
	flags := r.Uvarint()
	if flags>>2 > math.MaxInt32 {
		r.Fail("alias %d does not fit in 31 bits", flags>>2)
	}

	it.Alias, it.Replicated, it.MayDiffer = int32(flags>>2), flags&flagReplicated != 0, flags&flagMayDiffer != 0
	n := r.CountMax(tensor.MaxDims)
	it.Box = tensor.Box{Offsets: d.take(n), Sizes: d.take(n)}

	if r.Err() == nil {
		if err := it.Check(); err != nil {
			r.Fail("%w", err)
		}
	}
	return it
}

// info returns the description that record encodes. Equal records have the same
// *Info.
func (d *itemDecoder) info(record []byte) *Info {
	if in, ok := d.known.infos[string(record)]; ok {
		return in
	}

	r := wire.NewReader(record)
	in := decodeInfo(r)
	if err := r.Done(); err != nil {
		d.r.Fail("description: %v", err)
		return nil
	}
	return d.known.add(string(record), in)
}

// add adds a description, unless another goroutine has added it, and returns the one
// to use. The caller holds the read lock, which add releases and takes again.
func (k *descriptions) add(record string, in *Info) *Info {
	k.mu.RUnlock()
	defer k.mu.RLock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if known, ok := k.infos[record]; ok {
		return known
	}
	k.infos[record], k.records[in] = in, record
	return in
}

func decodeInfo(r *wire.Reader) *Info {
	in := &Info{FQN: r.String()}
	if r.Bool() {
		n := r.Count(4)
		in.Path = make(meta.Path, 0, n)
		for range n {
			in.Path = append(in.Path, decodeStep(r))
		}
	}

	in.DType = tensor.DType(r.Byte())
	in.RequiresGrad = r.Bool()
	in.PinMemory = r.Bool()
	in.MemoryFormat = r.String()
	in.Layout = r.String()
	in.Codec = r.String()
	shape := ints{r: r}
	in.Shape = shape.list()
	return in
}

func decodeStep(r *wire.Reader) meta.Step {
	s := meta.Step{List: r.Bool(), Int: r.Bool(), Key: r.String(), Pos: int(r.Varint())}
	if err := s.Check(); s.Int && err != nil {
		r.Fail("%v", err)
	}
	return s
}

func decodeHint(r *wire.Reader) int32 {
	v := r.Varint()
	if int64(int32(v)) != v {
		r.Fail("hint %d does not fit in 32 bits", v)
	}
	return int32(v)
}

// ints reads lists of numbers. Many lists share one allocation.
type ints struct {
	r    *wire.Reader
	slab []int64
}

// list reads a list that encodeInts wrote.
func (d *ints) list() []int64 { return d.take(d.r.CountMax(tensor.MaxDims)) }

// take reads n numbers. The list is nil only after an error: a nil offset and an
// empty offset have different meanings.
func (d *ints) take(n int) []int64 {
	if n == 0 {
		return []int64{}
	}
	if n > d.r.Len() { // each number takes at least one byte
		d.r.Fail("%d numbers in %d bytes", n, d.r.Len())
		return nil
	}

	if len(d.slab) < n {
		d.slab = make([]int64, max(n, min(4096, d.r.Len())))
	}

	out := d.slab[:n:n]
	d.slab = d.slab[n:]
	for i := range out {
		out[i] = d.r.Varint()
	}

	return out
}

// LoadPlanCodec encodes and decodes the load plans that ranks send to each other.
type LoadPlanCodec struct{}

// Encode encodes p.
func (LoadPlanCodec) Encode(p *LoadPlan) ([]byte, error) {
	w := wire.Writer{B: make([]byte, 0, 64+48*len(p.Items))}
	w.Byte(codecVersion)
	w.Bytes(p.PlannerData)
	w.Bytes(p.StorageData)
	w.Uvarint(uint64(len(p.Items)))

	for i := range p.Items {
		it := &p.Items[i]
		w.Byte(byte(it.Kind))
		encodeIndex(&w, it.Dest)
		encodeIndex(&w, it.Source)
		encodeInts(&w, it.DestOffsets)
		encodeInts(&w, it.SourceOffsets)
		encodeInts(&w, it.Lengths)
	}

	return w.B, nil
}

func encodeIndex(w *wire.Writer, i meta.Index) {
	w.String(i.FQN)
	w.Bool(i.Offset != nil)
	if i.Offset != nil {
		encodeInts(w, i.Offset)
	}
	w.Varint(int64(i.Hint))
}

// Decode is the inverse of Encode. It refuses items that no planner could have
// made; the error wraps wire.ErrMalformed.
func (LoadPlanCodec) Decode(b []byte) (*LoadPlan, error) {
	r := wire.NewReader(b)
	checkVersion(r)
	p := &LoadPlan{PlannerData: append([]byte(nil), r.Bytes()...), StorageData: append([]byte(nil), r.Bytes()...)}
	n := r.Count(minReadBytes)
	p.Items = make([]ReadItem, 0, n)
	d := ints{r: r}
	for range n {
		p.Items = append(p.Items, d.item())
	}

	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("load plan: %w", err)
	}
	return p, nil
}

// minReadBytes is the smallest size of an encoded ReadItem.
const minReadBytes = 10

func (d *ints) item() ReadItem {
	r := d.r
	it := ReadItem{
		Kind: Kind(r.Byte()), Dest: d.index(), Source: d.index(),
		DestOffsets: d.list(), SourceOffsets: d.list(), Lengths: d.list(),
	}
	switch {
	case r.Err() != nil:
	case it.Kind != KindTensor && it.Kind != KindBytes:
		r.Fail("%q: unknown kind %d", it.Dest.FQN, it.Kind)
	case len(it.DestOffsets) != len(it.Lengths) || len(it.SourceOffsets) != len(it.Lengths):
		r.Fail("%q: offsets and lengths have different numbers of dimensions", it.Dest.FQN)
	case slices.ContainsFunc(it.DestOffsets, negative) || slices.ContainsFunc(it.SourceOffsets, negative):
		r.Fail("%q: a negative offset", it.Dest.FQN)
	default:
		if _, err := tensor.NumElements(it.Lengths); err != nil {
			r.Fail("%q: %v", it.Dest.FQN, err)
		}
	}

	return it
}

func negative(n int64) bool { return n < 0 }

func (d *ints) index() meta.Index {
	i := meta.Index{FQN: d.r.String()}
	if d.r.Bool() {
		i.Offset = d.list()
	}
	i.Hint = decodeHint(d.r)
	return i
}

// SharedReadsCodec encodes and decodes the SharedReads that rank 0 sends to the
// other ranks.
type SharedReadsCodec struct{}

// Encode encodes s. If a piece goes to the same ranks as the piece before it, the
// ranks are not repeated.
func (SharedReadsCodec) Encode(s *SharedReads) ([]byte, error) {
	w := wire.Writer{B: make([]byte, 0, 16+8*len(s.Pieces))}
	w.Byte(codecVersion)
	w.Uvarint(uint64(len(s.Pieces)))
	var last Piece
	for _, c := range s.Pieces {
		w.Varint(c.ID - last.ID)
		w.Uvarint(uint64(c.Item))
		w.Uvarint(uint64(c.Rows[0]))
		w.Uvarint(uint64(c.Rows[1]))
		w.Uvarint(uint64(c.Reader))

		same := slices.Equal(c.To, last.To)
		w.Bool(same)
		if !same {
			w.Uvarint(uint64(len(c.To)))
			for _, r := range c.To {
				w.Uvarint(uint64(r))
			}
		}
		last = c
	}

	w.Uvarint(uint64(len(s.Strips)))
	for i := range s.Strips {
		c := &s.Strips[i]
		encodeIndex(&w, c.Source)
		encodeInts(&w, c.Offsets)
		encodeInts(&w, c.Lengths)
		w.Uvarint(uint64(len(c.Parts)))

		for _, p := range c.Parts {
			w.Uvarint(uint64(p.ID))
			w.Uvarint(uint64(p.To))
			encodeInts(&w, p.Offsets)
			encodeInts(&w, p.Lengths)
		}
	}

	return w.B, nil
}

// minStripBytes and minPartBytes are the smallest sizes of an encoded Strip and StripPart.
const minStripBytes, minPartBytes = 6, 4

// minPieceBytes is the smallest size of an encoded Piece.
const minPieceBytes = 6

// Decode is the inverse of Encode. The error wraps wire.ErrMalformed. Decode does
// not compare the pieces with a plan; [SharedReads.Check] does.
func (SharedReadsCodec) Decode(b []byte) (*SharedReads, error) {
	r := wire.NewReader(b)
	checkVersion(r)
	n := r.Count(minPieceBytes)
	s := &SharedReads{Pieces: make([]Piece, 0, n)}
	var last Piece
	for range n {
		last = Piece{
			ID: last.ID + r.Varint(), Item: r.CountMax(math.MaxInt32), Rows: [2]int64{r.Size(), r.Size()},
			Reader: r.CountMax(math.MaxInt32), To: last.To,
		}
		if !r.Bool() {
			last.To = nil
			for range r.Count(1) {
				last.To = append(last.To, r.CountMax(math.MaxInt32))
			}
		}

		s.Pieces = append(s.Pieces, last)
	}

	d := ints{r: r}
	for range r.Count(minStripBytes) {
		c := Strip{Source: d.index(), Offsets: d.list(), Lengths: d.list()}
		for range r.Count(minPartBytes) {
			c.Parts = append(c.Parts, StripPart{ID: r.Size(), To: r.CountMax(math.MaxInt32), Offsets: d.list(), Lengths: d.list()})
		}
		s.Strips = append(s.Strips, c)
	}

	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("shared reads: %w", err)
	}
	return s, nil
}
