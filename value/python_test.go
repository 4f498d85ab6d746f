package value_test

import (
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

func tensorOf[E tensor.Element](t testing.TB, shape []int64, v ...E) *tensor.Tensor {
	t.Helper()
	out := must.Get(tensor.Of(shape, v))(t)
	return out
}

func TestPythonValuesRoundTrip(t *testing.T) {
	square := tensorOf(t, []int64{2, 2}, int16(1), 2, 3, 4)
	turned := must.Get(square.Transpose(0, 1))(t)
	for name, c := range map[string]struct {
		in   any
		text string
		want any // nil: the value that was encoded, and nil for null
	}{
		"a tuple":          {value.Tuple{1, "two", 3.0}, `{"$tuple":[1,"two",3.0]}`, value.Tuple{int64(1), "two", 3.0}},
		"an empty tuple":   {value.Tuple(nil), `{"$tuple":[]}`, value.Tuple{}},
		"tuples in a list": {[]value.Tuple{{true}}, `[{"$tuple":[true]}]`, []any{value.Tuple{true}}},
		"a dict by all sorts": {
			&value.Dict{Pairs: []value.Pair{{int64(2), "b"}, {nil, 1.5}, {value.Tuple{"x"}, []any{}}}},
			`{"$dict":[[2,"b"],[null,1.5],[{"$tuple":["x"]},[]]]}`, nil,
		},
		"a dict in order":     {&value.Dict{Pairs: []value.Pair{{"b", nil}, {"a", nil}}, Ordered: true}, `{"$ordered":[["b",null],["a",null]]}`, nil},
		"an empty dict":       {&value.Dict{}, `{"$dict":[]}`, nil},
		"a nil dict":          {(*value.Dict)(nil), "null", nil},
		"a set":               {&value.Set{Items: []any{int64(2), int64(1)}}, `{"$set":[2,1]}`, nil},
		"a frozen set":        {&value.Set{Frozen: true}, `{"$frozenset":[]}`, nil},
		"a complex number":    {complex(1, -0.5), `{"$complex":[1.0,-0.5]}`, nil},
		"a small complex one": {complex64(1i), `{"$complex":[0.0,1.0]}`, 1i},
		"a complex infinity":  {complex(math.Inf(-1), math.NaN()), `{"$complex":[{"$float":"-inf"},{"$float":"nan"}]}`, nil},
		"minus zeros":         {complex(math.Copysign(0, -1), math.Copysign(0, -1)), `{"$complex":[-0.0,-0.0]}`, nil},
		"a tensor":            {square, `{"$tensor":{"dtype":"int16","shape":[2,2],"data":"AQACAAMABAA="}}`, nil},
		"a turned tensor":     {turned, `{"$tensor":{"dtype":"int16","shape":[2,2],"data":"AQADAAIABAA="}}`, nil},
		"an empty tensor":     {tensorOf[bool](t, []int64{0, 7}), `{"$tensor":{"dtype":"bool","shape":[0,7],"data":""}}`, nil},
		"a scalar tensor":     {tensorOf(t, nil, 1.0), `{"$tensor":{"dtype":"float64","shape":[],"data":"AAAAAAAA8D8="}}`, nil},
		"a name":              {&value.Object{Module: "torch", Name: "bfloat16"}, `{"$object":{"module":"torch","name":"bfloat16"}}`, nil},
		"a bytearray": {
			&value.Object{Module: "builtins", Name: "bytearray", Call: true, Args: value.Tuple{[]byte("ab")}},
			`{"$object":{"module":"builtins","name":"bytearray","call":true,"args":[{"$bytes":"YWI="}]}}`, nil,
		},
		"an object": {
			&value.Object{
				Module: "m", Name: "C.D", Call: true, New: true, Args: value.Tuple{value.Tuple{}}, Kwargs: map[string]any{"$k": true},
				State: map[string]any{"s": nil}, Items: []any{1.5}, Pairs: []value.Pair{{"k", square}},
			},
			`{"$object":{"module":"m","name":"C.D","call":true,"new":true,"args":[{"$tuple":[]}],"kwargs":{"$map":[["$k",true]]},` +
				`"state":{"s":null},"items":[1.5],"pairs":[["k",{"$tensor":{"dtype":"int16","shape":[2,2],"data":"AQACAAMABAA="}}]]}}`, nil,
		},
		"surrogates":        {"a\xed\xb2\x80", `{"$str":"Ye2ygA=="}`, nil},
		"a surrogate's key": {map[string]any{"\xed\xa0\x80": nil}, `{"$map":[[{"$str":"7aCA"},null]]}`, nil},
		"a map by int": {map[int8]string{2: "b", -1: "a"}, `{"$dict":[[-1,"a"],[2,"b"]]}`,
			&value.Dict{Pairs: []value.Pair{{int64(-1), "a"}, {int64(2), "b"}}}},
		"a map by uint": {map[uint64]bool{math.MaxUint64: true, 3: false}, `{"$dict":[[3,false],[18446744073709551615,true]]}`,
			&value.Dict{Pairs: []value.Pair{{int64(3), false}, {uint64(math.MaxUint64), true}}}},
	} {
		t.Run(name, func(t *testing.T) {
			codec, data, err := value.Encode(c.in)
			if err != nil || codec != value.JSON || string(data) != c.text {
				t.Fatalf("Encode = %q, %s, %v; want %s", codec, data, err, c.text)
			}
			want := c.want
			if want == nil {
				want = c.in
			}
			if c.text == "null" {
				want = nil
			}
			if got, err := value.Decode(codec, data); !equal(got, want) || err != nil {
				t.Errorf("Decode(%s) = %#v, %v; want %#v", data, got, err, want)
			}
		})
	}
}

func TestEncodeRefusesPythonValues(t *testing.T) {
	wide := must.Get(tensorOf(t, []int64{1}, 1.0).Expand([]int64{1 << 40}))(t)
	self := &value.Dict{}
	self.Pairs = []value.Pair{{"self", self}}
	nested := &value.Object{Name: "C", Call: true}
	nested.State = nested
	for name, v := range map[string]any{
		"an expanded tensor": wide, "a tensor of no dtype": new(tensor.Tensor), "a dict in itself": self,
		"an object in itself": nested, "a struct in a tuple": value.Tuple{nothing{}},
		"a struct in a set": &value.Set{Items: []any{nothing{}}}, "a struct as a key": &value.Dict{Pairs: []value.Pair{{nothing{}, 1}}},
		"a struct in arguments": &value.Object{Args: value.Tuple{nothing{}}}, "a struct as state": &value.Object{State: nothing{}},
		"a struct in named arguments": &value.Object{Kwargs: map[string]any{"a": nothing{}}},
		"a struct in items":           &value.Object{Items: []any{nothing{}}},
		"a struct in pairs":           &value.Object{Pairs: []value.Pair{{1, nothing{}}}},
		"a struct in a map by int":    map[int]nothing{1: {}},
		"a module that is no UTF-8":   &value.Object{Module: "\xff"}, "a name that is no UTF-8": &value.Object{Name: "\xff"},
		"half a surrogate": "\xed\xb2", "an overlong zero": "\xc0\x80", "many bits": new(big.Int).Lsh(big.NewInt(1), 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			if codec, data, err := value.Encode(v); !errors.Is(err, value.ErrValue) || codec != "" || data != nil {
				t.Errorf("Encode = %q, %.80q, %v; want ErrValue alone", codec, data, err)
			}
		})
	}
}

