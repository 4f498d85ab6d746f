package value

import (
	"bytes"
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

// The keys of the objects that stand for what JSON lacks. The comment at JSON
// says what each holds.
const (
	keyBytes     = "$bytes"
	keyStr       = "$str"
	keyFloat     = "$float"
	keyComplex   = "$complex"
	keyMap       = "$map"
	keyTuple     = "$tuple"
	keyDict      = "$dict"
	keyOrdered   = "$ordered"
	keySet       = "$set"
	keyFrozenset = "$frozenset"
	keyTensor    = "$tensor"
	keyRef       = "$ref"
	keyObject    = "$object"
)

// maxSize bounds the text of a value. A value may share parts with itself, as
// what a pickle holds often does, so that it is far larger as a text than in
// memory.
const maxSize = 1 << 30

// room reports an error unless n more bytes may follow b.
func room(b []byte, n int64) error {
	if n > maxSize-int64(len(b)) {
		return fmt.Errorf("%w: larger than %d bytes", ErrValue, maxSize)
	}
	return nil
}

func appendValue(b []byte, v reflect.Value, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: nested deeper than %d", ErrValue, maxDepth)
	}
	if err := room(b, 0); err != nil {
		return nil, err
	}
	switch {
	case !v.IsValid():
		return append(b, "null"...), nil
	case v.Kind() == reflect.Interface:
		return appendValue(b, v.Elem(), depth)
	case v.Kind() == reflect.Pointer:
		return appendPointer(b, v, depth)
	case v.Kind() == reflect.Bool:
		return strconv.AppendBool(b, v.Bool()), nil
	case v.CanInt():
		return strconv.AppendInt(b, v.Int(), 10), nil
	case v.CanUint():
		return strconv.AppendUint(b, v.Uint(), 10), nil
	case v.CanFloat():
		return appendFloat(b, v.Float()), nil
	case v.CanComplex():
		return appendComplex(b, v.Complex()), nil
	case v.Kind() == reflect.String:
		return appendString(b, v.String())
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		return appendBase64(append(b, `{"`+keyBytes+`":`...), v.Bytes(), "}")
	case v.Type() == refType:
		b, err := appendString(append(b, `{"`+keyRef+`":`...), v.Interface().(Ref).FQN)
		return append(b, '}'), err
	case v.Type() == tupleType:
		return appendWrapped(b, keyTuple, v, depth)
	case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
		return appendList(b, v, depth)
	case v.Kind() == reflect.Map && v.Type().Key().Kind() == reflect.String:
		return appendMap(b, v, depth)
	case v.Kind() == reflect.Map && isInteger(v.Type().Key()):
		return appendIntMap(b, v, depth)
	}
	return nil, fmt.Errorf("%w: type %v", ErrValue, v.Type())
}

func appendPointer(b []byte, v reflect.Value, depth int) ([]byte, error) {
	if v.IsNil() {
		return append(b, "null"...), nil
	}
	switch p := v.Interface().(type) {
	case *big.Int:
		return appendBig(b, p)
	case *Dict:
		return appendDict(b, p, depth)
	case *Set:
		return appendSet(b, p, depth)
	case *Object:
		return appendObject(b, p, depth)
	case *tensor.Tensor:
		return appendTensor(b, p)
	}
	return appendValue(b, v.Elem(), depth+1)
}

func appendBig(b []byte, n *big.Int) ([]byte, error) {
	if n.BitLen() > 4*maxDigits { // before the work of printing it
		return nil, fmt.Errorf("%w: an integer of %d bits, at most %d digits", ErrValue, n.BitLen(), maxDigits)
	}
	start := len(b)
	if b = n.Append(b, 10); len(b)-start > maxDigits {
		return nil, fmt.Errorf("%w: an integer of %d digits, at most %d", ErrValue, len(b)-start, maxDigits)
	}
	return b, nil
}

func appendFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, `{"`+keyFloat+`":"nan"}`...)
	case math.IsInf(f, 1):
		return append(b, `{"`+keyFloat+`":"inf"}`...)
	case math.IsInf(f, -1):
		return append(b, `{"`+keyFloat+`":"-inf"}`...)
	}
	n := len(b)
	b = strconv.AppendFloat(b, f, 'g', -1, 64)
	if !bytes.ContainsAny(b[n:], ".e") {
		b = append(b, ".0"...) // so that it is read back as a float
	}
	return b
}

func appendComplex(b []byte, c complex128) []byte {
	b = append(b, `{"`+keyComplex+`":[`...)
	b = append(appendFloat(b, real(c)), ',')
	return append(appendFloat(b, imag(c)), "]}"...)
}

// appendBase64 adds data as a string, and the text that ends it.
func appendBase64(b, data []byte, end string) ([]byte, error) {
	if err := room(b, int64(base64.StdEncoding.EncodedLen(len(data)))); err != nil {
		return nil, err
	}
	b = base64.StdEncoding.AppendEncode(append(b, '"'), data)
	return append(append(b, '"'), end...), nil
}

func appendString(b []byte, s string) ([]byte, error) {
	if err := room(b, int64(len(s))); err != nil {
		return nil, err
	}
	if utf8.ValidString(s) {
		q, err := json.Marshal(s)
		return append(b, q...), err
	}
	if !validSurrogates(s) {
		return nil, fmt.Errorf("%w: string %.80q is not UTF-8; use bytes", ErrValue, s)
	}
	return appendBase64(append(b, `{"`+keyStr+`":`...), []byte(s), "}")
}

// validSurrogates reports whether s is UTF-8 in which surrogates may stand.
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

