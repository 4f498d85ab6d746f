package view

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/recipe/megatron"
	"github.com/cairn-ckpt/cairn/recipe/remap"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// move is a grid of elements of a source and the memory that they belong to.
type move struct {
	target *recipe.Tensor
	entry  *meta.Entry // of the source
	piece  remap.Piece
	dst    *tensor.Tensor // has an axis for each axis of piece
	scales *meta.Entry    // of entry, if it is quantised in blocks
	blocks tensor.Blocks
}

// Read reads the items of a plan. Elements are read directly into memory if their order in
// the source suits the memory. Other elements are read into buffers and copied.
func (c *Checkpoint) Read(ctx context.Context, _ *meta.Metadata, p *plan.LoadPlan, dst storage.Receiver, o storage.ReadOptions) (storage.ReadStats, error) {
	r := &reader{c: c, dst: dst, plan: p, opts: o, memory: make([]*tensor.Tensor, len(p.Items))}
	inner := &plan.LoadPlan{}
	for i := range p.Items {
		if err := r.add(inner, i); err != nil {
			return r.stats, plan.Named(p.Items[i].Source.FQN, err)
		}
	}

	if err := r.readDirect(ctx, inner); err != nil {
		return r.stats, err
	}
	if err := r.readBuffered(ctx); err != nil {
		return r.stats, err
	}
	if err := r.readQuantized(ctx); err != nil {
		return r.stats, err
	}

	for _, m := range slices.Concat(r.direct, r.filled) {
		SumsOf(ctx).addSource(m.target, m.dst)
	}

	for i := range p.Items {
		if r.memory[i] == nil {
			continue
		}
		if err := dst.CommitTensor(&p.Items[i], r.memory[i]); err != nil {
			return r.stats, err
		}
	}

	return r.stats, nil
}

// reader is one call of Read.
type reader struct {
	c      *Checkpoint
	dst    storage.Receiver
	plan   *plan.LoadPlan
	opts   storage.ReadOptions
	memory []*tensor.Tensor // of the items
	direct []move           // by the hint of the inner plan
	rest   []move           // that need a buffer
	filled []move           // that have a constant value

	quantized []wanted // boxes of tensors that are quantised

	mu    sync.Mutex
	stats storage.ReadStats // guarded by mu while buffers are filled
}

// add adds item i: to the inner plan if it can be read directly, and otherwise to r.rest.
func (r *reader) add(inner *plan.LoadPlan, i int) error {
	it := &r.plan.Items[i]
	if it.Kind == plan.KindBytes {
		source, ok := r.c.values[it.Source.FQN]
		if !ok {
			return plan.ErrMissing
		}
		inner.Items = append(inner.Items, plan.ReadItem{Kind: plan.KindBytes, Dest: meta.Index{FQN: source, Hint: int32(-1 - i)}, Source: meta.Index{FQN: source}})
		return nil
	}

	t := r.c.tensors[it.Source.FQN]
	if t == nil {
		return plan.ErrMissing
	}

	box := it.SourceBox()
	if err := box.Check(t.Shape); err != nil {
		return err
	}

	mem, err := r.dst.ResolveTensor(it)
	if err != nil {
		return err
	}
	if !slices.Equal(mem.Shape(), box.Sizes) {
		return fmt.Errorf("%w: memory of %v for a box of %v", tensor.ErrShape, mem.Shape(), box.Sizes)
	}

	r.memory[i] = mem
	if box.Empty() {
		return nil
	}

	if t.Quantized != nil {
		r.quantized = append(r.quantized, wanted{t, box, mem})
		return nil
	}
	return r.addParts(inner, t, box, mem)
}

// addParts adds all parts of a box of a tensor.
func (r *reader) addParts(inner *plan.LoadPlan, t *recipe.Tensor, box tensor.Box, mem *tensor.Tensor) error {
	for k := range t.Parts {
		if err := r.addPart(inner, t, &t.Parts[k], box, mem); err != nil {
			return err
		}
	}
	return nil
}

