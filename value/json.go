package value

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/tensor"
)

const (
	// maxSize bounds the text of a value. A value may contain one part at several
	// places, as values from pickles often do, so that its text is far larger than
	// its memory.
	maxSize = 1 << 30
	// maxDigits bounds the digits of integers, with their sign: parsing takes more
	// than linear time.
	maxDigits = 10_000
)

// encoder writes JSON. Once err is set, it writes no more bytes.
type encoder struct {
	b   []byte
	err error
}

func (e *encoder) fail(format string, args ...any) {
	if e.err == nil {
		e.err = fmt.Errorf("%w: %w", ErrValue, fmt.Errorf(format, args...))
	}
}

func (e *encoder) add(text string) { e.b = append(e.b, text...) }

// room reports whether n more bytes may be written.
func (e *encoder) room(n int64) bool {
	if n > maxSize-int64(len(e.b)) {
		e.fail("larger than %d bytes", maxSize)
	}
	return e.err == nil
}

func (e *encoder) value(v reflect.Value, depth int) {
	switch {
	case !e.room(0):
	case depth > maxDepth:
		e.fail("nested deeper than %d", maxDepth)
	case !v.IsValid():
		e.add("null")
	case v.Kind() == reflect.Interface:
		e.value(v.Elem(), depth)
	case v.Kind() == reflect.Pointer:
		e.pointer(v, depth)
	case v.Kind() == reflect.Bool:
		e.b = strconv.AppendBool(e.b, v.Bool())
	case v.CanInt():
		e.b = strconv.AppendInt(e.b, v.Int(), 10)
	case v.CanUint():
		e.b = strconv.AppendUint(e.b, v.Uint(), 10)
	case v.CanFloat():
		e.b = appendFloat(e.b, v.Float())
	case v.CanComplex():
		parts := [2]float64{real(v.Complex()), imag(v.Complex())}
		e.special("$complex", func() {
			e.list("[", 2, func(i int) { e.b = appendFloat(e.b, parts[i]) }, "]")
		})
	case v.Kind() == reflect.String:
		e.text(v.String())
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		e.special("$bytes", func() { e.base64(v.Bytes()) })
	case v.Type() == reflect.TypeFor[Ref]():
		e.special("$ref", func() { e.text(v.Interface().(Ref).FQN) })
	case v.Type() == reflect.TypeFor[Tuple]():
		e.special("$tuple", func() { e.values(v, depth) })
	case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
		e.values(v, depth)
	case v.Kind() == reflect.Map && v.Type().Key().Kind() == reflect.String:
		e.dict(v, depth)
	case v.Kind() == reflect.Map && isInteger(v.Type().Key()):
		e.intDict(v, depth)
	default:
		e.fail("type %v", v.Type())
	}
}

func (e *encoder) pointer(v reflect.Value, depth int) {
	if v.IsNil() {
		e.add("null")
		return
	}
	switch p := v.Interface().(type) {
	case *big.Int:
		e.big(p)
	case *Dict:
		key := "$dict"
		if p.Ordered {
			key = "$ordered"
		}
		e.special(key, func() { e.pairs(p.Pairs, depth) })
	case *Set:
		key := "$set"
		if p.Frozen {
			key = "$frozenset"
		}
		e.special(key, func() { e.values(reflect.ValueOf(p.Items), depth) })
	case *Object:
		e.special("$object", func() { e.object(p, depth) })
	case *tensor.Tensor:
		e.special("$tensor", func() { e.tensor(p) })
	default:
		e.value(v.Elem(), depth+1)
	}
}

// special writes an object with one key.
func (e *encoder) special(key string, content func()) {
	e.add(`{"` + key + `":`)
	content()
	e.add("}")
}

// list writes n items between open and end.
func (e *encoder) list(open string, n int, item func(i int), end string) {
	e.add(open)
	for i := range n {
		if i > 0 {
			e.add(",")
		}
		item(i)
	}
	e.add(end)
}

