package recipe

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/cairn-ckpt/cairn/tensor"
)

// layout says which axes the dimensions of a tensor consist of, such as
// [kv_heads (group + 1 + 1) head_dim, hidden]: the last axis of a dimension varies
// fastest, and the terms of a sum follow each other.
type layout struct {
	dims []dim
	// rest is the number of the dimension that stands for all remaining ones, "...".
	// Negative: there is none.
	rest int
}

// dim is one dimension: the factors before a sum, the terms of the sum, and the factors
// after it.
type dim struct {
	before []string
	sum    []summand // nil: there is no sum
	after  []string
}

// summand is one term of a sum.
type summand struct {
	axes []string
	fill bool // the other side does not have it: it is zero, unless drop is set
	drop bool // any values, which get lost
}

const (
	maxLayoutWords = 256
	maxSize        = math.MaxInt64 >> 2 // bounds sizes, so that a sum of two does not overflow
)

// parseLayout reads a layout without its brackets.
func parseLayout(text string) (*layout, error) {
	words, err := layoutWords(text)
	if err != nil {
		return nil, err
	}

	l := &layout{rest: -1}
	if len(words) == 0 {
		return l, nil
	}

	for len(words) > 0 {
		end := slices.Index(words, ",")
		if end < 0 {
			end = len(words)
		} else if end == len(words)-1 {
			return nil, errors.New("it ends with a comma")
		}

		part := words[:end]
		if len(part) == 1 && part[0] == "..." {
			if l.rest >= 0 {
				return nil, errors.New("it has ... twice")
			}
			l.rest = len(l.dims)
			l.dims = append(l.dims, dim{})
		} else {
			d, err := parseDim(part)
			if err != nil {
				return nil, err
			}
			l.dims = append(l.dims, d)
		}

		words = words[min(end+1, len(words)):]
	}

	if len(l.dims) > tensor.MaxDims {
		return nil, fmt.Errorf("it has more than %d dimensions", tensor.MaxDims)
	}
	if _, n := l.sum(); n > 1 {
		return nil, errors.New("it has more than one sum")
	}

	for _, p := range l.parts() {
		seen := map[string]bool{}
		for _, a := range p.axes(l) {
			if seen[a] {
				return nil, fmt.Errorf("the axis %s is there twice", a)
			}
			seen[a] = true
		}
	}

	return l, nil
}

// layoutWords divides the text of a layout into words.
func layoutWords(text string) ([]string, error) {
	var out []string
	for i := 0; i < len(text); {
		n := 1
		switch c := text[i]; {
		case c == ' ' || c == '\t' || c == '\n':
			i++
			continue
		case strings.ContainsRune("(),+", rune(c)):
		case strings.HasPrefix(text[i:], "..."):
			n = 3
		case isWord(c):
			for i+n < len(text) && isWord(text[i+n]) {
				n++
			}
		default:
			return nil, fmt.Errorf("%q has no meaning in a layout", string([]rune(text[i:])[:1]))
		}

		if len(out) == maxLayoutWords {
			return nil, fmt.Errorf("it has more than %d words", maxLayoutWords)
		}

		out = append(out, text[i:i+n])
		i += n
	}

	return out, nil
}

func isWord(c byte) bool {
	return c == '_' || c < unicode.MaxASCII && (unicode.IsLetter(rune(c)) || unicode.IsDigit(rune(c)))
}

