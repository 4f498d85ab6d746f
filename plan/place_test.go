package plan_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// at returns a path: ints are positions, strings are keys.
func at(steps ...any) meta.Path {
	var p meta.Path
	for _, s := range steps {
		switch s := s.(type) {
		case int:
			p = append(p, meta.Pos(s))
		case string:
			p = append(p, meta.Key(s))
		}
	}
	return p
}

func TestPlace(t *testing.T) {
	type m = map[string]any
	for name, c := range map[string]struct {
		paths []meta.Path
		want  plan.State
	}{
		"a key":                       {[]meta.Path{at("a")}, plan.State{"a": 0}},
		"maps on the way":             {[]meta.Path{at("a", "b", "c"), at("a", "d")}, plan.State{"a": m{"b": m{"c": 0}, "d": 1}}},
		"a list, padded":              {[]meta.Path{at("a", 2)}, plan.State{"a": []any{nil, nil, 0}}},
		"a list, filled backwards":    {[]meta.Path{at("a", 1), at("a", 0)}, plan.State{"a": []any{1, 0}}},
		"lists of lists":              {[]meta.Path{at("a", 1, 1), at("a", 0)}, plan.State{"a": []any{1, []any{nil, 0}}}},
		"maps in lists":               {[]meta.Path{at("a", 1, "b"), at("a", 1, "c", 0)}, plan.State{"a": []any{nil, m{"b": 0, "c": []any{1}}}}},
		"an empty key":                {[]meta.Path{at("", "")}, plan.State{"": m{"": 0}}},
		"a number that is a key":      {[]meta.Path{at("a", "0")}, plan.State{"a": m{"0": 0}}},
		"an integer becomes text":     {[]meta.Path{{meta.IntKey(1), meta.IntKey(-2)}, at("1", "b")}, plan.State{"1": m{"-2": 0, "b": 1}}},
		"as deep as a state may be":   {[]meta.Path{at(slices.Repeat([]any{"k"}, plan.MaxDepth)...)}, plan.State(nested(plan.MaxDepth, 0).(m))},
		"a list that later gets long": {[]meta.Path{at("a", 0), at("a", 3)}, plan.State{"a": []any{0, nil, nil, 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := plan.State{}
			for i, p := range c.paths {
				if err := plan.Place(got, p, i); err != nil {
					t.Fatalf("Place(%v): %v", p, err)
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
		})
	}
}

func TestPlaceRefuses(t *testing.T) {
	state := func() plan.State {
		return plan.State{"v": 1, "m": map[string]any{"a": 1}, "l": []any{1}, "t": map[string]int{"a": 1}}
	}
	for name, c := range map[string]struct {
		path meta.Path
		text string
	}{
		"an empty path":               {nil, "empty path"},
		"a path from a position":      {at(0), "begins with a position"},
		"a place that is taken":       {at("v"), "two values"},
		"a place in a list, taken":    {at("l", 0), "two values"},
		"a way through a value":       {at("v", "a"), "leads through a int"},
		"a position in a map":         {at("m", 0), "leads through a map"},
		"a key of a list":             {at("l", "a"), "leads through a []"},
		"a way through a typed map":   {at("t", "b"), "leads through a map[string]int"},
		"a negative position":         {at("l", -1), "position -1"},
		"a hostile position":          {at("l", math.MaxInt), "position 9223372036854775807"},
		"a hostile position of a new": {at("n", 1<<20), "position 1048576"},
		"many hostile positions":      {at(append([]any{"n"}, slices.Repeat([]any{1 << 19}, 200)...)...), "position 524288 of a list of 0"},
		"too deep a path":             {at(slices.Repeat([]any{"k"}, plan.MaxDepth+1)...), "257 steps"},
	} {
		t.Run(name, func(t *testing.T) {
			s := state()
			if err := plan.Place(s, c.path, 2); !errors.Is(err, plan.ErrState) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("Place(%v) = %v; want ErrState with %q", c.path[:min(len(c.path), 4)], err, c.text)
			}
		})
	}
	if err := plan.Place(nil, at("a"), 1); !errors.Is(err, plan.ErrState) {
		t.Errorf("Place into nil = %v; want ErrState", err)
	}
}

// drawState draws a nested state of tensors and numbers without empty maps, because
// flattening drops them.
func drawState(t *rapid.T, depth int) map[string]any {
	out := map[string]any{}
	for _, k := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "0", "žluť", ""}), 1, 3, rapid.ID).Draw(t, "keys") {
		out["k"+k] = drawNode(t, depth)
	}
	return out
}

func drawNode(t *rapid.T, depth int) any {
	kind := rapid.IntRange(0, 4).Draw(t, "kind")
	switch {
	case kind == 0 && depth > 0:
		return drawState(t, depth-1)
	case kind == 1 && depth > 0:
		l := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			l = append(l, drawNode(t, depth-1))
		}
		return l
	case kind == 2:
		return counting(t, float32(rapid.IntRange(0, 9).Draw(t, "start")), 2)
	case kind == 3:
		return nil
	}
	return rapid.Int64().Draw(t, "value")
}

