package autograd

import (
	"fmt"
	"io/fs"
	"math"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Add returns a + b. b has the shape of a, or the end of this shape; b is then repeated.
func (g *Graph) Add(a, b *Var) *Var {
	return pick(a.dtype(), add[float32], add[float64])(g, a, b)
}

func add[F float](g *Graph, a, b *Var) *Var {
	return g.Apply(Op{
		Name: "add", In: []*Var{a, b}, Aliases: true, arithmetic: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			out, err := elementwise(a, b, func(out, x, y []F) {
				for i := range out {
					out[i] = x[i] + y[i]
				}
			})
			return out, nil, err
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			grads := []*tensor.Tensor{p.Grad, nil}
			if p.Need[1] {
				grads[1] = fold[F](p.Grad, p.Shapes[1])
			}
			return grads, nil
		},
	})
}

// Mul returns the products of the elements of a and b. b has the shape of a, or the
// end of this shape; b is then repeated.
func (g *Graph) Mul(a, b *Var) *Var {
	return pick(a.dtype(), mul[float32], mul[float64])(g, a, b)
}

func mul[F float](g *Graph, a, b *Var) *Var {
	return g.Apply(Op{
		Name: "mul", In: []*Var{a, b}, arithmetic: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			out, err := elementwise(a, b, func(out, x, y []F) {
				for i := range out {
					out[i] = x[i] * y[i]
				}
			})
			return out, []*tensor.Tensor{a.data, b.data}, err
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			x, y, d := values[F](p.Saved[0]), values[F](p.Saved[1]), values[F](p.Grad)
			grads := make([]*tensor.Tensor, 2)
			if p.Need[0] {
				grads[0] = zerosLike[F](p.Grad)
				repeat(values[F](grads[0]), d, y, func(out, d, y []F) {
					for i := range out {
						out[i] = d[i] * y[i]
					}
				})
			}

			if p.Need[1] {
				dy := zerosLike[F](p.Grad)
				repeat(values[F](dy), d, x, func(out, d, x []F) {
					for i := range out {
						out[i] = d[i] * x[i]
					}
				})
				grads[1] = fold[F](dy, p.Shapes[1])
			}

			return grads, nil
		},
	})
}

// elementwise applies f to the elements of a and b.
func elementwise[F float](a, b *Var, f func(out, x, y []F)) (*tensor.Tensor, error) {
	if extra := len(a.Shape()) - len(b.Shape()); extra < 0 || !slices.Equal(a.Shape()[extra:], b.Shape()) {
		return nil, fmt.Errorf("%v and %v: %w", a.Shape(), b.Shape(), ErrShape)
	}
	out := zerosLike[F](a.data)
	repeat(values[F](out), values[F](a.data), values[F](b.data), f)
	return out, nil
}

// repeat calls f with parts of equal length of out, x and y. The length of y divides the
// other lengths.
func repeat[F float](out, x, y []F, f func(out, x, y []F)) {
	if len(y) == 0 {
		return
	}

	n := len(y)
	if n == len(out) {
		each(n, func(lo, hi int) { f(out[lo:hi], x[lo:hi], y[lo:hi]) })
		return
	}

	parallel(len(out)/n, max(1, grain/n), func(lo, hi int) {
		for i := lo * n; i < hi*n; i += n {
			f(out[i:i+n], x[i:i+n], y)
		}
	})
}

// fold sums the gradient of a repeated operand to the operand's shape.
func fold[F float](grad *tensor.Tensor, shape []int64) *tensor.Tensor {
	if slices.Equal(grad.Shape(), shape) {
		return grad
	}
	out := zeros[F](shape...)
	sumRows(values[F](out), values[F](grad))
	return out
}

// Scale returns x times a constant.
func (g *Graph) Scale(x *Var, by float64) *Var {
	return pick(x.dtype(), scale[float32], scale[float64])(g, x, by)
}