// parseDim reads one dimension: axes, with at most one sum, in parentheses unless it is
// all of the dimension.
func parseDim(words []string) (dim, error) {
	var d dim
	depth, top := 0, false
	for _, w := range words {
		switch w {
		case "(":
			depth++
		case ")":
			depth--
		case "+":
			top = top || depth == 0
		}
	}

	if depth != 0 {
		return d, errors.New("its parentheses do not match")
	}
	if top {
		var err error
		d.sum, err = parseSum(words)
		return d, err
	}

	for len(words) > 0 {
		w := words[0]
		switch {
		case w == "(":
			end := closing(words)
			if d.sum != nil || end < 0 {
				return d, errors.New("a dimension has more than one sum")
			}

			var err error
			if d.sum, err = parseSum(words[1:end]); err != nil {
				return d, err
			}

			words = words[end+1:]
			continue
		case !isWord(w[0]):
			return d, fmt.Errorf("%q is in the wrong place", w)
		case d.sum != nil:
			d.after = append(d.after, w)
		default:
			d.before = append(d.before, w)
		}

		if err := checkAxis(w); err != nil {
			return d, err
		}
		words = words[1:]
	}

	if d.before == nil && d.sum == nil && d.after == nil {
		return d, errors.New("a dimension is empty")
	}
	return d, nil
}

// closing returns the position of the parenthesis that closes the first word, or -1.
func closing(words []string) int {
	depth := 0
	for i, w := range words {
		switch w {
		case "(":
			depth++
		case ")":
			if depth--; depth == 0 {
				return i
			}
		}
	}

	return -1
}

// parseSum reads terms that are separated by plus signs.
func parseSum(words []string) ([]summand, error) {
	var out []summand
	for {
		end := slices.Index(words, "+")
		if end < 0 {
			end = len(words)
		}

		s, err := parseSummand(words[:end])
		if err != nil {
			return nil, err
		}

		out = append(out, s)
		if end == len(words) {
			return out, nil
		}

		words = words[end+1:]
	}
}

func parseSummand(words []string) (summand, error) {
	var s summand
	if len(words) > 2 && words[1] == "(" && words[len(words)-1] == ")" {
		if words[0] != "zeros" && words[0] != "drop" {
			return s, fmt.Errorf("%s( has no meaning: write zeros(n) or drop(n)", words[0])
		}
		s.fill, s.drop = true, words[0] == "drop"
		words = words[2 : len(words)-1]
	}

	if len(words) == 0 {
		return s, errors.New("a term of a sum is empty")
	}

	for _, w := range words {
		if !isWord(w[0]) {
			return s, fmt.Errorf("%q is in the wrong place", w)
		}
		if err := checkAxis(w); err != nil {
			return s, err
		}
		s.axes = append(s.axes, w)
	}

	return s, nil
}

// checkAxis returns an error unless w is the name of an axis or a positive number.
func checkAxis(w string) error {
	if w[0] < '0' || w[0] > '9' {
		return nil
	}
	if n, err := strconv.ParseInt(w, 10, 64); err != nil || n < 1 || n > maxSize || strconv.FormatInt(n, 10) != w {
		return fmt.Errorf("%q is not a size", w)
	}
	return nil
}

// sum returns the number of the dimension with a sum, and how many have one.
func (l *layout) sum() (d, n int) {
	for i := range l.dims {
		if l.dims[i].sum != nil {
			d, n = i, n+1
		}
	}
	return d, n
}

// lpart is one part of a layout: term number term of the sum, or everything if there is
// no sum.
type lpart struct {
	term       int
	fill, drop bool // of the summand
}

// parts returns the parts of a tensor, in order.
func (l *layout) parts() []lpart {
	d, n := l.sum()
	if n == 0 {
		return []lpart{{}}
	}
	out := make([]lpart, len(l.dims[d].sum))
	for i, s := range l.dims[d].sum {
		out[i] = lpart{i, s.fill, s.drop}
	}
	return out
}

// axes returns the axes of a part, apart from the number 1 and the remaining dimensions.
func (p lpart) axes(l *layout) []string {
	var out []string
	for i := range l.dims {
		for _, a := range l.dims[i].factors(p.term) {
			if a != "1" {
				out = append(out, a)
			}
		}
	}
	return out
}

// factors returns the axes of a dimension of a part.
func (d *dim) factors(term int) []string {
	if d.sum == nil {
		return slices.Concat(d.before, d.after)
	}
	return slices.Concat(d.before, d.sum[term].axes, d.after)
}

