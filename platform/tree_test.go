package platform_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// scalar returns a tensor of one element.
func scalar(v int64) *tensor.Tensor {
	t, err := tensor.Of(nil, []int64{v})
	if err != nil {
		panic(err)
	}
	return t
}

// text writes a tensor as its value, so that trees can be compared.
var text = cmp.Transformer("text", func(t *tensor.Tensor) string {
	if t == nil {
		return "none"
	}
	v, err := tensor.Values[int64](t)
	return fmt.Sprint(v, err)
})

// double returns twice a tensor of one element.
func double(t *tensor.Tensor) (*tensor.Tensor, error) {
	v, err := tensor.Values[int64](t)
	if err != nil {
		return nil, err
	}
	return scalar(2 * v[0]), nil
}

// record is a caller's own type.
type record struct {
	W      *tensor.Tensor
	Layers []*tensor.Tensor
	Pair   [2]any
	Name   string
	Next   *record
	hidden *tensor.Tensor
}

// forest returns a tree of every kind of container, its tensors being 1, 2, 3 and
// so on times factor.
func forest(factor int64) map[string]any {
	s := func(v int64) *tensor.Tensor { return scalar(v * factor) }
	return map[string]any{
		"w":      s(1),
		"list":   []any{s(2), "two", 2.5, nil},
		"typed":  []*tensor.Tensor{s(3), nil},
		"tuple":  value.Tuple{s(4), value.Tuple{s(5)}},
		"dict":   &value.Dict{Pairs: []value.Pair{{Key: int64(7), Value: s(6)}, {Key: "k", Value: value.Tuple{}}}, Ordered: true},
		"set":    &value.Set{Items: []any{s(7)}, Frozen: true},
		"object": &value.Object{Module: "m", Name: "C", Call: true, Args: value.Tuple{s(8)}, Kwargs: map[string]any{"x": s(9)}},
		"byInt":  map[int]*tensor.Tensor{3: s(10)},
		"record": record{W: s(11), Layers: []*tensor.Tensor{s(12)}, Pair: [2]any{s(13), 1}, Name: "r", Next: &record{W: s(14)}},
		"floats": []float32{1, 2}, "bytes": []byte("b"), "big": big.NewInt(5), "nil": nil, "empty": map[string]any{},
	}
}

var compare = cmp.Options{text, cmp.AllowUnexported(record{}), cmp.Comparer(func(a, b *big.Int) bool { return a.Cmp(b) == 0 })}

func TestMapTensorsKeepsTheTree(t *testing.T) {
	in := forest(1)
	got, err := platform.MapTensors(in, double)
	must.Do(t, err)
	if d := cmp.Diff(any(forest(2)), got, compare); d != "" {
		t.Errorf("MapTensors: -want +got\n%s", d)
	}
	if d := cmp.Diff(forest(1), in, compare); d != "" {
		t.Errorf("MapTensors changed the tree: -before +after\n%s", d)
	}
}

func TestMapTensorsKeepsUnexportedFields(t *testing.T) {
	in := &record{W: scalar(1), hidden: scalar(5)}
	got, err := platform.MapTensors(in, double)
	out, ok := got.(*record)
	if err != nil || !ok || out == in || out.hidden != in.hidden {
		t.Errorf("MapTensors = %v, %v; want a copy with the same hidden field", got, err)
	}
}

// opaque is a caller's own type that shows no tensor.
type opaque struct {
	inner *record
}

// Tensors that are hidden in a leaf are not left out without an error.
func TestHiddenTensorsAreRefused(t *testing.T) {
	share, err := shard.Empty(shard.Rows(2), tensor.Float32, []int64{4}, 1)
	must.Do(t, err)
	hidden := opaque{&record{W: scalar(1)}}
	type mixed struct {
		W *tensor.Tensor
		S *shard.Tensor
	}
	for name, c := range map[string]struct {
		tree any
		at   string
	}{
		"a share":                       {share, "value: a share of a sharded tensor"},
		"a share in a map":              {map[string]any{"a": map[string]any{"w": share}}, `"a.w": a share of a sharded tensor`},
		"a share in a list":             {[]any{1, share}, `"1": a share`},
		"a map of shares":               {map[string]any{"m": map[string]*shard.Tensor{"w": share}}, `"m": a map[string]*shard.Tensor holds a tensor`},
		"a list of shares":              {[]*shard.Tensor{share}, "value: a []*shard.Tensor holds"},
		"a field":                       {mixed{scalar(1), share}, `"S": a share of a sharded tensor`},
		"a field of a pointer":          {map[string]any{"x": &mixed{scalar(1), share}}, `"x.S": a share`},
		"a struct of a caller":          {map[string]any{"o": hidden}, `"o": a platform_test.opaque holds a tensor`},
		"a pointer to such a struct":    {map[string]any{"o": &hidden}, `"o": a *platform_test.opaque holds a tensor`},
		"an array of such":              {map[string]any{"o": [1]opaque{hidden}}, `"o": a [1]platform_test.opaque holds`},
		"an object of a Python program": {&value.Object{Args: value.Tuple{share}}, `"Args.0": a share`},
	} {
		for call, f := range map[string]func() error{
			"Tensors": func() error {
				_, err := platform.Tensors(c.tree)
				return err
			},
			"MapTensors": func() error {
				_, err := platform.MapTensors(c.tree, double)
				return err
			},
			"MicroBatch": func() error {
				_, err := platform.MicroBatch(1, platform.Batch{Args: []any{c.tree}}, platform.BatchDims{})
				return err
			},
		} {
			if call == "MicroBatch" && strings.Contains(name, "field") {
				continue // the scalar beside the share is refused first
			}
			if err := f(); !errors.Is(err, value.ErrValue) || !strings.Contains(err.Error(), c.at) {
				t.Errorf("%s of %s = %v; want ErrValue with %q", call, name, err, c.at)
			}
		}
		if _, err := platform.MapLeaves(c.tree, func(leaf any) (any, error) { return leaf, nil }); err != nil {
			t.Errorf("MapLeaves of %s = %v; want no error, since the function sees the leaf", name, err)
		}
	}
	for name, tree := range map[string]any{
		"no share": (*shard.Tensor)(nil), "no shares": []*shard.Tensor{}, "an empty map": map[string]*shard.Tensor{}, "no share in a field": mixed{W: scalar(1)},
		"a value without tensors": big.NewInt(3), "no tensor": (*tensor.Tensor)(nil), "a function": func(*tensor.Tensor) {},
	} {
		if _, err := platform.Tensors(tree); err != nil {
			t.Errorf("Tensors of %s = %v; want no error", name, err)
		}
	}
	whole, err := platform.MicroBatch(2, platform.Batch{Args: []any{share}}, platform.BatchDims{Args: []int{platform.Whole}})
	if err != nil || whole[1].Args[0] != any(share) {
		t.Errorf("MicroBatch with Whole = %v, %v; want the share as it is", whole, err)
	}
}