func scale[F float](g *Graph, x *Var, by float64) *Var {
	times := func(t *tensor.Tensor) *tensor.Tensor {
		out := zerosLike[F](t)
		dst, src := values[F](out), values[F](t)
		each(len(dst), func(lo, hi int) {
			for i := lo; i < hi; i++ {
				dst[i] = src[i] * F(by)
			}
		})
		return out
	}
	return g.Apply(Op{
		Name: "scale", In: []*Var{x}, arithmetic: true,
		Forward:  func() (*tensor.Tensor, []*tensor.Tensor, error) { return times(x.data), nil, nil },
		Backward: func(p *Pass) ([]*tensor.Tensor, error) { return []*tensor.Tensor{times(p.Grad)}, nil },
	})
}

// Sum returns the sum of all elements, of shape [].
func (g *Graph) Sum(x *Var) *Var {
	return pick(x.dtype(), sum[float32], sum[float64])(g, x)
}

func sum[F float](g *Graph, x *Var) *Var {
	return g.Apply(Op{
		Name: "sum", In: []*Var{x}, arithmetic: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			sum := 0.0
			for _, v := range values[F](x.data) {
				sum += float64(v)
			}
			out := zeros[F]()
			values[F](out)[0] = F(sum)
			return out, nil, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			out := zeros[F](p.Shapes[0]...)
			dst, d := values[F](out), values[F](p.Grad)[0]
			for i := range dst {
				dst[i] = d
			}
			return []*tensor.Tensor{out}, nil
		},
	})
}

// MatMul returns the matrix product of a and b: of [m k] and [k n], or of as many pairs of
// matrices as the leading dimensions, equal in both, have.
func (g *Graph) MatMul(a, b *Var) *Var {
	return pick(a.dtype(), matMul[float32], matMul[float64])(g, a, b)
}

func matMul[F float](g *Graph, a, b *Var) *Var {
	dims := len(a.Shape())
	return g.Apply(Op{
		Name: "matmul", In: []*Var{a, b}, arithmetic: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			sa, sb := a.Shape(), b.Shape()
			if dims < 2 || len(sb) != dims || !slices.Equal(sa[:dims-2], sb[:dims-2]) || sa[dims-1] != sb[dims-2] {
				return nil, nil, fmt.Errorf("%v times %v: %w", sa, sb, ErrShape)
			}
			out := zeros[F](append(slices.Clone(sa[:dims-1]), sb[dims-1])...)
			x, y, z := matrices[F](a.data), matrices[F](b.data), matrices[F](out)
			batch(z, func(i int) { multiply(1, x[i], y[i], 0, z[i]) })
			return out, []*tensor.Tensor{a.data, b.data}, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			x, y, d := matrices[F](p.Saved[0]), matrices[F](p.Saved[1]), matrices[F](p.Grad)
			grads := make([]*tensor.Tensor, 2)
			if p.Need[0] {
				grads[0] = zeros[F](p.Saved[0].Shape()...)
				dx := matrices[F](grads[0])
				batch(dx, func(i int) { multiply(1, d[i], y[i].t(), 0, dx[i]) })
			}
			if p.Need[1] {
				grads[1] = zeros[F](p.Saved[1].Shape()...)
				dy := matrices[F](grads[1])
				batch(dy, func(i int) { multiply(1, x[i].t(), d[i], 0, dy[i]) })
			}

			return grads, nil
		},
	})
}

// matrices returns the matrices that the last two dimensions of t hold.
func matrices[F float](t *tensor.Tensor) []mat[F] {
	s, f := t.Shape(), values[F](t)
	rows, cols := int(s[len(s)-2]), int(s[len(s)-1])
	n := 1
	for _, d := range s[:len(s)-2] {
		n *= int(d)
	}

	out := make([]mat[F], n)
	for i := range out {
		out[i] = matrix(f[i*rows*cols:(i+1)*rows*cols], rows, cols)
	}

	return out
}

// batch calls f for every matrix, in parallel if there are several.
func batch[F float](m []mat[F], f func(i int)) {
	parallel(len(m), 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			f(i)
		}
	})
}

