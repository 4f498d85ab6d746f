package value_test

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"math/big"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// same compares values as a caller sees them: NaN equals NaN, and the sign of
// zero counts.
var same = cmp.Options{
	cmp.Comparer(func(a, b float64) bool { return sameFloat(a, b) }),
	cmp.Comparer(func(a, b *big.Int) bool { return a.Cmp(b) == 0 }),
	cmp.Comparer(tensor.Equal),
}

func sameFloat(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b
}

// equal compares results of Decode, as same does. Unlike cmp it takes linear time for values
// that are nested deep.
func equal(a, b any) bool {
	switch a := a.(type) {
	case float64:
		b, ok := b.(float64)
		return ok && sameFloat(a, b)
	case *big.Int:
		b, ok := b.(*big.Int)
		return ok && a.Cmp(b) == 0
	case []byte:
		b, ok := b.([]byte)
		return ok && bytes.Equal(a, b)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equal)
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, equal)
	case complex128:
		b, ok := b.(complex128)
		return ok && sameFloat(real(a), real(b)) && sameFloat(imag(a), imag(b))
	}
	return equalPython(a, b)
}

func equalPython(a, b any) bool {
	switch a := a.(type) {
	case value.Tuple:
		b, ok := b.(value.Tuple)
		return ok && slices.EqualFunc(a, b, equal)
	case *value.Dict:
		b, ok := b.(*value.Dict)
		return ok && a.Ordered == b.Ordered && slices.EqualFunc(a.Pairs, b.Pairs, equalPair)
	case *value.Set:
		b, ok := b.(*value.Set)
		return ok && a.Frozen == b.Frozen && slices.EqualFunc(a.Items, b.Items, equal)
	case *value.Object:
		b, ok := b.(*value.Object)
		return ok && a.Module == b.Module && a.Name == b.Name && a.Call == b.Call && a.New == b.New &&
			slices.EqualFunc(a.Args, b.Args, equal) && maps.EqualFunc(a.Kwargs, b.Kwargs, equal) &&
			equal(a.State, b.State) && slices.EqualFunc(a.Items, b.Items, equal) &&
			slices.EqualFunc(a.Pairs, b.Pairs, equalPair)
	case *tensor.Tensor:
		b, ok := b.(*tensor.Tensor)
		return ok && tensor.Equal(a, b)
	}
	return a == b
}

func equalPair(a, b value.Pair) bool { return equal(a.Key, b.Key) && equal(a.Value, b.Value) }

type (
	celsius float64
	label   string
	labels  []label
	words   map[label]int
	octet   uint8
	nothing struct{}
)

func pointer[T any](v T) *T { return &v }

func bigOf(s string) *big.Int {
	n, ok := new(big.Int).SetString(s, 10)
	if !ok {
		panic(s)
	}
	return n
}

