package inspect_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Python 3 prints the same.
func TestReprOfPlainValues(t *testing.T) {
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
		v := must.Get(value.Decode(codec, data))(t)
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
		t.Errorf("Repr cut inside a character = %q", got)
	}
	huge := []any{make([]byte, 1<<26), strings.Repeat("x", 1<<26)}
	if got := inspect.Repr(huge, 8); got != `[b'\x00\…` {
		t.Errorf("Repr of much = %q", got)
	}
	if got := inspect.TypeName(map[string]any{}); got != "dict" {
		t.Errorf("TypeName(map) = %s; want dict", got)
	}
}

// testdata/repr.py made testdata/repr.jsonl with Python 3.14, PyTorch 2.14 and
// numpy 2.4. Every object also passes through the native encoding.
func TestReprEqualsPythons(t *testing.T) {
	f := must.Get(os.Open("testdata/repr.jsonl"))(t)
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var row struct {
			Type, Repr string
			Protocol   int
			Pickle     []byte
		}
		must.Do(t, json.Unmarshal(lines.Bytes(), &row))
		v, err := pickle.Decode(row.Pickle, nil)
		if err != nil {
			t.Errorf("protocol %d, %s: %v", row.Protocol, row.Repr, err)
			continue
		}
		codec, data, err := value.Encode(v)
		if err != nil {
			t.Errorf("Encode(%s): %v", row.Repr, err)
			continue
		}
		if v, err = value.Decode(codec, data); err != nil {
			t.Errorf("Decode(%s): %v", data, err)
		}
		if got, want := inspect.Repr(v, 10_000), row.Repr; got != want {
			t.Errorf("protocol %d: Repr = %s; want %s", row.Protocol, got, want)
		}
		if got := inspect.TypeName(v); got != row.Type {
			t.Errorf("protocol %d: TypeName(%s) = %s; want %s", row.Protocol, row.Repr, got, row.Type)
		}
	}
	must.Do(t, lines.Err())
}

// maxShown is the length of the reprs in expected.json, in characters.
const maxShown = 400

// shown is an object of a checkpoint in expected.json.
type shown struct{ Type, Repr string }

func compareShown(a, b shown) int {
	return strings.Compare(a.Type+" "+a.Repr, b.Type+" "+b.Repr)
}

func TestReprOfFixtures(t *testing.T) {
	for _, c := range storagetest.Fixtures(t, "torch-*/objects") {
		t.Run(c.Name, func(t *testing.T) {
			var want []shown
			for _, it := range c.Items {
				if it.Kind == "object" {
					want = append(want, shown{it.Type, it.Repr})
				}
			}
			got := objectsIn(t, c.Dir)
			slices.SortFunc(want, compareShown)
			slices.SortFunc(got, compareShown)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("objects: -want +got\n%s", d)
			}
		})
	}
}

// objectsIn returns the objects in the pickles of a checkpoint's data files, without
// tensors. Each pickle is an uncompressed data.pkl in a zip archive.
func objectsIn(t *testing.T, dir string) []shown {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.distcp"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no data files in %s (%v)", dir, err)
	}
	var out []shown
	for _, name := range files {
		data := must.Get(os.ReadFile(name))(t)
		for _, p := range pickles(data) {
			v, _, err := pickle.DecodePrefix(p, nil)
			switch {
			case errors.Is(err, pickle.ErrPersistent): // a tensor
			case err != nil:
				t.Fatal(err)
			default:
				repr := []rune(inspect.Repr(v, 10_000))
				out = append(out, shown{inspect.TypeName(v), string(repr[:min(len(repr), maxShown)])})
			}
		}
	}
	return out
}

// pickles returns data from the start of each data.pkl on.
func pickles(data []byte) [][]byte {
	const header = 30
	var out [][]byte
	for {
		i := bytes.Index(data, []byte("PK\x03\x04"))
		if i < 0 || len(data)-i < header {
			return out
		}
		data = data[i:]
		name := header + int(binary.LittleEndian.Uint16(data[26:]))
		start := name + int(binary.LittleEndian.Uint16(data[28:]))
		if start <= len(data) && bytes.HasSuffix(data[:name], []byte("/data.pkl")) {
			out = append(out, data[start:])
		}
		data = data[4:]
	}
}