func (e *encoder) values(v reflect.Value, depth int) {
	e.list("[", v.Len(), func(i int) { e.value(v.Index(i), depth+1) }, "]")
}

func (e *encoder) pairs(pairs []Pair, depth int) {
	e.list("[", len(pairs), func(i int) {
		e.values(reflect.ValueOf([]any{pairs[i].Key, pairs[i].Value}), depth)
	}, "]")
}

func (e *encoder) dict(v reflect.Value, depth int) {
	m := make(map[string]reflect.Value, v.Len())
	escape := false
	for k, x := range v.Seq2() {
		m[k.String()] = x
		escape = escape || strings.HasPrefix(k.String(), "$") || !utf8.ValidString(k.String())
	}

	keys := slices.Sorted(maps.Keys(m))
	entry := func(k, between string) {
		e.text(k)
		e.add(between)
		e.value(m[k], depth+1)
	}
	if !escape {
		e.list("{", len(keys), func(i int) { entry(keys[i], ":") }, "}")
		return
	}

	e.special("$map", func() {
		e.list("[", len(keys), func(i int) {
			e.add("[")
			entry(keys[i], ",")
			e.add("]")
		}, "]")
	})
}

func isInteger(t reflect.Type) bool {
	zero := reflect.Zero(t)
	return zero.CanInt() || zero.CanUint()
}

// intDict writes a map with integer keys as Python's dict with these keys.
func (e *encoder) intDict(v reflect.Value, depth int) {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int {
		if a.CanInt() {
			return cmp.Compare(a.Int(), b.Int())
		}
		return cmp.Compare(a.Uint(), b.Uint())
	})

	pairs := make([]Pair, len(keys))
	for i, k := range keys {
		pairs[i] = Pair{k.Interface(), v.MapIndex(k).Interface()}
	}

	e.special("$dict", func() { e.pairs(pairs, depth) })
}

func (e *encoder) big(n *big.Int) {
	if n.BitLen() > 4*maxDigits { // before the work of printing it
		e.fail("an integer of %d bits, at most %d digits", n.BitLen(), maxDigits)
		return
	}
	start := len(e.b)
	if e.b = n.Append(e.b, 10); len(e.b)-start > maxDigits {
		e.fail("an integer of %d digits, at most %d", len(e.b)-start, maxDigits)
	}
}

func appendFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, `{"$float":"nan"}`...)
	case math.IsInf(f, 1):
		return append(b, `{"$float":"inf"}`...)
	case math.IsInf(f, -1):
		return append(b, `{"$float":"-inf"}`...)
	}

	n := len(b)
	b = strconv.AppendFloat(b, f, 'g', -1, 64)
	if !bytes.ContainsAny(b[n:], ".e") {
		b = append(b, ".0"...) // so that it is read back as a float
	}
	return b
}

func (e *encoder) base64(data []byte) {
	if e.room(int64(base64.StdEncoding.EncodedLen(len(data)))) {
		e.b = append(base64.StdEncoding.AppendEncode(append(e.b, '"'), data), '"')
	}
}

func (e *encoder) text(s string) {
	switch {
	case !e.room(int64(len(s))):
	case utf8.ValidString(s):
		q, err := json.Marshal(s)
		e.b, e.err = append(e.b, q...), err
	case !validSurrogates(s):
		e.fail("string %.80q is not UTF-8; use bytes", s)
	default:
		e.special("$str", func() { e.base64([]byte(s)) })
	}
}

// validSurrogates reports whether s is UTF-8, apart from surrogates.
func validSurrogates(s string) bool {
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 {
			if len(s) < 3 || s[0] != 0xed || s[1]&0xe0 != 0xa0 || s[2]&0xc0 != 0x80 {
				return false
			}
			n = 3
		}
		s = s[n:]
	}
	return true
}

func (e *encoder) tensor(t *tensor.Tensor) {
	if !t.DType().Valid() {
		e.fail("a tensor of dtype %v", t.DType())
		return
	}

	e.add(`{"dtype":"` + t.DType().String() + `","shape":`)
	e.list("[", t.Dims(), func(i int) { e.b = strconv.AppendInt(e.b, t.Shape()[i], 10) }, "]")
	e.add(`,"data":`)
	if e.room(t.NumBytes()) { // before Contents copies an expanded view
		e.base64(t.Contents())
	}
	e.add("}")
}

