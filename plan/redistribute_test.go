package plan_test

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// drawHeld draws boxes that ranks hold: the rows that a layout gives to each rank, and
// other boxes that may overlap boxes of other ranks.
func drawHeld(t *rapid.T, shape []int64, ranks int, overlapping bool) [][]tensor.Box {
	out := make([][]tensor.Box, ranks)
	order := make([]int, ranks)
	for r := range order {
		order[r] = r
	}
	order = rapid.Permutation(order).Draw(t, "order")
	layout := shard.FlatEven(rapid.IntRange(1, ranks).Draw(t, "cuts"))
	for i, r := range order {
		parts, err := layout.Parts(shape, i%layout.Even) // replicas if there are more ranks than cuts
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range parts {
			out[r] = append(out[r], p.Box)
		}
	}
	if overlapping && ranks > 1 {
		out[order[ranks-1]] = []tensor.Box{drawBox(t, shape)}
		if layout.Even == ranks { // no other rank has the box of this rank
			out[order[0]] = []tensor.Box{tensor.Whole(shape)}
		}
	}
	return out
}

// elementsOf returns the row-major numbers of the elements of b.
func elementsOf(shape []int64, b tensor.Box) (out []int64) {
	for i := range b.Volume() {
		var at, stride int64 = 0, 1
		for d := len(shape) - 1; d >= 0; d-- {
			at += (b.Offsets[d] + i%b.Sizes[d]) * stride
			i /= b.Sizes[d]
			stride *= shape[d]
		}
		out = append(out, at)
	}
	return out
}

// Whatever ranks hold and want, each gets every element once: its own from itself, and the
// others from a rank that holds them. Two ranks agree on the transfers between them.
func TestTransfersAreMinimal(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(1, 6).Draw(t, "ranks")
		var rs []plan.Redistribution
		for range rapid.IntRange(1, 3).Draw(t, "tensors") {
			shape := rapid.SliceOfN(rapid.Int64Range(0, 7), 0, 3).Draw(t, "shape")
			rs = append(rs, plan.Redistribution{
				Shape: shape, ItemSize: rapid.SampledFrom([]int64{1, 4, 64 << 10}).Draw(t, "item"),
				Held:   drawHeld(t, shape, ranks, rapid.Bool().Draw(t, "overlapping")),
				Wanted: drawHeld(t, shape, ranks, true),
			})
		}
		all := make([][]plan.Transfer, ranks)
		for rank := range ranks {
			var err error
			if all[rank], err = plan.Transfers(rs, rank); err != nil {
				t.Fatalf("Transfers(%+v, %d) = %v", rs, rank, err)
			}
			checkReceived(t, rs, rank, all[rank])
		}
		between := func(of, from, to int) []plan.Transfer {
			return slices.DeleteFunc(slices.Clone(all[of]), func(x plan.Transfer) bool { return x.From != from || x.To != to })
		}
		same := func(a, b plan.Transfer) bool {
			return a.Tensor == b.Tensor && a.Held == b.Held && a.Wanted == b.Wanted && a.Box.Equal(b.Box)
		}
		for from := range ranks {
			for to := range ranks {
				if a, b := between(from, from, to), between(to, from, to); !slices.EqualFunc(a, b, same) {
					t.Fatalf("from rank %d to %d: the sender has %+v, the receiver %+v", from, to, a, b)
				}
			}
		}
	})
}

