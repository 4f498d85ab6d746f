package plan_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

type (
	section map[string]any
	layers  []*tensor.Tensor
)

// pieces is a sharded type that is a map underneath, and so not to be opened.
type pieces map[string]*tensor.Tensor

func (pieces) GlobalShape() []int64               { return []int64{2} }
func (pieces) DType() tensor.DType                { return tensor.Float32 }
func (pieces) Boxes() []tensor.Box                { return []tensor.Box{span(0, 2)} }
func (p pieces) Part(int) (*tensor.Tensor, error) { return p["all"], nil }

// nested returns v inside depth maps.
func nested(depth int, v any) any {
	for range depth {
		v = map[string]any{"k": v}
	}
	return v
}

func TestFlatten(t *testing.T) {
	x := counting(t, 1, 2)
	type m = map[string]any
	for name, c := range map[string]struct {
		state plan.State
		want  []string // name = path kind
	}{
		"nothing":                     {nil, nil},
		"an empty state":              {plan.State{}, nil},
		"a flat state, in order":      {plan.State{"b": x, "a": 1}, []string{"a = [a] bytes", "b = [b] tensor"}},
		"nested maps":                 {plan.State{"m": m{"x": x, "n": m{"y": 1}}}, []string{"m.n.y = [m n y] bytes", "m.x = [m x] tensor"}},
		"an empty map vanishes":       {plan.State{"m": m{}, "n": section(nil), "a": 1}, []string{"a = [a] bytes"}},
		"a list of numbers is a leaf": {plan.State{"l": []any{1, 2.5, "a", nil}}, []string{"l = [l] bytes"}},
		"an empty list is a leaf":     {plan.State{"l": []any{}}, []string{"l = [l] bytes"}},
		"bytes are a leaf":            {plan.State{"l": []byte{1}}, []string{"l = [l] bytes"}},
		"a tensor opens its list":     {plan.State{"l": []any{1, x}}, []string{"l.0 = [l 0] bytes", "l.1 = [l 1] tensor"}},
		"a map opens its list":        {plan.State{"l": []any{m{"a": 1}, nil}}, []string{"l.0.a = [l 0 a] bytes", "l.1 = [l 1] bytes"}},
		"a tensor opens all the lists around it": {
			plan.State{"l": []any{[]any{1}, []any{[]any{x}}}},
			[]string{"l.0 = [l 0] bytes", "l.1.0.0 = [l 1 0 0] tensor"},
		},
		"typed containers": {
			plan.State{
				"a": map[string]*tensor.Tensor{"x": x}, "b": layers{x}, "c": map[string]int{"n": 1},
				"d": section{"x": x}, "e": [][]int{{1}}, "f": []map[string]int{{"n": 1}},
			},
			[]string{
				"a.x = [a x] tensor", "b.0 = [b 0] tensor", "c.n = [c n] bytes", "d.x = [d x] tensor", "e = [e] bytes",
				"f.0.n = [f 0 n] bytes",
			},
		},
		"integer keys become text": {
			plan.State{"m": map[int8]any{-1: x, 10: 1}, "n": map[uint]int{7: 1}},
			[]string{"m.-1 = [m -1] tensor", "m.10 = [m 10] bytes", "n.7 = [n 7] bytes"},
		},
		"nil values":                   {plan.State{"a": nil, "m": m{"b": nil}}, []string{"a = [a] bytes", "m.b = [m b] bytes"}},
		"a sharded map is a leaf":      {plan.State{"p": pieces{"all": x}, "l": []any{pieces{"all": x}}}, []string{"l.0 = [l 0] shard", "p = [p] shard"}},
		"a pointer to a map is a leaf": {plan.State{"p": &map[string]int{"a": 1}}, []string{"p = [p] bytes"}},
		"dots in keys":                 {plan.State{"a.b": m{"c": 1}, "a": m{"b.d": 1}}, []string{"a.b.c = [a.b c] bytes", "a.b.d = [a b.d] bytes"}},
		"names in the order of strings": {
			plan.State{"l": []any{2: x, 10: nil}}, []string{
				"l.0 = [l 0] bytes", "l.1 = [l 1] bytes", "l.10 = [l 10] bytes", "l.2 = [l 2] tensor", "l.3 = [l 3] bytes",
				"l.4 = [l 4] bytes", "l.5 = [l 5] bytes", "l.6 = [l 6] bytes", "l.7 = [l 7] bytes", "l.8 = [l 8] bytes", "l.9 = [l 9] bytes",
			},
		},
		"as deep as it may be": {
			plan.State{"k": nested(plan.MaxDepth-1, 1)},
			[]string{strings.Repeat("k.", plan.MaxDepth-1) + "k = [" + strings.Repeat("k ", plan.MaxDepth-1) + "k] bytes"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, it := range localPlan(t, new(plan.DefaultSave), c.state).Items {
				got = append(got, fmt.Sprintf("%s = %v %v", it.FQN(), []meta.Step(it.Info.Path), it.Kind))
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("items: -want +got\n%s", d)
			}
		})
	}
}

