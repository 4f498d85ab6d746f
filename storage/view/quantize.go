package view

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// wanted is a box of a quantised tensor, or of its scales, and the memory for it.
type wanted struct {
	target *recipe.Tensor
	box    tensor.Box
	dst    *tensor.Tensor
}

// factors returns the box of the scales of all blocks that w needs.
func (w *wanted) factors() tensor.Box {
	if w.target.Quantized.Scales {
		return w.box
	}
	return w.target.Quantized.Blocks.Of(w.box)
}

// readQuantized computes boxes of quantised tensors and of their scales. Both need whole
// blocks of elements, which are read a few at a time.
func (r *reader) readQuantized(ctx context.Context) error {
	if len(r.quantized) == 0 {
		return nil
	}

	workers, most, opts := r.divide()
	opts.Progress = nil // the bytes of the source are not the bytes of the result
	g, inner := errgroup.WithContext(withoutSums(ctx))
	g.SetLimit(workers)

	for _, w := range r.quantized {
		SumsOf(ctx).addSource(w.target, w.dst)
		q := w.target.Quantized
		one := tensor.Box{Offsets: make([]int64, len(q.Shape)), Sizes: ones(len(q.Shape))}
		block := 5 * q.Blocks.Elements(one, q.Shape).Volume() // bytes, as float32 and as quantised numbers
		for _, f := range w.factors().Cut(max(1, most/block)) {
			g.Go(func() error { return plan.Named(w.target.Name, r.quantize(inner, &w, f, opts)) })
		}
	}

	return g.Wait()
}

func ones(n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = 1
	}
	return out
}

// quantize computes the part of w in the blocks with scales in a box.
func (r *reader) quantize(ctx context.Context, w *wanted, factors tensor.Box, o storage.ReadOptions) error {
	q := w.target.Quantized
	box := q.Blocks.Elements(factors, q.Shape)
	numbers, err := tensor.New(tensor.Float32, box.Sizes)
	if err != nil {
		return err
	}

	if err := r.readUnquantized(ctx, w.target, box, numbers, o); err != nil {
		return err
	}

	made, err := q.Blocks.FactorsFor(numbers, box, q.DType)
	if errors.Is(err, tensor.ErrCast) {
		return fmt.Errorf("%w: %w", ErrCheck, err)
	}
	if err != nil {
		return err
	}

	if q.Scales {
		box = factors
	} else if made, err = q.Blocks.Quantize(numbers, made, box, q.DType); err != nil {
		return err
	}

	common, ok := box.Intersect(w.box)
	if !ok {
		return nil // no block is without a wanted element
	}

	if made, err = made.Narrow(common.Relative(box.Offsets)); err != nil {
		return err
	}

	dst, err := w.dst.Narrow(common.Relative(w.box.Offsets))
	if err != nil {
		return err
	}

	if err := tensor.Convert(dst, made, tensor.CastInRange.Into(dst)); err != nil {
		return err
	}

	if r.opts.Progress != nil {
		r.opts.Progress(made.NumElements() * int64(made.DType().Size()))
	}
	return nil
}

// readUnquantized reads a box of the elements of a tensor before they are quantised.
func (r *reader) readUnquantized(ctx context.Context, t *recipe.Tensor, box tensor.Box, mem *tensor.Tensor, o storage.ReadOptions) error {
	plain := *t
	plain.DType, plain.Quantized = mem.DType(), nil
	inner, p := &reader{c: r.c, opts: o}, &plan.LoadPlan{}
	defer func() { r.count(inner.stats) }()

	if err := inner.addParts(p, &plain, box, mem); err != nil {
		return err
	}
	if err := inner.readDirect(ctx, p); err != nil {
		return err
	}
	return inner.readBuffered(ctx)
}

// dequantize returns the elements that the numbers of a box of a quantised source stand for.
func (r *reader) dequantize(ctx context.Context, m *move, numbers *tensor.Tensor, box tensor.Box, o storage.ReadOptions) (*tensor.Tensor, error) {
	o.Progress = nil // the scales do not count
	scales, err := r.readSource(ctx, m.scales, tensor.Float32, m.blocks.Of(box), o)
	if err != nil {
		return nil, err
	}

	out, err := tensor.Cast(numbers, tensor.Float32)
	if err != nil {
		return nil, err
	}
	return out, m.blocks.Scale(out, scales, box)
}
