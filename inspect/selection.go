package inspect

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ErrIndex reports an index that is malformed or does not fit the shape of its
// tensor.
var ErrIndex = errors.New("bad index")

// Selection is the part of a tensor that a Python index selects: elements at
// regular distances in every dimension.
type Selection struct {
	picks []pick // one for each dimension of the tensor
}

// pick is the selected part of one dimension: count indexes from start, step
// apart. A negative step runs backwards.
type pick struct {
	start, step, count int64
	single             bool // a single index, which removes the dimension
}

// SelectAll selects a whole tensor.
func SelectAll(shape []int64) *Selection {
	s := &Selection{picks: make([]pick, len(shape))}
	for d, n := range shape {
		s.picks[d] = pick{step: 1, count: n}
	}
	return s
}

// ParseSelection parses a Python index, with or without brackets: "0:4, ::2, 3",
// "-1", "..., 0", "::-1". Slices are clipped to the shape, single indexes must be
// within it. The error wraps ErrIndex.
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
			continue // covered by an ellipsis, or not named
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

// spread returns one part for each dimension, "" for dimensions that are not named.
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

// parsePick parses the index or slice of a dimension of size n.
func parsePick(text string, n int64) (pick, error) {
	parts := strings.Split(text, ":")
	if len(parts) > 3 {
		return pick{}, fmt.Errorf("%q has too many colons", text)
	}
	var numbers [3]*int64 // start, stop and step; nil if not given
	for i, p := range parts {
		var err error
		if numbers[i], err = parseIndex(p); err != nil {
			return pick{}, err
		}
	}
	if len(parts) == 1 {
		i := *numbers[0]
		if i < -n || i >= n {
			return pick{}, fmt.Errorf("%d is out of range for %d", i, n)
		}
		if i < 0 {
			i += n
		}
		return pick{start: i, step: 1, count: 1, single: true}, nil
	}
	step := int64(1)
	if numbers[2] != nil {
		step = *numbers[2]
	}
	switch {
	case step == 0:
		return pick{}, errors.New("a step is zero")
	case step < 0:
		return newPick(bound(numbers[0], n-1, -1, n), bound(numbers[1], -1, -1, n), step), nil
	}
	return newPick(bound(numbers[0], 0, 0, n), bound(numbers[1], n, 0, n), step), nil
}

// bound returns an end of a slice of a dimension of size n, at least low: within the
// dimension or just beyond it. If it is not given, it is otherwise.
func bound(i *int64, otherwise, low, n int64) int64 {
	if i == nil {
		return otherwise
	}
	at := *i
	if at < 0 {
		at += n
	}
	return min(max(at, low), n+low)
}

// parseIndex parses a number, or returns nil for an empty text. It limits numbers that
// are larger than any tensor.
func parseIndex(text string) (*int64, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	i, err := strconv.ParseInt(text, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return nil, fmt.Errorf("%q is neither a number nor a slice", text)
	}
	return new(max(i, -math.MaxInt64)), nil
}

func newPick(start, stop, step int64) pick {
	p := pick{start: start, step: step}
	switch {
	case step > 0 && stop > start:
		p.count = (stop-start-1)/step + 1
	case step < 0 && stop < start:
		p.count = (start-stop-1)/-step + 1
	default:
		p.start = 0
	}
	if p.count <= 1 {
		p.step = 1 // it has no next index
	}
	return p
}

// Shape returns the shape of the selection. Dimensions with a single index are
// left out.
func (s *Selection) Shape() []int64 {
	out := []int64{}
	for _, p := range s.picks {
		if !p.single {
			out = append(out, p.count)
		}
	}
	return out
}

// Single reports whether a single index is selected in a dimension of the tensor,
// which Shape leaves out.
func (s *Selection) Single(dim int) bool { return s.picks[dim].single }

// Sizes returns the number of selected indexes in each dimension of the tensor.
// It is the shape of the selection's index space, which has all dimensions of the
// tensor.
func (s *Selection) Sizes() []int64 {
	out := make([]int64, len(s.picks))
	for d, p := range s.picks {
		out[d] = p.count
	}
	return out
}

// Elements returns the number of selected elements.
func (s *Selection) Elements() int64 {
	n, err := tensor.NumElements(s.Sizes())
	if err != nil {
		return 0 // not a valid shape
	}
	return n
}

const (
	// gapBytes is the size from which a gap between two selected indexes is
	// skipped rather than read. Formats verify blocks of about this size.
	gapBytes = 1 << 20
	// boundBytes is the largest read for elements with gaps.
	boundBytes = 16 << 20
)

