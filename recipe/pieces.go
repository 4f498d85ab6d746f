package recipe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/recipe/remap"
	"github.com/cairn-ckpt/cairn/tensor"
)

// sizes finds the sizes of all axes of an instance, and the shapes of its tensors.
func (b *binder) sizes(r *rule, from, to []held) (*sizes, error) {
	s := &sizes{of: map[string]int64{}}
	var axes []string
	seen := map[string]bool{}
	for _, t := range slices.Concat(r.sides[0], r.sides[1]) {
		for _, a := range t.layout.all() {
			if !seen[a] {
				seen[a] = true
				axes = append(axes, a)
			}
		}
	}
	for _, a := range axes {
		if err := b.given(s, a, false); err != nil {
			return nil, err
		}
	}
	if err := b.learnAll(s, from); err != nil {
		return nil, err
	}
	for _, a := range axes { // sizes that the source does not tell
		if _, known := s.get(a); !known {
			if err := b.given(s, a, true); err != nil {
				return nil, err
			}
		}
	}
	if err := b.learnAll(s, from); err != nil {
		return nil, err
	}
	for i := range from {
		from[i].shape = from[i].entry.Tensor.Shape
		if _, unknown, err := s.shape(from[i].term.layout); err != nil || len(unknown) > 0 {
			if err == nil {
				err = &unknownError{what: unknown[0], why: fmt.Errorf("%q has the shape %v, the rule the layout %s", from[i].name, from[i].shape, from[i].term.layout)}
			}
			return nil, err
		}
	}
	for i := range to {
		var unknown []string
		var err error
		if to[i].shape, unknown, err = s.shape(to[i].term.layout); err != nil {
			return nil, fmt.Errorf("%q: %w", to[i].name, err)
		} else if len(unknown) > 0 {
			return nil, &unknownError{what: unknown[0], why: cmp.Or(b.env.why[unknown[0]], fmt.Errorf("it is an axis of %q", to[i].name))}
		}
	}
	for _, a := range axes {
		if d := b.env.defs[a]; d != nil && !d.fallback && b.env.variable(a) == nil {
			b.learned[a] = s.of[a]
		}
	}
	return s, nil
}

// given sets the size of an axis that a variable or a capture tells. Fallback allows
// variables that are only defaults.
func (b *binder) given(s *sizes, axis string, fallback bool) error {
	if checkNumber(axis) >= 0 {
		return nil
	}
	if n, ok := b.counts[axis]; ok && !b.r.hasVariable(axis) {
		s.of[axis] = int64(n)
		return nil
	}
	d := b.env.defs[axis]
	_, set := b.env.set[axis]
	if d == nil || d.fallback && !fallback && !set {
		return nil
	}
	switch v := b.env.variable(axis).(type) {
	case nil:
		if u := (&unknownError{what: axis, why: b.env.why[axis]}); u.broken() {
			return u
		}
		if n, ok := b.learned[axis]; ok {
			s.of[axis] = n
		}
	case int:
		if v < 0 || v > maxSize {
			return variableErrorf("the variable %s is %d, but it is the size of an axis", axis, v)
		}
		s.of[axis] = int64(v)
	default:
		return variableErrorf("the variable %s is %s, but it is the size of an axis", axis, shown(v))
	}
	return nil
}

// learnAll finds sizes in the shapes of tensors until no more can be found.
func (b *binder) learnAll(s *sizes, tensors []held) error {
	for found := true; found; {
		found = false
		if err := b.spend(10 * len(tensors)); err != nil {
			return err
		}
		for _, h := range tensors {
			f, err := s.learn(h.term.layout, h.entry.Tensor.Shape)
			if err != nil {
				return fmt.Errorf("%w: %q has the shape %v, the rule has the layout %s: %w", ErrIncomplete, h.name, h.entry.Tensor.Shape, h.term.layout, err)
			}
			found = found || f
		}
	}
	return nil
}

