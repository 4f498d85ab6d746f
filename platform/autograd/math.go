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

// isFloat reports whether variables of the dtype can have gradients.
func isFloat(d tensor.DType) bool {
	return d == tensor.Float32 || d == tensor.BFloat16 || d == tensor.Float16
}

// floats returns the elements of t: its own memory if t is a contiguous float32 tensor,
// and a copy otherwise.
func floats(t *tensor.Tensor) []float32 {
	if v, err := tensor.Values[float32](t); err == nil {
		return v
	}
	c, err := tensor.Cast(t, tensor.Float32)
	if err != nil {
		panic(err) // every dtype that isFloat names can be cast
	}
	v, err := tensor.Values[float32](c.Clone())
	if err != nil {
		panic(err)
	}
	return v
}

// empty returns a float32 tensor of zeros. The shape is the shape of a tensor that
// exists, or a product of such shapes.
func empty(shape ...int64) *tensor.Tensor {
	t, err := tensor.New(tensor.Float32, slices.Clone(shape))
	if err != nil {
		panic(err)
	}
	return t
}

func like(t *tensor.Tensor) *tensor.Tensor { return empty(t.Shape()...) }

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

// parallel calls f with disjoint ranges of at least least numbers that cover [0, n). What
// f computes must not depend on where the ranges end.
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
type mat struct {
	data       []float32
	rows, cols int
	stride     int
	trans      bool
}

func matrix(data []float32, rows, cols int) mat { return mat{data, rows, cols, cols, false} }

// t returns the transposed matrix, over the same memory.
func (m mat) t() mat {
	m.trans = !m.trans
	return m
}

// multiply computes c = alpha a b + beta c. c is not transposed, and is zero if beta is 0;
// otherwise beta is 1.
func multiply(alpha float32, a, b mat, beta float32, c mat) {
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
	gonum.Implementation{}.Sgemm(ta, tb, c.rows, c.cols, k, alpha, a.data, max(1, a.stride), b.data, max(1, b.stride), beta, c.data, max(1, c.stride))
}

// sumRows adds the rows of a matrix of len(out) columns to out.
func sumRows(out, m []float32) {
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
