package value_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/value"
)

// place is a part that the tests replace by its path.
type place struct{}

func where() *value.Replacer {
	return &value.Replacer{With: func(at []string, v any) (any, bool, error) {
		_, ok := v.(place)
		return strings.Join(at, "/"), ok, nil
	}}
}

func TestReplace(t *testing.T) {
	type m = map[string]any
	p := place{}
	object := func(o value.Object) *value.Object {
		o.Module, o.Name, o.Call = "m", "C", true
		return &o
	}
	module := m{
		"training": true, "_modules": m{"fc": p}, "extra": p,
		"_parameters": m{"w": p, "b": nil}, "_buffers": &value.Dict{Pairs: []value.Pair{{Key: "w", Value: p}}},
	}
	for name, c := range map[string]struct{ v, want any }{
		"itself":     {p, ""},
		"containers": {m{"a": []any{int64(1), p}, "b": value.Tuple{p, &value.Set{Items: []any{p}}}}, m{"a": []any{int64(1), "a/1"}, "b": value.Tuple{"b/0", &value.Set{Items: []any{"b/1/0"}}}}},
		"keys": {
			&value.Dict{Pairs: []value.Pair{{Key: nil, Value: p}, {Key: true, Value: p}, {Key: 1.5, Value: p}, {Key: int64(2), Value: p}, {Key: "2", Value: p}, {Key: value.Tuple{"a", int64(1)}, Value: p}, {Key: p, Value: p}}},
			&value.Dict{Pairs: []value.Pair{{Key: nil, Value: "None"}, {Key: true, Value: "True"}, {Key: 1.5, Value: "1.5"}, {Key: int64(2), Value: "2"}, {Key: "2", Value: "2#2"}, {Key: value.Tuple{"a", int64(1)}, Value: "(a, 1)"}, {Key: "key#2", Value: "6"}}},
		},
		"objects": {
			object(value.Object{Args: value.Tuple{p}, Kwargs: m{"k": p}, State: m{"k": p}, Items: []any{p}, Pairs: []value.Pair{{Key: "x", Value: p}}}),
			object(value.Object{Args: value.Tuple{"0"}, Kwargs: m{"k": "k#2"}, State: m{"k": "k"}, Items: []any{"0#2"}, Pairs: []value.Pair{{Key: "x", Value: "x"}}}),
		},
		"slots":         {object(value.Object{State: value.Tuple{nil, m{"a": p}}}), object(value.Object{State: value.Tuple{nil, m{"a": "a"}}})},
		"another state": {object(value.Object{State: value.Tuple{p}}), object(value.Object{State: value.Tuple{"state/0"}})},
		"modules": {object(value.Object{State: module}), object(value.Object{State: m{
			"training": true, "_modules": m{"fc": "_modules/fc"}, "extra": "extra",
			"_parameters": m{"w": "w#2", "b": nil}, "_buffers": &value.Dict{Pairs: []value.Pair{{Key: "w", Value: "w"}}},
		}})},
	} {
		got, err := where().Replace(c.v)
		if d := cmp.Diff(c.want, got); err != nil || d != "" {
			t.Errorf("%s: Replace = %v (-want +got)\n%s", name, err, d)
		}
	}
}

// A part that is shared is visited once, however often it is shared, and stays
// shared.
func TestReplaceKeepsSharedParts(t *testing.T) {
	v := any([]any{place{}})
	for range 60 {
		v = []any{v, v}
	}
	r := where()
	got := must.Get(r.Replace(map[string]any{"a": v}))(t)
	for _, l := range got.(map[string]any) {
		for range 60 {
			pair := l.([]any)
			if &pair[0].([]any)[0] != &pair[1].([]any)[0] {
				t.Fatal("two copies of one list")
			}
			l = pair[0]
		}
		if want := "a" + strings.Repeat("/0", 61); l.([]any)[0] != want {
			t.Errorf("replaced by %v; want %v", l, want)
		}
	}
	if again, err := r.Replace(v); err != nil || &again.([]any)[0] != &got.(map[string]any)["a"].([]any)[0] {
		t.Errorf("a second call copied it again (%v)", err)
	}
	deep := any(place{})
	for range 3000 {
		deep = []any{deep}
	}
	if _, err := where().Replace(deep); err == nil {
		t.Error("a value nested 3000 deep was copied")
	}
}