func call(module, name string, args ...any) *value.Object {
	return &value.Object{Module: module, Name: name, Call: true, Args: args}
}

func pairs(kv ...any) []value.Pair {
	var out []value.Pair
	for i := 0; i < len(kv); i += 2 {
		out = append(out, value.Pair{Key: kv[i], Value: kv[i+1]})
	}
	return out
}

func TestReprOfPythonTypes(t *testing.T) {
	x := must.Get(tensor.New(tensor.Float32, []int64{2, 3}))(t)
	one, two := int64(1), int64(2)
	for _, c := range []struct {
		v          any
		kind, want string
	}{
		{value.Tuple{one, "two", 3.0}, "tuple", "(1, 'two', 3.0)"},
		{value.Tuple{one}, "tuple", "(1,)"},
		{value.Tuple{}, "tuple", "()"},
		{&value.Set{Items: []any{one, two}}, "set", "{1, 2}"},
		{&value.Set{}, "set", "set()"},
		{&value.Set{Items: []any{one}, Frozen: true}, "frozenset", "frozenset({1})"},
		{&value.Set{Frozen: true}, "frozenset", "frozenset()"},
		{&value.Dict{Pairs: pairs(one, "a", value.Tuple{two}, nil)}, "dict", "{1: 'a', (2,): None}"},
		{&value.Dict{}, "dict", "{}"},
		{&value.Dict{Pairs: pairs("b", one, "a", two), Ordered: true}, "OrderedDict", "OrderedDict({'b': 1, 'a': 2})"},
		{&value.Dict{Ordered: true}, "OrderedDict", "OrderedDict()"},
		{1 + 2i, "complex", "(1+2j)"},
		{2i, "complex", "2j"},
		{complex(math.Copysign(0, -1), -2), "complex", "(-0-2j)"},
		{complex(math.NaN(), math.Inf(-1)), "complex", "(nan-infj)"},
		{complex(1e20, 1e-7), "complex", "(1e+20+1e-07j)"},
		{&value.Object{Module: "torch", Name: "bfloat16"}, "dtype", "torch.bfloat16"},
		{&value.Object{Module: "torch", Name: "strided"}, "layout", "torch.strided"},
		{&value.Object{Module: "builtins", Name: "int"}, "type", "<class 'int'>"},
		{call("builtins", "range", one, two, one), "range", "range(1, 2, 1)"},
		{call("collections", "defaultdict", &value.Object{Module: "builtins", Name: "int"}), "defaultdict", "defaultdict(<class 'int'>, {})"},
		{x, "Tensor", "tensor(dtype=float32, shape=[2, 3])"},
		{[]any{x}, "list", "[tensor(dtype=float32, shape=[2, 3])]"},
		{"a\xed\xb2\x80\xed\xa0\x80�\xff", "str", `'a\udc80\ud800�\udcff'`},
		{new(big.Int).Lsh(big.NewInt(1), 1<<20), "int", "<int of 1048577 bits>"},
	} {
		if got := inspect.Repr(c.v, 1000); got != c.want {
			t.Errorf("Repr(%#v) = %s; want %s", c.v, got, c.want)
		}
		if got := inspect.TypeName(c.v); got != c.kind {
			t.Errorf("TypeName(%#v) = %s; want %s", c.v, got, c.kind)
		}
	}
}

