package inspect_test

import (
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// A tensor with two names counts once, and compares and digests like two.
func TestTiedTensors(t *testing.T) {
	x := must.Get(tensor.Of([]int64{3}, []float32{1, 2, 3}))(t)
	var sides [2]inspect.Side
	var digests [2]string
	for i, state := range []cairn.State{{"embed": x, "head": x}, {"embed": x, "head": x.Clone()}} {
		s := new(mem.Store)
		if _, err := cairn.Save(t.Context(), s, state, nil); err != nil {
			t.Fatal(err)
		}
		c, md := open(t, s)
		sides[i] = inspect.Side{Metadata: md, Content: c}
		d := must.Get(inspect.Digests(t.Context(), c, inspect.Select(md), nil))(t)
		digests[i] = inspect.Combine(d)
	}
	if digests[0] != digests[1] {
		t.Errorf("digests %s of a tied tensor and %s of two; want one digest", digests[0], digests[1])
	}
	for i, want := range []inspect.Totals{
		{Tensors: 2, Chunks: 2, Elements: 3, NumBytes: 12}, {Tensors: 2, Chunks: 2, Elements: 6, NumBytes: 24},
	} {
		var got inspect.Totals
		items := inspect.Items(inspect.Select(sides[i].Metadata))
		for _, it := range items {
			got.Add(it)
		}
		if got != want {
			t.Errorf("totals = %+v; want %+v", got, want)
		}
		if tied := items[1].Tied; (tied == "embed") != (i == 0) {
			t.Errorf("head is tied to %q", tied)
		}
	}
	cmp := must.Get(inspect.Compare(t.Context(), sides[0], sides[1], nil))(t)
	for _, it := range cmp.Items {
		if it.Status != inspect.StatusIdentical {
			t.Errorf("%s is %s; want identical", it.FQN, it.Status)
		}
		if it.FQN == "head" && (it.A.Tied != "embed" || it.B.Tied != "") {
			t.Errorf("head is tied to %q and %q; want embed, and nothing", it.A.Tied, it.B.Tied)
		}
	}
}
