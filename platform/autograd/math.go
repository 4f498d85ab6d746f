package autograd

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/cairn-ckpt/cairn/tensor"
)

// float is a type in which operators compute.
type float interface{ float32 | float64 }

// GradDType returns the dtype of the gradients of variables of dtype d, in which operators
// on them compute: float64 for float64, and float32 for float32, bfloat16 and float16.
// Variables of other dtypes have no gradients: [tensor.Invalid].
func GradDType(d tensor.DType) tensor.DType {
	switch d {
	case tensor.Float64:
		return tensor.Float64
	case tensor.Float32, tensor.BFloat16, tensor.Float16:
		return tensor.Float32
	}
	return tensor.Invalid
}

// isFloat reports whether variables of the dtype can have gradients.
func isFloat(d tensor.DType) bool { return GradDType(d) != tensor.Invalid }

// pick returns the function that computes with elements of dtype d.
func pick[T any](d tensor.DType, single, double T) T {
	if GradDType(d) == tensor.Float64 {
		return double
	}
	return single
}

// checkArithmetic returns an error unless the operands are floating-point numbers that have
// one arithmetic.
func checkArithmetic(in []*Var) error {
	first := in[0].data.DType()
	for _, v := range in {
		switch d := v.data.DType(); {
		case !isFloat(d):
			return fmt.Errorf("operators do not compute with %v: cast it to a floating-point dtype by tensor.Cast: %w", d, tensor.ErrDType)
		case GradDType(d) != GradDType(first):
			return fmt.Errorf("operands of %v and %v: cast one of them by Graph.Cast: %w", first, d, tensor.ErrDType)
		}
	}

	return nil
}

// values returns the elements of t: its own memory if t is a contiguous tensor of F, and a
// copy otherwise.
func values[F float](t *tensor.Tensor) []F {
	if v, err := tensor.Values[F](t); err == nil {
		return v
	}

	c, err := tensor.Cast(t, tensor.DTypeOf[F]())
	if err != nil {
		panic(err) // every dtype that isFloat names can be cast
	}

	v, err := tensor.Values[F](c.Clone())
	if err != nil {
		panic(err)
	}
	return v
}

// zeros returns a tensor of zeros. The shape is the shape of a tensor that exists, or a
// product of such shapes.
func zeros[F float](shape ...int64) *tensor.Tensor { return zerosOf(tensor.DTypeOf[F](), shape) }

func zerosLike[F float](t *tensor.Tensor) *tensor.Tensor { return zeros[F](t.Shape()...) }

func zerosOf(d tensor.DType, shape []int64) *tensor.Tensor {
	t, err := tensor.New(d, slices.Clone(shape))
	if err != nil {
		panic(err)
	}
	return t
}

// zeroGrad returns a gradient of zeros for the first operand.
func zeroGrad(p *Pass) *tensor.Tensor { return zerosOf(p.Grad.DType(), p.Shapes[0]) }

// view returns the memory of t, which is contiguous, in another shape of as many
// elements.
func view(t *tensor.Tensor, shape ...int64) *tensor.Tensor {
	b, ok := t.Bytes()
	if !ok {
		b, _ = t.Clone().Bytes()
	}
	v, err := tensor.FromBytes(t.DType(), slices.Clone(shape), b)
	if err != nil {
		panic(err)
	}
	return v
}

func sameShape(a, b *tensor.Tensor) error {
	if !slices.Equal(a.Shape(), b.Shape()) {
		return fmt.Errorf("%v and %v: %w", a.Shape(), b.Shape(), ErrShape)
	}
	return nil
}

// grain is the number of elements from which on a loop is worth a goroutine.
const grain = 1 << 14

// each calls f with disjoint ranges that cover [0, n), in parallel if n is large.
func each(n int, f func(lo, hi int)) { parallel(n, grain, f) }

// parallel calls f with disjoint ranges of at least least numbers that cover [0, n). The
// results must not depend on the ends of the ranges.
func parallel(n, least int, f func(lo, hi int)) {
	workers := min(runtime.GOMAXPROCS(0), n/max(least, 1))
	if workers < 2 {
		f(0, n)
		return
	}

	var wg sync.WaitGroup
	for w := range workers {
		lo, hi := n*w/workers, n*(w+1)/workers
		wg.Go(func() { f(lo, hi) })
	}

	wg.Wait()
}

// mat is a matrix in row-major memory, with stride elements from row to row.
type mat[F float] struct {
	data       []F
	rows, cols int
	stride     int
	trans      bool
}

func matrix[F float](data []F, rows, cols int) mat[F] { return mat[F]{data, rows, cols, cols, false} }

// t returns the transposed matrix, over the same memory.
func (m mat[F]) t() mat[F] {
	m.trans = !m.trans
	return m
}

// multiply computes c = alpha a b + beta c. c is not transposed, and is zero if beta is 0;
// otherwise beta is 1.
func multiply[F float](alpha F, a, b mat[F], beta F, c mat[F]) {
	ta, tb := blas.NoTrans, blas.NoTrans
	k := a.cols
	if a.trans {
		ta, k = blas.Trans, a.rows
	}
	if b.trans {
		tb = blas.Trans
	}

	if k == 0 { // gonum panics. c is zero if beta is 0.
		return
	}

	switch z := any(c.data).(type) {
	case []float32:
		x, y := any(a.data).([]float32), any(b.data).([]float32)
		gonum.Implementation{}.Sgemm(ta, tb, c.rows, c.cols, k, float32(alpha), x, max(1, a.stride), y, max(1, b.stride), float32(beta), z, max(1, c.stride))
	case []float64:
		x, y := any(a.data).([]float64), any(b.data).([]float64)
		gonum.Implementation{}.Dgemm(ta, tb, c.rows, c.cols, k, float64(alpha), x, max(1, a.stride), y, max(1, b.stride), float64(beta), z, max(1, c.stride))
	}
}

// sumRows adds the rows of a matrix of len(out) columns to out.
func sumRows[F float](out, m []F) {
	n := len(out)
	if n == 0 {
		return
	}

	parallel(n, max(16, grain*n/max(1, len(m))), func(lo, hi int) {
		for at := 0; at < len(m); at += n {
			row := m[at : at+n]
			for i := lo; i < hi; i++ {
				out[i] += row[i]
			}
		}
	})
}
