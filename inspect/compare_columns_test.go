package inspect_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The columns of a comparison have everything that a page shows of its items.
func TestComparedColumns(t *testing.T) {
	a := &memory{
		tensors: map[string]*tensor.Tensor{
			"<b>\"\xff": counting(t, 3), "gone": counting(t, 2), "shape": counting(t, 2, 3), "values": counting(t, 2, 3), "old": counting(t, 5), "scalar": counting(t),
			"zero": of(t, []float32{0, 0}), "nan": of(t, []float32{1, 2}), "empty": counting(t, 0, 4),
		},
		values: map[string]any{"step": 1, "lr": 0.5, "list": []any{1, 2}},
	}
	b := &memory{
		tensors: map[string]*tensor.Tensor{
			"<b>\"\xff": counting(t, 3), "shape": counting(t, 3, 2), "values": of(t, []float32{0, 1, 2, 3, 9, 5}, 2, 3), "new": counting(t, 5), "more": counting(t, 1),
			"zero": of(t, []float32{0, 1}), "nan": of(t, []float32{1, float32(math.NaN())}), "empty": counting(t, 0, 4), "scalar": of(t, []float32{2}, []int64{}...),
		},
		values: map[string]any{"step": 2, "lr": 0.5, "list": []any{1, 3}},
	}
	rename := func(n string) string {
		if n == "old" {
			return "new"
		}
		return n
	}
	items := compare(t, a, b, &inspect.CompareOptions{All: true, Change: true, Rename: rename}).Items
	var c inspect.ComparedColumns
	must.Do(t, json.Unmarshal(must.Get(json.Marshal(inspect.NewComparedColumns(items)))(t), &c))
	for i, x := range items {
		form := func(it *inspect.Item) string {
			if it == nil {
				return ""
			}
			return fmt.Sprint(it.Kind, it.DType, it.Shape, it.Type, it.Repr, it.NumBytes)
		}
		at := func(place int32) string {
			if place < 0 {
				return ""
			}
			f := c.Forms[place]
			return fmt.Sprint(f.Kind, f.DType, f.Shape, f.Type, f.Repr, f.NumBytes)
		}
		want := []any{string([]rune(x.FQN)), x.Status, fmt.Sprint(x.Differs), form(x.A), form(x.B), x.Renamed, x.Where}
		r, m := c.Results[c.Result[i]], c.More[i]
		got := []any{c.Names[i], r.Status, fmt.Sprint(r.Differs), at(c.A[i]), at(c.B[i]), m.Renamed, m.Where}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q: -want +got\n%s", x.FQN, d)
		}
		if x.Status == inspect.StatusIdentical && c.A[i] != c.B[i] {
			t.Errorf("%q has two forms that are equal", x.FQN)
		}
		v := x.Values
		if v == nil {
			if c.Differing[i] != -1 || c.First[i] != -1 || !c.MaxAbs[i].None() || !c.RelL2[i].None() {
				t.Errorf("%q has numbers, but its elements were not compared", x.FQN)
			}
			continue
		}
		want = []any{v.Differing, v.NaNs, v.MaxAbs, v.MaxRel, v.RelL2, v.Cosine}
		got = []any{c.Differing[i], m.NaNs, c.MaxAbs[i], c.MaxRel[i], c.RelL2[i], c.Cosine[i]}
		if d := cmp.Diff(want, got, near(0)); d != "" {
			t.Errorf("%q: -want +got\n%s", x.FQN, d)
		}
		first, shown := int64(-1), [2]string{}
		if v.First != nil {
			first, shown = 0, [2]string{v.First.A, v.First.B}
			for d, k := range v.First.Index {
				first = first*x.A.Shape[d] + k
			}
		}
		if c.First[i] != first || [2]string{c.FirstA[i], c.FirstB[i]} != shown {
			t.Errorf("%q: the first difference is %d, %s and %s; want %d, %s", x.FQN, c.First[i], c.FirstA[i], c.FirstB[i], first, shown)
		}
	}
}