func TestReprOfObjects(t *testing.T) {
	config := call("mypkg", "Config")
	config.State = map[string]any{"a": int64(1)}
	all := call("mypkg.sub", "Outer.Inner", int64(1))
	all.Kwargs, all.State, all.Items, all.Pairs = map[string]any{"k": nil}, "s", []any{2.5}, pairs("p", true)
	array := func(dtype string, shape value.Tuple, order, data string) *value.Object {
		o := call("numpy", "ndarray")
		o.Kwargs = map[string]any{"dtype": dtype, "shape": shape, "order": order, "data": []byte(data)}
		return o
	}
	stateful := func(o *value.Object) *value.Object { o.State = true; return o }
	named := func(o *value.Object, k string) *value.Object { o.Kwargs = map[string]any{k: int64(1)}; return o }
	one := value.Tuple{int64(1)}
	for _, c := range []struct {
		v          *value.Object
		kind, want string
	}{
		{config, "Config", "<mypkg.Config object: {'a': 1}>"},
		{all, "Inner", "<mypkg.sub.Outer.Inner object: (1,), {'k': None}, 's', [2.5], {'p': True}>"},
		{call("mypkg", "Empty"), "Empty", "<mypkg.Empty object>"},
		{call("", "Bare"), "Bare", "<Bare object>"},
		{call("", ""), "", "< object>"},
		{&value.Object{Module: "mypkg", Name: "function"}, "global", "<mypkg.function>"},
		{&value.Object{Module: "torch", Name: "load"}, "global", "<torch.load>"},
		{&value.Object{Module: "builtins", Name: "eval"}, "global", "<builtins.eval>"},
		{call("os", "system", "true"), "system", "<os.system object: ('true',)>"},
		{call("torch", "Size", "a"), "Size", "<torch.Size object: ('a',)>"},
		{call("torch", "Size"), "Size", "<torch.Size object>"},
		{call("torch", "device"), "device", "<torch.device object>"},
		{call("datetime", "date"), "date", "<datetime.date object>"},
		{call("datetime", "timezone"), "timezone", "<datetime.timezone object>"},
		{call("collections", "defaultdict", nil, nil), "defaultdict", "<collections.defaultdict object: (None, None)>"},
		{call("collections", "deque", "x"), "deque", "<collections.deque object: ('x',)>"},
		{call("builtins", "slice"), "slice", "<builtins.slice object>"},
		{call("uuid", "UUID"), "UUID", "<uuid.UUID object>"},
		{call("fractions", "Fraction", "1/3"), "Fraction", "Fraction('1/3')"},
		{stateful(call("torch", "Size", one)), "Size", "<torch.Size object: ((1,),), True>"},
		{stateful(call("torch", "device", "cpu")), "device", "<torch.device object: ('cpu',), True>"},
		{stateful(call("datetime", "date", int64(1))), "date", "<datetime.date object: (1,), True>"},
		{stateful(call("collections", "defaultdict")), "defaultdict", "<collections.defaultdict object: True>"},
		{stateful(call("collections", "deque")), "deque", "<collections.deque object: True>"},
		{stateful(call("collections", "Counter", map[string]any{})), "Counter", "<collections.Counter object: ({},), True>"},
		{stateful(call("fractions", "Fraction", int64(1), int64(2))), "Fraction", "<fractions.Fraction object: (1, 2), True>"},
		{call("numpy", "dtype", "<f4"), "dtype", "dtype('<f4')"},
		{call("numpy", "float16", 0.0999755859375), "float16", "np.float16(0.099976)"},
		{call("numpy", "bool", true), "bool", "np.True_"},
		{named(call("datetime", "time", int64(1)), "fold"), "time", "datetime.time(1, fold=1)"},
		{array("<f3", nil, "C", "abc"), "ndarray", "<numpy.ndarray object: {'data': b'abc', 'dtype': '<f3', 'order': 'C', 'shape': ()}>"},
		{array("<U1", nil, "C", "a\x00\x00\x00"), "ndarray",
			"<numpy.ndarray object: {'data': b'a\\x00\\x00\\x00', 'dtype': '<U1', 'order': 'C', 'shape': ()}>"},
		{call("numpy", "dtype"), "dtype", "<numpy.dtype object>"},
		{call("numpy", "float32", "x"), "float32", "<numpy.float32 object: ('x',)>"},
		{stateful(call("numpy", "float32", 1.0)), "float32", "<numpy.float32 object: (1.0,), True>"},
		{array("<f4", one, "C", "\x00\x00\x80?"), "ndarray", "array([1.0], dtype=float32)"},
		{array(">c8", one, "C", "?\x80\x00\x00@\x00\x00\x00"), "ndarray", "array([(1+2j)], dtype=complex64)"},
		{array("<f2", value.Tuple{int64(6)}, "C", "\x00\x3c\x00\xfc\x00\x7e\x01\x00\x00\x80\x66\x2e"), "ndarray",
			"array([1.0, -inf, nan, 5.9605e-08, -0.0, 0.099976], dtype=float16)"},
		{array("|b1", value.Tuple{int64(2)}, "C", "\x01\x00"), "ndarray", "array([True, False], dtype=bool)"},
		{array("|u1", value.Tuple{int64(2), int64(2)}, "F", "\x01\x02\x03\xff"), "ndarray", "array([[1, 3], [2, 255]], dtype=uint8)"},
		{array("<i2", nil, "C", "\xfe\xff"), "ndarray", "array(-2, dtype=int16)"},
		{array("<f8", nil, "C", "\x00\x00\x00\x00\x00\x00\xf0?"), "ndarray", "array(1.0, dtype=float64)"},
		{array("<i8", value.Tuple{int64(0)}, "C", ""), "ndarray", "array([], dtype=int64)"},
		{array("<i8", value.Tuple{int64(2), int64(0)}, "C", ""), "ndarray", "array([[], []], dtype=int64)"},
		{array("|u1", value.Tuple{int64(2)}, "C", "a"), "ndarray",
			"<numpy.ndarray object: {'data': b'a', 'dtype': '|u1', 'order': 'C', 'shape': (2,)}>"},
		{array("<i8", value.Tuple{int64(math.MaxInt64)}, "C", ""), "ndarray",
			"<numpy.ndarray object: {'data': b'', 'dtype': '<i8', 'order': 'C', 'shape': (9223372036854775807,)}>"},
		{array("|u1", value.Tuple{"x"}, "C", ""), "ndarray",
			"<numpy.ndarray object: {'data': b'', 'dtype': '|u1', 'order': 'C', 'shape': ('x',)}>"},
		{stateful(array("|u1", nil, "C", "a")), "ndarray",
			"<numpy.ndarray object: {'data': b'a', 'dtype': '|u1', 'order': 'C', 'shape': ()}, True>"},
	} {
		if got := inspect.Repr(c.v, 1000); got != c.want {
			t.Errorf("Repr(%+v) = %s; want %s", *c.v, got, c.want)
		}
		if got := inspect.TypeName(c.v); got != c.kind {
			t.Errorf("TypeName(%+v) = %s; want %s", *c.v, got, c.kind)
		}
	}
}

