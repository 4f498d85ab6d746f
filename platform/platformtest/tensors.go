package platformtest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// must returns v; err cannot be set, because the arguments of the call are fixed.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// row returns a tensor of one dimension.
func row(values ...float32) *tensor.Tensor {
	return must(tensor.Of([]int64{int64(len(values))}, values))
}

// zeros returns a tensor of n zeros.
func zeros(n int) *tensor.Tensor { return row(make([]float32, n)...) }

// holds returns an error unless t has these elements.
func holds(what string, t *tensor.Tensor, want ...float32) error {
	got, err := tensor.Values[float32](t)
	return check(err == nil && slices.Equal(got, want), "%s = %v, %v; want %v", what, got, err, want)
}

// tensorRank is the environment of one rank in the tests of the tensor collectives of all
// ranks.
type tensorRank struct {
	context.Context
	platform.TensorComm
	me int
}

// tensors runs fn on every rank of a platform that has tensor collectives, and returns
// their errors, or nil.
func (e *env) tensors(fn func(r tensorRank) error) []error {
	if _, ok := capability[platform.TensorComms](e); !ok {
		return nil
	}
	return e.each(func(r rank) error {
		cs, err := platform.As[platform.TensorComms](r.Platform)
		if err != nil {
			return err
		}

		c, err := cs.TensorComm(r.world)
		if err != nil {
			return err
		}

		if again, err := cs.TensorComm(r.world); err != nil || again != c {
			return fmt.Errorf("TensorComm, again = %v, %v; want the same", again, err)
		}
		if c.Rank() != r.me || c.Size() != e.size() {
			return fmt.Errorf("tensor collectives of rank %d of %d; want %d of %d", c.Rank(), c.Size(), r.me, e.size())
		}
		return fn(tensorRank{r, c, r.me})
	})
}

// mustTensors runs fn on every rank and ends the test if one returns an error.
func (e *env) mustTensors(fn func(r tensorRank) error) {
	e.Helper()
	for r, err := range e.tensors(fn) {
		if err != nil {
			e.Fatalf("rank %d: %v", r, err)
		}
	}
}

// tensorsFail runs fn on every rank and checks that all get the same error.
func (e *env) tensorsFail(what string, target error, fn func(r tensorRank) error) {
	e.Helper()
	errs := e.tensors(fn)
	for r, err := range errs {
		if !errors.Is(err, target) || err.Error() != errs[0].Error() {
			e.Errorf("%s: rank %d got %v, rank 0 %v; want one error that wraps %q", what, r, err, errs[0], target)
		}
	}
}

func testAllReduce(e *env) {
	n := float32(e.size())
	e.mustTensors(func(r tensorRank) (err error) {
		for _, k := range []struct {
			op   platform.ReduceOp
			want float32
		}{{collective.Sum, n * (n + 1) / 2}, {collective.Max, n}, {collective.Min, 1}, {collective.Avg, (n + 1) / 2}} {
			t, later := row(float32(r.me+1), 0), row(0, float32(r.me+1))
			w := r.AllReduceAsync(r, later, k.op)
			err = errors.Join(err, r.AllReduce(r, t, k.op), w.Wait(r),
				holds(k.op.String(), t, k.want, 0), holds(k.op.String()+", async", later, 0, k.want))
		}
		return err
	})
}

func testReduceScatter(e *env) {
	n := e.size()
	e.mustTensors(func(r tensorRank) error {
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(10*i + r.me)
		}
		src, dst, later := row(values...), row(0), row(0)
		return errors.Join(
			r.ReduceScatter(r, dst, src, collective.Sum),
			r.ReduceScatterAsync(r, later, src, collective.Max).Wait(r),
			holds("sum", dst, float32(10*r.me*n+n*(n-1)/2)), holds("max", later, float32(10*r.me+n-1)))
	})
}

func testAllGatherTensors(e *env) {
	n := e.size()
	e.mustTensors(func(r tensorRank) error {
		dst, later, src := zeros(2*n), zeros(2*n), row(float32(r.me), -1)
		var want []float32
		for i := range n {
			want = append(want, float32(i), -1)
		}
		return errors.Join(r.AllGather(r, dst, src), r.AllGatherAsync(r, later, src).Wait(r),
			holds("all-gather", dst, want...), holds("async", later, want...))
	})

	for what, size := range map[string]int{"too small a destination": 2*n - 1, "too large a destination": 2*n + 1} {
		e.tensorsFail(what, tensor.ErrShape, func(r tensorRank) error { return r.AllGather(r, zeros(size), row(1, 2)) })
	}
}

