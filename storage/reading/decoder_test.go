package reading

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// countingDecoder returns the numbers of the elements of a chunk of a shape.
type countingDecoder struct {
	shape []int64
	calls *atomic.Int64
	err   error
}

func (countingDecoder) Cut(box tensor.Box, _ int64) []tensor.Box { return []tensor.Box{box} }

func (m countingDecoder) Decode(_ context.Context, box tensor.Box, dst *tensor.Tensor, budget int64) (int64, error) {
	m.calls.Add(1)
	if budget < leastBytes {
		return 0, fmt.Errorf("a budget of %d", budget)
	}
	n, err := tensor.NumElements(m.shape)
	if err != nil {
		return 0, err
	}
	numbers := make([]int64, n)
	for i := range numbers {
		numbers[i] = int64(i)
	}
	x, err := tensor.Of(m.shape, numbers)
	if err != nil {
		return 0, err
	}
	if x, err = x.Narrow(box); err != nil {
		return 0, err
	}
	return 10, errors.Join(m.err, tensor.Convert(dst, x, tensor.CastInRange))
}

// rowDecoder is a countingDecoder that is cut by rows.
type rowDecoder struct{ countingDecoder }

func (rowDecoder) Cut(b tensor.Box, _ int64) []tensor.Box {
	var out []tensor.Box
	for i := b.Offsets[0]; i < b.End(0); i++ {
		out = append(out, box([]int64{i, b.Offsets[1]}, []int64{1, b.Sizes[1]}))
	}
	return out
}

func TestReadDecodersAndValues(t *testing.T) {
	var calls atomic.Int64
	shape := []int64{6, 5}
	var s scene
	store := new(mem.Store)
	s.file(t, store, "data", noise(10))
	s.tensor("cut", tensor.Int32, shape, Place{Decoder: rowDecoder{countingDecoder{shape, &calls, nil}}})
	s.tensor("whole", tensor.Int32, shape, Place{Decoder: countingDecoder{shape, &calls, nil}})
	s.value("value", "data", []byte("seven!!"))
	s.md.Entries = append(s.md.Entries, meta.Entry{FQN: "zz", Bytes: &meta.Bytes{Codec: "raw", Size: 2, Inline: []byte("in")}})
	ck := Open(store, s.source())
	var p plan.LoadPlan
	part := box([]int64{1, 2}, []int64{4, 2})
	want(&p, "cut", tensor.Whole(shape), part)
	want(&p, "whole", tensor.Whole(shape), part)
	p.Items = append(p.Items, plan.ReadItem{Kind: plan.KindBytes, Source: meta.Index{FQN: "value"}}, plan.ReadItem{Kind: plan.KindBytes, Source: meta.Index{FQN: "zz"}})
	g := newTarget(t)
	for i := range p.Items[:2] {
		x := must.Get(tensor.New(tensor.Float32, part.Sizes))(t)
		g.to[&p.Items[i]] = x
	}
	var told atomic.Int64
	st := must.Get(ck.Read(t.Context(), ck.md, &p, g, storage.ReadOptions{BufferBytes: 1, Progress: func(n int64) { told.Add(n) }}))(t)
	needed := int64(2*8*4 + 7)
	if d := cmp.Diff(storage.ReadStats{Needed: needed, Rounded: needed, Read: 5*10 + 7, Requests: 6}, st); d != "" || told.Load() != needed {
		t.Errorf("stats, and progress of %d bytes: -want +got\n%s", told.Load(), d)
	}
	for i := range p.Items[:2] {
		got, err := tensor.Values[float32](g.to[&p.Items[i]])
		if d := cmp.Diff([]float32{7, 8, 12, 13, 17, 18, 22, 23}, got); d != "" || err != nil {
			t.Errorf("item %d: %v, -want +got\n%s", i, err, d)
		}
	}
	if d := cmp.Diff(map[string]string{"value": "raw:seven!!", "zz": "raw:in"}, g.values); d != "" || len(g.done) != 4 {
		t.Errorf("%d items handed over; values: -want +got\n%s", len(g.done), d)
	}
}

func TestReadErrorsHaveTheName(t *testing.T) {
	shape := []int64{2, 2}
	var calls atomic.Int64
	var s scene
	store := new(mem.Store)
	s.file(t, store, "data", noise(10))
	s.tensor("made", tensor.Int32, shape, Place{Decoder: countingDecoder{shape, &calls, errOnPurpose}})
	s.value("value", "data", nil)
	delete(s.values, "value")
	ck := Open(store, s.source())
	whole := plan.LoadPlan{}
	want(&whole, "made", tensor.Whole(shape), tensor.Whole(shape))
	for name, c := range map[string]struct {
		plan *plan.LoadPlan
		want error
	}{
		"made":     {&whole, errOnPurpose},
		"value":    {&plan.LoadPlan{Items: []plan.ReadItem{{Kind: plan.KindBytes, Source: meta.Index{FQN: "value"}}}}, storage.ErrCorrupt},
		"stranger": {&plan.LoadPlan{Items: []plan.ReadItem{{Kind: plan.KindBytes, Source: meta.Index{FQN: "stranger"}}}}, plan.ErrMissing},
	} {
		g := newTarget(t)
		g.fill(c.plan, tensor.Int32)
		if _, err := read(t, ck, c.plan, g, storage.ReadOptions{}); !errors.Is(err, c.want) || !strings.Contains(err.Error(), `"`+name+`"`) {
			t.Errorf("%s: ReadData = %v; want %v with the name", name, err, c.want)
		}
	}
}
