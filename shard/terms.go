package shard

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Terms is one rank's share of the terms of a tensor with an outstanding reduction: its
// layout has [Partial] placements. Ranks that differ only in the dimensions of the mesh with
// Partial hold terms of the same elements, and the tensor is their reduction. It is not a
// [Tensor], so that a term is not taken for the tensor, by a save for example.
type Terms struct {
	layout Placed
	share  *Tensor // as if the terms were replicas
	op     string
}

// NewTerms returns the terms of rank, which local holds: it has the shape of a layout
// with [Replicate] in place of Partial. The error wraps [ErrLayout] if the layout has no
// Partial placement, or Partial placements of different reductions. Otherwise it is an error
// of [New].
func NewTerms(layout Placed, shape []int64, rank int, local *tensor.Tensor) (*Terms, error) {
	t := &Terms{layout: layout}
	plain := Placed{Mesh: layout.Mesh, Placements: slices.Clone(layout.Placements)}
	for i, p := range plain.Placements {
		if p.kind != partial {
			continue
		}
		if t.op != "" && t.op != p.op {
			return nil, fmt.Errorf("%w: %v has two reductions", ErrLayout, layout)
		}
		t.op, plain.Placements[i] = p.op, Replicate()
	}

	if t.op == "" {
		return nil, fmt.Errorf("%w: %v has no outstanding reduction", ErrLayout, layout)
	}

	var err error
	t.share, err = New(plain, shape, rank, local)
	return t, err
}

// IsPartial reports whether the layout has Partial placements.
func (p Placed) IsPartial() bool {
	return slices.ContainsFunc(p.Placements, func(q Placement) bool { return q.kind == partial })
}

// Layout returns how the terms are spread over ranks.
func (t *Terms) Layout() Placed { return t.layout }

// Op returns the name of the reduction, as [Partial] was given it.
func (t *Terms) Op() string { return t.op }

// Share returns the rank's terms as a share of a tensor, as if the ranks held replicas.
func (t *Terms) Share() *Tensor { return t.share }

// Count returns the number of terms of each element.
func (t *Terms) Count() int {
	n := 1
	for i, p := range t.layout.Placements {
		if p.kind == partial {
			n *= t.layout.Mesh.Shape[i]
		}
	}
	return n
}

// Number returns which of the terms a rank holds, from 0, or -1 if it is not in the mesh.
// Ranks with the same number hold replicas, or other elements.
func (t *Terms) Number(rank int) int {
	at, err := t.layout.Mesh.coord(rank)
	if err != nil || at == nil {
		return -1
	}

	n := 0
	for i, p := range t.layout.Placements {
		if p.kind == partial {
			n = n*t.layout.Mesh.Shape[i] + at[i]
		}
	}

	return n
}
