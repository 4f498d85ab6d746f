package inspect_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Stats counts tensors inside objects, and lists tensors that it cannot read.
func TestStatsCountTensorsInsideObjects(t *testing.T) {
	nan := of(t, []float32{1, float32(math.NaN())})
	storage := &value.Object{Module: "torch.storage", Name: "UntypedStorage", Call: true, Args: value.Tuple{of(t, []uint8{1})}}
	m := &memory{
		tensors: map[string]*tensor.Tensor{"w": counting(t, 3)},
		values: map[string]any{
			"plain": map[string]any{"lr": 0.5}, "bytes": []byte("x"), "tuple": value.Tuple{int64(1), nan},
			"object": &value.Object{Module: "m", Name: "C", Call: true, State: map[string]any{"x": nan, "w": value.Ref{FQN: "w"}, "gone": value.Ref{FQN: "lost"}}},
			"opaque": map[string]any{
				"v3":    &value.Object{Module: "torch._utils", Name: "_rebuild_tensor_v3", Call: true, Args: value.Tuple{storage}},
				"bytes": &value.Object{Module: "torch.storage", Name: "_load_from_bytes", Call: true, Args: value.Tuple{[]byte("x")}},
			},
		},
	}
	r := statsOf(t, m, nil)
	var lines []string
	for _, x := range r.Tensors {
		lines = append(lines, fmt.Sprint(x.FQN, " ", x.Elements, " ", x.NaN))
	}
	if d := cmp.Diff([]string{"object.x 2 1", "opaque.v3.0.0 1 0", "tuple.1 2 1", "w 3 0"}, lines); d != "" {
		t.Errorf("tensors (-want +got):\n%s", d)
	}
	lines = nil
	for _, u := range r.Unread {
		lines = append(lines, u.FQN+": "+u.Why)
	}
	want := []string{
		`object.gone: it refers to the tensor "lost", which the checkpoint does not hold`,
		"opaque.bytes: a tensor that is pickled as bytes",
		"opaque.v3: a tensor of a type that is not known",
		"opaque.v3.0: a storage whose type is not known",
	}
	if d := cmp.Diff(want, lines); d != "" {
		t.Errorf("unread (-want +got):\n%s", d)
	}
	known := statsOf(t, m, &inspect.StatsOptions{Known: func(fqn string) bool { return fqn == "lost" || fqn == "w" }})
	if len(known.Unread) != 3 {
		t.Errorf("with the tensor elsewhere in the checkpoint: unread = %+v", known.Unread)
	}
}

// Stats counts arrays like tensors, and lists those with unknown elements.
func TestStatsCountArrays(t *testing.T) {
	type m = map[string]any
	array := func(dtype, order, data string, dims ...any) *value.Object {
		return &value.Object{Module: "numpy", Name: "ndarray", Call: true, Kwargs: m{"dtype": dtype, "order": order, "shape": value.Tuple(dims), "data": []byte(data)}}
	}
	call := func(module, name string, args ...any) *value.Object {
		return &value.Object{Module: module, Name: name, Call: true, Args: args}
	}
	r := statsOf(t, &memory{values: map[string]any{
		"numpy": m{
			"nan":  array("<f8", "C", "\x00\x00\x00\x00\x00\x00\xf8\x7f", int64(1)),
			"big":  array(">f4", "F", "\x3f\x80\x00\x00\x40\x00\x00\x00\x7f\x80\x00\x00\x40\x40\x00\x00", int64(2), int64(2)),
			"half": array("<f2", "C", "\x00\x7e", int64(1), int64(1)), "one": array("<i2", "C", "\x07\x00"),
			"none": array("<f4", "C", "", int64(0), int64(3)), "text": array("|S2", "C", "ab", int64(1)),
			"long": array("<f16", "C", strings.Repeat("x", 16), int64(1)), "record": call("numpy._core.multiarray", "_reconstruct"),
			"masked": call("numpy.ma.core", "_mareconstruct"),
		},
		"python": value.Tuple{
			call("array", "array", "f", []any{1.0, math.NaN()}), call("array", "array", "i", []any{int64(4)}), call("array", "array", "d"),
			call("array", "array", "u", "text"), call("array", "array", "Q", []any{uint64(1 << 63)}), call("array", "_array_reconstructor"),
		},
		"numbers": []any{math.NaN(), call("numpy", "float32", math.NaN())},
	}}, nil)
	var lines []string
	for _, x := range r.Tensors {
		lines = append(lines, fmt.Sprint(x.FQN, " ", x.DType, x.Shape, " ", x.NaN, " ", x.PosInf, " ", x.Max))
	}
	want := []string{
		"numpy.big float32[2 2] 0 1 3", "numpy.half float16[1 1] 1 0 NaN", "numpy.nan float64[1] 1 0 NaN", "numpy.none float32[0 3] 0 0 NaN",
		"numpy.one int16[] 0 0 7", "python.0 float64[2] 1 0 1", "python.1 int64[1] 0 0 4",
	}
	if d := cmp.Diff(want, lines); d != "" {
		t.Errorf("arrays (-want +got):\n%s", d)
	}
	lines = nil
	for _, u := range r.Unread {
		lines = append(lines, u.FQN)
	}
	if d := cmp.Diff([]string{"numpy.long", "numpy.masked", "numpy.record", "python.4", "python.5"}, lines); d != "" {
		t.Errorf("unread (-want +got):\n%s", d)
	}
}

