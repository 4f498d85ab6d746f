package pickle_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/value"
)

// sample is a pickle that Python made; see testdata/generate.py.
type sample struct {
	Name     string `json:"name"`
	Protocol int    `json:"protocol"`
	Pickle   string `json:"pickle"`
}

func (s *sample) bytes(t testing.TB) []byte {
	t.Helper()
	b := must.Get(base64.StdEncoding.DecodeString(s.Pickle))(t)
	return b
}

func samples(t testing.TB) []sample {
	t.Helper()
	b := must.Get(os.ReadFile("testdata/python.json"))(t)
	var out []sample
	must.Do(t, json.Unmarshal(b, &out))
	return out
}

func name(module, name string) *value.Object { return &value.Object{Module: module, Name: name} }

func call(module, name string, args ...any) *value.Object {
	return &value.Object{Module: module, Name: name, Call: true, Args: args}
}

func named(o *value.Object, kwargs map[string]any) *value.Object {
	o.Kwargs = kwargs
	return o
}

func ints(v ...int64) value.Tuple {
	out := value.Tuple{}
	for _, n := range v {
		out = append(out, n)
	}
	return out
}

func list(v ...int64) []any { return ints(v...) }

func array(dtype, order string, shape value.Tuple, data string) *value.Object {
	return named(call("numpy", "ndarray"), map[string]any{"dtype": dtype, "order": order, "shape": shape, "data": []byte(data)})
}

var (
	two80 = new(big.Int).Neg(new(big.Int).Lsh(big.NewInt(1), 80))
	two64 = new(big.Int).Lsh(big.NewInt(1), 64)
	utc   = call("datetime", "timezone", call("datetime", "timedelta", int64(0)))
	days  = map[string]any{"days": int64(-1), "seconds": int64(5)}
)

// wanted has the decoded value of each sample, for every protocol.
var wanted = map[string]any{
	"none":  nil,
	"bools": []any{true, false},
	"ints": append(list(0, 255, 256, 65535, 65536, -1, math.MinInt32, 1<<31, 1<<57, -1<<57-1, math.MaxInt64, math.MinInt64),
		uint64(1<<63), uint64(math.MaxUint64), two64, two80),
	"floats":    []any{0.0, -1.5, 1e300, math.Inf(1), math.Inf(-1)},
	"strings":   []any{"", "a", "ü", "\xed\xa0\x80x", strings.Repeat("x", 300), "\U0001f600", "a\\u0041\n"},
	"bytes":     []any{[]byte{}, []byte{0, 255}, []byte(strings.Repeat("a", 300))},
	"bytearray": call("builtins", "bytearray", []byte("abc")),
	"tuples": []any{value.Tuple{}, ints(1), ints(1, 2), ints(1, 2, 3), ints(1, 2, 3, 4), value.Tuple{ints(1, 2)},
		value.Tuple{"a", nil}, value.Tuple{value.Tuple{}}},
	"dict": map[string]any{"a": int64(1), "b": map[string]any{"c": int64(2)}},
	"keys": &value.Dict{Pairs: []value.Pair{{Key: int64(1), Value: int64(2)}, {Key: ints(1, 2), Value: "x"}, {Key: nil, Value: int64(3)},
		{Key: "s", Value: int64(4)}, {Key: 1.5, Value: int64(5)}, {Key: []byte("b"), Value: int64(6)}}},
	"ordered":    &value.Dict{Ordered: true, Pairs: []value.Pair{{Key: "z", Value: int64(1)}, {Key: "a", Value: int64(2)}}},
	"attributed": &value.Dict{Ordered: true, Pairs: []value.Pair{{Key: "w", Value: int64(1)}}},
	"set":        &value.Set{Items: list(7)},
	"frozenset":  &value.Set{Items: []any{"a"}, Frozen: true},
	"emptyset":   &value.Set{},
	"complex":    1 + 2i,
	"defaultdict": &value.Object{Module: "collections", Name: "defaultdict", Call: true,
		Args: value.Tuple{name("builtins", "list")}, Pairs: []value.Pair{{Key: "a", Value: list(1)}}},
	"counter": call("collections", "Counter", map[string]any{"a": int64(2), "b": int64(1)}),
	"paths": []any{call("pathlib", "PurePosixPath", "/a/b"), call("pathlib", "PurePosixPath", "x/y"),
		call("pathlib", "PurePosixPath", "."), call("pathlib", "PurePosixPath", "//a")},
	"datetimes": []any{
		&value.Object{Module: "datetime", Name: "datetime", Call: true, Args: ints(2026, 5, 11, 7, 26)},
		&value.Object{Module: "datetime", Name: "datetime", Call: true, Args: ints(2026, 5, 11, 7, 26, 0, 5)},
		&value.Object{Module: "datetime", Name: "datetime", Call: true, Args: ints(2026, 1, 1, 0, 0), Kwargs: map[string]any{"tzinfo": utc}},
	},
	"dates": []any{
		&value.Object{Module: "datetime", Name: "date", Call: true, Args: ints(2026, 5, 11)},
		&value.Object{Module: "datetime", Name: "time", Call: true, Args: ints(1, 2)},
		&value.Object{Module: "datetime", Name: "time", Call: true, Args: ints(1, 2, 3, 4)},
		call("datetime", "timedelta", int64(0)),
		named(call("datetime", "timedelta"), days),
		call("datetime", "timezone", named(call("datetime", "timedelta"), map[string]any{"seconds": int64(7200)}), "X"),
	},
	"uuid":            call("uuid", "UUID", "12345678-1234-5678-1234-567812345678"),
	"decimal":         call("decimal", "Decimal", "1.50"),
	"namespace":       &value.Object{Module: "argparse", Name: "Namespace", Call: true, New: true, State: map[string]any{"a": int64(1), "b": "x"}},
	"simplenamespace": &value.Object{Module: "types", Name: "SimpleNamespace", Call: true, State: map[string]any{"q": list(1)}},
	"range":           call("builtins", "range", int64(1), int64(9), int64(2)),
	"shared":          []any{list(1, 2), list(1, 2), value.Tuple{list(1, 2)}},
	"types":           []any{name("builtins", "int"), name("builtins", "Ellipsis"), name("builtins", "list")},

	"np_scalars": []any{call("numpy", "float64", 1.5), call("numpy", "float32", 0.25), call("numpy", "float16", -2.0),
		call("numpy", "int8", int64(-3)), call("numpy", "uint64", uint64(1<<63)), call("numpy", "bool", true), call("numpy", "complex64", 1+2i)},
	"np_array": array("<i4", "C", ints(2, 3), "\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x04\x00\x00\x00\x05\x00\x00\x00"),
	"np_fortran": array("<f8", "F", ints(2, 2),
		"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x00\x00\x00\x00\x08\x40"),
	"np_strings": array("<U2", "C", ints(2), "a\x00\x00\x00b\x00\x00\x00c\x00\x00\x00\x00\x00\x00\x00"),
	"np_dtype":   []any{call("numpy", "dtype", "<f4"), call("numpy", "dtype", "|i1"), call("numpy", "dtype", "<U3")},
	"torch_plain": []any{name("torch", "bfloat16"), call("torch", "Size", ints(3, 4)), call("torch", "Size", value.Tuple{}),
		call("torch", "device", "cpu"), call("torch", "device", "cuda", int64(1)), name("torch", "strided")},
	"torch_formats": []any{name("torch", "contiguous_format"), name("torch", "channels_last"), name("torch", "channels_last_3d"),
		name("torch", "preserve_format")},
	"bytearrays": []any{call("builtins", "bytearray", []byte{}), call("builtins", "bytearray", []byte("a\x80\xff"))},
}

