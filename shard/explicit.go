package shard

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Explicit is a layout that its maker worked out: the parts of each rank. A
// rank that is not listed holds nothing. A rank's parts must fill its local
// tensor, which is as large as they reach, without overlap.
type Explicit struct {
	// ByRank has each rank's parts. A nil Local is the local tensor's first
	// element.
	ByRank map[int][]Part
}

var _ Layout = Explicit{}

// Boxes returns the layout in which each rank holds one box and its local
// tensor is that box.
func Boxes(byRank map[int]tensor.Box) Explicit {
	e := Explicit{ByRank: make(map[int][]Part, len(byRank))}
	for r, b := range byRank {
		e.ByRank[r] = []Part{{Box: b}}
	}
	return e
}

// Parts implements [Layout]. Only the rank's own parts are checked.
func (e Explicit) Parts(shape []int64, rank int) ([]Part, error) {
	parts, _, err := e.local(shape, rank)
	if err != nil {
		return nil, fmt.Errorf("explicit layout of rank %d: %w", rank, err)
	}
	return parts, nil
}

// LocalShape implements [Layout].
func (e Explicit) LocalShape(shape []int64, rank int) ([]int64, error) {
	_, local, err := e.local(shape, rank)
	if err != nil {
		return nil, fmt.Errorf("explicit layout of rank %d: %w", rank, err)
	}
	return local, nil
}

// String implements [Layout].
func (e Explicit) String() string {
	var b strings.Builder
	b.WriteString("explicit")
	for _, r := range slices.Sorted(maps.Keys(e.ByRank)) {
		fmt.Fprintf(&b, " %d:", r)
		for _, p := range e.ByRank[r] {
			fmt.Fprintf(&b, " %v", p.Box)
			if slices.ContainsFunc(p.Local, func(v int64) bool { return v != 0 }) {
				fmt.Fprintf(&b, "@%v", p.Local)
			}
		}
	}
	return b.String()
}

// local returns rank's parts and the shape that they fill.
func (e Explicit) local(shape []int64, rank int) ([]Part, []int64, error) {
	if _, err := tensor.NumElements(shape); err != nil {
		return nil, nil, err
	}
	parts := slices.Clone(e.ByRank[rank])
	if len(parts) == 0 {
		return nil, nowhere(), nil
	}
	var held int64
	reach := make([]int64, len(shape))
	for i := range parts {
		p := &parts[i]
		if p.Local == nil {
			p.Local = make([]int64, len(shape))
		}
		if err := p.stretch(reach, shape); err != nil {
			return nil, nil, err
		}
		if held > math.MaxInt64-p.Box.Volume() {
			return nil, nil, fmt.Errorf("%w: more elements than an int64 counts", ErrLayout)
		}
		held += p.Box.Volume()
	}
	n, err := tensor.NumElements(reach)
	if err != nil {
		return nil, nil, err
	}
	if n != held {
		return nil, nil, fmt.Errorf("%w: parts of %d elements do not fill a local tensor of shape %v", ErrLayout, held, reach)
	}
	return parts, reach, nil
}

// stretch checks p against the global shape and lengthens reach to hold it.
func (p Part) stretch(reach, shape []int64) error {
	if err := p.Box.Check(shape); err != nil {
		return err
	}
	if len(p.Local) != len(shape) {
		return fmt.Errorf("%w: local offset %v of box %v", ErrLayout, p.Local, p.Box)
	}
	for d, at := range p.Local {
		if at < 0 || at > math.MaxInt64-p.Box.Sizes[d] {
			return fmt.Errorf("%w: local offset %v of box %v", ErrLayout, p.Local, p.Box)
		}
		reach[d] = max(reach[d], at+p.Box.Sizes[d])
	}
	return nil
}
