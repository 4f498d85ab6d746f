package autograd

import (
	"fmt"
	"math"
	"slices"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Softmax returns the exponentials of x, scaled so that those along the last dimension
// sum to 1.
func (g *Graph) Softmax(x *Var) *Var {
	return pick(x.dtype(), softmaxOp[float32], softmaxOp[float64])(g, x)
}

func softmaxOp[F float](g *Graph, x *Var) *Var {
	return g.Apply(Op{
		Name: "softmax", In: []*Var{x}, arithmetic: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			s := x.Shape()
			if len(s) == 0 {
				return nil, nil, fmt.Errorf("rows of %v: %w", s, ErrShape)
			}
			out := zerosLike[F](x.data)
			copy(values[F](out), values[F](x.data))
			y, n := values[F](out), int(s[len(s)-1])
			rows(product(s[:len(s)-1]), n, func(r int) { softmax(y[r*n : (r+1)*n]) })
			return out, []*tensor.Tensor{out}, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			out := zerosLike[F](p.Grad)
			dst, y, d := values[F](out), values[F](p.Saved[0]), values[F](p.Grad)
			n := int(p.Shapes[0][len(p.Shapes[0])-1])
			copy(dst, d)
			rows(len(dst)/max(1, n), n, func(r int) { softmaxBack(dst[r*n:(r+1)*n], y[r*n:(r+1)*n]) })
			return []*tensor.Tensor{out}, nil
		},
	})
}

// softmax replaces the elements of a row by their softmax.
func softmax[F float](row []F) {
	if len(row) == 0 {
		return
	}

	top, sum := slices.Max(row), F(0)
	for i, v := range row {
		row[i] = exp(v - top)
		sum += row[i]
	}

	for i := range row {
		row[i] /= sum
	}
}

// softmaxBack replaces d, the gradient of the softmax y, by the gradient of its argument.
func softmaxBack[F float](d, y []F) {
	dot := F(0)
	for i, v := range d {
		dot += v * y[i]
	}
	for i, v := range d {
		d[i] = y[i] * (v - dot)
	}
}

// CausalAttention returns for each position of a sequence the weighted sum of its value and
// the earlier values. q, k and v are [batch, time, heads × size]; each head is a part of the
// last dimension.
func (g *Graph) CausalAttention(q, k, v *Var, heads int) *Var {
	return pick(q.dtype(), causalAttention[float32], causalAttention[float64])(g, q, k, v, heads)
}

func causalAttention[F float](g *Graph, q, k, v *Var, heads int) *Var {
	return g.Apply(Op{
		Name: "attention", In: []*Var{q, k, v}, arithmetic: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			s := q.Shape()
			if len(s) != 3 || !slices.Equal(s, k.Shape()) || !slices.Equal(s, v.Shape()) || heads < 1 || s[2]%int64(heads) != 0 {
				return nil, nil, fmt.Errorf("%d heads of %v, %v, %v: %w", heads, s, k.Shape(), v.Shape(), ErrShape)
			}

			a := attentionOf[F](s, heads)
			out, probs := zerosLike[F](q.data), zeros[F](s[0], int64(heads), s[1], s[1])
			fq, fk, fv, fo, fp := values[F](q.data), values[F](k.data), values[F](v.data), values[F](out), values[F](probs)
			a.each(func(i int) {
				w := a.weights(fp, i)
				multiply(a.scale(), a.head(fq, i), a.head(fk, i).t(), 0, w)
				for t := range a.time {
					softmax(w.data[t*a.time : t*a.time+t+1])
					clear(w.data[t*a.time+t+1 : (t+1)*a.time])
				}
				multiply(1, w, a.head(fv, i), 0, a.head(fo, i))
			})
			return out, []*tensor.Tensor{q.data, k.data, v.data, probs}, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			a := attentionOf[F](p.Shapes[0], heads)
			dq, dk, dv := zerosLike[F](p.Grad), zerosLike[F](p.Grad), zerosLike[F](p.Grad)
			fq, fk, fv, fp, d := values[F](p.Saved[0]), values[F](p.Saved[1]), values[F](p.Saved[2]), values[F](p.Saved[3]), values[F](p.Grad)
			gq, gk, gv := values[F](dq), values[F](dk), values[F](dv)
			a.each(func(i int) {
				w := a.weights(fp, i)
				dw := matrix(make([]F, a.time*a.time), a.time, a.time)
				multiply(1, w.t(), a.head(d, i), 0, a.head(gv, i))
				multiply(1, a.head(d, i), a.head(fv, i).t(), 0, dw)

				for t := range a.time {
					row := dw.data[t*a.time : (t+1)*a.time]
					softmaxBack(row[:t+1], w.data[t*a.time:t*a.time+t+1])
					clear(row[t+1:])
				}

				multiply(a.scale(), dw, a.head(fk, i), 0, a.head(gq, i))
				multiply(a.scale(), dw.t(), a.head(fq, i), 0, a.head(gk, i))
			})
			return []*tensor.Tensor{dq, dk, dv}, nil
		},
	})
}

