package adapter

import (
	"context"
	"math"
	"path"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// merged is a tensor that the adapter changes or adds.
type merged struct {
	base *meta.Entry // of the base, from which it comes
	// whole, if not nil, is the tensor of the adapter that takes the place of base.
	whole *meta.Entry
	// rows, if not nil, has rows of the tensor, and at their places.
	rows *meta.Entry
	at   []int64
	// terms are added in their order.
	terms []*term
}

// term is what is added to a tensor: a product, or a bias.
type term struct {
	left, right *factor // of a product
	bias        *meta.Entry
	scale       float32
	// early means that the product is rounded to the type of the tensor before it is added: PEFT
	// does so for embeddings.
	early bool
	// fused means that products are not rounded before they are added, as in a convolution.
	fused bool
	// magnitude, if not nil, has the norm of each row, or of each column if columns is set.
	magnitude *meta.Entry
	columns   bool

	mu sync.Mutex
	// by are the factors that give columns their norms. Nil: they are not known yet. Guarded by mu.
	by []float32
}

// factor is one of two factors of a product. If transposed is set, the factor is the transposed
// tensor.
type factor struct {
	entry      *meta.Entry
	transposed bool
}

// location returns the place of the tensor that says most about m.
func (m *merged) location() meta.Location {
	switch {
	case m.whole != nil:
		return m.whole.Tensor.Locs[0]
	case m.rows != nil:
		return m.rows.Tensor.Locs[0]
	case len(m.terms) > 0 && m.terms[0].bias != nil:
		return m.terms[0].bias.Tensor.Locs[0]
	case len(m.terms) > 0:
		return m.terms[0].left.entry.Tensor.Locs[0]
	}
	at := m.base.Tensor.Locs[0]
	at.File = path.Join(baseFolder, at.File)
	return at
}

// readFunc reads a box of a tensor of the base, or of the adapter.
type readFunc func(ctx context.Context, e *meta.Entry, box tensor.Box, to *tensor.Tensor) error

// sources reads the base and the adapter.
type sources struct{ base, adapter readFunc }

// read returns a box of a tensor as numbers of the type d.
func (f readFunc) read(ctx context.Context, e *meta.Entry, box tensor.Box, d tensor.DType) (*tensor.Tensor, error) {
	x, err := tensor.New(d, box.Sizes)
	if err != nil {
		return nil, err
	}
	return x, f(ctx, e, box, x)
}

// floats returns the numbers of a box as float32.
func (f readFunc) floats(ctx context.Context, e *meta.Entry, box tensor.Box) ([]float32, error) {
	x, err := f.read(ctx, e, box, tensor.Float32)
	if err != nil {
		return nil, err
	}
	return tensor.Values[float32](x)
}

// mostElements bounds the numbers that are computed at once.
const mostElements = 512 << 10

// cut divides a box into parts for which compute needs about budget bytes.
func (m *merged) cut(box tensor.Box, budget int64) []tensor.Box {
	most := max(1, min(mostElements, budget/16))
	out := []tensor.Box{box}
	for _, t := range m.terms {
		var parts []tensor.Box
		for _, b := range out {
			parts = append(parts, t.cut(m.base.Tensor.Shape, b, most)...)
		}
		out = parts
	}
	if len(m.terms) == 0 {
		return box.Cut(most)
	}
	return out
}

// cut divides a box of a tensor of a shape into parts of about most elements.
func (t *term) cut(shape []int64, box tensor.Box, most int64) []tensor.Box {
	if t.left == nil {
		return box.Cut(most)
	}
	if t.wide(shape) {
		each := max(1, tensor.Box{Sizes: shape}.Volume()/max(1, shape[0]), t.rank())
		return along(box, 0, max(1, most/each))
	}

	var out []tensor.Box
	for _, part := range along(box, 1, max(panelColumns, most/t.rank())) {
		for _, p := range part.Cut(max(most, part.Sizes[1])) {
			out = append(out, along(p, 0, max(1, most/t.rank()))...)
		}
	}
	return out
}

// wide reports whether whole rows of a tensor of a shape are computed, because their norms or a
// convolution need them.
func (t *term) wide(shape []int64) bool { return t.magnitude != nil && !t.columns || len(shape) > 2 }

// along divides a box into parts of n places in dimension d.
func along(box tensor.Box, d int, n int64) []tensor.Box {
	var out []tensor.Box
	for at := box.Offsets[d]; at < box.End(d); at += n {
		out = append(out, box.Between(d, at, min(at+n, box.End(d))))
	}
	return out
}

// rank returns the terms of each sum of the product.
func (t *term) rank() int64 {
	if t.left.transposed {
		return t.left.entry.Tensor.Shape[0]
	}
	return t.left.entry.Tensor.Shape[1]
}

// buffers has memory for the numbers of parts.
var buffers = sync.Pool{New: func() any { return new([]float32) }}

// compute sets to to a box of the tensor.
func (m *merged) compute(ctx context.Context, s *sources, box tensor.Box, to *tensor.Tensor) error {
	if len(m.terms) == 0 {
		x, err := m.before(ctx, s, box)
		if err != nil {
			return err
		}
		return tensor.Convert(to, x, tensor.CastInRange.Into(to))
	}

	shape, wide := m.base.Tensor.Shape, box
	for _, t := range m.terms {
		if t.left != nil && t.wide(shape) {
			wide = tensor.Whole(shape).Between(0, box.Offsets[0], box.End(0))
		}
	}

	buf := buffers.Get().(*[]float32)
	defer buffers.Put(buf)
	x, err := m.start(ctx, s, wide, buf)
	d := m.base.Tensor.DType
	for i, t := range m.terms {
		if err == nil && i > 0 {
			err = round(x, d)
		}
		if err == nil {
			err = t.add(ctx, s, *buf, wide, d)
		}
		if err == nil && t.magnitude != nil {
			err = m.norm(ctx, s, t, *buf, wide)
		}
	}
	if err == nil && to.DType() != d {
		err = round(x, d)
	}
	if err == nil {
		x, err = x.Narrow(box.Relative(wide.Offsets))
	}
	if err != nil {
		return err
	}
	return tensor.Convert(to, x, tensor.CastInRange.Into(to))
}

// start returns a box of the tensor without the terms, in buf.
func (m *merged) start(ctx context.Context, s *sources, box tensor.Box, buf *[]float32) (*tensor.Tensor, error) {
	*buf = slices.Grow((*buf)[:0], int(box.Volume()))[:box.Volume()]
	x, err := tensor.Of(box.Sizes, *buf)
	if err != nil {
		return nil, err
	}
	if m.whole == nil {
		return x, s.base(ctx, m.base, box, x)
	}
	own, err := m.before(ctx, s, box)
	if err != nil {
		return nil, err
	}
	return x, tensor.Convert(x, own, tensor.CastAny)
}

// round rounds the numbers of x to the type d.
func round(x *tensor.Tensor, d tensor.DType) error {
	if d == x.DType() {
		return nil
	}
	y, err := tensor.Cast(x, d)
	if err != nil {
		return err
	}
	return tensor.Convert(x, y, tensor.CastAny)
}

// before returns a box of the tensor without the terms, in its type.
func (m *merged) before(ctx context.Context, s *sources, box tensor.Box) (*tensor.Tensor, error) {
	d := m.base.Tensor.DType
	if m.whole != nil {
		x, err := s.adapter.read(ctx, m.whole, box, m.whole.Tensor.DType)
		if err != nil {
			return nil, err
		}
		return tensor.Cast(x, d)
	}

	x, err := s.base.read(ctx, m.base, box, d)
	if err != nil {
		return nil, err
	}
	for i, row := range m.at {
		if row < box.Offsets[0] || row >= box.End(0) {
			continue
		}
		from, err := s.adapter.read(ctx, m.rows, box.Between(0, int64(i), int64(i)+1), m.rows.Tensor.DType)
		if err != nil {
			return nil, err
		}
		to, err := x.Narrow(tensor.Whole(box.Sizes).Between(0, row-box.Offsets[0], row-box.Offsets[0]+1))
		if err == nil {
			err = tensor.Convert(to, from, tensor.CastAny)
		}
		if err != nil {
			return nil, err
		}
	}
	return x, nil
}

// add adds the term to out, a box of a tensor of the type d.
func (t *term) add(ctx context.Context, s *sources, out []float32, box tensor.Box, d tensor.DType) error {
	if !t.early || d == tensor.Float32 {
		return t.addTo(ctx, s, out, box)
	}

	add, err := t.rounded(ctx, s, box, d)
	for i, v := range add {
		out[i] += v
	}
	return err
}

// rounded returns the term in a box, rounded to the type d.
func (t *term) rounded(ctx context.Context, s *sources, box tensor.Box, d tensor.DType) ([]float32, error) {
	out := slices.Repeat([]float32{float32(math.Copysign(0, -1))}, int(box.Volume())) // -0 + x is x
	if err := t.addTo(ctx, s, out, box); err != nil {
		return nil, err
	}
	x, err := tensor.Of(box.Sizes, out)
	if err != nil {
		return nil, err
	}
	return out, round(x, d)
}

// addTo adds the term in a box to out. Dimensions after the first are one, of the columns.
func (t *term) addTo(ctx context.Context, s *sources, out []float32, box tensor.Box) error {
	if t.bias != nil {
		add, err := s.adapter.floats(ctx, t.bias, box)
		if err != nil {
			return err
		}
		for i, v := range add {
			out[i] += float32(v * t.scale)
		}
		return nil
	}

	left, err := t.left.rows(ctx, s, 0, box.Offsets[0], box.End(0))
	if err != nil {
		return err
	}
	right, err := t.right.rows(ctx, s, 1, box.Offsets[1], box.End(1))
	if err != nil {
		return err
	}
	addProduct(out, left, right, t.rank(), box.Volume()/box.Sizes[0], t.scale, t.fused)
	return context.Cause(ctx)
}

// rows returns places first to end of dimension d of the factor, as rows if d is 0 and as columns
// if it is 1.
func (f *factor) rows(ctx context.Context, s *sources, d int, first, end int64) ([]float32, error) {
	shape := f.entry.Tensor.Shape
	if f.transposed {
		x, err := s.adapter.read(ctx, f.entry, tensor.Whole(shape).Between(1-d, first, end), tensor.Float32)
		if err == nil {
			x, err = x.Transpose(0, 1)
		}
		if err != nil {
			return nil, err
		}
		return tensor.Values[float32](x.Clone())
	}
	return s.adapter.floats(ctx, f.entry, tensor.Whole(shape).Between(d, first, end))
}

// norm gives each row of a box, or each column, the length that its magnitude says.
func (m *merged) norm(ctx context.Context, s *sources, t *term, x []float32, box tensor.Box) error {
	if t.columns {
		by, err := m.columnFactors(ctx, s, t)
		if err != nil {
			return err
		}
		by = by[box.Offsets[1]:box.End(1)]
		for row := range slices.Chunk(x, len(by)) {
			for j := range row {
				row[j] *= by[j]
			}
		}
		return nil
	}

	of := t.magnitude.Tensor.Shape // [n], or of a convolution [1, n, 1, …]
	lengths, err := s.adapter.floats(ctx, t.magnitude, tensor.Whole(of).Between(min(1, len(of)-1), box.Offsets[0], box.End(0)))
	if err != nil {
		return err
	}
	cols := len(x) / len(lengths)
	for i, length := range lengths {
		row := x[i*cols:][:cols]
		by := length / rowNorm(row)
		for j := range row {
			row[j] *= by
		}
	}
	return nil
}

// columnFactors returns the factors that give all columns their lengths. The first call computes
// the whole tensor, a few rows at a time, because columns are spread over it.
func (m *merged) columnFactors(ctx context.Context, s *sources, t *term) ([]float32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by != nil {
		return t.by, nil
	}

	shape := m.base.Tensor.Shape
	sums := make([]float32, shape[1])
	buf := buffers.Get().(*[]float32)
	defer buffers.Put(buf)
	for _, part := range along(tensor.Whole(shape), 0, max(1, mostElements/max(shape[1], t.rank()))) {
		_, err := m.start(ctx, s, part, buf)
		if err == nil {
			err = t.addTo(ctx, s, *buf, part)
		}
		if err != nil {
			return nil, err
		}
		for row := range slices.Chunk(*buf, len(sums)) {
			for j, v := range row {
				sums[j] += float32(v * v)
			}
		}
	}

	lengths, err := s.adapter.floats(ctx, t.magnitude, tensor.Whole(t.magnitude.Tensor.Shape))
	if err != nil {
		return nil, err
	}
	for j := range sums {
		sums[j] = lengths[j] / sqrt(sums[j])
	}
	t.by = sums
	return sums, nil
}