func TestDecodePythonPickles(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range samples(t) {
		t.Run(fmt.Sprintf("%s-%d", s.Name, s.Protocol), func(t *testing.T) {
			got := must.Get(pickle.Decode(s.bytes(t), nil))(t)
			want, ok := wanted[s.Name]
			if !ok {
				return // "many" and "np_odd" have tests of their own
			}
			seen[s.Name] = true
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.Comparer(equalBig)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for n := range wanted {
		if !seen[n] {
			t.Errorf("no sample is called %q", n)
		}
	}
}

func equalBig(a, b *big.Int) bool { return a.Cmp(b) == 0 }

func TestPythonPicklesRoundTrip(t *testing.T) {
	for _, s := range samples(t) {
		want := must.Get(pickle.Decode(s.bytes(t), nil))(t)
		for p := 2; p <= 5; p++ {
			b, err := pickle.Encode(want, &pickle.EncodeOptions{Protocol: p})
			if err != nil {
				t.Fatalf("%s in protocol %d: %v", s.Name, p, err)
			}
			got, err := pickle.Decode(b, nil)
			if err != nil {
				t.Fatalf("%s in protocol %d: %v", s.Name, p, err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.Comparer(equalBig)); diff != "" {
				t.Errorf("%s in protocol %d (-want +got):\n%s", s.Name, p, diff)
			}
		}
	}
}

func TestUnsupportedArraysStayObjects(t *testing.T) {
	for _, s := range samples(t) {
		if s.Name != "np_odd" {
			continue
		}
		v := must.Get(pickle.Decode(s.bytes(t), nil))(t)
		for i, want := range []string{"_reconstruct", "scalar", "_reconstruct"} {
			o := v.([]any)[i].(*value.Object)
			if o.Name != want && o.Name != "_frombuffer" || !o.Call {
				t.Errorf("protocol %d: item %d is a call of %s; want %s", s.Protocol, i, o.QualifiedName(), want)
			}
		}
	}
}

func TestSharedPartsStayShared(t *testing.T) {
	for _, s := range samples(t) {
		if s.Name != "shared" {
			continue
		}
		v := must.Get(pickle.Decode(s.bytes(t), nil))(t)
		b, err := pickle.Encode(v, nil)
		if err != nil {
			t.Fatal(err)
		}
		if v, err = pickle.Decode(b, nil); err != nil {
			t.Fatal(err)
		}
		l := v.([]any)
		if &l[0].([]any)[0] != &l[1].([]any)[0] || &l[0].([]any)[0] != &l[2].(value.Tuple)[0].([]any)[0] {
			t.Errorf("protocol %d: the shared list is there several times", s.Protocol)
		}
	}
}

func TestLargeListsKeepTheirOrder(t *testing.T) {
	for _, s := range samples(t) {
		if s.Name != "many" {
			continue
		}
		v := must.Get(pickle.Decode(s.bytes(t), nil))(t)
		for i, e := range v.([]any) {
			if e != int64(i) {
				t.Fatalf("protocol %d: item %d = %v", s.Protocol, i, e)
			}
		}
		if n := len(v.([]any)); n != 1500 {
			t.Errorf("protocol %d: %d items; want 1500", s.Protocol, n)
		}
	}
}
