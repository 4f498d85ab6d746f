package pickle_test

import (
	"fmt"
	"math/big"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/value"
)

// same are the rules by which a value equals its decoded copy.
var same = cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateNaNs(), cmp.Comparer(equalBig)}

// text draws strings, some with a surrogate.
func text() *rapid.Generator[string] {
	return rapid.OneOf(rapid.String(), rapid.Just("\xed\xb0\x80"), rapid.StringN(200, 300, -1))
}

// hashable draws a key of a dict.
func hashable() *rapid.Generator[any] {
	return rapid.OneOf(
		rapid.Just[any](nil),
		rapid.Custom(func(t *rapid.T) any { return rapid.Int64().Draw(t, "int") }),
		rapid.Custom(func(t *rapid.T) any { return text().Draw(t, "str") }),
		rapid.Custom(func(t *rapid.T) any { return rapid.SliceOf(rapid.Byte()).Draw(t, "bytes") }),
		rapid.Custom(func(t *rapid.T) any {
			return value.Tuple(list(rapid.SliceOfN(rapid.Int64(), 0, 5).Draw(t, "tuple")...))
		}),
		rapid.Just[any](name("torch", "float32")),
	)
}

// bigInt draws integers beyond 64 bits.
func bigInt(t *rapid.T) any {
	n := new(big.Int).Lsh(big.NewInt(rapid.Int64Range(1, 1<<40).Draw(t, "mantissa")), uint(rapid.IntRange(64, 3000).Draw(t, "shift")))
	if rapid.Bool().Draw(t, "negative") {
		n.Neg(n)
	}
	return n
}

func leaf() *rapid.Generator[any] {
	return rapid.OneOf(
		hashable(),
		rapid.Custom(func(t *rapid.T) any { return rapid.Bool().Draw(t, "bool") }),
		rapid.Custom(func(t *rapid.T) any { return rapid.Float64().Draw(t, "float") }),
		rapid.Custom(func(t *rapid.T) any { return complex(rapid.Float64().Draw(t, "re"), rapid.Float64().Draw(t, "im")) }),
		rapid.Custom(func(t *rapid.T) any { return uint64(1)<<63 | rapid.Uint64().Draw(t, "uint") }),
		rapid.Custom(bigInt),
		rapid.Custom(moment),
		rapid.Custom(scalar),
	)
}

func moment(t *rapid.T) any {
	n := func(name string, lo, hi int64) int64 { return rapid.Int64Range(lo, hi).Draw(t, name) }
	args := ints(n("year", 1, 9999), n("month", 1, 12), n("day", 1, 28), n("hour", 0, 23), n("minute", 0, 59))
	s, us := n("second", 0, 59), n("micro", 0, 999999)
	if s != 0 || us != 0 {
		args = append(args, s)
	}
	if us != 0 {
		args = append(args, us)
	}
	return &value.Object{Module: "datetime", Name: "datetime", Call: true, Args: args}
}

func scalar(t *rapid.T) any {
	switch rapid.IntRange(0, 3).Draw(t, "scalar") {
	case 0:
		return call("numpy", "float32", float64(rapid.Float32().Draw(t, "float32")))
	case 1:
		return call("numpy", "int16", int64(rapid.Int16().Draw(t, "int16")))
	case 2:
		return call("numpy", "uint32", int64(rapid.Uint32().Draw(t, "uint32")))
	}
	return call("torch", "Size", value.Tuple(list(rapid.SliceOfN(rapid.Int64(), 0, 5).Draw(t, "size")...)))
}

// tree draws nested values.
func tree(depth int) *rapid.Generator[any] {
	if depth == 0 {
		return leaf()
	}
	return rapid.Custom(func(t *rapid.T) any {
		items := func() []any { return rapid.SliceOfN(tree(depth-1), 0, 4).Draw(t, "items") }
		keys := func() []any {
			return rapid.SliceOfNDistinct(hashable(), 0, 4, func(v any) string { return fmt.Sprintf("%T %v", v, v) }).Draw(t, "keys")
		}
		switch rapid.IntRange(0, 7).Draw(t, "kind") {
		case 0:
			return items()
		case 1:
			return value.Tuple(items())
		case 2:
			return rapid.MapOfN(text(), tree(depth-1), 0, 4).Draw(t, "map")
		case 3:
			return &value.Dict{Pairs: pairs(append(keys(), 1.5), tree(depth-1), t)}
		case 4:
			return &value.Dict{Ordered: true, Pairs: pairs(keys(), tree(depth-1), t)}
		case 5:
			return &value.Set{Items: keys(), Frozen: rapid.Bool().Draw(t, "frozen")}
		case 6:
			return &value.Object{Module: "my.module", Name: "Class", Call: true, New: true, Args: items(),
				State: map[string]any{"x": items()}, Items: items(), Pairs: pairs(keys(), tree(depth-1), t)}
		}
		return leaf().Draw(t, "leaf")
	})
}

func pairs(keys []any, values *rapid.Generator[any], t *rapid.T) []value.Pair {
	var out []value.Pair
	for _, k := range keys {
		out = append(out, value.Pair{Key: k, Value: values.Draw(t, "value")})
	}
	return out
}

// property: an encoded value decodes to the same value, in every protocol
func TestRoundTrip(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		want := tree(3).Draw(t, "value")
		o := &pickle.EncodeOptions{Protocol: rapid.IntRange(2, 5).Draw(t, "protocol"), Allow: func(string, string) bool { return true }}
		b, err := pickle.Encode(want, o)
		if err != nil {
			t.Fatalf("Encode: %v", err)
		}
		got, err := pickle.Decode(b, nil)
		if err != nil {
			t.Fatalf("Decode: %v", err)
		}
		if diff := cmp.Diff(want, got, same); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}