// Linear returns x wᵀ + b: x is [... k], w is [n k], b is [n] or nil, and the result is
// [... n].
func (g *Graph) Linear(x, w, b *Var) *Var {
	return pick(x.dtype(), linear[float32], linear[float64])(g, x, w, b)
}

func linear[F float](g *Graph, x, w, b *Var) *Var {
	in := []*Var{x, w}
	if b != nil {
		in = append(in, b)
	}

	return g.Apply(Op{
		Name: "linear", In: in, arithmetic: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			sx, sw := x.Shape(), w.Shape()
			last := len(sx) - 1
			if last < 0 || len(sw) != 2 || sx[last] != sw[1] || b != nil && !slices.Equal(b.Shape(), sw[:1]) {
				return nil, nil, fmt.Errorf("%v by %v: %w", sx, sw, ErrShape)
			}

			out := zeros[F](append(slices.Clone(sx[:last]), sw[0])...)
			n, k := int(sw[0]), int(sw[1])
			rows := product(sx[:last])
			y := values[F](out)
			if b != nil {
				bias := values[F](b.data)
				for i := range rows {
					copy(y[i*n:], bias)
				}
			}

			multiply(1, matrix(values[F](x.data), rows, k), matrix(values[F](w.data), n, k).t(), 1, matrix(y, rows, n))
			return out, []*tensor.Tensor{x.data, w.data}, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			sw := p.Saved[1].Shape()
			n, k := int(sw[0]), int(sw[1])
			rows := product(p.Saved[0].Shape()) / max(1, k)
			d := matrix(values[F](p.Grad), rows, n)
			grads := make([]*tensor.Tensor, len(p.Need))
			if p.Need[0] {
				grads[0] = zerosLike[F](p.Saved[0])
				multiply(1, d, matrix(values[F](p.Saved[1]), n, k), 1, matrix(values[F](grads[0]), rows, k))
			}

			if p.Need[1] {
				grads[1] = zerosLike[F](p.Saved[1])
				multiply(1, d.t(), matrix(values[F](p.Saved[0]), rows, k), 1, matrix(values[F](grads[1]), n, k))
			}
			if len(p.Need) == 3 && p.Need[2] {
				grads[2] = zeros[F](sw[0])
				sumRows(values[F](grads[2]), d.data)
			}

			return grads, nil
		},
	})
}

func product(shape []int64) int {
	n := 1
	for _, d := range shape {
		n *= int(d)
	}
	return n
}

// Embedding returns the rows of w, a matrix, that ids, int64 numbers, name. The shape is
// the shape of ids, followed by the length of a row.
func (g *Graph) Embedding(w *Var, ids *tensor.Tensor) *Var {
	return pick(w.dtype(), embedding[float32], embedding[float64])(g, w, ids)
}

func embedding[F float](g *Graph, w *Var, ids *tensor.Tensor) *Var {
	return g.Apply(Op{
		Name: "embedding", In: []*Var{w}, arithmetic: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			s := w.Shape()
			at, err := indices(ids)
			if err != nil {
				return nil, nil, err
			}

			if len(s) != 2 {
				return nil, nil, fmt.Errorf("rows of %v: %w", s, ErrShape)
			}

			out := zeros[F](append(slices.Clone(ids.Shape()), s[1])...)
			dst, src, n := values[F](out), values[F](w.data), int(s[1])
			for i, id := range at {
				if id < 0 || id >= s[0] {
					return nil, nil, fmt.Errorf("row %d of %d: %w", id, s[0], ErrShape)
				}
				copy(dst[i*n:(i+1)*n], src[int(id)*n:])
			}

			return out, []*tensor.Tensor{ids}, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			at, err := tensor.Values[int64](p.Saved[0])
			if err != nil {
				return nil, err
			}

			out := zeros[F](p.Shapes[0]...)
			dst, d, n := values[F](out), values[F](p.Grad), int(p.Shapes[0][1])
			for i, id := range at {
				row := dst[int(id)*n : (int(id)+1)*n]
				for j, v := range d[i*n : (i+1)*n] {
					row[j] += v
				}
			}

			return []*tensor.Tensor{out}, nil
		},
	})
}