// all returns the names of all axes, without numbers.
func (l *layout) all() []string {
	var out []string
	for _, p := range l.parts() {
		for _, a := range p.axes(l) {
			if checkNumber(a) < 0 && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	return out
}

// checkNumber returns the number that the axis w is, or -1 if w is a name.
func checkNumber(w string) int64 {
	if w[0] < '0' || w[0] > '9' {
		return -1
	}
	n, _ := strconv.ParseInt(w, 10, 64) // checked by checkAxis
	return n
}

// String returns the layout in the notation of recipes.
func (l *layout) String() string {
	dims := make([]string, len(l.dims))
	for i := range l.dims {
		d := &l.dims[i]
		words := slices.Clone(d.before)
		if d.sum != nil {
			var terms []string
			for _, s := range d.sum {
				t := strings.Join(s.axes, " ")
				switch {
				case s.drop:
					t = "drop(" + t + ")"
				case s.fill:
					t = "zeros(" + t + ")"
				}
				terms = append(terms, t)
			}

			sum := strings.Join(terms, " + ")
			if len(d.before)+len(d.after) > 0 || len(terms) == 1 {
				sum = "(" + sum + ")"
			}
			words = append(words, sum)
		}

		if i == l.rest {
			words = []string{"..."}
		}
		dims[i] = strings.Join(append(words, d.after...), " ")
	}

	return "[" + strings.Join(dims, ", ") + "]"
}

// with returns the layout with a further dimension, which becomes dimension at.
func (l *layout) with(axis string, at int) (*layout, error) {
	if l.rest >= 0 && at > l.rest {
		return nil, fmt.Errorf("axis %d is behind the remaining dimensions of %s: write its layout", at, l)
	}
	if at > len(l.dims) {
		return nil, fmt.Errorf("axis %d is out of range: the stacked tensors of %s have the axes 0 to %d", at, l, len(l.dims))
	}

	out := &layout{dims: slices.Insert(slices.Clone(l.dims), at, dim{before: []string{axis}}), rest: l.rest}
	if l.rest >= 0 {
		out.rest++
	}
	return out, nil
}

// sizes are the sizes of axes, and of the remaining dimensions.
type sizes struct {
	of   map[string]int64
	rest []int64 // nil: unknown
}

func (s *sizes) get(axis string) (int64, bool) {
	if n := checkNumber(axis); n >= 0 {
		return n, true
	}
	n, ok := s.of[axis]
	return n, ok
}

// product returns the product of the known axes, and the unknown ones.
func (s *sizes) product(axes []string) (n int64, unknown []string, err error) {
	n = 1
	for _, a := range axes {
		m, ok := s.get(a)
		if !ok {
			unknown = append(unknown, a)
			continue
		}
		if n, err = times(n, m); err != nil {
			return 0, nil, err
		}
	}

	return n, unknown, nil
}

// times returns a·b.
func times(a, b int64) (int64, error) {
	if a < 0 || b < 0 || a > 0 && b > maxSize/a {
		return 0, fmt.Errorf("%w: %d times %d", tensor.ErrShape, a, b)
	}
	return a * b, nil
}

// size returns the size of a dimension, and the axes of unknown size.
func (s *sizes) size(d *dim) (n int64, unknown []string, err error) {
	n, unknown, err = s.product(slices.Concat(d.before, d.after))
	if err != nil || d.sum == nil {
		return n, unknown, err
	}

	total := int64(0)
	for _, t := range d.sum {
		m, u, err := s.product(t.axes)
		if err != nil {
			return 0, nil, err
		}
		unknown = append(unknown, u...)
		if total += m; total > maxSize {
			return 0, nil, fmt.Errorf("%w: the sum is too large", tensor.ErrShape)
		}
	}

	n, err = times(n, total)
	return n, unknown, err
}

// shape returns the shape of a tensor, and the axes of unknown size.
func (s *sizes) shape(l *layout) (shape []int64, unknown []string, err error) {
	for i := range l.dims {
		if i == l.rest {
			shape = append(shape, s.rest...)
			continue
		}
		n, u, err := s.size(&l.dims[i])
		if err != nil {
			return nil, nil, err
		}
		shape, unknown = append(shape, n), append(unknown, u...)
	}

	if len(unknown) > 0 {
		return nil, unknown, nil
	}

	_, err = tensor.NumElements(shape)
	return shape, nil, err
}

// learn finds the sizes of unknown axes in the shape of a tensor. It reports whether it
// found one. The error says that the shape cannot be that of the layout.
func (s *sizes) learn(l *layout, shape []int64) (found bool, err error) {
	rest := len(shape) - len(l.dims) + 1 // the number of remaining dimensions
	if l.rest < 0 && rest != 1 || l.rest >= 0 && rest < 0 {
		return false, fmt.Errorf("it has %d dimensions", len(shape))
	}

	at := 0
	for i := range l.dims {
		if i == l.rest {
			these := shape[at : at+rest]
			if s.rest == nil {
				s.rest, found = append([]int64{}, these...), true
			} else if !slices.Equal(s.rest, these) {
				return false, fmt.Errorf("its remaining dimensions are %v, but %v in another tensor of the rule", these, s.rest)
			}
			at += rest
			continue
		}

		f, err := s.solve(&l.dims[i], shape[at])
		if err != nil {
			return false, fmt.Errorf("dimension %d: %w", at, err)
		}

		found = found || f
		at++
	}

	return found, nil
}

// solve finds the size of an unknown axis of a dimension of size n, if there is only one,
// and checks n if there is none.
func (s *sizes) solve(d *dim, n int64) (found bool, err error) {
	outer, unknown, err := s.product(slices.Concat(d.before, d.after))
	if err != nil {
		return false, err
	}

	// n = outer·(constant + coefficient·x), with at most one unknown axis x
	constant, coefficient := int64(1), int64(0)
	if d.sum != nil {
		constant = 0
		for _, t := range d.sum {
			m, u, err := s.product(t.axes)
			if err != nil {
				return false, err
			}

			switch {
			case len(u) == 0:
				constant += m
			case len(unknown) > 0 && unknown[0] != u[0] || len(u) > 1:
				return false, nil // too many unknown axes
			default:
				unknown, coefficient = u, coefficient+m
			}

			if constant > maxSize || coefficient > maxSize {
				return false, fmt.Errorf("%w: the sum is too large", tensor.ErrShape)
			}
		}
	}

	switch {
	case len(unknown) > 1:
		return false, nil
	case len(unknown) == 0:
		want, err := times(outer, constant)
		if err == nil && want != n {
			err = fmt.Errorf("it has size %d, the rule wants %d (%s)", n, want, s.explain(d))
		}
		return false, err
	case coefficient > 0 && slices.Contains(slices.Concat(d.before, d.after), unknown[0]):
		return false, nil // both a factor and in the sum
	}

	x, divisor := n, outer
	if coefficient > 0 {
		if outer == 0 || n%outer != 0 || n/outer < constant {
			return false, fmt.Errorf("size %d cannot be %s", n, s.explain(d))
		}
		x, divisor = n/outer-constant, coefficient
	} else if d.sum != nil { // the unknown axis is a factor of the sum
		if divisor, err = times(outer, constant); err != nil {
			return false, err
		}
	}

	if divisor == 0 || x%divisor != 0 {
		return false, fmt.Errorf("size %d cannot be %s", n, s.explain(d))
	}

	s.of[unknown[0]] = x / divisor
	return true, nil
}

// explain returns a dimension with the sizes of its axes, such as "kv_heads=8 head_dim=128".
func (s *sizes) explain(d *dim) string {
	l := layout{dims: []dim{*d}, rest: -1}
	text := l.String()
	var known []string
	for _, a := range l.all() {
		if n, ok := s.get(a); ok {
			known = append(known, fmt.Sprintf("%s=%d", a, n))
		}
	}

	text = strings.Trim(text, "[]")
	if len(known) == 0 {
		return text
	}
	return text + " with " + strings.Join(known, ", ")
}
