package pickle

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"

	"github.com/cairn-ckpt/cairn/value"
)

// keyer returns keys for hashable values. Two keys are equal if Python considers
// the values equal. The account is charged for keys, because values may share
// their parts.
type keyer struct {
	*account
	b    []byte
	nans uint64
}

// pairs returns the alternating keys and values in l as pairs. As in Python, a
// repeated key changes the value and keeps its place. It fails if a key is not
// hashable in Python.
func (k *keyer) pairs(l []any) []value.Pair {
	k.charge(valueDict + (pairBytes+seenBytes)*len(l)/2)
	out := make([]value.Pair, 0, len(l)/2)
	seen := make(map[any]int, len(l)/2)
	for i := 0; i < len(l); i += 2 {
		l[i] = Fix(l[i])
		key := k.key(l[i])
		if j, ok := seen[key]; ok {
			out[j].Value = l[i+1]
			continue
		}
		seen[key] = len(out)
		out = append(out, value.Pair{Key: l[i], Value: l[i+1]})
	}

	k.refund(seenBytes*len(l)/2 + anyBytes*len(l)) // l is garbage by then
	return out
}

// distinct returns each item of l once. It uses l's memory.
func (k *keyer) distinct(l []any) []any {
	k.charge(valueDict + seenBytes*len(l))
	seen := make(map[any]bool, len(l))
	out := l[:0]
	for _, v := range l {
		if key := k.key(v); !seen[key] {
			seen[key] = true
			out = append(out, v)
		}
	}

	k.refund(seenBytes * len(l))
	return out
}

// written is the key of a value that is neither a string nor a plain number.
type written string

func (k *keyer) key(v any) any {
	switch v := plain(Fix(v)).(type) {
	case string, int64:
		return v
	default:
		k.b = k.b[:0]
		k.append(v, true)
		return written(k.b)
	}
}

// plain returns a number in the first of the types int64, uint64, *big.Int,
// float64 and complex128 that can hold it, so that 1, 1.0, True and 1+0j are the
// same. It returns other values unchanged.
func plain(v any) any {
	switch n := v.(type) {
	case bool:
		if n {
			return int64(1)
		}
		return int64(0)
	case complex128:
		if imag(n) == 0 {
			return plain(real(n))
		}
	case float64:
		if n == math.Trunc(n) && !math.IsInf(n, 0) {
			i, _ := big.NewFloat(n).Int(nil)
			return integer(i)
		}
	}
	return v
}

// append appends v. If hash is set, v must be hashable.
func (k *keyer) append(v any, hash bool) {
	k.charge(cellCost)
	switch v := plain(Fix(v)).(type) {
	case nil:
		k.b = append(k.b, 'N')
	case int64:
		k.b = binary.AppendVarint(append(k.b, 'i'), v)
	case uint64:
		k.b = binary.AppendUvarint(append(k.b, 'u'), v)
	case *big.Int:
		k.text('n', v.String())
	case float64:
		k.float(v)
	case complex128:
		k.b = append(k.b, 'j')
		k.float(real(v))
		k.float(imag(v))
	case string:
		k.text('s', v)
	case []byte:
		k.text('b', string(v))
	case value.Tuple:
		k.list('(', v, hash)
	case *value.Set:
		if hash && !v.Frozen {
			Fail("%w: a key that cannot be hashed: a set", ErrMalformed)
		}
		k.set(v)
	case *value.Object:
		k.text('o', v.Module)
		k.text('.', v.Name)
		if v.Call { // all parts of two objects must be equal
			k.list('(', v.Args, false)
			k.list('(', v.Items, false)
			k.list('(', []any{v.Kwargs, v.State, &value.Dict{Pairs: v.Pairs}}, false)
		}
	case []any, map[string]any, *value.Dict:
		if hash {
			Fail("%w: a key that cannot be hashed: %T", ErrMalformed, v)
		}
		k.mutable(v)
	default: // a result of the caller's function has the key of its address, like Python's default hash
		rv := reflect.ValueOf(v)
		if rv.Kind() != reflect.Pointer {
			Fail("%w: a key that cannot be hashed: %T", ErrMalformed, v)
		}
		k.b = binary.AppendUvarint(append(k.b, '@'), uint64(rv.Pointer()))
	}
}

func (k *keyer) text(kind byte, s string) {
	k.charge(2 * len(s))
	k.b = binary.AppendUvarint(append(k.b, kind), uint64(len(s)))
	k.b = append(k.b, s...)
}

func (k *keyer) float(f float64) {
	if math.IsNaN(f) { // equals no other key
		k.nans++
		k.b = binary.AppendUvarint(append(k.b, '?'), k.nans)
		return
	}
	if f == 0 {
		f = 0 // not -0
	}
	k.b = binary.BigEndian.AppendUint64(append(k.b, 'f'), math.Float64bits(f))
}

func (k *keyer) list(kind byte, l []any, hash bool) {
	k.b = binary.AppendUvarint(append(k.b, kind), uint64(len(l)))
	for _, e := range l {
		k.append(e, hash)
	}
}

// set appends a set: the keys of its items in order.
func (k *keyer) set(s *value.Set) {
	k.charge(boxBytes * len(s.Items))
	items := make([][]byte, len(s.Items))
	start := len(k.b)
	for i, e := range s.Items {
		k.append(e, true)
		items[i] = bytes.Clone(k.b[start:])
		k.b = k.b[:start]
	}

	slices.SortFunc(items, bytes.Compare)
	k.b = binary.AppendUvarint(append(k.b, '{'), uint64(len(items)))
	for _, e := range items {
		k.b = append(k.b, e...)
	}
}

// mutable appends a value that may be part of an object but is not hashable
// itself.
func (k *keyer) mutable(v any) {
	switch v := v.(type) {
	case []any:
		k.list('[', v, false)
	case map[string]any:
		k.charge(anyBytes * len(v))
		k.b = binary.AppendUvarint(append(k.b, 'm'), uint64(len(v)))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			k.text('s', name)
			k.append(v[name], false)
		}
	case *value.Dict:
		k.b = binary.AppendUvarint(append(k.b, 'd'), uint64(len(v.Pairs)))
		for _, p := range v.Pairs {
			k.list('p', []any{p.Key, p.Value}, false)
		}
	}
}
