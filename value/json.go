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
)

// The keys of the objects that stand for what JSON lacks.
const (
	keyBytes = "$bytes" // base64
	keyFloat = "$float" // "nan", "inf" or "-inf"
	keyMap   = "$map"   // a list of pairs, for a map with a key that begins with a dollar sign
)

func appendValue(b []byte, v reflect.Value, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: nested deeper than %d", ErrValue, maxDepth)
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
	case v.Kind() == reflect.String:
		return appendString(b, v.String())
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		b = append(b, `{"`+keyBytes+`":"`...)
		b = base64.StdEncoding.AppendEncode(b, v.Bytes())
		return append(b, `"}`...), nil
	case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
		return appendList(b, v, depth)
	case v.Kind() == reflect.Map && v.Type().Key().Kind() == reflect.String:
		return appendMap(b, v, depth)
	}
	return nil, fmt.Errorf("%w: type %v", ErrValue, v.Type())
}

func appendPointer(b []byte, v reflect.Value, depth int) ([]byte, error) {
	if v.IsNil() {
		return append(b, "null"...), nil
	}
	n, ok := v.Interface().(*big.Int)
	if !ok {
		return appendValue(b, v.Elem(), depth+1)
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

func appendString(b []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, fmt.Errorf("%w: string %q is not UTF-8; use bytes", ErrValue, s)
	}
	q, err := json.Marshal(s)
	return append(b, q...), err
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
		escape = escape || strings.HasPrefix(k.String(), "$")
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
	return plain(v, 0)
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
		for i := range v {
			var err error
			if v[i], err = plain(v[i], depth+1); err != nil {
				return nil, err
			}
		}
		return v, nil
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

func special(k string, v any, depth int) (any, error) {
	s, isString := v.(string)
	switch {
	case k == keyBytes && isString:
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrEncoding, err)
		}
		return b, nil
	case k == keyFloat && s == "nan":
		return math.NaN(), nil
	case k == keyFloat && s == "inf":
		return math.Inf(1), nil
	case k == keyFloat && s == "-inf":
		return math.Inf(-1), nil
	case k == keyMap:
		return pairs(v, depth)
	}
	return nil, fmt.Errorf("%w: object with key %q", ErrEncoding, k)
}

func pairs(v any, depth int) (any, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("%w: %s is no list", ErrEncoding, keyMap)
	}
	out := make(map[string]any, len(list))
	for _, p := range list {
		kv, ok := p.([]any)
		if !ok || len(kv) != 2 {
			return nil, fmt.Errorf("%w: %s holds no pair", ErrEncoding, keyMap)
		}
		k, ok := kv[0].(string)
		if !ok {
			return nil, fmt.Errorf("%w: %s holds a key that is no string", ErrEncoding, keyMap)
		}
		e, err := plain(kv[1], depth+1)
		if err != nil {
			return nil, err
		}
		out[k] = e
	}
	return out, nil
}