func TestDecodeRefusesPythonValues(t *testing.T) {
	for name, text := range map[string]string{
		"a tuple that is no list": `{"$tuple":{}}`, "a bad tuple": `{"$tuple":[{"$new":1}]}`, "a set that is no list": `{"$set":1}`,
		"a dict of a list": `{"$dict":[1]}`, "a dict of triples": `{"$dict":[[1,2,3]]}`, "a dict that is an object": `{"$ordered":{"a":1}}`,
		"a bad key": `{"$dict":[[{"$new":1},1]]}`, "a complex number of one": `{"$complex":[1.0]}`,
		"a complex number of three": `{"$complex":[1.0,1.0,1.0]}`, "a complex text": `{"$complex":"1j"}`,
		"a complex number of integers": `{"$complex":[1,2.0]}`, "a complex number of text": `{"$complex":[1.0,"2"]}`,
		"a plain string as surrogates": `{"$str":"YQ=="}`, "bytes as surrogates": `{"$str":"/w=="}`, "a number as surrogates": `{"$str":1}`,
		"a tensor that is a list": `{"$tensor":[]}`, "a tensor without data": `{"$tensor":{"dtype":"bool","shape":[0]}}`,
		"a tensor with more":             `{"$tensor":{"dtype":"bool","shape":[0],"data":"","more":1}}`,
		"a tensor of an unknown dtype":   `{"$tensor":{"dtype":"float7","shape":[0],"data":""}}`,
		"a tensor of torch's dtype":      `{"$tensor":{"dtype":"torch.bool","shape":[0],"data":""}}`,
		"a tensor of a dtype in numbers": `{"$tensor":{"dtype":1,"shape":[0],"data":""}}`,
		"a tensor of too few bytes":      `{"$tensor":{"dtype":"int16","shape":[2],"data":"AAA="}}`,
		"a tensor of too many bytes":     `{"$tensor":{"dtype":"int16","shape":[],"data":"AAAA"}}`,
		"a tensor of a huge shape":       `{"$tensor":{"dtype":"int16","shape":[4611686018427387904,4611686018427387904],"data":""}}`,
		"a tensor that claims a lot":     `{"$tensor":{"dtype":"int16","shape":[1099511627776],"data":""}}`,
		"a tensor of a negative shape":   `{"$tensor":{"dtype":"int16","shape":[-1],"data":""}}`,
		"a tensor of many dimensions":    `{"$tensor":{"dtype":"bool","shape":[0` + strings.Repeat(",0", 64) + `],"data":""}}`,
		"a tensor of broken dimensions":  `{"$tensor":{"dtype":"bool","shape":[0.5],"data":""}}`,
		"a tensor of no shape":           `{"$tensor":{"dtype":"bool","shape":null,"data":""}}`,
		"a tensor of bad base64":         `{"$tensor":{"dtype":"bool","shape":[1],"data":"*"}}`,
		"an object that is a list":       `{"$object":[]}`, "an object without a name": `{"$object":{"module":"a"}}`,
		"an object without a module":       `{"$object":{"name":"a"}}`,
		"an object by a number":            `{"$object":{"module":1,"name":"a"}}`,
		"an object by bytes":               `{"$object":{"module":"","name":{"$bytes":""}}}`,
		"an object with an unknown field":  `{"$object":{"module":"","name":"a","dict":{}}}`,
		"an object with a call of 1":       `{"$object":{"module":"","name":"a","call":1}}`,
		"an object with a new of text":     `{"$object":{"module":"","name":"a","new":"true"}}`,
		"an object with a tuple of args":   `{"$object":{"module":"","name":"a","args":{"$tuple":[]}}}`,
		"an object with a list of kwargs":  `{"$object":{"module":"","name":"a","kwargs":[]}}`,
		"an object with a tuple of kwargs": `{"$object":{"module":"","name":"a","kwargs":{"$tuple":[]}}}`,
		"an object with bad kwargs":        `{"$object":{"module":"","name":"a","kwargs":{"a":{"$new":1}}}}`,
		"an object with a bad state":       `{"$object":{"module":"","name":"a","state":{"$new":1}}}`,
		"an object with bad items":         `{"$object":{"module":"","name":"a","items":{}}}`,
		"an object with bad pairs":         `{"$object":{"module":"","name":"a","pairs":[[1]]}}`,
		"tuples too deep":                  strings.Repeat(`{"$tuple":[`, 257) + "1" + strings.Repeat("]}", 257),
		"objects too deep":                 strings.Repeat(`{"$object":{"module":"","name":"","state":`, 257) + "1" + strings.Repeat("}}", 257),
	} {
		t.Run(name, func(t *testing.T) {
			if v, err := value.Decode(value.JSON, []byte(text)); !errors.Is(err, value.ErrEncoding) || v != nil {
				t.Errorf("Decode(%.80q) = %v, %v; want ErrEncoding", text, v, err)
			}
		})
	}
}

