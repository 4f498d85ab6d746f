package inspect

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// equalValues reports whether two values that value.Decode returned are equal. If
// not, where is the position of the first difference in Python's notation, such
// as "['betas'][1]", or "" if the values themselves differ.
//
// Values of different types are different, including True, 1 and 1.0. All kinds
// of dicts with the same keys and values are equal; two ordered dicts must also
// have the same order. A NaN equals a NaN. Tensors are equal if they have the
// same dtype, shape and bits, and references to tensors if they have the same
// name.
func equalValues(a, b any) (equal bool, where string) {
	at, ok := valuesDiffer(a, b)
	return !ok, at
}

func valuesDiffer(a, b any) (at string, differ bool) {
	switch x := a.(type) {
	case float64:
		y, ok := b.(float64)
		return "", !ok || !sameFloat(x, y)
	case complex128:
		y, ok := b.(complex128)
		return "", !ok || !sameFloat(real(x), real(y)) || !sameFloat(imag(x), imag(y))
	case []byte:
		y, ok := b.([]byte)
		return "", !ok || !bytes.Equal(x, y)
	case *big.Int:
		y, ok := b.(*big.Int)
		return "", !ok || x.Cmp(y) != 0
	case *tensor.Tensor:
		y, ok := b.(*tensor.Tensor)
		return "", !ok || !tensor.Equal(x, y)
	case nil, bool, int64, uint64, string, value.Ref:
		return "", a != b
	}
	return containersDiffer(a, b)
}

func sameFloat(x, y float64) bool { return x == y || math.IsNaN(x) && math.IsNaN(y) }

// containersDiffer is valuesDiffer for containers.
func containersDiffer(a, b any) (at string, differ bool) {
	if x, ordered, ok := dictPairs(a); ok {
		y, both, ok := dictPairs(b)
		if !ok {
			return "", true
		}
		return pairsDiffer(x, y, ordered && both)
	}
	switch x := a.(type) {
	case []any:
		if y, ok := b.([]any); ok {
			return listsDiffer(x, y)
		}
	case value.Tuple:
		if y, ok := b.(value.Tuple); ok {
			return listsDiffer(x, y)
		}
	case *value.Set:
		if y, ok := b.(*value.Set); ok && x.Frozen == y.Frozen && len(x.Items) == len(y.Items) {
			_, differ := pairsDiffer(asKeys(x.Items), asKeys(y.Items), false)
			return "", differ
		}
	case *value.Object:
		if y, ok := b.(*value.Object); ok {
			return objectsDiffer(x, y)
		}
	}
	return "", true
}

func listsDiffer(x, y []any) (at string, differ bool) {
	if len(x) != len(y) {
		return "", true
	}
	for i := range x {
		if at, differ := valuesDiffer(x[i], y[i]); differ {
			return "[" + strconv.Itoa(i) + "]" + at, true
		}
	}
	return "", false
}

func objectsDiffer(x, y *value.Object) (at string, differ bool) {
	if x.QualifiedName() != y.QualifiedName() || x.Call != y.Call {
		return "", true
	}
	for _, part := range []struct {
		name string
		a, b any
	}{
		{".args", x.Args, y.Args},
		{".kwargs", x.Kwargs, y.Kwargs},
		{".state", x.State, y.State},
		{"", x.Items, y.Items},
		{"", &value.Dict{Pairs: x.Pairs}, &value.Dict{Pairs: y.Pairs}},
	} {
		if at, differ := valuesDiffer(part.a, part.b); differ {
			return part.name + at, true
		}
	}
	return "", false
}

// dictPairs returns the pairs of either kind of dict. Those of a map are sorted
// by key.
func dictPairs(v any) (pairs []value.Pair, ordered, ok bool) {
	switch v := v.(type) {
	case *value.Dict:
		return v.Pairs, v.Ordered, true
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			pairs = append(pairs, value.Pair{Key: k, Value: v[k]})
		}
		return pairs, false, true
	}
	return nil, false, false
}

func asKeys(items []any) []value.Pair {
	out := make([]value.Pair, len(items))
	for i, e := range items {
		out[i].Key = e
	}
	return out
}

// pairsDiffer compares dicts. It reports the first difference in the order of x.
func pairsDiffer(x, y []value.Pair, ordered bool) (at string, differ bool) {
	if len(x) != len(y) {
		return "", true
	}
	places := map[string]int{}
	for i := range y {
		places[keyText(y[i].Key)] = i
	}
	for i := range x {
		j, ok := places[keyText(x[i].Key)]
		if !ok || ordered && i != j {
			return "", true
		}
		if at, differ := valuesDiffer(x[i].Value, y[j].Value); differ {
			return "[" + Repr(x[i].Key, 40) + "]" + at, true
		}
	}
	return "", false
}

// keyText returns a text that is equal exactly for equal keys.
func keyText(k any) string {
	if s, ok := k.(string); ok {
		return "s" + s
	}
	codec, data, err := value.Encode(k)
	if err != nil {
		return fmt.Sprintf("?%T %v", k, k)
	}
	return codec + ":" + string(data)
}
