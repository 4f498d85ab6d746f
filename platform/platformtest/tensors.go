package platformtest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/collective"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/tensor"
)

// row returns a tensor of one dimension.
func row(values ...float32) *tensor.Tensor {
	t, err := tensor.Of([]int64{int64(len(values))}, values)
	if err != nil {
		panic(err) // one dimension of as many values
	}
	return t
}

// holds returns an error unless t has these elements.
func holds(what string, t *tensor.Tensor, want ...float32) error {
	got, err := tensor.Values[float32](t)
	if err != nil || !slices.Equal(got, want) {
		return fmt.Errorf("%s = %v, %v; want %v", what, got, err, want)
	}
	return nil
}

// tensorFunc is what one rank does with the tensor collectives of all ranks.
type tensorFunc func(ctx context.Context, c platform.TensorComm, rank int) error

// tensors runs fn on every rank of a platform that has tensor collectives.
func (e *env) tensors(fn tensorFunc) {
	e.Helper()
	if !supports[platform.TensorComms](e) {
		return
	}
	e.must(func(ctx context.Context, p platform.Platform) error {
		cs, err := platform.As[platform.TensorComms](p)
		if err != nil {
			return err
		}
		c, err := cs.TensorComm(p.World())
		if err != nil {
			return err
		}
		if again, err := cs.TensorComm(p.World()); err != nil || again != c {
			return fmt.Errorf("TensorComm, again = %v, %v; want the same", again, err)
		}
		return fn(ctx, c, p.World().Rank())
	})
}

func testAllReduce(e *env) {
	n := float32(e.size())
	e.tensors(func(ctx context.Context, c platform.TensorComm, rank int) error {
		for _, k := range []struct {
			op   platform.ReduceOp
			want float32
		}{{collective.Sum, n * (n + 1) / 2}, {collective.Max, n}, {collective.Min, 1}, {collective.Avg, (n + 1) / 2}} {
			t, later := row(float32(rank+1), 0), row(0, float32(rank+1))
			w := c.AllReduceAsync(ctx, later, k.op)
			if err := errors.Join(c.AllReduce(ctx, t, k.op), w.Wait(ctx)); err != nil {
				return err
			}
			if err := errors.Join(holds(k.op.String(), t, k.want, 0), holds(k.op.String()+", async", later, 0, k.want)); err != nil {
				return err
			}
		}
		return nil
	})
}

func testReduceScatter(e *env) {
	n := e.size()
	e.tensors(func(ctx context.Context, c platform.TensorComm, rank int) error {
		src := row(make([]float32, n)...)
		for i := range n {
			if err := tensor.Copy(at(src, i), row(float32(10*i+rank))); err != nil {
				return err
			}
		}
		dst, later := row(0), row(0)
		err := errors.Join(
			c.ReduceScatter(ctx, dst, src, collective.Sum),
			c.ReduceScatterAsync(ctx, later, src, collective.Max).Wait(ctx),
		)
		ranks := n * (n - 1) / 2 // all of them added up
		return errors.Join(err, holds("sum", dst, float32(10*rank*n+ranks)), holds("max", later, float32(10*rank+n-1)))
	})
}

// at returns element i of a tensor of one dimension, sharing its memory.
func at(t *tensor.Tensor, i int) *tensor.Tensor {
	e, err := t.Slice(0, int64(i), int64(i+1), 1)
	if err != nil {
		panic(err) // i is one of its indices
	}
	return e
}

func testAllGatherTensors(e *env) {
	e.tensors(func(ctx context.Context, c platform.TensorComm, rank int) error {
		dst, later := row(make([]float32, 2*e.size())...), row(make([]float32, 2*e.size())...)
		src := row(float32(rank), -1)
		err := errors.Join(c.AllGather(ctx, dst, src), c.AllGatherAsync(ctx, later, src).Wait(ctx))
		var want []float32
		for r := range e.size() {
			want = append(want, float32(r), -1)
		}
		return errors.Join(err, holds("all-gather", dst, want...), holds("async", later, want...))
	})
	for what, n := range map[string]int{"too small a destination": 2*e.size() - 1, "too large a destination": 2*e.size() + 1} {
		e.tensorsFail(what, tensor.ErrShape, func(ctx context.Context, c platform.TensorComm, rank int) error {
			return c.AllGather(ctx, row(make([]float32, n)...), row(1, 2))
		})
	}
}