func TestDecodeLikePythonValues(t *testing.T) {
	dict := func(kv ...any) *value.Dict {
		d := &value.Dict{Pairs: []value.Pair{}}
		for i := 0; i < len(kv); i += 2 {
			d.Pairs = append(d.Pairs, value.Pair{Key: kv[i], Value: kv[i+1]})
		}
		return d
	}
	ordered := dict("a", int64(1))
	ordered.Ordered = true
	one := tensorOf(t, []int64{1}, float32(1))
	for name, c := range map[string]struct{ in, like, want any }{
		"tuple to a slice":             {value.Tuple{0.9, 0.999}, []float64{}, []float64{0.9, 0.999}},
		"tuple to an array":            {value.Tuple{0.9, 0.999}, [2]float64{}, [2]float64{0.9, 0.999}},
		"tuple to a shorter array":     {value.Tuple{0.9, 0.999}, [1]float64{}, value.Tuple{0.9, 0.999}},
		"tuple to any":                 {value.Tuple{1}, []any{}, []any{int64(1)}},
		"tuple that does not fit":      {value.Tuple{1, "a"}, []int{}, value.Tuple{int64(1), "a"}},
		"list to a tuple":              {[]int{1}, value.Tuple{}, value.Tuple{int64(1)}},
		"tuple inside of a map":        {map[string]any{"betas": value.Tuple{1.5}}, map[string][]float64{}, map[string][]float64{"betas": {1.5}}},
		"dict to a map by int":         {dict(0, "a", 7, "b"), map[int]string{}, map[int]string{0: "a", 7: "b"}},
		"map by int":                   {map[uint8]int{1: 2}, map[uint8]int{}, map[uint8]int{1: 2}},
		"dict to a map by smaller int": {dict(300, "a"), map[int8]string{}, dict(int64(300), "a")},
		"dict to a map by text":        {dict("a", 1), words{}, words{"a": 1}},
		"dict to a map by float":       {dict(1, 1, 2.5, 2), map[float64]int{}, map[float64]int{1: 1, 2.5: 2}},
		"dict with equal keys":         {dict(1, 1, 1.0, 2), map[float64]int{}, dict(int64(1), int64(1), 1.0, int64(2))},
		"dict by a tuple":              {dict(value.Tuple{}, 1), map[any]int{}, dict(value.Tuple{}, int64(1))},
		"dict by None":                 {dict(nil, 1), map[string]int{}, dict(nil, int64(1))},
		"dict to a map of others":      {dict(1, "a"), map[int]int{}, dict(int64(1), "a")},
		"dict to a map of anything":    {dict(1, nil), map[int]any{}, map[int]any{1: nil}},
		"ordered dict to a map":        {ordered, map[string]int{}, ordered},
		"dict":                         {dict(1, 2), &value.Dict{}, dict(int64(1), int64(2))},
		"set to a list":                {&value.Set{Items: []any{1}}, []int{}, &value.Set{Items: []any{int64(1)}}},
		"complex":                      {1 + 2i, complex64(0), complex64(1 + 2i)},
		"complex that rounds":          {complex(0.1, 0), complex64(0), complex(0.1, 0)},
		"complex to float":             {complex(1, 0), 1.0, complex(1, 0)},
		"tensor":                       {one, tensorOf(t, nil, 2.0), one},
		"object to a map":              {&value.Object{Name: "a"}, words{}, &value.Object{Name: "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			codec, data, err := value.Encode(c.in)
			if err != nil {
				t.Fatal(err)
			}
			got, err := value.DecodeLike(codec, data, c.like)
			if d := cmp.Diff(c.want, got, same); d != "" || err != nil {
				t.Errorf("DecodeLike(%s, %T), %v: -want +got\n%s", data, c.like, err, d)
			}
		})
	}
}

