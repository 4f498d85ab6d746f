package inspect

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// ComparedColumns describes the results for many names compactly: a column for each property,
// with an element for each name.
type ComparedColumns struct {
	Names []string `json:"names"`
	// Results are the different results. Result is the place of that of each name.
	Results []ComparedResult `json:"results"`
	Result  []int32          `json:"result"`
	// Forms are the different descriptions. A and B are the places of those in the first and
	// in the second checkpoint, -1 if the name is not in that checkpoint.
	Forms []Form  `json:"forms"`
	A     []int32 `json:"a"`
	B     []int32 `json:"b"`
	// The numbers of ValueDifference. Differing is -1, and the others are undefined, if no
	// elements were compared.
	Differing []int64  `json:"differing"`
	MaxAbs    []Number `json:"max_abs"`
	MaxRel    []Number `json:"max_rel"`
	RelL2     []Number `json:"rel_l2"`
	Cosine    []Number `json:"cosine"`
	// First is the place in row-major order of the first differing element, -1 if none
	// differs. FirstA and FirstB are the element.
	First  []int64  `json:"first"`
	FirstA []string `json:"first_a"`
	FirstB []string `json:"first_b"`
	// More has, by the place of a name, the fields that few names have.
	More map[int]ComparedMore `json:"more"`
}

// ComparedResult is a result for names.
type ComparedResult struct {
	Status  string   `json:"status"`
	Differs []string `json:"differs,omitempty"`
}

// Form describes a tensor or an object, as Item does.
type Form struct {
	Kind     string  `json:"kind"`
	DType    string  `json:"dtype,omitempty"`
	Shape    []int64 `json:"shape,omitzero"`
	Type     string  `json:"type,omitempty"`
	Repr     string  `json:"repr,omitempty"`
	NumBytes int64   `json:"bytes"`
}

// ComparedMore has the fields that few names have: see Compared and ValueDifference.
type ComparedMore struct {
	Renamed string `json:"renamed,omitempty"`
	Where   string `json:"where,omitempty"`
	NaNs    int64  `json:"nans,omitempty"`
	// NonFinite is Change.NonFinite.
	NonFinite int64 `json:"nonfinite,omitempty"`
}

// NewComparedColumns returns the results for names as columns.
func NewComparedColumns(items []Compared) *ComparedColumns {
	n, none := len(items), Number(math.NaN())
	c := &ComparedColumns{
		Names: make([]string, n), Results: []ComparedResult{}, Result: make([]int32, n), Forms: []Form{}, A: make([]int32, n), B: make([]int32, n),
		Differing: slices.Repeat([]int64{-1}, n), MaxAbs: slices.Repeat([]Number{none}, n), MaxRel: slices.Repeat([]Number{none}, n),
		RelL2: slices.Repeat([]Number{none}, n), Cosine: slices.Repeat([]Number{none}, n),
		First: slices.Repeat([]int64{-1}, n), FirstA: make([]string, n), FirstB: make([]string, n), More: map[int]ComparedMore{},
	}

	results, forms := map[string]int32{}, map[string]int32{}
	var key []byte
	for i := range items {
		x := &items[i]
		c.Names[i] = x.FQN
		key = fmt.Appendf(key[:0], "%s %q", x.Status, x.Differs)
		c.Result[i] = place(results, key, &c.Results, func() ComparedResult { return ComparedResult{x.Status, x.Differs} })

		for _, s := range []struct {
			it *Item
			to []int32
		}{{x.A, c.A}, {x.B, c.B}} {
			if s.to[i] = -1; s.it != nil {
				key = s.it.formKey(key[:0])
				s.to[i] = place(forms, key, &c.Forms, s.it.form)
			}
		}

		more := ComparedMore{Renamed: x.Renamed, Where: x.Where}
		if v := x.Values; v != nil {
			c.Differing[i], c.MaxAbs[i], c.MaxRel[i], more.NaNs = v.Differing, v.MaxAbs, v.MaxRel, v.NaNs
			if v.Change != nil {
				c.RelL2[i], c.Cosine[i], more.NonFinite = v.RelL2, v.Cosine, v.NonFinite
			}
			if f := v.First; f != nil {
				c.First[i], c.FirstA[i], c.FirstB[i] = ravel(f.Index, x.A.Shape), f.A, f.B
			}
		}

		if more != (ComparedMore{}) {
			c.More[i] = more
		}
	}

	return c
}

// place returns the place of the element with a key, and appends the element if it is new.
func place[T any](places map[string]int32, key []byte, all *[]T, value func() T) int32 {
	at, ok := places[string(key)]
	if !ok {
		at = int32(len(*all))
		places[string(key)] = at
		*all = append(*all, value())
	}
	return at
}

func (it *Item) form() Form {
	return Form{Kind: it.Kind, DType: it.DType, Shape: it.Shape, Type: it.Type, Repr: it.Repr, NumBytes: it.NumBytes}
}

// formKey appends the identity of the form.
func (it *Item) formKey(b []byte) []byte {
	b = strconv.AppendInt(append(append(b, it.Kind...), ' '), it.NumBytes, 10)
	if it.Kind == KindTensor {
		return appendInts(append(append(b, ' '), it.DType...), it.Shape)
	}
	return strconv.AppendQuote(strconv.AppendQuote(b, it.Type), it.Repr)
}

// ravel returns the place in row-major order of an element of a tensor.
func ravel(index, shape []int64) int64 {
	at := int64(0)
	for d, i := range index {
		at = at*shape[d] + i
	}
	return at
}

// MarshalJSON implements json.Marshaler. AppendJSON is faster.
func (c *ComparedColumns) MarshalJSON() ([]byte, error) { return c.AppendJSON(nil) }

var _ json.Marshaler = (*ComparedColumns)(nil)

// AppendJSON appends the columns as JSON to b, as Columns.AppendJSON does.
func (c *ComparedColumns) AppendJSON(b []byte) ([]byte, error) {
	size := 256
	for _, n := range c.Names {
		size += len(n) + 48
	}

	b = slices.Grow(b, size)
	var err error
	rare := func(name string, v any) {
		if text, e := json.Marshal(v); e != nil && err == nil {
			err = e
		} else {
			b = append(append(b, name...), text...)
		}
	}
	numbers := func(name string, v []Number) { b = appendList(append(b, name...), v, appendNumber) }

	b = appendList(append(b, `{"names":`...), c.Names, appendJSONString)
	rare(`,"results":`, c.Results)
	b = appendInts(append(b, `,"result":`...), c.Result)
	rare(`,"forms":`, c.Forms)
	b = appendInts(append(b, `,"a":`...), c.A)
	b = appendInts(append(b, `,"b":`...), c.B)
	b = appendInts(append(b, `,"differing":`...), c.Differing)
	numbers(`,"max_abs":`, c.MaxAbs)
	numbers(`,"max_rel":`, c.MaxRel)
	numbers(`,"rel_l2":`, c.RelL2)
	numbers(`,"cosine":`, c.Cosine)
	b = appendInts(append(b, `,"first":`...), c.First)
	b = appendList(append(b, `,"first_a":`...), c.FirstA, appendJSONString)
	b = appendList(append(b, `,"first_b":`...), c.FirstB, appendJSONString)
	rare(`,"more":`, c.More)
	return append(b, '}'), err
}