// indices returns the numbers that name rows or classes.
func indices(t *tensor.Tensor) ([]int64, error) {
	if t == nil {
		return nil, fmt.Errorf("no numbers: %w", ErrShape)
	}
	return tensor.Values[int64](t)
}

// GELU returns x Φ(x), with the approximation of Φ by tanh.
func (g *Graph) GELU(x *Var) *Var {
	return pick(x.dtype(), gelu[float32], gelu[float64])(g, x)
}

func gelu[F float](g *Graph, x *Var) *Var {
	const c, cube = 0.7978845608028654, 0.044715 // √(2/π)
	return g.Apply(Op{
		Name: "gelu", In: []*Var{x}, arithmetic: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			out := zerosLike[F](x.data)
			dst, src := values[F](out), values[F](x.data)
			each(len(dst), func(lo, hi int) {
				for i := lo; i < hi; i++ {
					v := src[i]
					dst[i] = 0.5 * v * (1 + tanh(c*(v+cube*v*v*v)))
				}
			})
			return out, []*tensor.Tensor{x.data}, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			out := zerosLike[F](p.Grad)
			dst, src, d := values[F](out), values[F](p.Saved[0]), values[F](p.Grad)
			each(len(dst), func(lo, hi int) {
				for i := lo; i < hi; i++ {
					v := src[i]
					t := tanh(c * (v + cube*v*v*v))
					dst[i] = d[i] * (0.5*(1+t) + 0.5*v*(1-t*t)*c*(1+3*cube*v*v))
				}
			})
			return []*tensor.Tensor{out}, nil
		},
	})
}

// Dropout returns x with each element, with probability p, replaced by 0, and the others
// divided by 1-p. It is for training: leave it out to evaluate a model. The elements are
// chosen by [Graph.Rand]; the graph fails with [ErrSeed] if it has no seed, and with
// [fs.ErrInvalid] if p is not between 0 and 1.
func (g *Graph) Dropout(x *Var, p float32) *Var {
	return pick(x.dtype(), dropout[float32], dropout[float64])(g, x, p)
}

func dropout[F float](g *Graph, x *Var, p float32) *Var {
	by := 1 / (1 - F(p))
	mask := func(out, src, kept *tensor.Tensor) {
		dst, v, on := values[F](out), values[F](src), kept.Contents()
		each(len(dst), func(lo, hi int) {
			for i := lo; i < hi; i++ {
				if on[i] != 0 {
					dst[i] = v[i] * by
				}
			}
		})
	}
	return g.Apply(Op{
		Name: "dropout", In: []*Var{x}, arithmetic: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			if !(p >= 0 && p <= 1) {
				return nil, nil, fmt.Errorf("probability %v is not between 0 and 1: %w", p, fs.ErrInvalid)
			}
			if !g.seeded {
				return nil, nil, ErrSeed
			}

			kept, err := tensor.New(tensor.Bool, x.Shape())
			if err != nil {
				return nil, nil, err
			}

			random, on := g.Rand(), kept.Contents()
			for i := range on {
				if random.Float32() >= p {
					on[i] = 1
				}
			}

			out := zerosLike[F](x.data)
			mask(out, x.data, kept)
			return out, []*tensor.Tensor{kept}, nil
		},
		Backward: func(pass *Pass) ([]*tensor.Tensor, error) {
			out := zerosLike[F](pass.Grad)
			mask(out, pass.Grad, pass.Saved[0])
			return []*tensor.Tensor{out}, nil
		},
	})
}

func tanh[F float](x F) F { return F(math.Tanh(float64(x))) }
func exp[F float](x F) F  { return F(math.Exp(float64(x))) }

