package inspect

import (
	"context"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

const (
	// gapBytes is how much between two selected indexes is better skipped than
	// read. Formats verify about as much at a time.
	gapBytes = 1 << 20
	// boundBytes is the most that is read at once for what lies apart.
	boundBytes = 16 << 20
)

// Stream reads what is selected of the tensor e, converted to a dtype as
// tensor.Convert does, and calls fn with its little-endian bytes in row-major
// order, some whole elements at a time. The bytes are only lent. It holds no
// more than about 20 MiB.
func (s *Selection) Stream(ctx context.Context, src Content, e *meta.Entry, d tensor.DType, fn func(p []byte) error) error {
	const part = 4 << 20
	elements, step := s.Elements(), int64(part/d.Size())
	buf := make([]byte, min(elements, step)*int64(d.Size()))
	for lo := int64(0); lo < elements; lo += step {
		hi := min(lo+step, elements)
		p := buf[:(hi-lo)*int64(d.Size())]
		if err := s.readFlat(ctx, src, e, d, lo, hi, p); err != nil {
			return err
		}
		if err := fn(p); err != nil {
			return err
		}
	}
	return nil
}

// readFlat reads the elements [lo, hi) of the row-major order of the selection.
func (s *Selection) readFlat(ctx context.Context, src Content, e *meta.Entry, d tensor.DType, lo, hi int64, p []byte) error {
	boxes, err := tensor.FlatBoxes(s.Sizes(), lo, hi)
	if err != nil {
		return fmt.Errorf("%q: %w", e.FQN, err)
	}
	for _, box := range boxes {
		n := box.Volume() * int64(d.Size())
		dst, err := tensor.FromBytes(d, box.Sizes, p[:n])
		if err != nil {
			return fmt.Errorf("%q: %w", e.FQN, err)
		}
		if err := s.ReadBox(ctx, src, e, box, dst); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// ReadBox reads one box of the selection's index space into dst, which has its
// shape, any dtype, and is contiguous where the selection runs backwards.
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

// readPicks reads what is selected, all of it forwards. What lies close together
// is read as one box and taken apart, what does not in two halves.
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
		return readHalves(ctx, src, e, picks, d, dst)
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

// toHalve returns a dimension in which picks are better read in two parts, or -1
// where they are close enough to be read at once.
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
		if pitch < gapBytes { // beyond that, more does not matter
			pitch *= max(1, t.Shape[d])
		}
	}
	if box.Volume() > boundBytes/size {
		return widest
	}
	return -1
}

// readHalves reads the two halves of what is selected of one dimension.
func readHalves(ctx context.Context, src Content, e *meta.Entry, picks []pick, d int, dst *tensor.Tensor) error {
	half := picks[d].count / 2
	for _, lo := range []int64{0, half} {
		part := slices.Clone(picks)
		part[d].start += lo * part[d].step
		part[d].count = half
		if lo > 0 {
			part[d].count = picks[d].count - half
		}
		to, err := dst.Slice(d, lo, lo+part[d].count, 1)
		if err != nil {
			return fmt.Errorf("%q: %w", e.FQN, err)
		}
		if err := readPicks(ctx, src, e, part, to); err != nil {
			return err
		}
	}
	return nil
}

// reverse turns a dimension of a contiguous tensor round.
func reverse(t *tensor.Tensor, dim int) error {
	mem, ok := t.Bytes()
	if !ok {
		return fmt.Errorf("%w: %v is not contiguous", tensor.ErrLayout, t)
	}
	run, n := t.DType().Size(), int(t.Shape()[dim])
	for _, s := range t.Shape()[dim+1:] {
		run *= int(s)
	}
	for ; len(mem) > 0; mem = mem[n*run:] {
		if run > t.DType().Size() || !reverseElements(mem[:n*run], run) {
			reverseRuns(mem[:n*run], run)
		}
	}
	return nil
}

// reverseRuns turns round the order of runs of so many bytes.
func reverseRuns(p []byte, run int) {
	spare := make([]byte, run)
	for i, j := 0, len(p)-run; i < j; i, j = i+run, j-run {
		copy(spare, p[i:i+run])
		copy(p[i:i+run], p[j:j+run])
		copy(p[j:j+run], spare)
	}
}

// reverseElements is reverseRuns for single elements, if there is a quick way.
func reverseElements(p []byte, size int) bool {
	switch size {
	case 1:
		slices.Reverse(p)
		return true
	case 2:
		return reverseWords[uint16](tensor.Uint16, p)
	case 4:
		return reverseWords[uint32](tensor.Uint32, p)
	case 8:
		return reverseWords[uint64](tensor.Uint64, p)
	}
	return false
}

func reverseWords[E tensor.Element](d tensor.DType, p []byte) bool {
	v, err := valuesOf[E](d, p)
	slices.Reverse(v)
	return err == nil
}
