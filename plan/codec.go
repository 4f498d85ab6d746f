package plan

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// codecVersion stands at the head of every encoded plan, so that ranks that run
// different builds fail with a clear error.
const codecVersion = 1

// SavePlanCodec carries save plans between ranks. A codec that decodes several
// plans lets them share what is equal in them, so the coordinator uses one for
// all; such use must not be concurrent. The zero value is ready.
type SavePlanCodec struct {
	infos map[string]*Info
}

// NewSavePlanCodec returns a codec that shares equal parts of the plans it
// decodes.
func NewSavePlanCodec() SavePlanCodec { return SavePlanCodec{infos: map[string]*Info{}} }

// Encode encodes p.
func (c SavePlanCodec) Encode(p *SavePlan) ([]byte, error) {
	w := wire.Writer{B: make([]byte, 0, 64+48*len(p.Items))}
	w.Byte(codecVersion)
	w.Bool(p.Unchanged)
	w.B = append(w.B, p.Fingerprint[:]...)
	w.Bytes(p.PlannerData)
	w.Bytes(p.StorageData)
	w.Uvarint(uint64(len(p.Items)))
	var last *Info
	for i := range p.Items {
		it := &p.Items[i]
		if it.Info == nil {
			return nil, fmt.Errorf("%w: item %d has no description", ErrState, i)
		}
		encodeItem(&w, it, it.Info == last)
		last = it.Info
	}
	return w.B, nil
}

func encodeItem(w *wire.Writer, it *WriteItem, sameInfo bool) {
	w.Bool(sameInfo)
	if !sameInfo {
		encodeInfo(w, it.Info)
	}
	w.Byte(byte(it.Kind))
	w.Varint(int64(it.Hint))
	w.Uvarint(uint64(it.Size))
	encodeBox(w, it.Box)
}

// encodeInfo writes in as one length-prefixed record, so that equal records can
// be recognised by their bytes.
func encodeInfo(w *wire.Writer, in *Info) {
	var r wire.Writer
	r.String(in.FQN)
	r.Bool(in.Path != nil)
	r.Uvarint(uint64(len(in.Path)))
	for _, s := range in.Path {
		r.Bool(s.List)
		r.String(s.Key)
		r.Varint(int64(s.Pos))
	}
	r.Byte(byte(in.DType))
	r.Bool(in.RequiresGrad)
	r.Bool(in.PinMemory)
	r.String(in.MemoryFormat)
	r.String(in.Layout)
	r.String(in.Codec)
	encodeInts(&r, in.Shape)
	w.Bytes(r.B)
}

func encodeInts(w *wire.Writer, v []int64) {
	w.Uvarint(uint64(len(v)))
	for _, n := range v {
		w.Varint(n)
	}
}

func encodeBox(w *wire.Writer, b tensor.Box) {
	w.Uvarint(uint64(len(b.Sizes)))
	for _, n := range b.Offsets {
		w.Varint(n)
	}
	for _, n := range b.Sizes {
		w.Varint(n)
	}
}

// Decode is the inverse of Encode.
func (c SavePlanCodec) Decode(b []byte) (*SavePlan, error) {
	if c.infos == nil {
		c = NewSavePlanCodec()
	}
	r := wire.NewReader(b)
	if v := r.Byte(); v != codecVersion {
		r.Fail("a plan of version %d; all ranks must run the same build", v)
	}
	p := &SavePlan{Unchanged: r.Bool()}
	copy(p.Fingerprint[:], r.Raw(len(p.Fingerprint)))
	p.PlannerData = clone(r.Bytes())
	p.StorageData = clone(r.Bytes())
	n := r.Count(5) // an item takes five bytes at least
	p.Items = make([]WriteItem, 0, n)
	d := itemDecoder{r: r, infos: c.infos}
	for range n {
		p.Items = append(p.Items, d.item())
	}
	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("save plan: %w", err)
	}
	return p, nil
}

// itemDecoder decodes the items of one plan.
type itemDecoder struct {
	r     *wire.Reader
	infos map[string]*Info
	last  *Info
	slab  []int64
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
	it := WriteItem{Info: d.last, Kind: Kind(r.Byte()), Hint: int32(r.Varint()), Size: int64(r.Uvarint())}
	n := r.CountMax(tensor.MaxDims)
	if 2*n > r.Len() {
		r.Fail("a box of %d dimensions in %d bytes", n, r.Len())
		return it
	}
	it.Box = tensor.Box{Offsets: d.ints(n), Sizes: d.ints(n)}
	d.check(&it)
	return it
}

// check refuses what a planner could not have said.
func (d *itemDecoder) check(it *WriteItem) {
	switch {
	case d.r.Err() != nil:
	case it.Kind == KindBytes:
		if it.Size < 0 || it.Box.Dims() != 0 {
			d.r.Fail("a value of %d bytes with %d dimensions", it.Size, it.Box.Dims())
		}
	case it.Kind == KindTensor || it.Kind == KindShard:
		if _, err := tensor.NumBytes(it.Info.DType, it.Info.Shape); err != nil {
			d.r.Fail("%q: %v", it.Info.FQN, err)
		} else if err := it.Box.Check(it.Info.Shape); err != nil {
			d.r.Fail("%q: %v", it.Info.FQN, err)
		}
	default:
		d.r.Fail("kind %d", it.Kind)
	}
}

// ints reads n numbers into memory shared by many boxes.
func (d *itemDecoder) ints(n int) []int64 {
	if len(d.slab) < n {
		d.slab = make([]int64, max(n, 4096))
	}
	out := d.slab[:n:n]
	d.slab = d.slab[n:]
	for i := range out {
		out[i] = d.r.Varint()
	}
	return out
}

// info returns the description that record encodes, shared with equal ones.
func (d *itemDecoder) info(record []byte) *Info {
	if in, ok := d.infos[string(record)]; ok {
		return in
	}
	r := wire.NewReader(record)
	in := decodeInfo(r)
	if err := r.Done(); err != nil {
		d.r.Fail("description: %v", err)
		return nil
	}
	d.infos[string(record)] = in
	return in
}

func decodeInfo(r *wire.Reader) *Info {
	in := &Info{FQN: r.String()}
	hasPath := r.Bool()
	n := r.Count(3)
	if hasPath {
		in.Path = make(meta.Path, 0, n)
	}
	for range n {
		in.Path = append(in.Path, meta.Step{List: r.Bool(), Key: r.String(), Pos: int(r.Varint())})
	}
	in.DType = tensor.DType(r.Byte())
	in.RequiresGrad = r.Bool()
	in.PinMemory = r.Bool()
	in.MemoryFormat = r.String()
	in.Layout = r.String()
	in.Codec = r.String()
	in.Shape = decodeInts(r)
	return in
}

func decodeInts(r *wire.Reader) []int64 {
	n := min(r.CountMax(tensor.MaxDims), r.Len())
	out := make([]int64, n)
	for i := range out {
		out[i] = r.Varint()
	}
	return out
}

// clone copies bytes out of the message, so that it can be freed; none are nil.
func clone(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return append([]byte(nil), b...)
}
