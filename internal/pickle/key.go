package pickle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/value"
)

// pairs returns the alternating keys and values in l as pairs. As in Python, a
// repeated key changes the value and keeps its place. A key that is not hashable
// in Python is an error.
func (k *keyer) pairs(l []any) ([]value.Pair, error) {
	if err := k.charge(valueDict + (pairBytes+seenBytes)*len(l)/2); err != nil {
		return nil, err
	}
	defer k.refund(seenBytes*len(l)/2 + anyBytes*len(l)) // l is garbage by then
	out := make([]value.Pair, 0, len(l)/2)
	seen := make(map[any]int, len(l)/2)
	for i := 0; i < len(l); i += 2 {
		key, err := k.key(l[i])
		if err != nil {
			return nil, err
		}
		if j, ok := seen[key]; ok {
			out[j].Value = l[i+1]
			continue
		}
		seen[key] = len(out)
		out = append(out, value.Pair{Key: l[i], Value: l[i+1]})
	}
	return out, nil
}

// distinct returns each item of l once. It uses l's memory.
func (k *keyer) distinct(l []any) ([]any, error) {
	if err := k.charge(valueDict + seenBytes*len(l)); err != nil {
		return nil, err
	}
	defer k.refund(seenBytes * len(l))
	seen := make(map[any]bool, len(l))
	out := l[:0]
	for _, v := range l {
		key, err := k.key(v)
		if err != nil {
			return nil, err
		}
		if !seen[key] {
			seen[key] = true
			out = append(out, v)
		}
	}
	return out, nil
}

// keyer returns keys for hashable values. Two keys are equal if Python considers
// the values equal. The account is charged for keys, because values may share
// their parts.
type keyer struct {
	*account
	b    []byte
	nans uint64
}

// written is the key of a value that is neither a string nor a plain number.
type written string

func (k *keyer) key(v any) (any, error) {
	switch n := v.(type) {
	case string, int64:
		return v, nil
	case bool:
		if n {
			return int64(1), nil
		}
		return int64(0), nil
	case float64:
		if n >= math.MinInt64 && n < math.MaxInt64 && n == math.Trunc(n) {
			return int64(n), nil
		}
	case complex128:
		if imag(n) == 0 {
			return k.key(real(n))
		}
	}
	k.b = k.b[:0]
	if err := k.append(v, true); err != nil {
		return nil, err
	}
	return written(k.b), nil
}

// append appends v. If hash is set, v must be hashable.
func (k *keyer) append(v any, hash bool) error {
	if err := k.charge(cellCost); err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		k.b = append(k.b, 'N')
	case bool, int64, uint64, *big.Int, float64, complex128:
		return k.number(v)
	case string:
		return k.text('s', v)
	case []byte:
		return k.text('b', string(v))
	case value.Tuple:
		return k.list('(', v, hash)
	case *value.Set:
		return k.set(v, hash)
	case *value.Object:
		return k.object(v)
	case []any, map[string]any, *value.Dict:
		if hash {
			return fmt.Errorf("%w: a key that cannot be hashed: %T", ErrMalformed, v)
		}
		return k.mutable(v)
	default:
		return k.identity(v)
	}
	return nil
}

func (k *keyer) text(kind byte, s string) error {
	k.b = binary.AppendUvarint(append(k.b, kind), uint64(len(s)))
	k.b = append(k.b, s...)
	return k.charge(2 * len(s))
}

// number appends a number so that 1, 1.0, True and 1+0j are the same.
func (k *keyer) number(v any) error {
	switch v := v.(type) {
	case bool:
		if v {
			return k.text('n', "1")
		}
		return k.text('n', "0")
	case int64:
		return k.text('n', strconv.FormatInt(v, 10))
	case uint64:
		return k.text('n', strconv.FormatUint(v, 10))
	case *big.Int:
		return k.text('n', v.String())
	case float64:
		return k.float(v)
	case complex128:
		if err := k.float(real(v)); err != nil || imag(v) == 0 {
			return err
		}
		k.b = append(k.b, 'j')
		return k.float(imag(v))
	}
	return nil
}

func (k *keyer) float(f float64) error {
	switch {
	case math.IsNaN(f): // equals nothing
		k.nans++
		k.b = binary.AppendUvarint(append(k.b, '?'), k.nans)
	case f == math.Trunc(f) && !math.IsInf(f, 0):
		n, _ := big.NewFloat(f).Int(nil)
		return k.text('n', n.String())
	default:
		k.b = binary.BigEndian.AppendUint64(append(k.b, 'f'), math.Float64bits(f))
	}
	return nil
}

func (k *keyer) list(kind byte, l []any, hash bool) error {
	k.b = binary.AppendUvarint(append(k.b, kind), uint64(len(l)))
	for _, e := range l {
		if err := k.append(e, hash); err != nil {
			return err
		}
	}
	return nil
}

// set appends a set: the keys of its items in order.
func (k *keyer) set(s *value.Set, hash bool) error {
	if hash && !s.Frozen {
		return fmt.Errorf("%w: a key that cannot be hashed: a set", ErrMalformed)
	}
	if err := k.charge(boxBytes * len(s.Items)); err != nil {
		return err
	}
	items := make([][]byte, len(s.Items))
	start := len(k.b)
	for i, e := range s.Items {
		if err := k.append(e, true); err != nil {
			return err
		}
		items[i] = bytes.Clone(k.b[start:])
		k.b = k.b[:start]
	}
	slices.SortFunc(items, bytes.Compare)
	k.b = binary.AppendUvarint(append(k.b, '{'), uint64(len(items)))
	for _, e := range items {
		k.b = append(k.b, e...)
	}
	return nil
}

// object appends all parts of o: two objects have the same key if all parts are
// equal.
func (k *keyer) object(o *value.Object) error {
	if err := k.text('o', o.Module); err != nil {
		return err
	}
	if err := k.text('.', o.Name); err != nil || !o.Call {
		return err
	}
	for _, l := range [][]any{o.Args, o.Items} {
		if err := k.list('(', l, false); err != nil {
			return err
		}
	}
	for _, v := range []any{o.Kwargs, o.State, &value.Dict{Pairs: o.Pairs}} {
		if err := k.append(v, false); err != nil {
			return err
		}
	}
	return nil
}

// mutable appends a value that may be part of an object but is not hashable
// itself.
func (k *keyer) mutable(v any) error {
	switch v := v.(type) {
	case []any:
		return k.list('[', v, false)
	case map[string]any:
		if err := k.charge(anyBytes * len(v)); err != nil {
			return err
		}
		k.b = binary.AppendUvarint(append(k.b, 'm'), uint64(len(v)))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if err := k.text('s', name); err != nil {
				return err
			}
			if err := k.append(v[name], false); err != nil {
				return err
			}
		}
	case *value.Dict:
		k.b = binary.AppendUvarint(append(k.b, 'd'), uint64(len(v.Pairs)))
		for _, p := range v.Pairs {
			if err := k.list('p', []any{p.Key, p.Value}, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// identity appends the address of a value that the caller's function returned,
// like Python's default hash.
func (k *keyer) identity(v any) error {
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer {
		return fmt.Errorf("%w: a key that cannot be hashed: %T", ErrMalformed, v)
	}
	k.b = binary.AppendUvarint(append(k.b, '@'), uint64(rv.Pointer()))
	return nil
}