// addPart adds the elements of a box that lie in a part of a tensor.
func (r *reader) addPart(inner *plan.LoadPlan, t *recipe.Tensor, p *recipe.Part, box tensor.Box, mem *tensor.Tensor) error {
	for _, q := range p.Map.Cut(box) {
		q = q.Simplify()
		to, err := grid(&q, box, mem)
		if err != nil {
			return err
		}

		if p.Source == "" {
			if err := fill(to, p.Value); err != nil {
				return err
			}
			r.filled = append(r.filled, move{target: t, dst: to})
			continue
		}

		e, ok := r.c.srcMD.Find(p.Source)
		if !ok || e.Tensor == nil {
			return fmt.Errorf("%q is %w", p.Source, plan.ErrMissing)
		}

		m := move{target: t, entry: e, piece: q, dst: to, blocks: p.Blocks}
		if p.Scales != "" {
			if m.scales, ok = r.c.srcMD.Find(p.Scales); !ok || m.scales.Tensor == nil {
				return fmt.Errorf("%q is %w", p.Scales, plan.ErrMissing)
			}
		}

		plainCast := t.DType == e.Tensor.DType || to.DType() == t.DType
		from, view, ok := m.straight()
		if !ok || t.Add != 0 || t.Multiply != 0 || m.scales != nil || !plainCast {
			r.rest = append(r.rest, m)
			continue
		}

		x, err := r.c.index(e)
		if err != nil {
			return err
		}

		m.dst = view
		dest := meta.Index{FQN: e.FQN, Offset: from.Offsets, Hint: int32(len(r.direct))}
		if inner.Items, err = x.Reads(inner.Items, dest, from); err != nil {
			return err
		}

		r.direct = append(r.direct, m)
	}
	return nil
}

// grid returns the memory of the elements of q, which lie inside box, with a dimension for
// each axis of q. mem is the memory of the box.
func grid(q *remap.Piece, box tensor.Box, mem *tensor.Tensor) (*tensor.Tensor, error) {
	shape, strides := make([]int64, len(q.Axes)), make([]int64, len(q.Axes))
	for k, a := range q.Axes {
		shape[k], strides[k] = a.Size, a.ToStep*mem.Strides()[a.To]
	}
	at := int64(0)
	for d, o := range q.To {
		at += (o - box.Offsets[d]) * mem.Strides()[d]
	}
	return like(mem, shape, strides, at)
}

// like returns a view of the memory of mem.
func like(mem *tensor.Tensor, shape, strides []int64, at int64) (*tensor.Tensor, error) {
	t, err := tensor.FromStrided(mem.DType(), shape, strides, at, mem.Memory())
	if err == nil && tensor.CastInRange.Into(mem) == tensor.CastAny {
		t = t.Lossy()
	}
	return t, err
}

// straight returns the box of the source that has the elements of m, and the memory with
// the dimensions of the source. It returns false if the elements are not all of a box, or
// if their places in memory have no such form.
func (m *move) straight() (tensor.Box, *tensor.Tensor, bool) {
	n := len(m.piece.From)
	box := tensor.Box{Offsets: m.piece.From, Sizes: make([]int64, n)}
	strides := make([]int64, n)
	for d := range n {
		size, stride := int64(1), int64(1)
		for _, k := range m.axesOf(d) { // the smallest step first
			a := &m.piece.Axes[k]
			s := m.dst.Strides()[k]
			if a.FromStep != size || size > 1 && s != stride*size {
				return box, nil, false
			}
			if size == 1 {
				stride = s
			}
			size *= a.Size
		}

		box.Sizes[d], strides[d] = size, stride
	}

	view, err := like(m.dst, box.Sizes, strides, 0)
	return box, view, err == nil
}

