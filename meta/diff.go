package meta

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Delta is how one checkpoint differs from another in what it holds. If the
// bytes lie is no difference.
type Delta struct {
	// Added and Removed are names, in order.
	Added, Removed []string
	// Changed are the names that both have, in order, with what is different.
	Changed []Change
}

// Change is what is different about one name.
type Change struct {
	FQN string
	// What lists the aspects that differ, in the order of the constants.
	What []Aspect
}

// Aspect is something that can be different about a name.
type Aspect string

// The aspects.
const (
	// AspectKind: a tensor here is a value there. No other aspect is compared
	// then.
	AspectKind Aspect = "kind"
	// AspectPath: the places in the nested state differ.
	AspectPath Aspect = "path"
	// AspectDType: the element types differ.
	AspectDType Aspect = "dtype"
	// AspectProperties: other properties of the tensors differ.
	AspectProperties Aspect = "properties"
	// AspectShape: the shapes differ.
	AspectShape Aspect = "shape"
	// AspectChunks: the tensors are cut in different ways. The order of the
	// chunks does not matter.
	AspectChunks Aspect = "chunks"
	// AspectCodec: the values are encoded in different ways.
	AspectCodec Aspect = "codec"
	// AspectSize: the values have different sizes.
	AspectSize Aspect = "size"
)

// Empty reports whether nothing differs.
func (d *Delta) Empty() bool { return len(d.Added)+len(d.Removed)+len(d.Changed) == 0 }

// Diff returns how b differs from a. Both must be valid. It compares
// descriptions, not the bytes that they describe.
func Diff(a, b *Metadata) Delta {
	var d Delta
	x, y := a.Entries, b.Entries
	for len(x) > 0 || len(y) > 0 {
		switch order := compareHeads(x, y); {
		case order < 0:
			d.Removed, x = append(d.Removed, x[0].FQN), x[1:]
		case order > 0:
			d.Added, y = append(d.Added, y[0].FQN), y[1:]
		default:
			if what := diffEntries(&x[0], &y[0]); what != nil {
				d.Changed = append(d.Changed, Change{x[0].FQN, what})
			}
			x, y = x[1:], y[1:]
		}
	}
	return d
}

// compareHeads compares the first names; a list that has ended comes last.
func compareHeads(x, y []Entry) int {
	switch {
	case len(x) == 0:
		return 1
	case len(y) == 0:
		return -1
	}
	return strings.Compare(x[0].FQN, y[0].FQN)
}

func diffEntries(a, b *Entry) (what []Aspect) {
	if (a.Tensor == nil) != (b.Tensor == nil) {
		return []Aspect{AspectKind}
	}
	add := func(differs bool, w Aspect) {
		if differs {
			what = append(what, w)
		}
	}
	add(!a.place().Equal(b.place()), AspectPath)
	if a.Tensor == nil {
		add(a.Bytes.Codec != b.Bytes.Codec, AspectCodec)
		add(a.Bytes.Size != b.Bytes.Size, AspectSize)
		return what
	}
	p, q := a.Tensor.Properties, b.Tensor.Properties
	add(p.DType != q.DType, AspectDType)
	p.DType = q.DType
	add(p != q, AspectProperties)
	add(!slices.Equal(a.Tensor.Shape, b.Tensor.Shape), AspectShape)
	add(!sameBoxes(a.Tensor.Chunks, b.Tensor.Chunks), AspectChunks)
	return what
}

// place returns e's path, also if the state was flat.
func (e *Entry) place() Path {
	if e.Path == nil {
		return Path{Key(e.FQN)}
	}
	return e.Path
}

// sameBoxes reports whether x and y are the same in any order.
func sameBoxes(x, y []tensor.Box) bool {
	equal := func() bool { return slices.EqualFunc(x, y, tensor.Box.Equal) }
	if len(x) != len(y) || equal() {
		return len(x) == len(y)
	}
	order := func(a, b tensor.Box) int {
		return cmp.Or(slices.Compare(a.Offsets, b.Offsets), slices.Compare(a.Sizes, b.Sizes))
	}
	x, y = slices.SortedFunc(slices.Values(x), order), slices.SortedFunc(slices.Values(y), order)
	return equal()
}
