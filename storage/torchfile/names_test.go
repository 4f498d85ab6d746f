package torchfile_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// put writes a value as a file of torch.save.
func put(t *testing.T, s blob.Store, name string, v any) {
	t.Helper()
	b := must.Get(torchsave.Marshal(v))(t)
	putBytes(t, s, name, b)
}

func putBytes(t *testing.T, s blob.Store, name string, b []byte) {
	t.Helper()
	must.Get(blob.WriteAll(t.Context(), s, name, b, nil))(t)
}

// holding returns a store with a file "x.pt" of a value.
func holding(t *testing.T, v any) blob.Store {
	t.Helper()
	s := new(mem.Store)
	put(t, s, "x.pt", v)
	return s
}

func vector(t testing.TB, values ...float32) *tensor.Tensor {
	t.Helper()
	x := must.Get(tensor.Of([]int64{int64(len(values))}, values))(t)
	return x
}

func dict(pairs ...any) *value.Dict {
	d := &value.Dict{}
	for i := 0; i < len(pairs); i += 2 {
		d.Pairs = append(d.Pairs, value.Pair{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

func TestNames(t *testing.T) {
	x, y, z := vector(t, 1, 2), vector(t, 3), vector(t, 4)
	twice := value.Tuple{x}
	type m = map[string]any
	for claim, c := range map[string]struct {
		root any
		want string // names, tensors with a star
	}{
		"dicts are opened":                             {m{"a": m{"b": x, "c": int64(1)}}, "*a.b a.c"},
		"ordered dicts are opened":                     {&value.Dict{Ordered: true, Pairs: []value.Pair{{Key: "b", Value: x}, {Key: "a", Value: x}}}, "*a *b"},
		"integers are keys":                            {m{"state": dict(int64(0), m{"w": x}, int64(-1), x)}, "*state.-1 *state.0.w"},
		"other keys are not, but tensors have names":   {m{"a": dict(0.5, x, nil, y, value.Tuple{int64(1), "b"}, z)}, "a *a.(1, b) *a.0.5 *a.None"},
		"a bool and its text are two keys":             {m{"a": dict(true, x, "True", y)}, "a *a.True *a.True#2"},
		"empty dicts are values":                       {m{"a": m{}, "b": m{"c": &value.Dict{Ordered: true}}}, "a b.c"},
		"empty dicts in lists that are opened too":     {m{"a": []any{m{}, x}, "b": []any{[]any{m{}}, m{"c": m{}}}}, "a.0 *a.1 b.0 b.1.c"},
		"lists of empty dicts are values":              {m{"e": []any{[]any{}, m{}}}, "e"},
		"an empty state has no names":                  {m{}, ""},
		"lists of tensors are opened":                  {m{"a": []any{x, int64(1)}}, "*a.0 a.1"},
		"lists of dicts are opened":                    {m{"a": []any{[]any{m{"lr": 0.1}}}}, "a.0.0.lr"},
		"other lists are values":                       {m{"a": []any{int64(1), []any{"b"}}, "e": []any{}}, "a e"},
		"tuples are values with tensors inside":        {m{"a": value.Tuple{x, m{"b": y}}}, "a *a.0 *a.1.b"},
		"a list with a tuple of tensors is a value":    {m{"a": []any{value.Tuple{x}}}, "a *a.0.0"},
		"a tensor inside has a name for each place":    {m{"a": value.Tuple{x, x}, "b": x}, "a *a.0 *a.1 *b"},
		"a tensor that is inside twice has two names":  {m{"a": twice, "b": twice}, "a *a.0 b *b.0"},
		"keys may have dots":                           {m{"a.b": x, "c": m{"d.e": x}}, "*a.b *c.d.e"},
		"a tensor alone has a name":                    {x, "*tensor"},
		"a value alone has a name":                     {int64(7), "value"},
		"a list alone is opened below a name":          {[]any{x, m{"a": x}}, "*value.0 *value.1.a"},
		"a tuple alone is opened as a list":            {value.Tuple{m{"w": x}, m{"lr": 0.1}}, "*value.0.w value.1.lr"},
		"a tuple alone without tensors is one value":   {value.Tuple{int64(1), "b"}, "value"},
		"one tensor may have several names":            {m{"a": x, "b": x}, "*a *b"},
		"a dict with keys of other kinds is one value": {dict(0.5, x), "value *value.0.5"},
	} {
		t.Run(claim, func(t *testing.T) {
			_, md := load(t, holding(t, c.root), "x.pt")
			var got []string
			for i := range md.Entries {
				name := md.Entries[i].FQN
				if md.Entries[i].Tensor != nil {
					name = "*" + name
				}
				got = append(got, name)
				if f := md.Entries[i].Path.FQN(); f != md.Entries[i].FQN {
					t.Errorf("the path of %q says %q", md.Entries[i].FQN, f)
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("names = %q; want %q", got, c.want)
			}
		})
	}
}

// Paths that give one name get different names, whatever the order of the dicts,
// and keep their paths.
func TestDuplicateNamesAreNumbered(t *testing.T) {
	type m = map[string]any
	long := strings.Repeat("x", 2*meta.MaxFQN)
	for claim, c := range map[string]struct {
		root any
		want string // names and their paths
	}{
		"a dot and a dict":         {m{"a.b": int64(1), "a": m{"b": int64(2)}}, "a.b=a.b a.b#2=a/b"},
		"a text and a number":      {dict("1", "x", int64(1), "y"), "1=1 1#2=1"},
		"a list and a dict":        {m{"a": []any{m{"b": int64(1)}}, "a.0": m{"b": int64(2)}}, "a.0.b=a.0/b a.0.b#2=a/0/b"},
		"a number and another one": {m{"a": dict(int64(1), m{"b": "x"}, "1.b", "y")}, "a.1.b=a/1.b a.1.b#2=a/1/b"},
		"a name that is a number":  {m{"a.b": int64(1), "a": m{"b": int64(2)}, "a.b#2": int64(3)}, "a.b=a.b a.b#2=a.b#2 a.b#3=a/b"},
		"inside of a value":        {m{"a": value.Tuple{vector(t, 1)}, "a.0": vector(t, 2)}, "a=a a.0=a.0 a.0#2=a/0"},
		"an empty key":             {m{"": int64(1)}, "''="},
		"a long key":               {m{long: int64(1)}, long[:meta.MaxFQN-32] + "=" + long},
		"no Unicode text":          {m{"a\xed\xa0\x80": int64(1)}, "a\uFFFD=a\xed\xa0\x80"},
	} {
		for range 3 { // maps have no order
			_, md := load(t, holding(t, c.root), "x.pt")
			if err := md.Validate(); err != nil {
				t.Errorf("%s: %v", claim, err)
			}
			var got []string
			for _, e := range md.Entries {
				var steps []string
				for _, s := range e.Path {
					steps = append(steps, s.String())
				}
				got = append(got, e.FQN+"="+strings.Join(steps, "/"))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s: names = %q; want %q", claim, got, c.want)
			}
		}
	}
}

// Values keep their Python types, also around tensors.
func TestValuesRoundTrip(t *testing.T) {
	x := vector(t, 1, 2)
	want := map[string]any{
		"tuple": value.Tuple{x, int64(3), map[string]any{"y": x}}, "none": nil, "size": &value.Object{Module: "torch", Name: "float16"},
		"set": &value.Set{Items: []any{int64(1)}}, "long": strings.Repeat("long", 50_000), "bytes": []byte{1, 2},
	}
	got, _ := load(t, holding(t, want), "x.pt")
	same := cmp.Comparer(tensor.Equal)
	if diff := cmp.Diff(want, got, same); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	if names := slices.Sorted(maps.Keys(got)); len(names) != len(want) {
		t.Errorf("names = %q", names)
	}
}

// A small pickle that names one list in many places is no way to take all
// memory.
func TestSharedValuesAreBounded(t *testing.T) {
	for claim, leaf := range map[string]any{"as names": map[string]any{"x": int64(1)}, "as text": int64(1)} {
		v := any([]any{leaf})
		for range 40 {
			v = []any{v, v}
		}
		if _, err := (torchfile.Format{File: "x.pt"}).Open(t.Context(), holding(t, map[string]any{"a": v})); err == nil {
			t.Errorf("%s: Open = nil; want a refusal", claim)
		}
	}
}
