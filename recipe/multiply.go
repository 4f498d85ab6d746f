package recipe

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// multiply reads the key multiply of a rule.
func (p *recipeParser) multiply(r *rule, v any) error {
	sides, ok := v.(map[string]any)
	if !ok || len(sides) != 1 {
		return fmt.Errorf("want a table for one side, such as { %s = 0.5 }", p.r.Sides[1])
	}
	for side, v := range sides {
		i := slices.Index(p.r.Sides[:], side)
		if i < 0 {
			return fmt.Errorf("unknown side %q", side)
		}
		x, err := numberOrFormula(v)
		if err != nil {
			return fmt.Errorf("%s: %w", side, err)
		}
		if _, text := v.(string); !text {
			if _, err := factor(x.root.(*constNode).value, false); err != nil {
				return fmt.Errorf("%s: %w", side, err)
			}
		}
		r.multiply[i] = x
	}
	return nil
}

// factor returns a constant, or its reciprocal, as elements are multiplied by it. The error
// says that float32 has no such constant, or that it is zero.
func factor(v any, reciprocal bool) (float64, error) {
	c, err := number(v)
	if err != nil {
		return 0, err
	}
	used := c
	if reciprocal {
		used = 1 / c
	}
	switch n := math.Abs(float64(float32(used))); {
	case math.IsNaN(c) || math.IsInf(c, 0) || c == 0:
		return 0, fmt.Errorf("want a finite number other than zero, not %v", c)
	case n == 0 || math.IsInf(n, 0):
		return 0, fmt.Errorf("float32 has no number near %v", used)
	}
	return used, nil
}

// checkMultiplied checks that the other keys of a rule fit multiply.
func (r *rule) checkMultiplied() error {
	switch {
	case r.multiply[0] == nil && r.multiply[1] == nil:
		return nil
	case r.add != 0:
		return errors.New("multiply: the rule cannot add a constant too")
	case r.quantizes():
		return errors.New("multiply: the rule cannot quantise too")
	}
	return nil
}

// factorOf returns the constant by which elements of an instance are multiplied, or zero. A
// formula can use the axes of the rule.
func (b *binder) factorOf(r *rule, s *sizes) (float64, error) {
	x, reciprocal := r.multiply[1-b.src], false
	if x == nil {
		x, reciprocal = r.multiply[b.src], true
	}
	if x == nil {
		return 0, nil
	}

	captures := b.env.captures
	defer func() { b.env.captures = captures }()
	b.env.captures = maps.Clone(captures)
	for axis, n := range s.of {
		b.env.captures[axis] = int(n)
	}
	v, err := x.run(b.env)
	if err == nil && v == nil {
		err = &unknownError{what: x.text}
	}
	if err != nil {
		return 0, err
	}
	c, err := factor(v, reciprocal)
	if err != nil {
		return 0, variableErrorf("multiply: %s is %s: %w", x.text, shown(v), err)
	}
	if c == 1 {
		c = 0
	}
	return c, nil
}

// inexact says why the elements of a result need not be the elements of its sources. It is
// empty if they are: nothing is rounded.
func (t *Tensor) inexact(from []held) string {
	switch {
	case t.Quantized != nil:
		return fmt.Sprintf("quantised to %v in blocks of %v", t.Quantized.DType, t.Quantized.Blocks)
	case slices.ContainsFunc(from, func(h held) bool { return h.scales != "" }):
		return fmt.Sprintf("numbers are multiplied by their scales and rounded to %v", t.DType)
	case t.Add != 0:
		return fmt.Sprintf("%v is added and the sum is rounded to %v", t.Add, t.DType)
	}
	if c := t.Multiply; c != 0 {
		// A power of two that is not below one moves only the exponent. If the result has no
		// such exponent, the conversion fails.
		if mantissa, _ := math.Frexp(math.Abs(c)); mantissa != 0.5 {
			return fmt.Sprintf("multiplied by %v in float32 and rounded to %v", float32(c), t.DType)
		} else if math.Abs(c) < 1 {
			return fmt.Sprintf("multiplied by %v: numbers near zero are rounded to %v", c, t.DType)
		}
	}
	for _, h := range from {
		if d := h.entry.Tensor.DType; d != t.DType && !tensor.CanWiden(d, t.DType) {
			return fmt.Sprintf("%v is rounded to %v", d, t.DType)
		}
	}
	return ""
}
