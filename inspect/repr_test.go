package inspect_test

import (
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/value"
)

// The expectations are what Python 3 prints.
func TestReprIsPythons(t *testing.T) {
	big80 := new(big.Int).Lsh(big.NewInt(1), 80)
	for _, c := range []struct {
		v          any
		kind, want string
	}{
		{nil, "NoneType", "None"},
		{true, "bool", "True"},
		{false, "bool", "False"},
		{-7, "int", "-7"},
		{uint64(math.MaxUint64), "int", "18446744073709551615"},
		{big80, "int", "1208925819614629174706176"},
		{0.000325, "float", "0.000325"},
		{0.0, "float", "0.0"},
		{math.Copysign(0, -1), "float", "-0.0"},
		{1e-5, "float", "1e-05"},
		{0.0001, "float", "0.0001"},
		{1e16, "float", "1e+16"},
		{123456789012345.0, "float", "123456789012345.0"},
		{1e15, "float", "1000000000000000.0"},
		{1e300, "float", "1e+300"},
		{0.1, "float", "0.1"},
		{math.Inf(1), "float", "inf"},
		{math.Inf(-1), "float", "-inf"},
		{math.NaN(), "float", "nan"},
		{"run-ü-7", "str", "'run-ü-7'"},
		{"it's", "str", `"it's"`},
		{`it's "x"`, "str", `'it\'s "x"'`},
		{"a\n\t\r\\\x00\x7f", "str", `'a\n\t\r\\\x00\x7f'`},
		{"\u0080\u200b\U000e0001😀", "str", `'\x80\u200b\U000e0001😀'`},
		{[]byte{0, 1, 0xff, 'a', '\''}, "bytes", `b"\x00\x01\xffa'"`},
		{[]byte{}, "bytes", "b''"},
		{[]any{}, "list", "[]"},
		{[]any{1, 2, []any{3, "x"}}, "list", "[1, 2, [3, 'x']]"},
		{[]any{map[string]any{"b": nil, "a": 1.5}}, "list", "[{'a': 1.5, 'b': None}]"},
	} {
		codec, data, err := value.Encode(c.v)
		if err != nil {
			t.Fatal(err)
		}
		v, err := value.Decode(codec, data)
		if err != nil {
			t.Fatal(err)
		}
		if got := inspect.Repr(v, 1000); got != c.want {
			t.Errorf("Repr(%v) = %s; want %s", c.v, got, c.want)
		}
		if got := inspect.TypeName(v); got != c.kind {
			t.Errorf("TypeName(%v) = %s; want %s", c.v, got, c.kind)
		}
	}
	for limit, want := range map[int]string{0: "…", 5: "['ab'…", 6: "['ab',…", 12: "['ab', 'ü']"} {
		if got := inspect.Repr([]any{"ab", "ü"}, limit); got != want {
			t.Errorf("Repr within %d bytes = %s; want %s", limit, got, want)
		}
	}
	if got := inspect.Repr("üü", 2); got != "'…" {
		t.Errorf("Repr cut inside of a character = %q", got)
	}
	huge := []any{make([]byte, 1<<26), strings.Repeat("x", 1<<26)}
	if got := inspect.Repr(huge, 8); got != `[b'\x00\…` {
		t.Errorf("Repr of much = %q", got)
	}
	if got := inspect.TypeName(map[string]any{}); got != "dict" {
		t.Errorf("TypeName(map) = %s; want dict", got)
	}
}