func appendList(b []byte, v reflect.Value, depth int) ([]byte, error) {
	b = append(b, '[')
	for i := range v.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = appendValue(b, v.Index(i), depth+1); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

func appendMap(b []byte, v reflect.Value, depth int) ([]byte, error) {
	m := make(map[string]reflect.Value, v.Len())
	escape := false
	for k, e := range v.Seq2() {
		m[k.String()] = e
		escape = escape || strings.HasPrefix(k.String(), "$") || !utf8.ValidString(k.String())
	}
	open, pair, next, end, last := "{", "", ":", "", "}"
	if escape {
		open, pair, next, end, last = `{"`+keyMap+`":[`, "[", ",", "]", "]}"
	}
	b = append(b, open...)
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = appendString(append(b, pair...), k); err != nil {
			return nil, err
		}
		if b, err = appendValue(append(b, next...), m[k], depth+1); err != nil {
			return nil, err
		}
		b = append(b, end...)
	}
	return append(b, last...), nil
}

func decodeJSON(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEncoding, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: bytes after the value", ErrEncoding)
	}
	out, err := plain(v, 0)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// plain turns what encoding/json decoded into our own values.
func plain(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: nested deeper than %d", ErrEncoding, maxDepth)
	}
	switch v := v.(type) {
	case json.Number:
		return number(string(v))
	case []any:
		return decodeList(v, depth)
	case map[string]any:
		return object(v, depth)
	}
	return v, nil
}

// maxDigits bounds the integers, with their sign: parsing takes more than linear
// time.
const maxDigits = 10_000

func number(s string) (any, error) {
	if strings.ContainsAny(s, ".eE") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrEncoding, err)
		}
		return f, nil
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i, nil
	}
	if u, err := strconv.ParseUint(s, 10, 64); err == nil {
		return u, nil
	}
	if len(s) > maxDigits {
		return nil, fmt.Errorf("%w: an integer of %d digits", ErrEncoding, len(s))
	}
	n, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return nil, fmt.Errorf("%w: %q is no number", ErrEncoding, s)
	}
	return n, nil
}

func object(m map[string]any, depth int) (any, error) {
	if len(m) == 1 {
		for k, v := range m {
			if strings.HasPrefix(k, "$") {
				return special(k, v, depth)
			}
		}
	}
	for k := range m {
		var err error
		if m[k], err = plain(m[k], depth+1); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// special returns what an object with the one key k stands for. Whatever is
// inside is one deeper than depth.
func special(k string, v any, depth int) (any, error) {
	switch k {
	case keyBytes:
		return decodeBase64(v)
	case keyStr:
		return decodeStr(v)
	case keyFloat:
		return decodeFloat(v)
	case keyComplex:
		return decodeComplex(v)
	case keyMap:
		return decodeMap(v, depth)
	case keyTuple:
		l, err := decodeList(v, depth)
		return Tuple(l), err
	case keyDict, keyOrdered:
		p, err := decodePairs(v, depth)
		return &Dict{Pairs: p, Ordered: k == keyOrdered}, err
	case keySet, keyFrozenset:
		l, err := decodeList(v, depth)
		return &Set{Items: l, Frozen: k == keyFrozenset}, err
	case keyTensor:
		return decodeTensor(v)
	case keyRef:
		name, err := decodeName(v)
		return Ref{name}, err
	case keyObject:
		return decodeObject(v, depth)
	}
	return nil, fmt.Errorf("%w: object with key %q", ErrEncoding, k)
}

// as returns v as a T, or an error that says what should be one.
func as[T any](v any, what string) (T, error) {
	t, ok := v.(T)
	if !ok {
		return t, fmt.Errorf("%w: %s is no %T", ErrEncoding, what, t)
	}
	return t, nil
}

func decodeBase64(v any) ([]byte, error) {
	s, err := as[string](v, "base64")
	if err != nil {
		return nil, err
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEncoding, err)
	}
	return b, nil
}

func decodeStr(v any) (any, error) {
	b, err := decodeBase64(v)
	if err != nil {
		return nil, err
	}
	if s := string(b); !utf8.ValidString(s) && validSurrogates(s) {
		return s, nil
	}
	return nil, fmt.Errorf("%w: %s holds no surrogates", ErrEncoding, keyStr)
}

func decodeFloat(v any) (any, error) {
	switch v {
	case "nan":
		return math.NaN(), nil
	case "inf":
		return math.Inf(1), nil
	case "-inf":
		return math.Inf(-1), nil
	}
	return nil, fmt.Errorf("%w: %s of %v", ErrEncoding, keyFloat, v)
}

func decodeList(v any, depth int) ([]any, error) {
	list, err := as[[]any](v, "what should be a list")
	if err != nil {
		return nil, err
	}
	for i := range list {
		if list[i], err = plain(list[i], depth+1); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func decodePairs(v any, depth int) ([]Pair, error) {
	list, err := as[[]any](v, "what should be pairs")
	if err != nil {
		return nil, err
	}
	out := make([]Pair, len(list))
	for i, p := range list {
		kv, err := decodeList(p, depth)
		if err != nil {
			return nil, err
		}
		if len(kv) != 2 {
			return nil, fmt.Errorf("%w: a pair of %d", ErrEncoding, len(kv))
		}
		out[i] = Pair{kv[0], kv[1]}
	}
	return out, nil
}

func decodeMap(v any, depth int) (any, error) {
	pairs, err := decodePairs(v, depth)
	if err != nil {
		return nil, err
	}
	out := make(map[string]any, len(pairs))
	for _, p := range pairs {
		k, err := as[string](p.Key, "a key of "+keyMap)
		if err != nil {
			return nil, err
		}
		out[k] = p.Value
	}
	return out, nil
}