// With Again, a part that is shared is visited at each of its places, as far as the
// bound allows.
func TestReplaceVisitsSharedPartsAgain(t *testing.T) {
	type m = map[string]any
	linear := &value.Object{Module: "torch.nn", Name: "Linear", Call: true, State: m{"_modules": m{}, "_parameters": m{"w": place{}}}}
	config := []any{value.Tuple{"x"}, value.Tuple{"y"}}
	v := m{"a": linear, "b": []any{linear, m{"c": linear}}, "d": config, "e": config}
	want := []string{"a/w", "b/0/w", "b/1/c/w"}
	for again, want := range map[int64][]string{0: want[:1], 1 << 20: want} {
		var got []string
		r := &value.Replacer{Again: again, With: func(at []string, v any) (any, bool, error) {
			_, ok := v.(place)
			if ok {
				got = append(got, strings.Join(at, "/"))
			}
			return "", ok, nil
		}}
		out, err := r.Replace(v)
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("Again %d: %v (-want +visited)\n%s", again, err, d)
		}
		if o := out.(m); &o["d"].([]any)[0] != &o["e"].([]any)[0] {
			t.Errorf("Again %d: a list in which nothing is replaced was copied twice", again)
		}
	}
	visits := 0
	r := &value.Replacer{Again: 1 << 20, With: func(at []string, v any) (any, bool, error) {
		_, ok := v.(place)
		if ok {
			visits++
		}
		return "", ok, nil
	}}
	deep := any([]any{place{}})
	for range 60 {
		deep = []any{deep, deep}
	}
	if _, err := r.Replace(deep); err != nil || visits < 10 || visits > 1<<20/(2*60*32) {
		t.Errorf("2^60 places: %d visits, %v; want some, within the bound", visits, err)
	}
}

func TestRefs(t *testing.T) {
	v := map[string]any{"b": value.Ref{FQN: "x.b"}, "a": value.Tuple{value.Ref{FQN: "x.a"}, value.Ref{FQN: "x.b"}, value.Ref{FQN: "$\xed\xa0\x80"}}}
	codec, data, err := value.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	got, err := value.Decode(codec, data)
	if d := cmp.Diff(any(v), got); err != nil || d != "" {
		t.Errorf("Decode(%s) = %v (-want +got)\n%s", data, err, d)
	}
	if d := cmp.Diff([]string{"x.a", "x.b", "$\xed\xa0\x80"}, value.Refs(got)); d != "" {
		t.Errorf("Refs (-want +got)\n%s", d)
	}
	if _, err := value.Decode(value.JSON, []byte(`{"$ref": 1}`)); err == nil {
		t.Error("a reference to a number was decoded")
	}
	if s, err := value.DecodeLike(codec, []byte(`{"$ref":"x"}`), ""); err != nil || s != any(value.Ref{FQN: "x"}) {
		t.Errorf("DecodeLike a string = %v, %v; want the reference", s, err)
	}
}

// A value with millions of small containers is walked without a copy and a note
// of each of them.
func TestReplaceTakesLittleMemory(t *testing.T) {
	const n = 10_000
	list := make([]any, n)
	for i := range list {
		list[i] = value.Tuple{nil}
	}
	r := value.Replacer{With: func(_ []string, v any) (any, bool, error) { return nil, false, nil }}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	must.Get(r.Replace(list))(t)
	runtime.ReadMemStats(&after)
	if got, most := after.TotalAlloc-before.TotalAlloc, uint64(100*n); got > most {
		t.Errorf("%d tuples took %d bytes of memory; want at most %d", n, got, most)
	}
}