// pieces makes the tensors of an instance.
func (b *binder) pieces(r *rule, s *sizes, from, to []held) error {
	dtype, err := b.dtype(r, from)
	if err != nil {
		return err
	}
	var sources []held
	for _, h := range from {
		if r.quant[b.src] != nil {
			if err := b.useScales(r, &h); err != nil {
				return err
			}
		}
		if !h.copy {
			sources = append(sources, h)
			continue
		}
		first := original(h, from)
		if t := first.entry.Tensor; !slices.Equal(h.shape, t.Shape) || h.entry.Tensor.DType != t.DType {
			return fmt.Errorf("%w: %q is %v of %v and %q is %v of %v, but they are copies of each other", ErrIncomplete, first.name, t.Shape, t.DType, h.name, h.shape, h.entry.Tensor.DType)
		}
		b.out.Checks = append(b.out.Checks, Check{Source: h.name, Other: first.name, Map: wholePiece(h.shape), Rule: r.line})
		b.out.Dropped = append(b.out.Dropped, Dropped{h.name, fmt.Sprintf("a copy of %s", first.name)})
	}
	multiply, err := b.factorOf(r, s)
	if err != nil {
		return err
	}
	target, at := make([]Tensor, len(to)), map[string]int{}
	for i, h := range to {
		if err := b.make(r, h.name); err != nil {
			return err
		}
		props := from[0].entry.Tensor.Properties
		props.DType = dtype
		target[i] = Tensor{Name: h.name, Properties: props, Shape: h.shape, Rule: r.line, Add: r.add, Multiply: multiply}
		if b.src == 1 {
			target[i].Add = -r.add
		}
		if h.copy {
			target[i].Same = original(h, to).name
		}
		at[h.name] = i
	}
	if err := b.fillers(r, s, sources, to, target); err != nil {
		return err
	}
	parts := [2][]located{locate(r, b.src, sources), locate(r, 1-b.src, to)}
	if err := b.spend(len(parts[0]) * len(parts[1])); err != nil {
		return err
	}
	for _, f := range parts[0] {
		for _, t := range parts[1] {
			if f.number != t.number || !f.meets(t) {
				continue
			}
			piece, err := s.piece(t, f)
			if err != nil {
				return err
			}
			if piece.Volume() == 0 {
				continue
			}
			part := Part{Source: f.held.name, Map: piece}
			if f.held.scales != "" {
				part.Scales, part.Blocks = f.held.scales, r.quant[b.src].blocks
			}
			target[at[t.held.name]].Parts = append(target[at[t.held.name]].Parts, part)
		}
	}
	for i := range target {
		t := &target[i]
		maps := make([]remap.Piece, len(t.Parts))
		for k := range t.Parts {
			maps[k] = t.Parts[k].Map
		}
		if err := b.prover.Exact(t.Shape, maps); err != nil {
			return fmt.Errorf("%w: %q: %w", ErrIncomplete, t.Name, err)
		}
	}
	if r.quant[1-b.src] != nil {
		scales, err := b.makeScales(r, target)
		if err != nil {
			return err
		}
		b.out.Tensors = append(b.out.Tensors, scales...)
	}
	for i := range target {
		target[i].Inexact = target[i].inexact(sources)
	}
	b.out.Tensors = append(b.out.Tensors, target...)
	return nil
}

// original returns the tensor that h is a copy of.
func original(h held, side []held) held {
	i := slices.IndexFunc(side, func(o held) bool { return !o.copy && maps.Equal(o.at, h.at) })
	return side[i] // the first tensor of a tied side is not optional, so it is there
}

// dtype returns the type of the elements of the result.
func (b *binder) dtype(r *rule, from []held) (tensor.DType, error) {
	if r.quantizes() {
		return b.quantizedType(r, from)
	}
	first := from[0]
	to := r.cast[1-b.src]
	for _, h := range from[1:] {
		if d := h.entry.Tensor.DType; d != first.entry.Tensor.DType && !to.Valid() {
			return 0, fmt.Errorf("%w: %q is %v and %q is %v: convert one of them first", ErrIncomplete, first.name, first.entry.Tensor.DType, h.name, d)
		}
	}
	if !to.Valid() {
		to = first.entry.Tensor.DType
	}
	for _, h := range from {
		if d := h.entry.Tensor.DType; r.computes() && (!to.IsFloat() || !d.IsFloat()) {
			return 0, fmt.Errorf("%w: %q is %v: only floating-point numbers can be added to a constant or multiplied by one", ErrIncomplete, h.name, d)
		}
		if err := tensor.CastInRange.Check(h.entry.Tensor.DType, to); err != nil {
			return 0, fmt.Errorf("%w: %q: %w", ErrIncomplete, h.name, err)
		}
	}
	return to, nil
}

// located is a part of a tensor of an instance.
type located struct {
	held   *held
	part   lpart
	number int // of the part among all parts of its side
}

// locate returns the parts of a side that have a counterpart.
func locate(r *rule, side int, tensors []held) []located {
	number := map[*term]int{} // of the first part of each term
	n := 0
	for _, t := range r.sides[side] {
		number[t] = n
		if r.tied {
			continue // copies have the same parts
		}
		for _, p := range t.layout.parts() {
			if !p.fill {
				n++
			}
		}
	}
	var out []located
	for i := range tensors {
		k := number[tensors[i].term]
		for _, p := range tensors[i].term.layout.parts() {
			if !p.fill {
				out = append(out, located{&tensors[i], p, k})
				k++
			}
		}
	}
	return out
}