// tensorsFail runs fn on every rank and checks that all get the same error.
func (e *env) tensorsFail(what string, target error, fn tensorFunc) {
	e.Helper()
	errs := make([]error, e.size())
	e.tensors(func(ctx context.Context, c platform.TensorComm, rank int) error {
		errs[rank] = fn(ctx, c, rank)
		return nil
	})
	for r, err := range errs {
		if supports[platform.TensorComms](e) && (!errors.Is(err, target) || err.Error() != errs[0].Error()) {
			e.Errorf("%s: rank %d got %v; want what rank 0 got, %v, and that it wraps %q", what, r, err, errs[0], target)
		}
	}
}

func testAllToAll(e *env) {
	n := e.size()
	e.tensors(func(ctx context.Context, c platform.TensorComm, rank int) error {
		// Even parts: element r of rank s goes to element s of rank r.
		src, dst := row(make([]float32, n)...), row(make([]float32, n)...)
		var want []float32
		for r := range n {
			if err := tensor.Copy(at(src, r), row(float32(10*rank+r))); err != nil {
				return err
			}
			want = append(want, float32(10*r+rank))
		}
		err := c.AllToAll(ctx, dst, src, platform.Splits{})
		if err := errors.Join(err, holds("even", dst, want...)); err != nil {
			return err
		}
		// All rows to the last rank.
		in, out := make([]int64, n), make([]int64, n)
		in[n-1] = int64(n)
		got, want := row(), []float32{}
		if rank == n-1 {
			got = row(make([]float32, n*n)...)
			for r := range out {
				out[r] = int64(n)
				for i := range n {
					want = append(want, float32(10*r+i))
				}
			}
		}
		err = c.AllToAllAsync(ctx, got, src, platform.Splits{In: in, Out: out}).Wait(ctx)
		return errors.Join(err, holds("all rows of all ranks", got, want...))
	})
}

func testBroadcastTensor(e *env) {
	for root := range e.size() {
		e.tensors(func(ctx context.Context, c platform.TensorComm, rank int) error {
			t, later := row(float32(rank), 1), row(float32(rank), 2)
			err := errors.Join(c.Broadcast(ctx, t, root), c.BroadcastAsync(ctx, later, root).Wait(ctx))
			return errors.Join(err, holds("broadcast", t, float32(root), 1), holds("async", later, float32(root), 2))
		})
	}
	e.tensorsFail("a root that is not there", group.ErrInvalid, func(ctx context.Context, c platform.TensorComm, rank int) error {
		return c.Broadcast(ctx, row(1), e.size())
	})
}

func testTensorMessages(e *env) {
	if e.size() < 2 {
		return // no other rank
	}
	e.tensors(func(ctx context.Context, c platform.TensorComm, rank int) error {
		to, from := (rank+1)%e.size(), (rank+e.size()-1)%e.size()
		a, b := row(0, 0), row(0)
		later := c.IRecv(ctx, b, from, 1)
		sent := c.ISend(ctx, row(float32(rank), 5), to, 0)
		err := errors.Join(
			c.Recv(ctx, a, from, 0), c.Send(ctx, row(float32(-rank)), to, 1),
			later.Wait(ctx), sent.Wait(ctx),
		)
		<-later.Done()
		return errors.Join(err, holds("tag 0", a, float32(from), 5), holds("tag 1", b, float32(-from)))
	})
}

// After an interruption the tensor collectives are renewed by all ranks.
func testRenew(e *env) {
	if e.size() < 2 {
		return // no other rank
	}
	e.tensors(func(ctx context.Context, c platform.TensorComm, rank int) error {
		ended, cancel := context.WithCancel(ctx)
		if rank == 0 {
			cancel()
		}
		defer cancel()
		if err := c.AllReduce(ended, row(1), collective.Sum); !errors.Is(err, collective.ErrBroken) {
			return fmt.Errorf("all-reduce that rank 0 has cancelled = %v; want ErrBroken", err)
		}
		fresh, err := c.Renew(ctx)
		if err != nil {
			return err
		}
		t := row(1)
		return errors.Join(fresh.AllReduce(ctx, t, collective.Sum), holds("renewed", t, float32(e.size())))
	})
}