// LayerNorm shifts and scales each row of x, along the last dimension, to mean 0 and
// variance 1, and returns it times w plus b, both of that dimension's length.
func (g *Graph) LayerNorm(x, w, b *Var) *Var {
	return pick(x.dtype(), layerNorm[float32], layerNorm[float64])(g, x, w, b)
}

func layerNorm[F float](g *Graph, x, w, b *Var) *Var {
	const eps = 1e-5
	return g.Apply(Op{
		Name: "layernorm", In: []*Var{x, w, b}, arithmetic: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			s := x.Shape()
			if len(s) == 0 || !slices.Equal(w.Shape(), s[len(s)-1:]) || !slices.Equal(b.Shape(), w.Shape()) {
				return nil, nil, fmt.Errorf("rows of %v by %v and %v: %w", s, w.Shape(), b.Shape(), ErrShape)
			}

			n := int(s[len(s)-1])
			out, norm, scale := zerosLike[F](x.data), zerosLike[F](x.data), zeros[F](int64(product(s[:len(s)-1])))
			y, z, inv := values[F](out), values[F](norm), values[F](scale)
			src, gain, bias := values[F](x.data), values[F](w.data), values[F](b.data)
			rows(len(inv), n, func(r int) {
				row := src[r*n : (r+1)*n]
				mean, square := 0.0, 0.0
				for _, v := range row {
					mean += float64(v)
				}

				mean /= float64(n)
				for _, v := range row {
					square += (float64(v) - mean) * (float64(v) - mean)
				}

				inv[r] = F(1 / math.Sqrt(square/float64(n)+eps))
				for i, v := range row {
					h := (v - F(mean)) * inv[r]
					z[r*n+i] = h
					y[r*n+i] = h*gain[i] + bias[i]
				}
			})
			return out, []*tensor.Tensor{norm, scale, w.data}, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			z, inv, gain, d := values[F](p.Saved[0]), values[F](p.Saved[1]), values[F](p.Saved[2]), values[F](p.Grad)
			n := len(gain)
			dx, dw, db := zerosLike[F](p.Grad), zeros[F](int64(n)), zeros[F](int64(n))
			out := values[F](dx)
			rows(len(inv), n, func(r int) {
				dot, sum := 0.0, 0.0
				for i := range n {
					v := float64(d[r*n+i] * gain[i])
					sum += v
					dot += v * float64(z[r*n+i])
				}

				mean, along := F(sum/float64(n)), F(dot/float64(n))
				for i := range n {
					out[r*n+i] = inv[r] * (d[r*n+i]*gain[i] - mean - z[r*n+i]*along)
				}
			})

			sumRows(values[F](db), d)
			each(len(z), func(lo, hi int) {
				for i := lo; i < hi; i++ {
					z[i] *= d[i] // z is not needed after this
				}
			})
			sumRows(values[F](dw), z)
			return []*tensor.Tensor{dx, dw, db}, nil
		},
	})
}

// rows calls f for each of count rows of length elements.
func rows(count, length int, f func(r int)) {
	parallel(count, max(1, grain/max(1, length)), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			f(r)
		}
	})
}

// Reshape returns x in another shape of as many elements.
func (g *Graph) Reshape(x *Var, shape ...int64) *Var {
	return g.Apply(Op{
		Name: "reshape", In: []*Var{x}, Aliases: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			if n, err := tensor.NumElements(shape); err != nil || n != x.data.NumElements() {
				return nil, nil, fmt.Errorf("%v to %v: %w", x.Shape(), shape, ErrShape)
			}
			return view(x.data, shape...), nil, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{view(p.Grad, p.Shapes[0]...)}, nil
		},
	})
}

// Transpose returns x with dimensions a and b exchanged.
func (g *Graph) Transpose(x *Var, a, b int) *Var {
	return g.Apply(Op{
		Name: "transpose", In: []*Var{x},
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			t, err := x.data.Transpose(a, b)
			if err != nil {
				return nil, nil, err
			}
			return t.Clone(), nil, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			t, err := p.Grad.Transpose(a, b)
			if err != nil {
				return nil, err
			}
			return []*tensor.Tensor{t.Clone()}, nil
		},
	})
}

