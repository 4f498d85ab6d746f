package inspect_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// reads counts the reads of tensors.
type reads struct {
	*memory
	n *atomic.Int64
}

func (r reads) ReadEntry(ctx context.Context, e *meta.Entry, box tensor.Box, dst *tensor.Tensor) error {
	r.n.Add(1)
	return r.memory.ReadEntry(ctx, e, box, dst)
}

func (r reads) ReadEntries(ctx context.Context, entries []*meta.Entry, dst []*tensor.Tensor) error {
	r.n.Add(1)
	return r.memory.ReadEntries(ctx, entries, dst)
}

// Comparisons and statistics read small tensors together, between objects, large tensors and
// empty ones, and have the same results as tensor by tensor.
func TestSmallTensorsAreReadTogether(t *testing.T) {
	const names, some = 5000, 37 // some: every so many of them is compared alone too
	a := &memory{tensors: map[string]*tensor.Tensor{}, values: map[string]any{"t.00500": 1, "t.00501": "x"}}
	b := &memory{tensors: map[string]*tensor.Tensor{}, values: map[string]any{"t.00500": 1, "t.00501": "y"}}
	dtypes := []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Int8, tensor.Float64, tensor.Complex128}
	for i := range names {
		name := fmt.Sprintf("t.%05d", i)
		if a.values[name] != nil {
			continue
		}
		x := to(t, dtypes[i%len(dtypes)], counting(t, int64(i%7), 3))
		y := x
		switch {
		case i == 700:
			x = counting(t, 1<<20)
			y = counting(t, 1<<20)
		case i%11 == 3 && x.NumElements() > 0: // other values
			y = to(t, x.DType(), of(t, make([]float32, x.NumElements()), x.Shape()...))
		case i%13 == 5:
			y = counting(t, 2)
		}
		if i%17 != 2 {
			a.tensors[name] = x
		}
		if i%19 != 2 {
			b.tensors[name] = y
		}
	}
	sideOf := func(m *memory, n *atomic.Int64) inspect.Side {
		return inspect.Side{Content: reads{m, n}, Metadata: m.metadata()}
	}
	var n atomic.Int64
	got := must.Get(inspect.Compare(t.Context(), sideOf(a, &n), sideOf(b, &n), &inspect.CompareOptions{All: true, Change: true}))(t)
	if n.Load() > 40 {
		t.Errorf("comparing %d names took %d reads", names, n.Load())
	}
	sa, sb := side(a), side(b)
	for i, c := range got.Items {
		if i%some > 0 {
			continue
		}
		only := func(fqn string) bool { return fqn == c.FQN }
		want := must.Get(inspect.Compare(t.Context(), sa, sb, &inspect.CompareOptions{All: true, Change: true, Keep: only}))(t)
		if d := cmp.Diff(want.Items[0], c, near(0)); d != "" {
			t.Fatalf("%s alone: -want +got\n%s", c.FQN, d)
		}
	}
	n.Store(0)
	md := a.metadata()
	o := &inspect.StatsOptions{Buckets: 8}
	all := must.Get(inspect.Stats(t.Context(), reads{a, &n}, inspect.Select(md), o))(t)
	if n.Load() > 20 {
		t.Errorf("statistics of %d names took %d reads", names, n.Load())
	}
	for i := 0; i < len(all.Tensors); i += some {
		e, _ := md.Find(all.Tensors[i].FQN)
		want := must.Get(inspect.Stats(t.Context(), a, []*meta.Entry{e}, o))(t)
		if d := cmp.Diff(want.Tensors[0], all.Tensors[i], near(0)); d != "" {
			t.Fatalf("%s alone: -want +got\n%s", e.FQN, d)
		}
	}
}