// axesOf returns the axes in dimension d of the source, the smallest step first.
func (m *move) axesOf(d int) []int {
	var out []int
	for k, a := range m.piece.Axes {
		if a.From == d {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(x, y int) int { return cmp.Compare(m.piece.Axes[x].FromStep, m.piece.Axes[y].FromStep) })
	return out
}

// readDirect reads the elements that need no buffer, and the values.
func (r *reader) readDirect(ctx context.Context, p *plan.LoadPlan) error {
	if len(p.Items) == 0 {
		return nil
	}
	stats, err := r.c.src.Read(withoutSums(ctx), r.c.srcMD, p, r, r.opts)
	r.stats.Add(stats)
	return err
}

// ResolveTensor implements storage.Receiver for the inner plan.
func (r *reader) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	return r.direct[it.Dest.Hint].dst.Narrow(it.DestBox())
}

// CommitTensor implements storage.Receiver.
func (r *reader) CommitTensor(*plan.ReadItem, *tensor.Tensor) error { return nil }

// LoadBytes passes a value on.
func (r *reader) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	codec, data, err := r.c.refer(codec, data)
	if err != nil {
		return plan.Named(it.Source.FQN, err)
	}
	return r.dst.LoadBytes(&r.plan.Items[-1-int(it.Dest.Hint)], codec, data)
}

const (
	// leastBuffer is the smallest size of a buffer, even if the budget is lower.
	leastBuffer = 256 << 10
	// mostWaste is how many times the needed elements a read may read, if its elements are
	// far apart.
	mostWaste = 4
)

// divide returns how many goroutines read at the same time, how many bytes each of them
// buffers at once, and its options.
func (r *reader) divide() (workers int, most int64, opts storage.ReadOptions) {
	workers, opts = r.opts.Workers(), r.opts
	each := r.opts.Budget() / 2 / int64(workers)
	opts.BufferBytes, opts.Parallel = max(1, each), 1
	return workers, max(leastBuffer, min(maxBuffer, each)), opts
}

// readBuffered reads the elements that need a buffer: the smallest box of the source around
// the elements, cut so that it fits.
func (r *reader) readBuffered(ctx context.Context) error {
	if len(r.rest) == 0 {
		return nil
	}

	workers, most, opts := r.divide()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for _, m := range r.rest {
		m.cut(most, func(m move) {
			g.Go(func() error { return plan.Named(m.target.Name, r.buffered(ctx, &m, opts)) })
		})
	}

	return g.Wait()
}

// maxBuffer is the largest size of a buffer. More does not make reads faster.
const maxBuffer = 16 << 20

// cut divides m until the box of the source around its elements has at most that many
// bytes, and not many more elements than m needs.
func (m move) cut(most int64, emit func(move)) {
	box := m.piece.FromBox()
	size := int64(m.entry.Tensor.DType.Size())
	if m.scales != nil {
		size += 4 // the products, in float32
	}

	if n := box.Volume(); n*size <= most && (n <= mostWaste*m.piece.Volume() || n*size <= leastBuffer) || len(m.piece.Axes) == 0 {
		emit(m)
		return
	}

	axis, span := -1, 0.0 // the axis with the largest reach in its dimension, relative to the box
	for k, a := range m.piece.Axes {
		if reach := float64(a.FromStep*(a.Size-1)) / float64(box.Sizes[a.From]); reach > span {
			axis, span = k, reach
		}
	}

	if axis < 0 {
		emit(m)
		return
	}

	a, b := m.piece.Split(axis)
	half := a.Axes[axis].Size
	low, high := tensor.Whole(m.dst.Shape()), tensor.Whole(m.dst.Shape())
	low.Sizes, high.Sizes = slices.Clone(low.Sizes), slices.Clone(high.Sizes)
	high.Offsets = slices.Clone(high.Offsets)
	low.Sizes[axis], high.Sizes[axis], high.Offsets[axis] = half, b.Axes[axis].Size, half

	for _, part := range []struct {
		piece remap.Piece
		box   tensor.Box
	}{{a, low}, {b, high}} {
		dst, err := m.dst.Narrow(part.box)
		if err != nil {
			panic(err) // the box is inside, by construction
		}
		half := m
		half.piece, half.dst = part.piece, dst
		half.cut(most, emit)
	}
}