func TestEveryKindRoundTrips(t *testing.T) {
	deep := any(int64(1))
	for range 256 {
		deep = []any{deep}
	}
	for name, c := range map[string]struct {
		in    any
		text  string // the encoding, if it is part of the contract
		want  any
		codec string
	}{
		"nil":                     {nil, "null", nil, value.JSON},
		"a nil pointer":           {(*int)(nil), "null", nil, value.JSON},
		"a nil marshaler":         {(*url.URL)(nil), "null", nil, value.JSON},
		"true":                    {true, "true", true, value.JSON},
		"int":                     {-7, "-7", int64(-7), value.JSON},
		"int8":                    {int8(-8), "-8", int64(-8), value.JSON},
		"smallest int64":          {int64(math.MinInt64), "-9223372036854775808", int64(math.MinInt64), value.JSON},
		"uint64 within int64":     {uint64(9), "9", int64(9), value.JSON},
		"largest uint64":          {uint64(math.MaxUint64), "18446744073709551615", uint64(math.MaxUint64), value.JSON},
		"big":                     {bigOf("-340282366920938463463374607431768211456"), "", bigOf("-340282366920938463463374607431768211456"), value.JSON},
		"a small big":             {big.NewInt(5), "5", int64(5), value.JSON},
		"a float that is whole":   {2.0, "2.0", 2.0, value.JSON},
		"a large float":           {1e300, "1e+300", 1e300, value.JSON},
		"smallest float":          {math.SmallestNonzeroFloat64, "5e-324", math.SmallestNonzeroFloat64, value.JSON},
		"a tenth":                 {0.1, "0.1", 0.1, value.JSON},
		"float32":                 {float32(0.1), "", float64(float32(0.1)), value.JSON},
		"minus zero":              {math.Copysign(0, -1), "-0.0", math.Copysign(0, -1), value.JSON},
		"NaN":                     {math.NaN(), `{"$float":"nan"}`, math.NaN(), value.JSON},
		"infinity":                {math.Inf(1), `{"$float":"inf"}`, math.Inf(1), value.JSON},
		"minus infinity":          {math.Inf(-1), `{"$float":"-inf"}`, math.Inf(-1), value.JSON},
		"text":                    {"žluť\n\"<&\u2028", "", "žluť\n\"<&\u2028", value.JSON},
		"text with a NUL":         {"a\x00b", "", "a\x00b", value.JSON},
		"a named type":            {label("x"), `"x"`, "x", value.JSON},
		"bytes":                   {[]byte{0, 255}, "\x00\xff", []byte{0, 255}, value.Raw},
		"no bytes":                {[]byte(nil), "", []byte{}, value.Raw},
		"bytes of a named type":   {[]octet{1, 2}, `{"$bytes":"AQI="}`, []byte{1, 2}, value.JSON},
		"an array of bytes":       {[2]byte{1, 2}, "[1,2]", []any{int64(1), int64(2)}, value.JSON},
		"a list":                  {[]any{1, "a", nil, 2.5, []byte{1}}, `[1,"a",null,2.5,{"$bytes":"AQ=="}]`, []any{int64(1), "a", nil, 2.5, []byte{1}}, value.JSON},
		"a nil list":              {[]int(nil), "[]", []any{}, value.JSON},
		"a typed list":            {[]float64{1, math.Inf(1)}, "", []any{1.0, math.Inf(1)}, value.JSON},
		"pointers":                {pointer(pointer(3)), "3", int64(3), value.JSON},
		"a map in order":          {map[string]any{"b": 1, "a": map[string]int{}}, `{"a":{},"b":1}`, map[string]any{"a": map[string]any{}, "b": int64(1)}, value.JSON},
		"a nil map":               {words(nil), "{}", map[string]any{}, value.JSON},
		"a key like ours":         {map[string]any{"$bytes": "x"}, `{"$map":[["$bytes","x"]]}`, map[string]any{"$bytes": "x"}, value.JSON},
		"a key like ours, nested": {[]any{map[string]any{"$map": math.NaN(), "b": 1}}, "", []any{map[string]any{"$map": math.NaN(), "b": int64(1)}}, value.JSON},
		"deep":                    {deep, "", deep, value.JSON},
	} {
		t.Run(name, func(t *testing.T) {
			codec, data, err := value.Encode(c.in)
			if err != nil || codec != c.codec {
				t.Fatalf("Encode(%#v) = %q, %v; want %q", c.in, codec, err, c.codec)
			}
			if c.text != "" && string(data) != c.text {
				t.Errorf("Encode(%#v) = %s; want %s", c.in, data, c.text)
			}
			if got, err := value.Decode(codec, data); !equal(got, c.want) || err != nil {
				t.Errorf("Decode(%q) = %#v, %v; want %#v", data, got, err, c.want)
			}
		})
	}
}