func TestMapLeavesSeesLeavesInOrder(t *testing.T) {
	var seen []string
	got, err := platform.MapLeaves(map[string]any{"b": 1, "a": []any{"x", nil}, "c": []int{1, 2}}, func(leaf any) (any, error) {
		seen = append(seen, fmt.Sprint(leaf))
		return fmt.Sprint(leaf), nil
	})
	if want := []string{"x", "<nil>", "1", "[1 2]"}; err != nil || !slices.Equal(seen, want) {
		t.Errorf("leaves = %q, %v; want %q", seen, err, want)
	}
	if want := fmt.Sprint(map[string]any{"a": []any{"x", "<nil>"}, "b": "1", "c": "[1 2]"}); fmt.Sprint(got) != want {
		t.Errorf("MapLeaves = %v; want %s", got, want)
	}
	if got, err := platform.MapLeaves(nil, func(any) (any, error) { return 3, nil }); got != 3 || err != nil {
		t.Errorf("MapLeaves(nil) = %v, %v; want the result itself", got, err)
	}
}

func TestMapLeavesRefuses(t *testing.T) {
	loop := map[string]any{}
	loop["again"] = loop
	chain := &record{}
	chain.Next = chain
	ring := &value.Dict{}
	ring.Pairs = []value.Pair{{Key: "r", Value: ring}}
	keep := func(leaf any) (any, error) { return leaf, nil }
	text := func(any) (any, error) { return "text", nil }
	for claim, c := range map[string]struct {
		tree any
		fn   func(any) (any, error)
		want error
		says string
	}{
		"a map in itself":            {loop, keep, value.ErrValue, "deeper than 256"},
		"a record in itself":         {chain, keep, value.ErrValue, "deeper than 256"},
		"a dict in itself":           {ring, keep, value.ErrValue, "deeper than 256"},
		"a result that does not fit": {map[string]any{"a": []*tensor.Tensor{scalar(1)}}, text, value.ErrValue, `"a.0"`},
		"nil for an element":         {[1][1]any{}, func(any) (any, error) { return nil, nil }, nil, ""},
		"an error of fn":             {[]any{1}, func(any) (any, error) { return nil, errors.ErrUnsupported }, errors.ErrUnsupported, `"0"`},
		"an error at the top":        {1, func(any) (any, error) { return nil, errors.ErrUnsupported }, errors.ErrUnsupported, "value: "},
	} {
		_, err := platform.MapLeaves(c.tree, c.fn)
		if !errors.Is(err, c.want) || c.want != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: MapLeaves = %v; want %v, and that it says %s", claim, err, c.want, c.says)
		}
	}
}

func TestTensorsHaveTheirNames(t *testing.T) {
	got, err := platform.Tensors(forest(1))
	must.Do(t, err)
	want := []string{
		"byInt.3", "dict.7", "list.0", "object.Args.0", "object.Kwargs.x", "record.Layers.0", "record.Next.W", "record.Pair.0",
		"record.W", "set.Items.0", "tuple.0", "tuple.1.0", "typed.0", "w",
	}
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, want) {
		t.Errorf("names = %q; want %q", names, want)
	}
	twice := map[string]any{"a.b": scalar(1), "a": map[string]any{"b": scalar(2)}}
	if got, err := platform.Tensors(twice); !errors.Is(err, value.ErrValue) || !strings.Contains(err.Error(), "a.b") {
		t.Errorf("Tensors of two of one name = %v, %v; want an error that names them", got, err)
	}
}

// A tree that cannot be walked is an error, and keys that are not equal to themselves are
// kept.
func TestMapTensorsOfOddTrees(t *testing.T) {
	same := func(x *tensor.Tensor) (*tensor.Tensor, error) { return x, nil }
	loop := &value.Pair{Key: "k"}
	loop.Value = loop
	if _, err := platform.MapTensors(loop, same); !errors.Is(err, value.ErrValue) {
		t.Errorf("a pair that holds itself = %v; want ErrValue", err)
	}
	x, err := tensor.New(tensor.Float32, []int64{2})
	must.Do(t, err)
	got, err := platform.MapTensors(map[float64]any{math.NaN(): x, 1: x}, same)
	if m, ok := got.(map[float64]any); err != nil || !ok || len(m) != 2 {
		t.Errorf("a map with a NaN = %v, %v; want both keys", got, err)
	}
}
