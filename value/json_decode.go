package value

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

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