// drawValue returns a value as Decode may return it.
func drawValue(t *rapid.T, depth int) any {
	kinds := 16
	if depth == 0 {
		kinds = 9
	}
	list := func() []any {
		return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) any { return drawValue(t, depth-1) }), 0, 3).Draw(t, "list")
	}
	pairs := func() []value.Pair {
		return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) value.Pair {
			return value.Pair{Key: drawValue(t, depth-1), Value: drawValue(t, depth-1)}
		}), 0, 3).Draw(t, "pairs")
	}
	table := func() map[string]any {
		m := map[string]any{}
		for _, e := range list() {
			m[rapid.StringMatching(`\$?[a-z]{0,3}`).Draw(t, "key")] = e
		}
		return m
	}
	float := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1)}))
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "bool")
	case 2:
		return rapid.Int64().Draw(t, "int")
	case 3:
		return new(big.Int).Lsh(big.NewInt(rapid.Int64Range(1, 99).Draw(t, "big")), 64)
	case 4:
		return float.Draw(t, "float")
	case 5:
		return complex(float.Draw(t, "re"), float.Draw(t, "im"))
	case 6:
		return rapid.OneOf(rapid.String(), rapid.Just("a\xed\xb2\x80")).Draw(t, "str")
	case 7:
		return rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
	case 8:
		return drawTensor(t)
	case 9:
		return list()
	case 10:
		return table()
	case 11:
		return value.Tuple(list())
	case 12:
		return &value.Dict{Pairs: pairs(), Ordered: rapid.Bool().Draw(t, "ordered")}
	case 13:
		return &value.Set{Items: list(), Frozen: rapid.Bool().Draw(t, "frozen")}
	case 14:
		return &value.Object{Module: rapid.String().Draw(t, "module"), Name: rapid.String().Draw(t, "name")}
	}
	return &value.Object{
		Module: "m", Name: "n", Call: true, New: rapid.Bool().Draw(t, "new"), Args: list(), Kwargs: table(),
		State: drawValue(t, depth-1), Items: list(), Pairs: pairs(),
	}
}