// insided is a checkpoint in which a value refers to a tensor inside it.
type insided struct{ *memory }

func (m insided) side() inspect.Side {
	md := m.metadata()
	for i := range md.Entries {
		e := &md.Entries[i]
		for s := range strings.SplitSeq(e.FQN, ".") {
			e.Path = append(e.Path, meta.Key(s))
		}
	}
	return inspect.Side{Content: m.memory, Metadata: md}
}

// Compare compares all tensors, whether they are stored inside an object or beside
// it.
func TestCompareTensorsInsideObjects(t *testing.T) {
	referring := func(v ...float32) insided {
		return insided{&memory{
			tensors: map[string]*tensor.Tensor{"o.x": of(t, v)}, values: map[string]any{"o": value.Tuple{value.Ref{FQN: "o.x"}, int64(1)}},
		}}
	}
	holding := func(v ...float32) insided {
		return insided{&memory{values: map[string]any{"o": value.Tuple{of(t, v), int64(1)}}}}
	}
	lost := insided{&memory{values: map[string]any{"o": value.Tuple{value.Ref{FQN: "o.x"}, int64(1)}}}}
	only := func(n string) bool { return n == "o" }
	for name, c := range map[string]struct {
		a, b  insided
		keep  func(string) bool
		equal bool
		where string
	}{
		"both refer":                                   {referring(1, 2), referring(1, 2), nil, true, "identical=2"},
		"both refer to other elements":                 {referring(1, 2), referring(1, 3), nil, false, "o.x"},
		"both refer, and the tensors are left":         {referring(1, 2), referring(1, 2), only, true, "identical=1"},
		"both refer to others, which are left":         {referring(1, 2), referring(1, 3), only, false, "o[0]"},
		"one refers":                                   {referring(1, 2), holding(1, 2), nil, true, "identical=1"},
		"the other refers":                             {holding(1, 2), referring(1, 2), nil, true, "identical=1"},
		"one refers to other elements":                 {referring(1, 2), holding(1, 3), nil, false, "o[0]"},
		"the tensor of a reference cannot be compared": {lost, lost, nil, false, "unread o"},
	} {
		got := must.Get(inspect.Compare(t.Context(), c.a.side(), c.b.side(), &inspect.CompareOptions{Keep: c.keep}))(t)
		text := fmt.Sprintf("identical=%d", got.Identical)
		for _, u := range got.Unread {
			text = "unread " + u.FQN
		}
		for _, it := range got.Items {
			text = it.FQN + it.Where
		}
		equal := got.Equal != nil && *got.Equal
		if equal != c.equal || text != c.where {
			t.Errorf("%s: Compare = %+v, %q; want %v, %q", name, got, text, c.equal, c.where)
		}
	}
}