// meets reports whether two parts have elements in common: if both tensors are at a
// position along the same capture, it is the same position.
func (f located) meets(t located) bool {
	for c, i := range f.held.at {
		if j, ok := t.held.at[c]; ok && i != j {
			return false
		}
	}
	return true
}

// axisAt is where an axis is in a tensor.
type axisAt struct {
	dim  int
	step int64
}

// places returns where the axes of a part are, and the position of its first element. The
// remaining dimensions have the names "...0", "...1" and so on.
func (s *sizes) places(l located) (map[string]axisAt, []int64, error) {
	lay := l.held.term.layout
	out := map[string]axisAt{}
	var first []int64
	for i := range lay.dims {
		if i == lay.rest {
			for k := range s.rest {
				out["..."+strconv.Itoa(k)] = axisAt{len(first), 1}
				first = append(first, 0)
			}
			continue
		}
		d := &lay.dims[i]
		at, step := int64(0), int64(1)
		put := func(axes []string) error {
			for _, a := range slices.Backward(axes) {
				n, _ := s.get(a)
				if a != "1" {
					out[a] = axisAt{len(first), step}
				}
				var err error
				if step, err = times(step, n); err != nil {
					return err
				}
			}
			return nil
		}
		if err := put(d.after); err != nil {
			return nil, nil, err
		}
		if d.sum != nil {
			inner, total := step, int64(0)
			for k, t := range d.sum {
				n, _, err := s.product(t.axes)
				if err != nil {
					return nil, nil, err
				}
				if k == l.part.term {
					at = total * inner
					step = inner
					if err := put(t.axes); err != nil {
						return nil, nil, err
					}
				}
				total += n
			}
			var err error
			if step, err = times(inner, total); err != nil {
				return nil, nil, err
			}
		}
		if err := put(d.before); err != nil {
			return nil, nil, err
		}
		first = append(first, at)
	}
	return out, first, nil
}

// piece returns the map from a part of a source to the same part of a result.
func (s *sizes) piece(t, f located) (remap.Piece, error) {
	to, first, err := s.places(t)
	if err != nil {
		return remap.Piece{}, err
	}
	from, origin, err := s.places(f)
	if err != nil {
		return remap.Piece{}, err
	}
	p := remap.Piece{To: first, From: origin}
	for _, axis := range slices.Sorted(maps.Keys(to)) {
		a, n := to[axis], s.sizeOf(axis)
		b, both := from[axis]
		if !both { // the source has this position in its name
			p.To[a.dim] += f.held.at[axis] * a.step
			continue
		}
		p.Axes = append(p.Axes, remap.Axis{Size: n, To: a.dim, From: b.dim, ToStep: a.step, FromStep: b.step})
	}
	for axis, b := range from {
		if _, both := to[axis]; !both {
			p.From[b.dim] += t.held.at[axis] * b.step
		}
	}
	return p.Simplify(), nil
}

// sizeOf returns the size of an axis, which is known.
func (s *sizes) sizeOf(axis string) int64 {
	if k, ok := strings.CutPrefix(axis, "..."); ok {
		i, _ := strconv.Atoi(k)
		return s.rest[i]
	}
	n, _ := s.get(axis)
	return n
}

// fillers adds the parts that have no counterpart: they are filled in the result, and
// checked in the source.
func (b *binder) fillers(r *rule, s *sizes, from, to []held, target []Tensor) error {
	fill := func(h *held, do func(p lpart, m remap.Piece)) error {
		for _, p := range h.term.layout.parts() {
			if !p.fill {
				continue
			}
			l := located{held: h, part: p}
			m, err := s.piece(l, l)
			if err != nil {
				return err
			}
			if m.Volume() > 0 {
				do(p, m)
			}
		}
		return nil
	}
	for i := range from {
		name := from[i].name
		if err := fill(&from[i], func(p lpart, m remap.Piece) {
			if p.drop {
				b.dropped[name] = append(b.dropped[name], m)
				b.out.Dropped = append(b.out.Dropped, Dropped{fmt.Sprintf("%s %v", name, m.FromBox()), r.reason})
				return
			}
			b.out.Checks = append(b.out.Checks, Check{Source: name, Map: m, Rule: r.line})
		}); err != nil {
			return err
		}
	}
	for i := range to {
		if err := fill(&to[i], func(_ lpart, m remap.Piece) {
			target[i].Parts = append(target[i].Parts, Part{Map: m})
		}); err != nil {
			return err
		}
	}
	return nil
}

// wholePiece maps a tensor to itself.
func wholePiece(shape []int64) remap.Piece {
	p := remap.Piece{To: make([]int64, len(shape)), From: make([]int64, len(shape))}
	for d, n := range shape {
		p.Axes = append(p.Axes, remap.Axis{Size: n, To: d, From: d, ToStep: 1, FromStep: 1})
	}
	return p
}