func TestEncodeCopiesItsInput(t *testing.T) {
	in := []byte("abc")
	_, data, _ := value.Encode(in)
	in[0] = 'x'
	out, _ := value.Decode(value.Raw, data)
	data[1] = 'x'
	if string(out.([]byte)) != "abc" {
		t.Errorf("Decode = %q; want the bytes at the time of Encode", out)
	}
}

func TestEncodeRefuses(t *testing.T) {
	cycle := []any{nil}
	cycle[0] = cycle
	loop := map[string]any{}
	loop["again"] = loop
	var self any
	self = &self
	tooDeep := any(1)
	for range 257 {
		tooDeep = []any{tooDeep}
	}
	for name, v := range map[string]any{
		"a struct": nothing{}, "a function": func() {}, "a channel": make(chan int),
		"a map by bool": map[bool]string{true: "a"}, "a struct in a list": []any{nothing{}},
		"text that is no UTF-8": "\xff", "a key that is no UTF-8": map[string]int{"\xff": 1},
		"a marshaler that refuses": refusing{}, "a list in itself": cycle, "a map in itself": loop,
		"a pointer to itself": self, "too deep": tooDeep,
		"too many digits": new(big.Int).Exp(big.NewInt(10), big.NewInt(10_000), nil),
	} {
		t.Run(name, func(t *testing.T) {
			if codec, data, err := value.Encode(v); !errors.Is(err, value.ErrValue) || codec != "" || data != nil {
				t.Errorf("Encode = %q, %q, %v; want ErrValue alone", codec, data, err)
			}
		})
	}
}

// Decode accepts the largest values that Encode accepts.
func TestLargestValuesRoundTrip(t *testing.T) {
	digits, _ := new(big.Int).SetString(strings.Repeat("9", 10_000), 10)
	deep := any(int64(1))
	for range 256 {
		deep = []any{deep}
	}
	for name, v := range map[string]any{"digits": digits, "depth": deep} {
		codec, data, err := value.Encode(v)
		if err != nil {
			t.Errorf("%s: Encode = %v", name, err)
			continue
		}
		got, err := value.Decode(codec, data)
		if err != nil || !reflect.DeepEqual(v, got) {
			t.Errorf("%s: Decode = %.40v, %v; want what was encoded", name, got, err)
		}
	}
}

type refusing struct{}

func (refusing) MarshalBinary() ([]byte, error) { return nil, errors.New("not today") }

func TestDecodeRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": "", "cut short": `[1,`, "two values": "1 2", "bare word": "nan", "Python's NaN": "NaN",
		"single quotes": "'a'", "too large a float": "1e999", "bad base64": `{"$bytes":"*"}`,
		"bytes that are no text": `{"$bytes":1}`, "an unknown float": `{"$float":"naan"}`,
		"a float that is no text": `{"$float":1}`, "an unknown dollar": `{"$new":1}`,
		"a map that is no list": `{"$map":{}}`, "a map of no pairs": `{"$map":[1]}`,
		"a map of triples": `{"$map":[["a",1,2]]}`, "a map by numbers": `{"$map":[[1,2]]}`,
		"bad inside a map": `{"a":{"$new":1}}`, "bad inside pairs": `{"$map":[["a",{"$new":1}]]}`,
		"too deep":        strings.Repeat("[", 258) + strings.Repeat("]", 258),
		"far too deep":    strings.Repeat("[", 1<<20),
		"too many digits": strings.Repeat("9", 10_001),
	} {
		t.Run(name, func(t *testing.T) {
			if v, err := value.Decode(value.JSON, []byte(text)); !errors.Is(err, value.ErrEncoding) || v != nil {
				t.Errorf("Decode(%.40q) = %v, %v; want ErrEncoding", text, v, err)
			}
		})
	}
	if _, err := value.Decode("pickle", nil); !errors.Is(err, value.ErrCodec) {
		t.Errorf("Decode by pickle: %v; want ErrCodec", err)
	}
}