// The state that is rebuilt from metadata and filled is the one that was saved.
func TestNewStateInvertsFlattening(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		want := plan.State(drawState(t, 4))
		mem := save(t, want)
		got := must.Get(plan.NewState(mem.md, nil))(t)
		must.Do(t, mem.load(&plan.DefaultLoad{RejectUnexpected: true}, got))
		if d := cmp.Diff(want, got, cmp.Comparer(tensor.Equal)); d != "" {
			t.Fatalf("-saved +rebuilt\n%s", d)
		}
	})
}

func under(prefix string) func(string) bool {
	return func(fqn string) bool { return strings.HasPrefix(fqn, prefix) }
}

func TestNewStateByPrefix(t *testing.T) {
	x, y := counting(t, 1, 2), counting(t, 7, 3)
	mem := save(t, plan.State{
		"model": map[string]any{"w": x, "layers": []any{y, x, map[string]any{"n": 3}, nil}},
		"step":  5,
	})
	for prefix, want := range map[string]plan.State{
		"model.w":        {"model": map[string]any{"w": x}},
		"step":           {"step": int64(5)},
		"nowhere":        {},
		"model.layers.1": {"model": map[string]any{"layers": []any{nil, x}}},
		"model.layers.2": {"model": map[string]any{"layers": []any{nil, nil, map[string]any{"n": int64(3)}}}},
		"model.layers.3": {"model": map[string]any{"layers": []any{nil, nil, nil, nil}}},
	} {
		got := must.Get(plan.NewState(mem.md, under(prefix)))(t)
		d := new(plan.DefaultLoad)
		if err := mem.load(d, got); err != nil {
			t.Fatalf("%s: %v", prefix, err)
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(tensor.Equal)); diff != "" || d.Missing() != nil {
			t.Errorf("%s: missing %v, -want +got\n%s", prefix, d.Missing(), diff)
		}
	}
}

func TestNewStateKeepsRenamedNames(t *testing.T) {
	x := counting(t, 1, 2)
	mem := save(t, plan.State{"a": map[string]any{"b": x}, "c": x})
	mem.md.Entries[0].FQN, mem.md.Entries[1].FQN, mem.md.Entries[1].Path = "new.name", "old", meta.Path{}
	mem.chunks = map[string]*tensor.Tensor{"new.name[0]": x, "old[0]": x}
	got := must.Get(plan.NewState(mem.md, nil))(t)
	mem.mustLoad(t, got)
	if d := cmp.Diff(plan.State{"new.name": x, "old": x}, got, cmp.Comparer(tensor.Equal)); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

func TestNewStateRefuses(t *testing.T) {
	whole := []tensor.Box{span(0, 2)}
	entry := func(fqn string, p meta.Path, shape []int64, chunks ...tensor.Box) meta.Entry {
		return meta.Entry{FQN: fqn, Path: p, Tensor: &meta.Tensor{Properties: meta.Properties{DType: tensor.Bool}, Shape: shape, Chunks: chunks}}
	}
	value := func(fqn string, p meta.Path) meta.Entry { return meta.Entry{FQN: fqn, Path: p, Bytes: &meta.Bytes{}} }
	for name, c := range map[string]struct {
		entries []meta.Entry
		is      error
	}{
		"a shape that its chunks do not fill": {[]meta.Entry{entry("a", nil, []int64{1 << 40}, whole...)}, plan.ErrMismatch},
		"a shape without a chunk":             {[]meta.Entry{entry("a", nil, []int64{1 << 62})}, plan.ErrMismatch},
		"a shape that cannot be":              {[]meta.Entry{entry("a", nil, []int64{-1})}, plan.ErrMismatch},
		"a path below a value":                {[]meta.Entry{value("a", at("a")), value("a.b", at("a", "b"))}, plan.ErrState},
		"a list and a map in one place":       {[]meta.Entry{value("a.0", at("a", 0)), value("a.b", at("a", "b"))}, plan.ErrState},
		"a hostile position":                  {[]meta.Entry{value("a.2000000", at("a", 2_000_000))}, plan.ErrState},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := plan.NewState(&meta.Metadata{Entries: c.entries}, nil)
			last := c.entries[len(c.entries)-1].FQN
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), `"`+last+`"`) || s != nil {
				t.Errorf("NewState = %v, %v; want %v about %q", s, err, c.is, last)
			}
		})
	}
}

func TestNewStateBoundsAllLists(t *testing.T) {
	md := &meta.Metadata{}
	for _, k := range []string{"a", "b", "c"} {
		md.Entries = append(md.Entries, meta.Entry{FQN: k + ".500000", Path: at(k, 500_000), Bytes: &meta.Bytes{}})
	}
	if _, err := plan.NewState(md, nil); !errors.Is(err, plan.ErrState) {
		t.Errorf("NewState of three sparse lists: %v; want ErrState at the third", err)
	}
}