func drawTensor(t *rapid.T) *tensor.Tensor {
	d := rapid.SampledFrom(tensor.DTypes()).Draw(t, "dtype")
	shape := rapid.SliceOfN(rapid.Int64Range(0, 3), 0, 3).Draw(t, "shape")
	n := must.Get(tensor.NumBytes(d, shape))(t)
	x := must.Get(tensor.FromBytes(d, shape, rapid.SliceOfN(rapid.Byte(), int(n), int(n)).Draw(t, "data")))(t)
	return x
}

// Whatever is decoded was encoded, and the same value has one encoding.
func TestRandomValuesRoundTrip(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		v := []any{drawValue(t, 3)} // in a list, so that bytes are JSON too
		codec, data, err := value.Encode(v)
		if err != nil {
			t.Fatalf("Encode(%#v): %v", v, err)
		}
		got, err := value.Decode(codec, data)
		if err != nil || !equal(got, v) {
			t.Fatalf("Decode(%s) = %#v, %v; want %#v", data, got, err, v)
		}
		if _, again, err := value.Encode(got); string(again) != string(data) || err != nil {
			t.Fatalf("Encode of what was decoded = %s, %v; want %s", again, err, data)
		}
	})
}

func TestAttributes(t *testing.T) {
	for claim, c := range map[string]struct {
		state any
		want  map[string]any
	}{
		"a dict":             {map[string]any{"a": int64(1)}, map[string]any{"a": int64(1)}},
		"an ordered dict":    {&value.Dict{Pairs: []value.Pair{{Key: "a", Value: "x"}, {Key: int64(2), Value: "y"}}}, map[string]any{"a": "x"}},
		"a class with slots": {value.Tuple{nil, map[string]any{"a": true}}, map[string]any{"a": true}},
		"another kind":       {"text", map[string]any{}},
		"nothing":            {nil, map[string]any{}},
	} {
		if d := cmp.Diff(c.want, (&value.Object{State: c.state}).Attributes()); d != "" {
			t.Errorf("%s (-want +got)\n%s", claim, d)
		}
	}
}