func (e *encoder) object(o *Object, depth int) {
	e.add(`{"module":`)
	e.text(o.Module)
	e.add(`,"name":`)
	e.text(o.Name)

	field := func(name string, present bool, content func()) {
		if present {
			e.add(`,"` + name + `":`)
			content()
		}
	}
	field("call", o.Call, func() { e.add("true") })
	field("new", o.New, func() { e.add("true") })
	field("args", len(o.Args) > 0, func() { e.values(reflect.ValueOf(o.Args), depth) })
	field("kwargs", len(o.Kwargs) > 0, func() { e.dict(reflect.ValueOf(o.Kwargs), depth) })
	field("state", o.State != nil, func() { e.value(reflect.ValueOf(o.State), depth+1) })
	field("items", len(o.Items) > 0, func() { e.values(reflect.ValueOf(o.Items), depth) })
	field("pairs", len(o.Pairs) > 0, func() { e.pairs(o.Pairs, depth) })
	e.add("}")
}

func decodeJSON(data []byte) (any, error) {
	j := json.NewDecoder(bytes.NewReader(data))
	j.UseNumber()
	var v any
	if err := j.Decode(&v); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEncoding, err)
	}

	if _, err := j.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: bytes after the value", ErrEncoding)
	}

	var d decoder
	out := d.value(v, 0)
	if d.err != nil {
		return nil, d.err
	}
	return out, nil
}

// decoder turns the results of encoding/json into values. Once err is set, its results are
// undefined.
type decoder struct{ err error }

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %w", ErrEncoding, fmt.Errorf(format, args...))
	}
}

// as returns v as a T. If v has another type, the error names it what.
func as[T any](d *decoder, v any, what string) T {
	t, ok := v.(T)
	if !ok {
		d.fail("%s is not of type %T", what, t)
	}
	return t
}

func (d *decoder) value(v any, depth int) any {
	if depth > maxDepth {
		d.fail("nested deeper than %d", maxDepth)
	}

	if d.err != nil {
		return nil
	}

	switch v := v.(type) {
	case json.Number:
		return d.number(string(v))
	case []any:
		return d.list(v, depth)
	case map[string]any:
		return d.dict(v, depth)
	}

	return v
}

func (d *decoder) number(s string) any {
	if strings.ContainsAny(s, ".eE") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			d.fail("%w", err)
		}
		return f
	}

	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i
	}
	if u, err := strconv.ParseUint(s, 10, 64); err == nil {
		return u
	}

	if len(s) > maxDigits {
		d.fail("an integer of %d digits", len(s))
		return nil
	}

	n, ok := new(big.Int).SetString(s, 10)
	if !ok {
		d.fail("%q is not a number", s)
	}
	return n
}

func (d *decoder) list(v any, depth int) []any {
	list := as[[]any](d, v, "a list")
	for i := range list {
		list[i] = d.value(list[i], depth+1)
	}
	return list
}

func (d *decoder) pairs(v any, depth int) []Pair {
	list := as[[]any](d, v, "a list of pairs")
	out := make([]Pair, len(list))
	for i, p := range list {
		kv := d.list(p, depth)
		if len(kv) != 2 {
			d.fail("a pair of %d", len(kv))
			return nil
		}
		out[i] = Pair{kv[0], kv[1]}
	}

	return out
}

func (d *decoder) dict(m map[string]any, depth int) any {
	if len(m) == 1 {
		for k, v := range m {
			if strings.HasPrefix(k, "$") {
				return d.special(k, v, depth)
			}
		}
	}

	for k := range m {
		m[k] = d.value(m[k], depth+1)
	}

	return m
}

