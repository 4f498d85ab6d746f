package plan

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// LoadPlanCodec carries load plans between ranks.
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
	p := &LoadPlan{PlannerData: clone(r.Bytes()), StorageData: clone(r.Bytes())}
	n := r.Count(minReadBytes)
	p.Items = make([]ReadItem, 0, n)
	d := readDecoder{ints{r: r}}
	for range n {
		p.Items = append(p.Items, d.item())
	}
	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("load plan: %w", err)
	}
	return p, nil
}

// minReadBytes is the least that an encoded item takes.
const minReadBytes = 10

// readDecoder decodes the items of one plan.
type readDecoder struct{ ints }

func (d *readDecoder) item() ReadItem {
	r := d.r
	it := ReadItem{
		Kind: Kind(r.Byte()), Dest: d.index(), Source: d.index(),
		DestOffsets: d.list(), SourceOffsets: d.list(), Lengths: d.list(),
	}
	switch {
	case r.Err() != nil:
	case it.Kind != KindTensor && it.Kind != KindBytes:
		r.Fail("%q: kind %d", it.Dest.FQN, it.Kind)
	case len(it.DestOffsets) != len(it.Lengths) || len(it.SourceOffsets) != len(it.Lengths):
		r.Fail("%q: offsets and lengths of different dimensions", it.Dest.FQN)
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

func (d *readDecoder) index() meta.Index {
	i := meta.Index{FQN: d.r.String()}
	if d.r.Bool() {
		i.Offset = d.list()
	}
	i.Hint = decodeHint(d.r)
	return i
}