// buffered reads the elements of m through a buffer.
func (r *reader) buffered(ctx context.Context, m *move, o storage.ReadOptions) error {
	box := m.piece.FromBox()
	buf, err := r.readSource(ctx, m.entry, m.entry.Tensor.DType, box, o)
	if err == nil && m.scales != nil {
		buf, err = r.dequantize(ctx, m, buf, box, o)
	}
	if err != nil {
		return err
	}

	strides := make([]int64, len(m.piece.Axes))
	for k, a := range m.piece.Axes {
		strides[k] = a.FromStep * buf.Strides()[a.From]
	}

	from, err := like(buf, m.dst.Shape(), strides, 0)
	if err != nil {
		return err
	}

	if from, err = m.compute(from); err != nil {
		return err
	}

	if from.DType() == m.dst.DType() {
		err = tensor.Copy(m.dst, from)
	} else {
		err = tensor.Convert(m.dst, from, tensor.CastInRange.Into(m.dst))
	}

	SumsOf(ctx).addSource(m.target, from)
	return err
}

// readSource returns a box of a tensor of the source, in the type d.
func (r *reader) readSource(ctx context.Context, e *meta.Entry, d tensor.DType, box tensor.Box, o storage.ReadOptions) (*tensor.Tensor, error) {
	x, err := r.c.index(e)
	if err != nil {
		return nil, err
	}

	buf, err := tensor.New(d, box.Sizes)
	if err != nil {
		return nil, err
	}

	p := &plan.LoadPlan{}
	if p.Items, err = x.Reads(nil, meta.Index{FQN: e.FQN, Offset: box.Offsets}, box); err != nil {
		return nil, err
	}

	stats, err := r.c.src.Read(withoutSums(ctx), r.c.srcMD, p, into{buf}, o)
	r.count(stats)
	return buf, err
}

// count adds to the statistics.
func (r *reader) count(s storage.ReadStats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Add(s)
}

// compute returns the elements of the result: in its type, with the constant added, or
// multiplied by the constant.
func (m *move) compute(from *tensor.Tensor) (*tensor.Tensor, error) {
	t := m.target
	if t.Multiply != 0 {
		return multiply(from, t)
	}
	if t.Add == 0 && from.DType() == t.DType {
		return from, nil
	}
	if t.Add == 0 {
		out, err := tensor.New(t.DType, from.Shape())
		if err == nil {
			err = tensor.Convert(out, from, tensor.CastInRange)
		}
		return out, err
	}

	// The sum is rounded once: to float64, which is exact for all types up to float32, and
	// then to the type of the result.
	wide, err := tensor.Cast(from, tensor.Float64)
	if err != nil {
		return nil, err
	}

	if wide == from {
		wide = from.Clone()
	}

	numbers, err := tensor.Values[float64](wide)
	if err != nil {
		return nil, err
	}

	for i := range numbers {
		numbers[i] += t.Add
	}

	return tensor.Cast(wide, t.DType)
}

// fill sets all elements to a number.
func fill(dst *tensor.Tensor, v float64) error {
	one, err := tensor.Full(tensor.Float64, []int64{}, v)
	if err == nil {
		one, err = tensor.Cast(one, dst.DType())
	}
	if err != nil {
		return err
	}

	all, err := tensor.FromStrided(dst.DType(), dst.Shape(), make([]int64, len(dst.Shape())), 0, one.Memory())
	if err != nil {
		return err
	}
	return tensor.Copy(dst, all)
}

// into receives the boxes of one tensor.
type into struct{ t *tensor.Tensor }

func (r into) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	return r.t.Narrow(it.DestBox())
}
func (r into) CommitTensor(*plan.ReadItem, *tensor.Tensor) error { return nil }
func (r into) LoadBytes(*plan.ReadItem, string, []byte) error    { return plan.ErrMismatch }

// Check reads the parts of the source that the result leaves out because they are padding
// or copies. The error wraps ErrCheck if they are not.
func (c *Checkpoint) Check(ctx context.Context) error {
	if inner, ok := c.src.(*Checkpoint); ok {
		if err := inner.Check(ctx); err != nil {
			return err
		}
	}
	return c.checkAll(ctx, c.binding.Recipe, c.binding.Checks)
}