// A flattened map of integers can be restored.
func TestFlattenIntegerKeys(t *testing.T) {
	m := map[string]any{"0": map[int]any{0: 1}, "1": map[uint64]any{math.MaxUint64: 1}, "2": []any{map[int8]int{-1: 1}}}
	var got []meta.Path
	for _, it := range localPlan(t, new(plan.DefaultSave), plan.State{"m": m}).Items {
		got = append(got, it.Info.Path)
	}
	key := meta.Key("m")
	want := []meta.Path{
		{key, meta.Key("0"), meta.IntKey(0)}, {key, meta.Key("1"), {Key: "18446744073709551615", Int: true}},
		{key, meta.Key("2"), meta.Pos(0), meta.IntKey(-1)},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("paths: -want +got\n%s", d)
	}
}

func TestFlattenRefuses(t *testing.T) {
	x := counting(t, 1, 2)
	loop := map[string]any{"x": x}
	loop["again"] = loop
	list := []any{1, nil}
	list[1] = list
	wide := []any{nil, nil}
	wide[0], wide[1] = wide, wide
	mixed := map[string]any{}
	mixed["l"] = []any{mixed, mixed}
	for name, c := range map[string]struct {
		state plan.State
		text  string
	}{
		"two values of one name":  {plan.State{"a.b": 1, "a": map[string]any{"b": 2}}, `[a b] and [a.b] have the same name "a.b"`},
		"a key and a position":    {plan.State{"a": []any{x}, "a.0": 1}, `[a 0] and [a.0] have the same name "a.0"`},
		"too deep":                {plan.State{"k": nested(plan.MaxDepth, 1)}, "nested deeper than 256"},
		"a map in itself":         {plan.State{"m": loop}, "nested deeper than 256"},
		"a list in itself":        {plan.State{"m": list}, "nested deeper than 256"},
		"a list twice in itself":  {plan.State{"m": wide}, "nested deeper than 256"},
		"a map in its own list":   {plan.State{"m": mixed}, "nested deeper than 256"},
		"a map by floats":         {plan.State{"m": map[float64]int{1: 1}}, `"m": invalid state: value cannot be stored`},
		"a struct":                {plan.State{"m": map[string]any{"s": struct{}{}}}, `"m.s": invalid state: value cannot be stored`},
		"an array of tensors":     {plan.State{"a": [1]*tensor.Tensor{x}}, `"a": invalid state: value cannot be stored`},
		"an empty name":           {plan.State{"": 1}, `"": invalid state: invalid metadata`},
		"a name that is no UTF-8": {plan.State{"\xff": 1}, "is not UTF-8"},
		"too long a name":         {plan.State{strings.Repeat("n", meta.MaxFQN+1): 1}, "1 to 4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			d := new(plan.DefaultSave)
			must.Do(t, d.SetUp(plan.SaveSetup{State: c.state}))
			p, err := d.LocalPlan()
			if !errors.Is(err, plan.ErrState) || !strings.Contains(fmt.Sprint(err), c.text) || p != nil {
				t.Errorf("LocalPlan = %v, %v; want ErrState with %q", p, err, c.text)
			}
		})
	}
}

// Loaded values replace the old ones in the caller's own containers and keep their
// types.
func TestLoadSetsValuesInPlace(t *testing.T) {
	state := func(x *tensor.Tensor, n int, s string, f float32) plan.State {
		return plan.State{
			"n": n, "f": f, "any": nil,
			"m": map[string]any{"x": x, "s": s},
			"t": map[string]int{"n": n},
			"i": map[int]any{7: n},
			"l": []any{s, map[string]string{"s": s}, x},
			"k": []map[string]float32{{"f": f}},
			"p": section{"words": []string{s, s}},
		}
	}
	x := counting(t, 1, 2)
	saved := state(x, 3, "new", 2.5)
	saved["any"] = []any{1, "two"}
	got := state(zeros(t, tensor.Float32, 2), 0, "", 0)
	m, k := got["m"].(map[string]any), got["k"].([]map[string]float32)
	save(t, saved).mustLoad(t, got)

	want := state(x, 3, "new", 2.5)
	want["any"] = []any{int64(1), "two"}
	if d := cmp.Diff(want, got, cmp.Comparer(tensor.Equal)); d != "" {
		t.Errorf("state: -want +got\n%s", d)
	}
	if m["s"] != "new" || k[0]["f"] != 2.5 {
		t.Error("the load replaced containers that it should have filled")
	}
}

