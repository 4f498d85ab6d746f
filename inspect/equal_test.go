package inspect_test

import (
	"math"
	"math/big"
	"testing"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

func TestEqualValues(t *testing.T) {
	type m = map[string]any
	dict := func(ordered bool, pairs ...value.Pair) *value.Dict {
		return &value.Dict{Pairs: pairs, Ordered: ordered}
	}
	one, two := value.Pair{Key: int64(1), Value: "a"}, value.Pair{Key: int64(2), Value: "b"}
	class := func(name string, arg, state any) *value.Object {
		return &value.Object{Module: "m", Name: name, Call: true, Args: value.Tuple{arg}, State: state}
	}
	for _, c := range []struct {
		claim string
		a, b  any
		equal bool
		where string
	}{
		{"nil equals nil", nil, nil, true, ""},
		{"nil is not false", nil, false, false, ""},
		{"a number", int64(7), int64(7), true, ""},
		{"types matter", int64(1), 1.0, false, ""},
		{"bools are no numbers", true, int64(1), false, ""},
		{"large numbers", new(big.Int).Lsh(big.NewInt(1), 80), new(big.Int).Lsh(big.NewInt(1), 80), true, ""},
		{"other large numbers", new(big.Int).Lsh(big.NewInt(1), 80), new(big.Int).Lsh(big.NewInt(1), 81), false, ""},
		{"a NaN equals a NaN", math.NaN(), math.NaN(), true, ""},
		{"also as a part", complex(1, math.NaN()), complex(1, math.NaN()), true, ""},
		{"parts differ", complex(1, 2), complex(1, 3), false, ""},
		{"bytes", []byte{1}, []byte{1}, true, ""},
		{"bytes are no text", []byte("a"), "a", false, ""},
		{"lists", []any{int64(1), []any{"x"}}, []any{int64(1), []any{"y"}}, false, "[1][0]"},
		{"lengths", []any{int64(1)}, []any{}, false, ""},
		{"tuples are no lists", value.Tuple{}, []any{}, false, ""},
		{"tuples", value.Tuple{int64(1)}, value.Tuple{int64(1)}, true, ""},
		{"maps", m{"a": 1.0, "b": m{"it's": 2.0}}, m{"a": 1.0, "b": m{"it's": 3.0}}, false, `['b']["it's"]`},
		{"other keys", m{"a": 1.0}, m{"b": 1.0}, false, ""},
		{"dicts of all kinds", m{"a": nil}, dict(true, value.Pair{Key: "a"}), true, ""},
		{"the order of dicts is none", dict(false, one, two), dict(true, two, one), true, ""},
		{"that of ordered ones is", dict(true, one, two), dict(true, two, one), false, ""},
		{"keys of numbers", dict(false, one, two), dict(false, one, value.Pair{Key: int64(2), Value: "c"}), false, "[2]"},
		{"a key is of its type", dict(false, value.Pair{Key: int64(1)}), dict(false, value.Pair{Key: "1"}), false, ""},
		{"sets", &value.Set{Items: []any{int64(1), "a"}}, &value.Set{Items: []any{"a", int64(1)}}, true, ""},
		{"other sets", &value.Set{Items: []any{int64(1)}}, &value.Set{Items: []any{int64(2)}}, false, ""},
		{"frozen ones", &value.Set{}, &value.Set{Frozen: true}, false, ""},
		{"objects", class("C", int64(1), nil), class("C", int64(1), nil), true, ""},
		{"other classes", class("C", nil, nil), class("D", nil, nil), false, ""},
		{"arguments", class("C", int64(1), nil), class("C", int64(2), nil), false, ".args[0]"},
		{"state", class("C", nil, m{"x": int64(1)}), class("C", nil, m{"x": int64(2)}), false, ".state['x']"},
		{"tensors", counting(t, 2), counting(t, 2), true, ""},
		{"other tensors", counting(t, 2), to(t, tensor.Float64, counting(t, 2)), false, ""},
		{"a list and a number", []any{}, int64(1), false, ""},
	} {
		for _, swap := range []bool{false, true} {
			a, b := c.a, c.b
			if swap {
				a, b = b, a
			}
			if equal, where := inspect.EqualValues(a, b); equal != c.equal || where != c.where {
				t.Errorf("%s: EqualValues(%v, %v) = %v, %q; want %v, %q", c.claim, a, b, equal, where, c.equal, c.where)
			}
		}
	}
}
