package plan

import (
	"fmt"

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
	encodeInts(w, i.Offset)
	w.Varint(int64(i.Hint))
}

// Decode is the inverse of Encode.
func (LoadPlanCodec) Decode(b []byte) (*LoadPlan, error) {
	r := wire.NewReader(b)
	if v := r.Byte(); v != codecVersion {
		r.Fail("a plan of version %d; all ranks must run the same build", v)
	}
	p := &LoadPlan{PlannerData: clone(r.Bytes()), StorageData: clone(r.Bytes())}
	n := r.Count(12) // an item takes twelve bytes at least
	p.Items = make([]ReadItem, 0, n)
	for range n {
		p.Items = append(p.Items, decodeReadItem(r))
	}
	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("load plan: %w", err)
	}
	return p, nil
}

func decodeReadItem(r *wire.Reader) ReadItem {
	it := ReadItem{
		Kind: Kind(r.Byte()), Dest: decodeIndex(r), Source: decodeIndex(r),
		DestOffsets: decodeInts(r), SourceOffsets: decodeInts(r), Lengths: decodeInts(r),
	}
	if r.Err() != nil {
		return it
	}
	if it.Kind != KindTensor && it.Kind != KindBytes {
		r.Fail("kind %d", it.Kind)
	}
	if len(it.DestOffsets) != len(it.Lengths) || len(it.SourceOffsets) != len(it.Lengths) {
		r.Fail("%q: offsets and lengths of different dimensions", it.Dest.FQN)
	}
	if _, err := tensor.NumElements(it.Lengths); err != nil {
		r.Fail("%q: %v", it.Dest.FQN, err)
	}
	return it
}

func decodeIndex(r *wire.Reader) meta.Index {
	i := meta.Index{FQN: r.String()}
	has := r.Bool()
	i.Offset = decodeInts(r)
	if !has {
		i.Offset = nil
	}
	i.Hint = int32(r.Varint())
	return i
}