// special decodes an object with the single key k. Its contents are one deeper than depth.
func (d *decoder) special(k string, v any, depth int) any {
	switch k {
	case "$bytes":
		return d.base64(v)
	case "$str":
		s := string(d.base64(v))
		if utf8.ValidString(s) || !validSurrogates(s) {
			d.fail("$str holds no surrogates")
		}
		return s
	case "$float":
		return d.float(v)
	case "$complex":
		return d.complex(v)
	case "$map":
		out := map[string]any{}
		for _, p := range d.pairs(v, depth) {
			out[as[string](d, p.Key, "a key of $map")] = p.Value
		}
		return out
	case "$tuple":
		return Tuple(d.list(v, depth))
	case "$dict", "$ordered":
		return &Dict{Pairs: d.pairs(v, depth), Ordered: k == "$ordered"}
	case "$set", "$frozenset":
		return &Set{Items: d.list(v, depth), Frozen: k == "$frozenset"}
	case "$tensor":
		return d.tensor(v)
	case "$ref":
		return Ref{d.name(v)}
	case "$object":
		return d.object(v, depth)
	}

	d.fail("object with key %q", k)
	return nil
}

func (d *decoder) base64(v any) []byte {
	b, err := base64.StdEncoding.DecodeString(as[string](d, v, "base64"))
	if err != nil {
		d.fail("%w", err)
	}
	return b
}

func (d *decoder) float(v any) float64 {
	switch v {
	case "nan":
		return math.NaN()
	case "inf":
		return math.Inf(1)
	case "-inf":
		return math.Inf(-1)
	}

	d.fail("$float of %v", v)
	return 0
}

func (d *decoder) complex(v any) complex128 {
	parts := d.list(v, 0)
	if len(parts) != 2 {
		d.fail("$complex of %d parts", len(parts))
		return 0
	}
	return complex(as[float64](d, parts[0], "a real part"), as[float64](d, parts[1], "an imaginary part"))
}

func (d *decoder) tensor(v any) *tensor.Tensor {
	m := as[map[string]any](d, v, "$tensor")
	if len(m) != 3 {
		d.fail("$tensor has %d fields, not dtype, shape and data", len(m))
	}

	name := as[string](d, m["dtype"], "the dtype of a tensor")
	dtype, err := tensor.ParseDType(name)
	if err != nil || dtype.String() != name {
		d.fail("$tensor of dtype %.40q", name)
	}

	shape := []int64{}
	for _, n := range d.list(m["shape"], 0) {
		shape = append(shape, as[int64](d, n, "a dimension"))
	}

	data := d.base64(m["data"])
	if d.err != nil {
		return nil
	}

	t, err := tensor.FromBytes(dtype, shape, data)
	if err != nil {
		d.fail("$tensor: %w", err)
	}
	return t
}

func (d *decoder) object(v any, depth int) *Object {
	m, o := as[map[string]any](d, v, "$object"), new(Object)
	for _, k := range []string{"module", "name"} {
		if m[k] == nil {
			d.fail("$object has no %s", k)
		}
	}

	for k, f := range m {
		switch k {
		case "module":
			o.Module = d.name(f)
		case "name":
			o.Name = d.name(f)
		case "call":
			o.Call = as[bool](d, f, k)
		case "new":
			o.New = as[bool](d, f, k)
		case "args":
			o.Args = filled(d.list(f, depth))
		case "kwargs":
			o.Kwargs = as[map[string]any](d, d.dict(as[map[string]any](d, f, k), depth), k)
			if len(o.Kwargs) == 0 {
				o.Kwargs = nil
			}
		case "state":
			o.State = d.value(f, depth+1)
		case "items":
			o.Items = filled(d.list(f, depth))
		case "pairs":
			o.Pairs = filled(d.pairs(f, depth))
		default:
			d.fail("an object has no field %q", k)
		}
	}

	return o
}

// filled returns nil for an empty list: an object without arguments has one form.
func filled[E any](list []E) []E {
	if len(list) == 0 {
		return nil
	}
	return list
}

// name decodes a string, plain or with surrogates.
func (d *decoder) name(v any) string { return as[string](d, d.value(v, maxDepth), "a name") }