func TestDecodeLikeKeepsTheType(t *testing.T) {
	now := time.Date(2026, 11, 15, 1, 2, 3, 4, time.UTC)
	for name, c := range map[string]struct{ in, like, want any }{
		"int":                       {3, 0, 3},
		"int to a smaller one":      {3, int8(0), int8(3)},
		"int to unsigned":           {3, uint16(0), uint16(3)},
		"int too large":             {300, int8(0), int64(300)},
		"negative to unsigned":      {-1, uint(0), int64(-1)},
		"uint64":                    {uint64(math.MaxUint64), uint64(0), uint64(math.MaxUint64)},
		"uint64 to int":             {uint64(math.MaxUint64), 0, uint64(math.MaxUint64)},
		"int to float":              {3, 0.5, 3.0},
		"int too large for a float": {int64(1<<53 + 1), 0.5, int64(1<<53 + 1)},
		"int to float32":            {1 << 24, float32(0), float32(1 << 24)},
		"int that float32 rounds":   {1<<24 + 1, float32(0), int64(1<<24 + 1)},
		"float to int":              {3.0, 1, 3.0},
		"float":                     {0.1, celsius(0), celsius(0.1)},
		"float32":                   {float32(0.1), float32(0), float32(0.1)},
		"float that float32 rounds": {0.1, float32(0), 0.1},
		"infinity":                  {math.Inf(1), float32(0), float32(math.Inf(1))},
		"bool":                      {true, false, true},
		"text":                      {"a", label(""), label("a")},
		"text to a number":          {"a", 1, "a"},
		"nil to a number":           {nil, 1, nil},
		"no like":                   {3, nil, int64(3)},
		"small big":                 {big.NewInt(5), big.NewInt(0), big.NewInt(5)},
		"unsigned big":              {new(big.Int).SetUint64(math.MaxUint64), big.NewInt(0), new(big.Int).SetUint64(math.MaxUint64)},
		"big":                       {bigOf("36893488147419103232"), big.NewInt(0), bigOf("36893488147419103232")},
		"text to a big":             {"a", big.NewInt(0), "a"},
		"pointer":                   {3, pointer(0), pointer(3)},
		"pointer that does not fit": {"a", pointer(0), "a"},
		"list":                      {[]int{1, 2}, []int(nil), []int{1, 2}},
		"list of names":             {[]string{"a"}, labels{}, labels{"a"}},
		"list of pointers":          {[]any{1, nil}, []*int8{}, []*int8{pointer(int8(1)), nil}},
		"list that does not fit":    {[]any{1, "a"}, []int{}, []any{int64(1), "a"}},
		"nil in a list of numbers":  {[]any{nil}, []int{}, []any{nil}},
		"list of any":               {[]int{1}, []any{}, []any{int64(1)}},
		"array":                     {[2]int{1, 2}, [2]int{}, [2]int{1, 2}},
		"array of another length":   {[2]int{1, 2}, [3]int{}, []any{int64(1), int64(2)}},
		"map":                       {map[string]int{"a": 1}, words{}, words{"a": 1}},
		"map that does not fit":     {map[string]any{"a": "b"}, words{}, map[string]any{"a": "b"}},
		"map of lists":              {map[string][]int{"a": {1}}, map[string][]int{}, map[string][]int{"a": {1}}},
		"named map of any":          {map[string]any{"a": 1}, struct{}{}, map[string]any{"a": int64(1)}},
		"bytes":                     {[]byte("a"), []byte{}, []byte("a")},
		"bytes of a named type":     {[]octet{1}, []octet{}, []octet{1}},
		"bytes to numbers":          {[]byte{1}, []int{}, []byte{1}},
		"bytes to text":             {[]byte("a"), "", []byte("a")},
		"time":                      {now, time.Time{}, now},
		"url":                       {&url.URL{Host: "h"}, (*url.URL)(nil), &url.URL{Host: "h"}},
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

type pointers *pointers // a type of pointers to itself

func TestDecodeLikeRecursiveType(t *testing.T) {
	if got, err := value.DecodeLike(value.JSON, []byte("1"), pointers(nil)); got != int64(1) || err != nil {
		t.Errorf("DecodeLike = %v, %v; want 1", got, err)
	}
}

// A nil pointer to a type without UnmarshalBinary is like any other value.
func TestDecodeLikeNilPointer(t *testing.T) {
	got, err := value.DecodeLike(value.Raw, []byte("abc"), (*int)(nil))
	if b, ok := got.([]byte); err != nil || !ok || string(b) != "abc" {
		t.Errorf("DecodeLike = %v, %v; want the bytes", got, err)
	}
}

func TestDecodeLikeFillsPointerInPlace(t *testing.T) {
	u := &url.URL{Host: "old"}
	got, err := value.DecodeLike(value.Raw, []byte("//new"), u)
	if err != nil || got != any(u) || u.Host != "new" {
		t.Errorf("DecodeLike = %v, %v; want the same pointer, filled", got, err)
	}
	if _, err := value.DecodeLike(value.Raw, []byte("%"), u); !errors.Is(err, value.ErrEncoding) {
		t.Errorf("DecodeLike of bytes that its type refuses: %v; want ErrEncoding", err)
	}
	if _, err := value.DecodeLike(value.JSON, []byte("["), 1); !errors.Is(err, value.ErrEncoding) {
		t.Errorf("DecodeLike of half a list: %v; want ErrEncoding", err)
	}
}

// FuzzDecodeValue demands that hostile text neither panics nor takes memory out
// of proportion, and that whatever is accepted can be stored again.
func FuzzDecodeValue(f *testing.F) {
	for _, s := range []string{
		"null", "-0", "1e2", "18446744073709551616", `"\ud800"`, `[1,[2.5,{"a":null}]]`, `{"$float":"nan"}`,
		`{"$tuple":[1,{"$tuple":[]}]}`, `{"$dict":[[1,2],[{"$tuple":[null]},{"$ordered":[["a",{"$set":[true]}]]}]]}`,
		`{"$frozenset":[{"$complex":[1.0,{"$float":"inf"}]}]}`, `{"$str":"7bKA"}`, `{"$map":[[{"$str":"7bKA"},1]]}`,
		`{"$tensor":{"dtype":"int16","shape":[2],"data":"AAABAA=="}}`, `{"$tensor":{"dtype":"bool","shape":[0,9],"data":""}}`,
		`{"$object":{"module":"torch","name":"bfloat16"}}`,
		`{"$object":{"module":"a","name":"b","call":true,"new":true,"args":[1],"kwargs":{"$map":[["$a",1]]},"state":{},"items":[2],"pairs":[[3,4]]}}`,
		`{"$bytes":"AAE="}`, `{"$map":[["$a",1],["$a",2]]}`, `{"$a":1,"b":2}`, `{"a":1,"a":2}`, "\"\xff\"",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := value.Decode(value.JSON, data)
		if err != nil {
			if !errors.Is(err, value.ErrEncoding) {
				t.Fatalf("Decode: %v; want ErrEncoding", err)
			}
			return
		}
		codec, again, err := value.Encode(v)
		if err != nil {
			t.Fatalf("Encode(%#v), which was decoded: %v", v, err)
		}
		if w, err := value.Decode(codec, again); !equal(v, w) || err != nil {
			t.Fatalf("Decode(%q) = %#v, %v; want %#v", again, w, err, v)
		}
		for _, like := range []any{0, float32(0), "", []int{}, words{}, [2]octet{}, pointer(label("")), big.NewInt(0), map[int]any{}, value.Tuple{}, complex64(0), map[celsius]int8{}} {
			if _, err := value.DecodeLike(value.JSON, data, like); err != nil {
				t.Fatalf("DecodeLike(%T): %v; want what Decode takes", like, err)
			}
		}
	})
}
