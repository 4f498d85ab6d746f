package inspect

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
)

// ErrIndex reports an index that cannot be understood, or that does not fit the
// shape of its tensor.
var ErrIndex = errors.New("bad index")

// Selection is the part of a tensor that an index of Python selects: elements
// at regular distances in every dimension.
type Selection struct {
	picks []pick // one for each dimension of the tensor
}

// pick is what is selected of one dimension: count indexes from start on, step
// apart. A step below zero runs backwards.
type pick struct {
	start, step, count int64
	single             bool // an index rather than a slice: the dimension goes
}

// SelectAll returns all of a tensor.
func SelectAll(shape []int64) *Selection {
	s := &Selection{picks: make([]pick, len(shape))}
	for d, n := range shape {
		s.picks[d] = pick{step: 1, count: n}
	}
	return s
}

// ParseSelection reads an index as Python has them, with or without its
// brackets: "0:4, ::2, 3", "-1", "..., 0", "::-1". Slices reach as far as there
// is something, single indexes must be there. The error wraps ErrIndex.
func ParseSelection(text string, shape []int64) (*Selection, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w [%s] of shape %v: %s", ErrIndex, trimBrackets(text), shape, fmt.Sprintf(format, args...))
	}
	parts := strings.Split(strings.TrimSuffix(strings.TrimSpace(trimBrackets(text)), ","), ",")
	parts, err := spread(parts, len(shape))
	if err != nil {
		return nil, bad("%v", err)
	}
	s := SelectAll(shape)
	for d, p := range parts {
		if p == "" {
			continue // what an ellipsis stands for, or behind the last one
		}
		if s.picks[d], err = parsePick(p, shape[d]); err != nil {
			return nil, bad("%v", err)
		}
	}
	return s, nil
}

func trimBrackets(text string) string {
	text = strings.TrimSpace(text)
	if inner, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inner, "]") {
		return strings.TrimSuffix(inner, "]")
	}
	return text
}

// spread returns one part for each dimension, empty ones for all that is not
// named.
func spread(parts []string, dims int) ([]string, error) {
	out := make([]string, 0, dims)
	ellipsis := false
	for i, p := range parts {
		p = strings.TrimSpace(p)
		switch {
		case p == "":
			return nil, errors.New("an index is empty")
		case p != "..." && p != "…" && p != "Ellipsis":
			out = append(out, p)
		case ellipsis:
			return nil, errors.New("two ellipses")
		default:
			ellipsis = true
			for len(out)+len(parts)-1-i < dims {
				out = append(out, "")
			}
		}
	}
	if len(out) > dims {
		return nil, fmt.Errorf("%d indexes for %d dimensions", len(out), dims)
	}
	return out, nil
}

// parsePick reads the index or slice of a dimension of n.
func parsePick(text string, n int64) (pick, error) {
	parts := strings.Split(text, ":")
	if len(parts) == 1 {
		i, err := parseIndex(text, 0)
		if err != nil {
			return pick{}, err
		}
		if i < -n || i >= n {
			return pick{}, fmt.Errorf("%d is out of range for %d", i, n)
		}
		if i < 0 {
			i += n
		}
		return pick{start: i, step: 1, count: 1, single: true}, nil
	}
	if len(parts) > 3 {
		return pick{}, fmt.Errorf("%q has too many colons", text)
	}
	step := int64(1)
	if len(parts) == 3 {
		var err error
		if step, err = parseIndex(parts[2], 1); err != nil {
			return pick{}, err
		}
	}
	first, last := int64(0), n
	switch {
	case step == 0:
		return pick{}, errors.New("a step is zero")
	case step < 0:
		first, last = n-1, -1
	}
	start, err := parseBound(parts[0], first, n, step)
	if err != nil {
		return pick{}, err
	}
	stop, err := parseBound(parts[1], last, n, step)
	if err != nil {
		return pick{}, err
	}
	return newPick(start, stop, step), nil
}

// parseBound reads an end of a slice as an index that is not counted from the
// end any more, and that lies in the dimension or just beyond.
func parseBound(text string, otherwise, n, step int64) (int64, error) {
	if strings.TrimSpace(text) == "" {
		return otherwise, nil
	}
	i, err := parseIndex(text, 0)
	if err != nil {
		return 0, err
	}
	if i < 0 {
		i += n
	}
	if step < 0 {
		return min(max(i, -1), n-1), nil
	}
	return min(max(i, 0), n), nil
}

// parseIndex reads a number. One that is beyond all tensors is cut to where it
// still is.
func parseIndex(text string, otherwise int64) (int64, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return otherwise, nil
	}
	i, err := strconv.ParseInt(text, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%q is neither a number nor a slice", text)
	}
	return max(i, -math.MaxInt64), nil
}

func newPick(start, stop, step int64) pick {
	p := pick{start: start, step: step}
	switch {
	case step > 0 && stop > start:
		p.count = (stop-start-1)/step + 1
	case step < 0 && stop < start:
		p.count = (start-stop-1)/-step + 1
	}
	if p.count <= 1 {
		p.step = 1 // there is no next one
	}
	if p.count == 0 {
		p.start = 0
	}
	return p
}

// Shape returns the shape of what is selected. Single indexes have no dimension
// in it.
func (s *Selection) Shape() []int64 {
	out := []int64{}
	for _, p := range s.picks {
		if !p.single {
			out = append(out, p.count)
		}
	}
	return out
}

// Single reports whether a single index is selected of a dimension of the tensor,
// which Shape leaves out.
func (s *Selection) Single(dim int) bool { return s.picks[dim].single }

// Sizes returns how many indexes are selected of each dimension of the tensor.
// In the index space of a selection, all dimensions of the tensor are there.
func (s *Selection) Sizes() []int64 {
	out := make([]int64, len(s.picks))
	for d, p := range s.picks {
		out[d] = p.count
	}
	return out
}

// Elements returns how many elements are selected.
func (s *Selection) Elements() int64 {
	n, err := tensor.NumElements(s.Sizes())
	if err != nil {
		return 0 // not of a valid shape
	}
	return n
}