// CheckContents reads the tensors of the checks from src. The error wraps ErrCheck if a check
// fails.
func CheckContents(ctx context.Context, src storage.Checkpoint, r *recipe.Recipe, checks []recipe.Check) error {
	md, err := src.Metadata(ctx)
	if err != nil {
		return err
	}
	c := &Checkpoint{src: src, srcMD: md}
	return c.checkAll(ctx, r, checks)
}

func (c *Checkpoint) checkAll(ctx context.Context, r *recipe.Recipe, checks []recipe.Check) error {
	if r.Name == megatron.Name {
		return c.checkStates(ctx, checks)
	}
	for i := range checks {
		if err := c.check(ctx, &checks[i]); err != nil {
			return fmt.Errorf("recipe %s, the rule in line %d: %w", r.Name, checks[i].Rule, err)
		}
	}
	return nil
}

// checkBytes is the size of the parts that are checked at a time.
const checkBytes = 8 << 20

func (c *Checkpoint) check(ctx context.Context, k *recipe.Check) error {
	e, ok := c.srcMD.Find(k.Source)
	if !ok || e.Tensor == nil {
		return fmt.Errorf("%q is %w", k.Source, plan.ErrMissing)
	}

	var err error
	move{entry: e, piece: k.Map, dst: mustPlaceholder(e, k.Map)}.cut(checkBytes, func(m move) {
		if err == nil {
			err = c.checkPart(ctx, k, e, &m)
		}
	})
	return err
}

// mustPlaceholder returns a tensor without memory for the grid of a piece.
func mustPlaceholder(e *meta.Entry, p remap.Piece) *tensor.Tensor {
	shape := make([]int64, len(p.Axes))
	for i, a := range p.Axes {
		shape[i] = a.Size
	}
	t, err := tensor.Placeholder(e.Tensor.DType, shape)
	if err != nil {
		panic(err) // a part of a valid tensor
	}
	return t
}

// checkPart checks the box around the elements of m: it is all padding, or all a copy.
func (c *Checkpoint) checkPart(ctx context.Context, k *recipe.Check, e *meta.Entry, m *move) error {
	if k.Rounded {
		return c.checkRounded(ctx, k, e, m)
	}

	got, err := c.readBox(ctx, e, m)
	if err != nil {
		return err
	}
	if k.Other != "" {
		other, ok := c.srcMD.Find(k.Other)
		if !ok {
			return fmt.Errorf("%q is %w", k.Other, plan.ErrMissing)
		}

		want, err := c.readBox(ctx, other, m)
		if err == nil && !tensor.Equal(got, want) {
			box := m.piece.FromBox()
			err = fmt.Errorf("%w: %q is not a copy of %q: they differ in the part of the shape %v at %v", ErrCheck, k.Source, k.Other, box.Sizes, box.Offsets)
		}
		return err
	}

	for _, b := range got.Contents() {
		if b != 0 {
			box := m.piece.FromBox()
			return fmt.Errorf("%w: %q has elements that are not zero in its padding, of the shape %v at %v: check the sizes in config.json; if they are right and the padding was never zeroed, use --set check_padding=false", ErrCheck, k.Source, box.Sizes, box.Offsets)
		}
	}

	return nil
}

// readBox reads the elements of m from a tensor of the source.
func (c *Checkpoint) readBox(ctx context.Context, e *meta.Entry, m *move) (*tensor.Tensor, error) {
	out, err := tensor.New(e.Tensor.DType, m.dst.Shape())
	if err != nil {
		return nil, err
	}
	n := *m
	n.entry, n.dst, n.target = e, out, &recipe.Tensor{Name: e.FQN, Properties: e.Tensor.Properties}
	r := &reader{c: c}
	return out, r.buffered(ctx, &n, storage.ReadOptions{BufferBytes: checkBytes, Parallel: 1})
}