// The repr of a value that shares its parts may be far larger than the value.
func TestReprStopsAtItsLimit(t *testing.T) {
	var bomb any = "x"
	for range 200 {
		bomb = value.Tuple{bomb, &value.Set{Items: []any{bomb, bomb}}, &value.Dict{Pairs: pairs(bomb, bomb)},
			&value.Object{Name: "C", Call: true, Args: value.Tuple{bomb}, State: bomb, Items: []any{bomb}, Pairs: pairs(bomb, bomb)}}
	}
	if got := inspect.Repr(bomb, 100); len(got) > 103 || !strings.HasSuffix(got, "…") {
		t.Errorf("Repr within 100 bytes has %d", len(got))
	}
	huge := call("numpy", "ndarray")
	huge.Kwargs = map[string]any{"dtype": "<f8", "shape": value.Tuple{int64(1 << 23)}, "order": "C", "data": make([]byte, 1<<26)}
	if got := inspect.Repr(huge, 16); got != "array([0.0, 0.0,…" {
		t.Errorf("Repr of a large array = %s", got)
	}
	name := call(strings.Repeat("m", 1<<20), "C")
	if got := inspect.Repr([]any{name, name}, 4); got != "[<mm…" {
		t.Errorf("Repr of a long name = %s", got)
	}
}

// texts returns the elements of x as text.
func texts(x *tensor.Tensor) string {
	format, size := inspect.ElementFormat(x.DType()), x.DType().Size()
	var out []string
	for p := x.Contents(); len(p) > 0; p = p[size:] {
		out = append(out, string(format(nil, p[:size])))
	}
	return strings.Join(out, " ")
}