func testAllToAll(e *env) {
	n := e.size()
	e.mustTensors(func(r tensorRank) error {
		// Equal parts: element i of rank k goes to element k of rank i.
		dst, values, want := zeros(n), make([]float32, n), make([]float32, n)
		for i := range n {
			values[i], want[i] = float32(10*r.me+i), float32(10*i+r.me)
		}

		src := row(values...)
		err := errors.Join(r.AllToAll(r, dst, src, platform.Splits{}), holds("even", dst, want...))

		// All rows go to the last rank.
		in, out := make([]int64, n), make([]int64, n)
		in[n-1] = int64(n)
		got, want := row(), []float32{}
		if r.me == n-1 {
			got = zeros(n * n)
			for k := range n * n {
				out[k/n] = int64(n)
				want = append(want, float32(10*(k/n)+k%n))
			}
		}

		return errors.Join(err, r.AllToAllAsync(r, got, src, platform.Splits{In: in, Out: out}).Wait(r),
			holds("all rows of all ranks", got, want...))
	})
}

// Each rank sends r+1 elements to rank r, in two tensors, of which one is a column.
func testAllToAllParts(e *env) {
	n := e.size()
	e.mustTensors(func(r tensorRank) error {
		dst, src := make([][]*tensor.Tensor, n), make([][]*tensor.Tensor, n)
		for i := range n {
			wide := must(tensor.Full(tensor.Float32, []int64{int64(i), 2}, float32(r.me)))
			column := must(wide.Narrow(tensor.Box{Offsets: []int64{0, 1}, Sizes: []int64{int64(i), 1}}))
			src[i] = []*tensor.Tensor{row(float32(10*r.me + i)), column}
			dst[i] = []*tensor.Tensor{zeros(1), zeros(r.me)}
		}

		err := r.AllToAllParts(r, dst, src)
		for i := range n {
			err = errors.Join(err, holds("first part", dst[i][0], float32(10*i+r.me)),
				holds("column", dst[i][1], slices.Repeat([]float32{float32(i)}, r.me)...))
		}

		return err
	})

	e.tensorsFail("parts of too many ranks", tensor.ErrShape, func(r tensorRank) error {
		return r.AllToAllParts(r, make([][]*tensor.Tensor, n+1), make([][]*tensor.Tensor, n+1))
	})
}

func testBroadcastTensor(e *env) {
	for root := range e.size() {
		e.mustTensors(func(r tensorRank) error {
			t, later := row(float32(r.me), 1), row(float32(r.me), 2)
			return errors.Join(r.Broadcast(r, t, root), r.BroadcastAsync(r, later, root).Wait(r),
				holds("broadcast", t, float32(root), 1), holds("async", later, float32(root), 2))
		})
	}
	e.tensorsFail("a root out of range", group.ErrInvalid, func(r tensorRank) error {
		return r.Broadcast(r, row(1), e.size())
	})
}

func testTensorMessages(e *env) {
	if e.size() < 2 {
		return
	}
	e.mustTensors(func(r tensorRank) error {
		to, from := (r.me+1)%e.size(), (r.me+e.size()-1)%e.size()
		a, b := row(0, 0), row(0)
		later := r.IRecv(r, b, from, 1)
		sent := r.ISend(r, row(float32(r.me), 5), to, 0)
		err := errors.Join(
			r.Recv(r, a, from, 0), r.Send(r, row(float32(-r.me)), to, 1),
			later.Wait(r), sent.Wait(r))
		<-later.Done()
		return errors.Join(err, holds("tag 0", a, float32(from), 5), holds("tag 1", b, float32(-from)))
	})
}

// After an interruption all ranks renew the tensor collectives.
func testRenew(e *env) {
	if e.size() < 2 {
		return
	}
	e.mustTensors(func(r tensorRank) error {
		ended, cancel := context.WithCancel(r)
		defer cancel()

		if r.me == 0 {
			cancel()
		}

		broken := wraps("all-reduce that rank 0 has cancelled", r.AllReduce(ended, row(1), collective.Sum), collective.ErrBroken)
		fresh, err := r.Renew(r)
		if err != nil {
			return err
		}

		t := row(1)
		return errors.Join(broken, fresh.AllReduce(r, t, collective.Sum), holds("renewed", t, float32(e.size())))
	})
}