func TestLoadRefusesValuesThatDoNotFit(t *testing.T) {
	for name, c := range map[string]struct {
		saved any
		state plan.State
	}{
		"text into a map of numbers":  {map[string]any{"a": "x"}, plan.State{"v": map[string]int{"a": 1}}},
		"nil into a map of numbers":   {map[string]any{"a": nil}, plan.State{"v": map[string]int{"a": 1}}},
		"a value among typed tensors": {map[string]any{"a": 1}, plan.State{"v": map[string]*tensor.Tensor{"a": zeros(t, tensor.Float32, 1)}}},
	} {
		t.Run(name, func(t *testing.T) {
			err := save(t, plan.State{"v": c.saved}).load(new(plan.DefaultLoad), c.state)
			if !errors.Is(err, plan.ErrMismatch) || !strings.Contains(err.Error(), `"v.a"`) {
				t.Errorf("load = %v; want ErrMismatch about v.a", err)
			}
		})
	}
	var none map[string]*int
	got := plan.State{"v": map[string]*int{"a": new(int)}, "w": none}
	save(t, plan.State{"v": map[string]any{"a": nil}}).mustLoad(t, got)
	if p, ok := got["v"].(map[string]*int)["a"]; !ok || p != nil {
		t.Errorf("nil into a map of pointers = %v", p)
	}
}

func TestNoFlattenKeepsMapsWhole(t *testing.T) {
	saved := plan.State{"m": map[string]any{"a": 1, "b": []any{2.5}}, "x": counting(t, 1, 3)}
	d := &plan.DefaultSave{NoFlatten: true}
	p := localPlan(t, d, saved)
	if d := cmp.Diff([]string{"m", "x"}, names(p)); d != "" || p.Items[0].Info.Path != nil {
		t.Errorf("names: -want +got\n%s path %v", d, p.Items[0].Info.Path)
	}
	want := plan.State{"m": map[string]any{"a": int64(1), "b": []any{2.5}}, "x": counting(t, 1, 3)}
	mem := saveBy(t, plan.DefaultSave{NoFlatten: true}, saved)
	// A planner that flattens must see that the map was saved whole.
	for name, l := range map[string]*plan.DefaultLoad{"shallow": {NoFlatten: true}, "flattening": {}} {
		got := plan.State{"m": map[string]any{"a": 0}, "x": zeros(t, tensor.Float32, 3)}
		must.Do(t, mem.load(l, got))
		if d := cmp.Diff(want, got, cmp.Comparer(tensor.Equal)); d != "" {
			t.Errorf("%s: -want +got\n%s", name, d)
		}
	}
	must.Do(t, d.SetUp(plan.SaveSetup{State: plan.State{"m": map[string]any{"x": counting(t, 1, 3)}}}))
	if _, err := d.LocalPlan(); !errors.Is(err, plan.ErrState) {
		t.Errorf("LocalPlan of a tensor in a map that stays whole: %v; want ErrState", err)
	}
	// With a tensor inside, the map is opened whatever the checkpoint says.
	err := mem.load(new(plan.DefaultLoad), plan.State{"m": map[string]any{"l": []any{zeros(t, tensor.Float32, 1)}}})
	if !errors.Is(err, plan.ErrMissing) {
		t.Errorf("load of a map with a tensor: %v; want ErrMissing", err)
	}
}

// A tuple of Python's is a value, also with tensors inside, as PyTorch saves it.
func TestTuplesAreValues(t *testing.T) {
	x := must.Get(tensor.Of([]int64{2}, []float32{1, 2}))(t)
	state := plan.State{"t": value.Tuple{x, "y"}, "l": []any{value.Tuple{int64(1), x}}}
	d := &plan.DefaultSave{}
	must.Do(t, d.SetUp(plan.SaveSetup{State: state, Size: 1, Coordinator: true}))
	p := must.Get(d.LocalPlan())(t)
	if len(p.Items) != 2 || p.Items[0].Kind != plan.KindBytes || p.Items[1].Kind != plan.KindBytes {
		t.Fatalf("items %v; want two values", p.Items)
	}
	data := must.Get(d.Resolve(&p.Items[1]))(t)
	v := must.Get(value.Decode(p.Items[1].Info.Codec, data.Bytes))(t)
	got, ok := v.(value.Tuple)
	if !ok || len(got) != 2 || got[1] != "y" || !tensor.Equal(got[0].(*tensor.Tensor), x) {
		t.Errorf("the tuple became %v", v)
	}
}
