package pickle_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/value"
)

func encoded(t testing.TB, v any) []byte {
	t.Helper()
	b := must.Get(pickle.Encode(v, &pickle.EncodeOptions{Protocol: 2, Allow: func(string, string) bool { return true }}))(t)
	return b
}

// ofOther decodes a pickle that differs from data in operands, by the value of data. It returns false
// if the pickles differ in something else, or in an operand that the value depends on.
func ofOther(data, other []byte) (any, bool) {
	ops := pickle.NewOpcodes(data)
	if ops == nil {
		return nil, false
	}
	var vary []pickle.Operand
	values := map[int]any{}
	if !ops.Differences(other, func(at int, v any) { vary, values[at] = append(vary, pickle.Operand{At: at}), v }) {
		return nil, false
	}
	v, fixed, err := pickle.DecodeVarying(data, vary, new(pickle.DecodeOptions))
	if err != nil || len(fixed) > 0 {
		return nil, false
	}
	r := value.Replacer{With: func(_ []string, v any) (any, bool, error) {
		x, ok := v.(*pickle.Varying)
		if !ok {
			return nil, false, nil
		}
		return values[x.At], true, nil
	}}
	v, err = r.Replace(v)
	return v, err == nil
}

func TestDecodeVarying(t *testing.T) {
	object := func(n int64, s string) any {
		return map[string]any{"o": &value.Object{Module: "m", Name: "C", Call: true, New: true, Args: value.Tuple{n}, State: map[string]any{"x": s}}}
	}
	for claim, c := range map[string]struct {
		a, b  any
		alike bool
	}{
		"equal":                      {object(1, "x"), object(1, "x"), true},
		"integers of other lengths":  {object(1, "x"), object(1<<40, "x"), true},
		"a negative integer":         {object(1, "x"), object(-5, "x"), true},
		"strings of other lengths":   {object(1, "cuda:1"), object(1, "cuda:11"), true},
		"items of a tuple of tuples": {value.Tuple{ints(1, 2), int64(3)}, value.Tuple{ints(1, 7), int64(3)}, true},
		"a size":                     {call("torch", "Size", ints(1, 2)), call("torch", "Size", ints(1, 3)), true},
		"an integer and a string":    {object(1, "x"), map[string]any{"o": "x"}, false},
		"an integer and a float":     {[]any{int64(1)}, []any{1.5}, false},
		"floats":                     {[]any{2.5}, []any{1.5}, false},
		"an integer of over 64 bits": {[]any{int64(1)}, []any{two80}, false},
		"the key of a dict":          {map[string]any{"a": int64(1)}, map[string]any{"b": int64(1)}, false},
		"a number as the key":        {&value.Dict{Pairs: []value.Pair{{Key: int64(1)}}}, &value.Dict{Pairs: []value.Pair{{Key: int64(2)}}}, false},
		"a key that is a tuple":      {&value.Dict{Pairs: []value.Pair{{Key: ints(1, 2)}}}, &value.Dict{Pairs: []value.Pair{{Key: ints(1, 3)}}}, false},
		"an item of a set":           {&value.Set{Items: list(1, 2)}, &value.Set{Items: list(1, 3)}, false},
		"a date":                     {call("datetime", "timedelta", int64(1)), call("datetime", "timedelta", int64(2)), false},
		"a path":                     {call("pathlib", "PosixPath", "a/b"), call("pathlib", "PosixPath", "a/c"), false},
		"a name":                     {name("torch", "int8"), name("torch", "int4"), false},
		"one more item":              {[]any{int64(1)}, []any{int64(1), int64(2)}, false},
	} {
		a, b := encoded(t, c.a), encoded(t, c.b)
		got, ok := ofOther(a, b)
		if ok != c.alike {
			t.Errorf("%s: alike %v; want %v", claim, ok, c.alike)
			continue
		}
		if want := must.Get(pickle.Decode(b, nil))(t); ok && !cmp.Equal(want, got, same) {
			t.Errorf("%s: %v; want %v", claim, got, want)
		}
	}
}

// property: a pickle that differs in operands only has the value of the other one, with its operands
func TestDecodeVaryingProperty(t *testing.T) {
	all := samples(t)
	alike := 0
	deep.Check(t, func(r *rapid.T) {
		var a []byte
		if rapid.Bool().Draw(r, "of Python") {
			a = all[rapid.IntRange(0, len(all)-1).Draw(r, "sample")].bytes(t)
		} else {
			var err error
			if a, err = pickle.Encode(tree(3).Draw(r, "value"), &pickle.EncodeOptions{Protocol: 2, Allow: func(string, string) bool { return true }}); err != nil {
				r.Fatalf("Encode: %v", err)
			}
		}
		b := slices.Clone(a)
		for range rapid.IntRange(1, 5).Draw(r, "changes") { // bytes behind opcodes of integers, and any others
			at := rapid.IntRange(0, len(b)-1).Draw(r, "at")
			if i := bytes.IndexByte(b[at:], 'K'); i >= 0 && rapid.Bool().Draw(r, "an integer") {
				at = min(at+i+1, len(b)-1)
			}
			b[at] = rapid.Byte().Draw(r, "byte")
		}
		got, ok := ofOther(a, b)
		if !ok {
			return
		}
		alike++
		want, err := pickle.Decode(b, &pickle.DecodeOptions{})
		if err != nil {
			r.Fatalf("Decode of the other pickle: %v", err)
		}
		if diff := cmp.Diff(want, got, same); diff != "" {
			r.Fatalf("(-want +got):\n%s", diff)
		}
	})
	t.Logf("%d cases were alike", alike)
}
