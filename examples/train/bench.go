package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform/host"
)

// runBench prints the rate of the matrix products of a training step beside the rate that
// the same products reach alone. The two take turns, so that a busy machine slows both.
func runBench(ctx context.Context) error {
	c := config{
		sizes: sizes{Layers: 5, Heads: 4, Width: 128, Time: 64, Batch: 16},
		grid:  grid{Data: 1, Tensor: 1, Kind: replicated},
		Rate:  1e-3, Clip: 1,
	}
	j, err := newJob(ctx, host.New(group.Solo()), c)
	if err != nil {
		return err
	}

	params := int64(0)
	for _, p := range j.model.Params() {
		params += p.Local().NumElements()
	}

	list := products(c.sizes)
	flops := 0.0
	for _, p := range list {
		flops += 2 * float64(p.m) * float64(p.n) * float64(p.k) * float64(p.times)
	}

	const rounds = 10
	var training, alone time.Duration
	for step := range rounds + 1 {
		begin := time.Now()
		if _, err := j.step(ctx, step); err != nil {
			return err
		}
		middle := time.Now()
		for _, p := range list {
			p.run()
		}
		if step > 0 { // the first round warms up
			training += middle.Sub(begin)
			alone += time.Since(middle)
		}
	}

	rate := func(d time.Duration) float64 { return flops * rounds / d.Seconds() / 1e9 }
	fmt.Printf("parameters       %d\n", params)
	fmt.Printf("tokens           %.0f/s\n", float64(c.Batch*c.Time*rounds)/training.Seconds())
	fmt.Printf("training         %.2f GFLOP/s of matrix products\n", rate(training))
	fmt.Printf("products alone   %.2f GFLOP/s\n", rate(alone))
	fmt.Printf("ratio            %.2f (goal: 0.50 or more)\n", rate(training)/rate(alone))
	return j.close(ctx)
}

// gemm is a matrix product that a step computes several times: [m k] by [k n].
type gemm struct {
	ta, tb  blas.Transpose
	m, n, k int
	times   int
	apart   bool // each is computed by one goroutine, as for heads
	a, b, c []float32
}

// products returns the matrix products of a step.
func products(s sizes) []gemm {
	var out []gemm
	add := func(ta, tb blas.Transpose, m, n, k, times int, apart bool) {
		g := gemm{ta, tb, m, n, k, times, apart, make([]float32, m*k), make([]float32, k*n), make([]float32, m*n)}
		for _, x := range [][]float32{g.a, g.b} {
			for i := range x {
				x[i] = rand.Float32()
			}
		}
		out = append(out, g)
	}
	// linear is a layer: the forward pass, and the gradients of its input and its weight.
	linear := func(in, width, times int) {
		rows := s.Batch * s.Time
		add(blas.NoTrans, blas.Trans, rows, width, in, times, false)
		add(blas.NoTrans, blas.NoTrans, rows, in, width, times, false)
		add(blas.Trans, blas.NoTrans, width, in, rows, times, false)
	}
	linear(s.Width, s.Width, 4*s.Layers)
	linear(s.Width, 4*s.Width, s.Layers)
	linear(4*s.Width, s.Width, s.Layers)
	linear(s.Width, symbols, 1)
	heads, size := s.Layers*s.Batch*s.Heads, s.Width/s.Heads
	add(blas.NoTrans, blas.Trans, s.Time, s.Time, size, 2*heads, true)   // weights; their gradient
	add(blas.NoTrans, blas.NoTrans, s.Time, size, s.Time, 2*heads, true) // values; gradient of the queries
	add(blas.Trans, blas.NoTrans, s.Time, size, s.Time, 2*heads, true)   // gradients of keys and values
	return out
}

// run computes the products by gonum alone.
func (g gemm) run() {
	one := func(c []float32) {
		lda, ldb := g.k, g.n
		if g.ta == blas.Trans {
			lda = g.m
		}
		if g.tb == blas.Trans {
			ldb = g.k
		}
		gonum.Implementation{}.Sgemm(g.ta, g.tb, g.m, g.n, g.k, 1, g.a, lda, g.b, ldb, 0, c, g.n)
	}
	if !g.apart {
		for range g.times {
			one(g.c)
		}
		return
	}
	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wg.Go(func() {
			c := make([]float32, len(g.c))
			for range g.times*(w+1)/workers - g.times*w/workers {
				one(c)
			}
		})
	}
	wg.Wait()
}