// attention is the sizes of an attention.
type attention[F float] struct{ batch, time, heads, size int }

func attentionOf[F float](s []int64, heads int) attention[F] {
	return attention[F]{batch: int(s[0]), time: int(s[1]), heads: heads, size: int(s[2]) / heads}
}

func (a attention[F]) scale() F { return F(1 / math.Sqrt(float64(a.size))) }

// each calls f for each head of each sequence, unless heads have no elements.
func (a attention[F]) each(f func(i int)) {
	if a.time == 0 || a.size == 0 {
		return
	}
	parallel(a.batch*a.heads, 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			f(i)
		}
	})
}

// head returns the part of x, [batch, time, heads × size], of the i-th head of all
// sequences.
func (a attention[F]) head(x []F, i int) mat[F] {
	width := a.heads * a.size
	at := i/a.heads*a.time*width + i%a.heads*a.size
	end := at + (a.time-1)*width + a.size
	return mat[F]{x[at:end], a.time, a.size, width, false}
}

// weights returns the weights, [batch, heads, time, time], of the i-th head.
func (a attention[F]) weights(x []F, i int) mat[F] {
	n := a.time * a.time
	return matrix(x[i*n:(i+1)*n], a.time, a.time)
}

// CrossEntropy returns the mean over the rows of logits, [rows, classes], of the negative
// logarithm of the softmax of the class that targets, int64 numbers, name.
func (g *Graph) CrossEntropy(logits *Var, targets *tensor.Tensor) *Var {
	return pick(logits.dtype(), crossEntropy[float32], crossEntropy[float64])(g, logits, targets)
}

func crossEntropy[F float](g *Graph, logits *Var, targets *tensor.Tensor) *Var {
	return g.Apply(Op{
		Name: "crossentropy", In: []*Var{logits}, arithmetic: true,
		Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
			s := logits.Shape()
			class, err := indices(targets)
			if err != nil {
				return nil, nil, err
			}
			if len(s) != 2 || int64(len(class)) != s[0] || s[0] == 0 {
				return nil, nil, fmt.Errorf("%v for %d targets: %w", s, len(class), ErrShape)
			}

			n := int(s[1])
			probs, losses, out := zerosLike[F](logits.data), make([]float64, len(class)), zeros[F]()
			y := values[F](probs)
			copy(y, values[F](logits.data))

			for _, c := range class {
				if c < 0 || c >= s[1] {
					return nil, nil, fmt.Errorf("class %d of %d: %w", c, n, ErrShape)
				}
			}

			rows(len(class), n, func(r int) {
				row := y[r*n : (r+1)*n]
				top, sum := float64(slices.Max(row)), 0.0
				for _, v := range row {
					sum += math.Exp(float64(v) - top)
				}
				losses[r] = math.Log(sum) + top - float64(row[class[r]])
				softmax(row)
			})

			sum := 0.0
			for _, l := range losses {
				sum += l
			}

			values[F](out)[0] = F(sum / float64(len(losses)))
			return out, []*tensor.Tensor{probs, targets}, nil
		},
		Backward: func(p *Pass) ([]*tensor.Tensor, error) {
			class, err := tensor.Values[int64](p.Saved[1])
			if err != nil {
				return nil, err
			}

			out := zerosLike[F](p.Saved[0])
			dst, y, n := values[F](out), values[F](p.Saved[0]), int(p.Saved[0].Shape()[1])
			by := values[F](p.Grad)[0] / F(len(class))
			rows(len(class), n, func(r int) {
				for i := r * n; i < (r+1)*n; i++ {
					dst[i] = y[i] * by
				}
				dst[r*n+int(class[r])] -= by
			})
			return []*tensor.Tensor{out}, nil
		},
	})
}