// Narrow returns the elements from lo to before hi of dimension dim.
func (g *Graph) Narrow(x *Var, dim int, lo, hi int64) *Var {
	return g.Apply(Op{
		Name: "narrow", In: []*Var{x},
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			t, err := x.data.Slice(dim, lo, hi, 1)
			if err != nil {
				return nil, nil, err
			}
			return t.Clone(), nil, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			out := zeroGrad(p)
			part, err := out.Slice(dim, lo, hi, 1)
			if err != nil {
				return nil, err
			}
			return []*tensor.Tensor{out}, tensor.Copy(part, p.Grad)
		},
	})
}

// Cat joins variables along dimension dim.
func (g *Graph) Cat(dim int, xs ...*Var) *Var {
	return g.Apply(Op{
		Name: "cat", In: xs,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			parts := make([]*tensor.Tensor, len(xs))
			for i, x := range xs {
				parts[i] = x.data
			}
			out, err := tensor.Cat(dim, parts...)
			return out, nil, err
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			grads := make([]*tensor.Tensor, len(p.Shapes))
			at := int64(0)
			for i, shape := range p.Shapes {
				end := at + shape[dim]
				part, err := p.Grad.Slice(dim, at, end, 1)
				if err != nil {
					return nil, err
				}
				grads[i], at = part.Clone(), end
			}

			return grads, nil
		},
	})
}

// Split cuts x along dimension 0 into parts of the given sizes, which add up to it. The
// parts share x's memory. In the backward pass their gradients are written into one tensor,
// however many parts there are.
func (g *Graph) Split(x *Var, sizes ...int64) []*Var {
	out := make([]*Var, len(sizes))
	end := int64(0)
	for _, n := range sizes {
		end += n
	}

	if x == nil || x.data == nil || len(x.Shape()) == 0 || end != x.Shape()[0] ||
		slices.ContainsFunc(sizes, func(n int64) bool { return n < 0 }) {
		v := g.Fail("split", fmt.Errorf("%v into %v: %w", x.Shape(), sizes, ErrShape))
		return slices.Repeat([]*Var{v}, len(sizes))
	}

	begin, whole := g.Mark(), x.edge()
	var sum *tensor.Tensor
	at := int64(0)
	for i, n := range sizes {
		lo, hi := at, at+n
		at = hi
		out[i] = g.Apply(Op{
			Name: "split", In: []*Var{x},
			Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
				part, err := x.data.Slice(0, lo, hi, 1)
				return part, nil, err
			},
			Backward: func(p *Pass) ([]*tensor.Tensor, error) {
				if sum == nil {
					sum = zeroGrad(p)
					p.After(begin, func() error {
						t := sum
						sum = nil // another backward pass may begin at other parts
						return p.engine.add(whole, t, true)
					})
				}

				part, err := sum.Slice(0, lo, hi, 1)
				if err != nil {
					return nil, err
				}
				return []*tensor.Tensor{nil}, tensor.Copy(part, p.Grad)
			},
		})
	}

	return out
}

// Cast converts the floating-point elements of x to another floating-point dtype. The graph
// fails with [tensor.ErrDType] if x has other elements, which [tensor.Cast] converts.
func (g *Graph) Cast(x *Var, d tensor.DType) *Var {
	from := x.dtype()
	return g.Apply(Op{
		Name: "cast", In: []*Var{x}, Aliases: GradDType(from) == GradDType(d),
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			if !isFloat(d) {
				return nil, nil, fmt.Errorf("cast to %v: %w", d, ErrGrad)
			}
			if !isFloat(from) {
				return nil, nil, fmt.Errorf("cast of %v: use tensor.Cast: %w", from, tensor.ErrDType)
			}
			out, err := tensor.Cast(x.data, d)
			return out, nil, err
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			grad, err := tensor.Cast(p.Grad, GradDType(from))
			return []*tensor.Tensor{grad}, err
		},
	})
}