// Stream reads the selected part of the tensor e, converts it with tensor.Convert
// and calls fn with its little-endian bytes in row-major order, some whole
// elements at a time. The bytes are valid during the call only. It holds about 20
// MiB at most.
func (s *Selection) Stream(ctx context.Context, src Content, e *meta.Entry, d tensor.DType, fn func(p []byte) error) error {
	const part = 4 << 20
	elements, step := s.Elements(), int64(part/d.Size())
	buf := make([]byte, min(elements, step)*int64(d.Size()))
	for lo := int64(0); lo < elements; lo += step {
		hi := min(lo+step, elements)
		p := buf[:(hi-lo)*int64(d.Size())]
		err := readBoxes(e, s.Sizes(), d, lo, hi, p, func(box tensor.Box, dst *tensor.Tensor) error {
			return s.ReadBox(ctx, src, e, box, dst)
		})
		if err != nil {
			return err
		}
		if err := fn(p); err != nil {
			return err
		}
	}
	return nil
}

// ReadBox reads a box of the selection's index space into dst, which has the
// box's shape and any dtype. dst must be contiguous if the selection runs
// backwards.
func (s *Selection) ReadBox(ctx context.Context, src Content, e *meta.Entry, box tensor.Box, dst *tensor.Tensor) error {
	if box.Empty() {
		return nil
	}
	forward := make([]pick, len(s.picks))
	var backwards []int
	for d, p := range s.picks {
		p.start, p.count = p.start+p.step*box.Offsets[d], box.Sizes[d]
		if p.step < 0 {
			p.start, p.step = p.start+p.step*(p.count-1), -p.step
			backwards = append(backwards, d)
		}
		forward[d] = p
	}
	if err := readPicks(ctx, src, e, forward, dst); err != nil {
		return err
	}
	for _, d := range backwards {
		if err := reverse(dst, d); err != nil {
			return fmt.Errorf("%q: %w", e.FQN, err)
		}
	}
	return nil
}

// within returns a box of the selection's index space as a box of the tensor, if the
// selection has no gaps and does not run backwards.
func (s *Selection) within(box tensor.Box) tensor.Box {
	out := tensor.Box{Offsets: make([]int64, len(s.picks)), Sizes: box.Sizes}
	for d, p := range s.picks {
		out.Offsets[d] = p.start + box.Offsets[d]
	}
	return out
}

// readPicks reads picks with positive steps. It reads them as one box if they are
// close together, and otherwise in two halves.
func readPicks(ctx context.Context, src Content, e *meta.Entry, picks []pick, dst *tensor.Tensor) error {
	box := tensor.Box{Offsets: make([]int64, len(picks)), Sizes: make([]int64, len(picks))}
	apart := false
	for d, p := range picks {
		box.Offsets[d], box.Sizes[d] = p.start, (p.count-1)*p.step+1
		apart = apart || box.Sizes[d] != p.count
	}
	if !apart {
		return src.ReadEntry(ctx, e, box, dst)
	}
	if d := toHalve(e.Tensor, picks, box, int64(dst.DType().Size())); d >= 0 {
		half := picks[d].count / 2
		for _, part := range [][2]int64{{0, half}, {half, picks[d].count}} {
			some := slices.Clone(picks)
			some[d].start, some[d].count = picks[d].start+part[0]*picks[d].step, part[1]-part[0]
			to, err := dst.Slice(d, part[0], part[1], 1)
			if err != nil {
				return fmt.Errorf("%q: %w", e.FQN, err)
			}
			if err := readPicks(ctx, src, e, some, to); err != nil {
				return err
			}
		}
		return nil
	}
	bound, err := tensor.New(dst.DType(), box.Sizes)
	if err != nil {
		return fmt.Errorf("%q: %w", e.FQN, err)
	}
	if err := src.ReadEntry(ctx, e, box, bound); err != nil {
		return err
	}
	for d, p := range picks {
		if bound, err = bound.Slice(d, 0, bound.Shape()[d], p.step); err != nil {
			return fmt.Errorf("%q: %w", e.FQN, err)
		}
	}
	return tensor.Copy(dst, bound)
}

// toHalve returns a dimension in which the picks should be read in two halves, or
// -1 if they are close enough to be read at once.
func toHalve(t *meta.Tensor, picks []pick, box tensor.Box, size int64) int {
	pitch := int64(t.DType.Size())
	widest, ratio := -1, int64(1)
	for d, p := range slices.Backward(picks) {
		if p.count > 1 && (p.step-1) > gapBytes/pitch {
			return d
		}
		if p.count > 1 && p.step >= ratio {
			widest, ratio = d, p.step
		}
		if pitch < gapBytes { // larger values make no difference
			pitch *= max(1, t.Shape[d])
		}
	}
	if box.Volume() > boundBytes/size {
		return widest
	}
	return -1
}

func reverse(t *tensor.Tensor, dim int) error {
	mem, ok := t.Bytes()
	if !ok {
		return fmt.Errorf("%w: %v is not contiguous", tensor.ErrLayout, t)
	}
	run, n := t.DType().Size(), int(t.Shape()[dim])
	for _, s := range t.Shape()[dim+1:] {
		run *= int(s)
	}
	spare := make([]byte, run)
	for ; len(mem) > 0; mem = mem[n*run:] {
		for i, j := 0, (n-1)*run; i < j; i, j = i+run, j-run {
			copy(spare, mem[i:i+run])
			copy(mem[i:i+run], mem[j:j+run])
			copy(mem[j:j+run], spare)
		}
	}
	return nil
}
