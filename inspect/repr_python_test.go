package inspect_test

import (
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

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

// The expectations are what Python says, or the liberties that Repr takes.
func TestReprOfWhatPythonHas(t *testing.T) {
	x, err := tensor.New(tensor.Float32, []int64{2, 3})
	if err != nil {
		t.Fatal(err)
	}
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
		{&value.Object{Module: "torch", Name: "contiguous_format"}, "memory_format", "torch.contiguous_format"},
		{&value.Object{Module: "torch", Name: "per_tensor_affine"}, "qscheme", "torch.per_tensor_affine"},
		{&value.Object{Module: "torch", Name: "Size"}, "type", "<class 'torch.Size'>"},
		{&value.Object{Module: "builtins", Name: "int"}, "type", "<class 'int'>"},
		{call("builtins", "range", one, two, one), "range", "range(1, 2)"},
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

// Records that no Python would have stored are shown as what they are.
func TestReprOfObjectsThatAreNotKnown(t *testing.T) {
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
		{call("torch", "Size", value.Tuple{"a"}), "Size", "<torch.Size object: (('a',),)>"},
		{call("torch", "Size"), "Size", "<torch.Size object>"},
		{call("torch", "device", "cuda:x"), "device", "<torch.device object: ('cuda:x',)>"},
		{call("torch", "device", "cuda", "0"), "device", "<torch.device object: ('cuda', '0')>"},
		{call("torch", "device", "cuda:1"), "device", "device(type='cuda', index=1)"},
		{call("torch", "device"), "device", "<torch.device object>"},
		{call("datetime", "datetime", []byte("short")), "datetime", "<datetime.datetime object: (b'short',)>"},
		{call("datetime", "date"), "date", "<datetime.date object>"},
		{call("datetime", "time", "x", nil, nil), "time", "<datetime.time object: ('x', None, None)>"},
		{call("datetime", "timedelta", "x"), "timedelta", "<datetime.timedelta object: ('x',)>"},
		{call("datetime", "timezone", int64(1)), "timezone", "<datetime.timezone object: (1,)>"},
		{call("datetime", "timezone"), "timezone", "<datetime.timezone object>"},
		{call("collections", "defaultdict", nil, nil), "defaultdict", "<collections.defaultdict object: (None, None)>"},
		{call("collections", "Counter", "x"), "Counter", "<collections.Counter object: ('x',)>"},
		{call("collections", "deque", "x"), "deque", "<collections.deque object: ('x',)>"},
		{call("builtins", "range", "x"), "range", "<builtins.range object: ('x',)>"},
		{call("builtins", "slice"), "slice", "<builtins.slice object>"},
		{call("pathlib", "PosixPath", int64(1)), "PosixPath", "<pathlib.PosixPath object: (1,)>"},
		{call("decimal", "Decimal", int64(1)), "Decimal", "<decimal.Decimal object: (1,)>"},
		{call("uuid", "UUID"), "UUID", "<uuid.UUID object>"},
		{call("fractions", "Fraction", "1/3"), "Fraction", "Fraction(1, 3)"},
		{call("fractions", "Fraction", "x/3"), "Fraction", "<fractions.Fraction object: ('x/3',)>"},
		{call("fractions", "Fraction", int64(1)), "Fraction", "<fractions.Fraction object: (1,)>"},
		{stateful(call("torch", "Size", one)), "Size", "<torch.Size object: ((1,),), True>"},
		{stateful(call("torch", "device", "cpu")), "device", "<torch.device object: ('cpu',), True>"},
		{stateful(call("datetime", "date", int64(1))), "date", "<datetime.date object: (1,), True>"},
		{named(call("datetime", "date", int64(1)), "x"), "date", "<datetime.date object: (1,), {'x': 1}>"},
		{named(call("datetime", "timedelta"), "x"), "timedelta", "<datetime.timedelta object: {'x': 1}>"},
		{stateful(call("collections", "defaultdict")), "defaultdict", "<collections.defaultdict object: True>"},
		{stateful(call("collections", "deque")), "deque", "<collections.deque object: True>"},
		{call("collections", "deque", value.Tuple{nil}), "deque", "<collections.deque object: ((None,),)>"},
		{stateful(call("collections", "Counter", map[string]any{})), "Counter", "<collections.Counter object: ({},), True>"},
		{call("collections", "Counter", map[string]any{"a": 0.5, "b": int64(1)}), "Counter", "Counter({'a': 0.5, 'b': 1})"},
		{stateful(call("fractions", "Fraction", int64(1), int64(2))), "Fraction", "<fractions.Fraction object: (1, 2), True>"},
		{call("numpy", "dtype", "f"), "dtype", "<numpy.dtype object: ('f',)>"},
		{call("numpy", "dtype", "<f3"), "dtype", "<numpy.dtype object: ('<f3',)>"},
		{call("numpy", "dtype", "<f16"), "dtype", "<numpy.dtype object: ('<f16',)>"},
		{call("numpy", "dtype", "|V8"), "dtype", "<numpy.dtype object: ('|V8',)>"},
		{call("numpy", "dtype", "<U-1"), "dtype", "<numpy.dtype object: ('<U-1',)>"},
		{call("numpy", "dtype", ""), "dtype", "<numpy.dtype object: ('',)>"},
		{call("numpy", "dtype"), "dtype", "<numpy.dtype object>"},
		{call("numpy", "float32", "x"), "float32", "<numpy.float32 object: ('x',)>"},
		{stateful(call("numpy", "float32", 1.0)), "float32", "<numpy.float32 object: (1.0,), True>"},
		{array("<f4", one, "C", "\x00\x00\x80?"), "ndarray", "array([1.], dtype=float32)"},
		{array(">c8", one, "C", "?\x80\x00\x00@\x00\x00\x00"), "ndarray", "array([1+2j], dtype='>c8')"},
		{array("<f2", value.Tuple{int64(6)}, "C", "\x00\x3c\x00\xfc\x00\x7e\x01\x00\x00\x80\x66\x2e"), "ndarray",
			"array([1., -inf, nan, 6e-08, -0., 0.1], dtype=float16)"},
		{array("|S3", one, "C", "a\x00\x00"), "ndarray", "array([b'a'], dtype='S3')"},
		{array(">S3", one, "C", "a\x00\x00"), "ndarray", "array([b'a'], dtype='S3')"},
		{array(">U1", one, "C", "\x00\x00\x00ü"[:4]), "ndarray", "array(['Ã'], dtype='>U1')"},
		{array("|b1", value.Tuple{int64(2)}, "C", "\x01\x00"), "ndarray", "array([True, False])"},
		{array("|u1", value.Tuple{int64(2), int64(2)}, "F", "\x01\x02\x03\xff"), "ndarray", "array([[1, 3], [2, 255]], dtype=uint8)"},
		{array("<i2", nil, "C", "\xfe\xff"), "ndarray", "array(-2, dtype=int16)"},
		{array("<f8", nil, "C", "\x00\x00\x00\x00\x00\x00\xf0?"), "ndarray", "array(1.0)"},
		{array("<i8", value.Tuple{int64(0)}, "C", ""), "ndarray", "array([], dtype=int64)"},
		{array("<i8", value.Tuple{int64(2), int64(0)}, "C", ""), "ndarray", "array([], shape=(2, 0), dtype=int64)"},
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

// A value may share its parts so often that walking it would never end.
func TestReprOfMuchIsBounded(t *testing.T) {
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
	if got := inspect.Repr(huge, 16); got != "array([0., 0., 0…" {
		t.Errorf("Repr of a large array = %s", got)
	}
	name := call(strings.Repeat("m", 1<<20), "C")
	if got := inspect.Repr([]any{name, name}, 4); got != "[<mm…" {
		t.Errorf("Repr of a long name = %s", got)
	}
}
