package recipe

import (
	"fmt"
	"slices"
	"strings"
)

// Sources returns the names of the tensors that t is made of, in order, without scales.
func (t *Tensor) Sources() []string {
	var out []string
	for _, p := range t.Parts {
		if p.Source != "" && !slices.Contains(out, p.Source) {
			out = append(out, p.Source)
		}
	}
	return out
}

// Operations says in a few words how t is made of its sources. shapeOf returns the shape
// of a source.
func (t *Tensor) Operations(shapeOf func(source string) []int64) string {
	if q := t.Quantized; q != nil && q.Scales {
		return fmt.Sprintf("scales of blocks of %v", q.Blocks)
	}
	var out []string
	sources := t.Sources()
	filled, moved, partial, dequantized := int64(0), false, false, false
	for i := range t.Parts {
		p := &t.Parts[i]
		if p.Source == "" {
			filled += p.Map.Volume()
			continue
		}
		all := int64(1)
		for _, n := range shapeOf(p.Source) {
			all *= n
		}
		partial = partial || p.Map.Volume() != all
		moved = moved || !p.inOrder()
		dequantized = dequantized || p.Scales != ""
	}
	if partial {
		out = append(out, "split")
	}
	switch {
	case len(sources) > 1 && t.stacked():
		out = append(out, fmt.Sprintf("stack %d", len(sources)))
	case len(sources) > 1:
		out = append(out, fmt.Sprintf("join %d", len(sources)))
	}
	if moved {
		out = append(out, "permute")
	}
	if filled > 0 && len(sources) == 0 {
		out = append(out, fmt.Sprintf("fill with %v", t.Parts[0].Value))
	} else if filled > 0 {
		out = append(out, fmt.Sprintf("pad %d elements", filled))
	}
	if t.Add != 0 {
		out = append(out, fmt.Sprintf("add %v", t.Add))
	}
	if t.Multiply != 0 {
		text := fmt.Sprintf("multiply by %v", float32(t.Multiply))
		if t.Inexact != "" {
			text += " (lossy)"
		}
		out = append(out, text)
	}
	if q := t.Quantized; q != nil {
		out = append(out, fmt.Sprintf("quantize to %v in blocks of %v (lossy)", q.DType, q.Blocks))
	}
	if dequantized {
		out = append(out, "dequantize")
	}
	if len(out) == 0 {
		return "same"
	}
	return strings.Join(out, ", ")
}

// Inexact is a tensor of a result with elements that need not be equal to the elements of its
// sources, and why.
type Inexact struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Inexact returns the tensors of the result that are not exact, in order.
func (b *Binding) Inexact() []Inexact {
	out := []Inexact{}
	for i := range b.Tensors {
		if t := &b.Tensors[i]; t.Inexact != "" {
			out = append(out, Inexact{t.Name, t.Inexact})
		}
	}
	return out
}

// stacked reports whether each source is one index of the first dimension.
func (t *Tensor) stacked() bool {
	seen := map[int64]bool{}
	for _, p := range t.Parts {
		b := p.Map.ToBox()
		if p.Source == "" || len(b.Sizes) == 0 || b.Sizes[0] != 1 || seen[b.Offsets[0]] {
			return false
		}
		seen[b.Offsets[0]] = true
	}
	return true
}

// Arithmetic reports whether elements of t are computed, so that they need not have the bits
// of the elements that they are made of.
func (t *Tensor) Arithmetic() bool {
	return t.Add != 0 || t.Multiply != 0 || t.Quantized != nil || slices.ContainsFunc(t.Parts, func(p Part) bool { return p.Scales != "" })
}

// inOrder reports whether the elements of a part follow each other in the same order in
// the source and in the result.
func (p *Part) inOrder() bool {
	for i, a := range p.Map.Axes {
		for _, b := range p.Map.Axes[i+1:] {
			to := a.To < b.To || a.To == b.To && a.ToStep > b.ToStep
			from := a.From < b.From || a.From == b.From && a.FromStep > b.FromStep
			if to != from {
				return false
			}
		}
	}
	return true
}
