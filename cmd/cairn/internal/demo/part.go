package demo

import (
	"bytes"
	"fmt"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// newPart returns rank's part of a tensor, zeroed. Without a layout it is the
// whole.
func newPart(s *spec, l shard.Layout, rank int) (any, error) {
	if l == nil {
		return tensor.New(s.dtype, s.shape)
	}
	return shard.Empty(l, s.dtype, s.shape, rank)
}

// run is a piece of a part that follows itself both in the part's memory and in
// the flattened tensor.
type run struct {
	mem []byte
	off int64 // in bytes
}

// eachRun calls fn for every run of a part that newPart made.
func eachRun(s *spec, part any, fn func(r run) error) error {
	if t, ok := part.(*tensor.Tensor); ok {
		return boxRuns(s, tensor.Whole(s.shape), t, fn)
	}
	c, ok := part.(plan.Checkpointable)
	if !ok {
		return fmt.Errorf("a %T is no part of a tensor", part)
	}
	for i, box := range c.Boxes() {
		t, err := c.Part(i)
		if err != nil {
			return err
		}
		if err := boxRuns(s, box, t, fn); err != nil {
			return err
		}
	}
	return nil
}

// boxRuns cuts the memory of one box, which must be contiguous, into runs: rows
// of the last dimension.
func boxRuns(s *spec, box tensor.Box, t *tensor.Tensor, fn func(r run) error) error {
	mem, ok := t.Bytes()
	if !ok {
		return fmt.Errorf("%w: the part at %v is not contiguous", tensor.ErrLayout, box)
	}
	if box.Empty() {
		return nil
	}
	size, last := int64(s.dtype.Size()), box.Dims()-1
	row := box.Sizes[last] * size
	at := make([]int64, box.Dims()) // relative to the box
	for ; len(mem) > 0; mem = mem[row:] {
		if err := fn(run{mem[:row], flatIndex(s.shape, box.Offsets, at) * size}); err != nil {
			return err
		}
		for d := last - 1; d >= 0; d-- {
			if at[d]++; at[d] < box.Sizes[d] {
				break
			}
			at[d] = 0
		}
	}
	return nil
}

// flatIndex returns the place of the element at offsets + at in the flattened
// tensor.
func flatIndex(shape, offsets, at []int64) int64 {
	var i int64
	for d, n := range shape {
		i = i*n + offsets[d] + at[d]
	}
	return i
}

// fillPart gives a part its content at a step and returns its bytes.
func fillPart(s *spec, part any, step int64) (n int64, err error) {
	c := newContent(s.fqn, step, s.look)
	err = eachRun(s, part, func(r run) error {
		c.fill(r.mem, r.off)
		n += int64(len(r.mem))
		return nil
	})
	return n, err
}

// comparePart returns the bytes of a part, or an error that wraps ErrWrong
// where one is not what it was at that step.
func comparePart(s *spec, part any, step int64) (int64, error) {
	c := newContent(s.fqn, step, s.look)
	var n int64
	var want []byte
	err := eachRun(s, part, func(r run) error {
		want = append(want[:0], r.mem...)
		c.fill(want, r.off)
		if !bytes.Equal(want, r.mem) {
			return fmt.Errorf("%w: %s: other bytes than were saved at %d+%d", ErrWrong, s.fqn, r.off, len(r.mem))
		}
		n += int64(len(r.mem))
		return nil
	})
	return n, err
}
