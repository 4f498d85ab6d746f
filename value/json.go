package value

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
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