func TestElementFormat(t *testing.T) {
	floats := of(t, []float64{0, -1.5, 0.1, 1e-5, 123456, 1e16, math.NaN(), math.Inf(-1)})
	for _, c := range []struct {
		x    *tensor.Tensor
		want string
	}{
		{floats, "0.0 -1.5 0.1 1e-05 123456.0 1e+16 nan -inf"},
		{to(t, tensor.Float32, floats), "0.0 -1.5 0.1 1e-05 123456.0 1e+16 nan -inf"},
		{to(t, tensor.Float16, floats), "0.0 -1.5 0.099976 1.0014e-05 inf inf nan -inf"},
		{to(t, tensor.BFloat16, floats), "0.0 -1.5 0.1001 1.001e-05 123400.0 9992000000000000.0 nan -inf"},
		{to(t, tensor.Float8E4M3FN, floats), "0.0 -1.5 0.102 0.0 448.0 448.0 nan -448.0"},
		{to(t, tensor.Float8E5M2, of(t, []float32{0.1, 57344, 1.75})), "0.094 57000.0 1.8"},
		{to(t, tensor.Float8E8M0FNU, of(t, []float32{1, 0.5, 1 << 20})), "1.0 0.5 1048576.0"},
		{of(t, []int64{math.MinInt64, 0, math.MaxInt64}), "-9223372036854775808 0 9223372036854775807"},
		{of(t, []int32{-1, 7}), "-1 7"},
		{of(t, []int16{-300, 7}), "-300 7"},
		{of(t, []int8{-1, 7}), "-1 7"},
		{of(t, []uint64{math.MaxUint64}), "18446744073709551615"},
		{of(t, []uint32{math.MaxUint32}), "4294967295"},
		{of(t, []uint16{65535}), "65535"},
		{of(t, []uint8{255}), "255"},
		{of(t, []bool{true, false}), "True False"},
		{of(t, []complex64{1 + 2i, complex(0, -0.1)}), "(1+2j) -0.1j"},
		{of(t, []complex128{complex(math.Inf(1), math.NaN())}), "(inf+nanj)"},
	} {
		if got := texts(c.x); got != c.want {
			t.Errorf("%v: %s; want %s", c.x, got, c.want)
		}
	}
}

// The text of a float identifies its bits.
func TestElementFormatRoundTrip(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		d := rapid.SampledFrom(tensor.DTypes()[:tensor.Float8E8M0FNU]).Draw(rt, "dtype")
		bits := rapid.SliceOfN(rapid.Byte(), d.Size(), d.Size()).Draw(rt, "bits")
		x := must.Get(tensor.FromBytes(d, nil, bits))(t)
		text := texts(x)
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			rt.Fatalf("%v %x is %s: %v", d, bits, text, err)
		}
		if back := to(t, d, of(t, []float64{f}, []int64{}...)); f == f && !tensor.Equal(x, back) {
			rt.Errorf("%v %x is %s, which is %x", d, bits, text, back.Contents())
		}
	})
}

func TestFilter(t *testing.T) {
	for _, c := range []struct {
		in, out []string
		want    string
	}{
		{nil, nil, "a.w a.b c"},
		{[]string{"a.*"}, nil, "a.w a.b"},
		{[]string{"a.*", "c"}, []string{"*.b"}, "a.w c"},
		{nil, []string{"*"}, ""},
	} {
		f := must.Get(inspect.NewFilter(c.in, c.out))(t)
		var got []string
		for _, n := range []string{"a.w", "a.b", "c"} {
			if f.Keep(n) {
				got = append(got, n)
			}
		}
		if err := f.Check(); err != nil {
			t.Errorf("Check = %v; each pattern matched", err)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("NewFilter(%q, %q) keeps %q; want %q", c.in, c.out, s, c.want)
		}
	}
	if _, err := inspect.NewFilter([]string{"["}, nil); err == nil {
		t.Error("NewFilter of a bad pattern = nil")
	}
	if _, err := inspect.NewFilter(nil, []string{"["}); err == nil {
		t.Error("NewFilter of a bad pattern = nil")
	}
}

func TestFilterReportsUnusedPatterns(t *testing.T) {
	for _, c := range [][2][]string{{{"a", "x"}, nil}, {nil, {"a", "x"}}} {
		f := must.Get(inspect.NewFilter(c[0], c[1]))(t)
		f.Keep("a")
		if err := f.Check(); !errors.Is(err, plan.ErrMissing) || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("Check = %v; want %v with x", err, plan.ErrMissing)
		}
		f.Keep("x")
		if err := f.Check(); err != nil {
			t.Errorf("Check = %v; each pattern matched", err)
		}
	}
}