func checkReceived(t *rapid.T, rs []plan.Redistribution, rank int, got []plan.Transfer) {
	t.Helper()
	for i, r := range rs {
		own := map[int64]bool{}
		for _, b := range r.Held[rank] {
			for _, e := range elementsOf(r.Shape, b) {
				own[e] = true
			}
		}
		type place struct {
			wanted  int
			element int64
		}
		missing := map[place]bool{}
		for w, b := range r.Wanted[rank] {
			for _, e := range elementsOf(r.Shape, b) {
				missing[place{w, e}] = true
			}
		}
		for _, x := range got {
			if x.Tensor != i || x.To != rank {
				continue
			}
			held := r.Held[x.From][x.Held]
			if both, ok := held.Intersect(x.Box); !ok || !both.Equal(x.Box) {
				t.Fatalf("%+v: rank %d holds %v", x, x.From, held)
			}
			for _, e := range elementsOf(r.Shape, x.Box) {
				if !missing[place{x.Wanted, e}] {
					t.Fatalf("%+v: element %d comes twice or is not wanted", x, e)
				}
				delete(missing, place{x.Wanted, e})
				if own[e] != (x.From == rank) {
					t.Fatalf("%+v: rank %d holds element %d: %v", x, rank, e, own[e])
				}
			}
		}
		if len(missing) > 0 {
			t.Fatalf("tensor %d: rank %d does not get %v", i, rank, missing)
		}
	}
}

// Ranks that hold the same send the same number of bytes, over all tensors.
func TestTransfersAreSpreadOverReplicas(t *testing.T) {
	const ranks, replicas = 8, 3
	whole := [][]tensor.Box{}
	wanted := [][]tensor.Box{}
	shape := []int64{1000, 7}
	for r := range ranks {
		var held []tensor.Box
		if r%2 == 0 && r/2 < replicas {
			held = []tensor.Box{tensor.Whole(shape)}
		}
		whole, wanted = append(whole, held), append(wanted, []tensor.Box{tensor.Whole(shape)})
	}
	rs := slices.Repeat([]plan.Redistribution{{Shape: shape, ItemSize: 4, Held: whole, Wanted: wanted}}, 20)
	total := int64(len(rs)) * 7000 * 4
	for r := range ranks {
		ts := must.Get(plan.Transfers(rs, r))(t)
		var sent, received int64
		for _, x := range ts {
			if n := x.Box.Volume() * 4; x.From != x.To && x.From == r {
				sent += n
			} else if x.From != x.To {
				received += n
			}
		}
		wantSent, wantReceived := int64(0), total
		if whole[r] != nil {
			wantSent, wantReceived = (ranks-replicas)*total/replicas, 0
		}
		// A cut is at the nearest row, of 28 bytes.
		if d := sent - wantSent; d < -28*ranks || d > 28*ranks || received != wantReceived {
			t.Errorf("rank %d sends %d and receives %d bytes; want about %d and %d", r, sent, received, wantSent, wantReceived)
		}
	}
}

func TestTransfersReportWhatIsMissing(t *testing.T) {
	row := func(begin, n int64) []tensor.Box { return []tensor.Box{{Offsets: []int64{begin}, Sizes: []int64{n}}} }
	r := plan.Redistribution{
		Shape: []int64{6}, ItemSize: 4,
		Held: [][]tensor.Box{row(0, 3), row(4, 2)}, Wanted: [][]tensor.Box{row(0, 6), row(4, 1)},
	}
	if _, err := plan.Transfers([]plan.Redistribution{r}, 0); !errors.Is(err, plan.ErrSource) {
		t.Errorf("Transfers of a rank that wants what is missing = %v; want ErrSource", err)
	}
	if ts, err := plan.Transfers([]plan.Redistribution{r}, 1); err != nil || len(ts) != 2 {
		t.Errorf("Transfers of the other rank = %+v, %v; want its own box and the one that it sends", ts, err)
	}
	for claim, damage := range map[string]func(r *plan.Redistribution){
		"a box outside the tensor is held":   func(r *plan.Redistribution) { r.Held = [][]tensor.Box{row(0, 7), nil} },
		"a box outside the tensor is wanted": func(r *plan.Redistribution) { r.Wanted = [][]tensor.Box{row(0, 1), row(5, 2)} },
		"a shape that overflows":             func(r *plan.Redistribution) { r.Shape = []int64{1 << 62, 1 << 62} },
	} {
		bad := r
		damage(&bad)
		if _, err := plan.Transfers([]plan.Redistribution{bad}, 0); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: Transfers = %v; want ErrShape", claim, err)
		}
	}
}
