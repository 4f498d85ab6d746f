package collective_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// sockets returns the parts of n ranks that are connected by TCP, until the test
// is over.
func sockets(t testing.TB, n int, o *collective.Options) []*collective.Comm {
	t.Helper()
	cs := make([]*collective.Comm, n)
	for r, g := range tcptest.Meet(t, n, tcptest.ByFile(t, n)) {
		var err error
		if cs[r], err = collective.NewWith(g, o); err != nil {
			t.Fatal(err)
		}
	}
	return cs
}

func TestOverTCP(t *testing.T) {
	const n, count = 3, 300_000
	cs := sockets(t, n, &collective.Options{Piece: 64 << 10})
	for r, err := range parallel(n, func(r int) error {
		c := cs[r]
		for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
			for _, size := range []int{10, 10_000, count} {
				if err := tcpRound(t, c, d, size); err != nil {
					return fmt.Errorf("%d %v: %w", size, d, err)
				}
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	errs := parallel(n, func(r int) error {
		if r == 1 {
			return calls["from 0"](t.Context(), cs[r])
		}
		return calls["of 65536"](t.Context(), cs[r])
	})
	checkMismatch(t, "over TCP", 1, errs)
}

// tcpRound makes each call once.
func tcpRound(t *testing.T, c *collective.Comm, d tensor.DType, size int) error {
	n := c.Size()
	xs := make([]*tensor.Tensor, n)
	for r := range xs {
		xs[r] = numbers(t, d, r, size)
	}
	sum, all, part := xs[c.Rank()].Clone(), zeros(t, d, int64(n*size)), zeros(t, d, int64(size))
	shuffled := zeros(t, d, int64(n*size))
	one := xs[c.Rank()].Clone()
	works := []*collective.Work{
		c.AllReduceAsync(t.Context(), sum, collective.Sum),
		c.AllGatherAsync(t.Context(), all, xs[c.Rank()]),
		c.BroadcastAsync(t.Context(), one, 1),
	}
	for _, w := range works {
		if err := w.Wait(t.Context()); err != nil {
			return err
		}
	}
	if err := errors.Join(c.ReduceScatter(t.Context(), part, all, collective.Max), c.AllToAll(t.Context(), shuffled, all, collective.Splits{})); err != nil {
		return err
	}
	next, got := (c.Rank()+1)%n, zeros(t, d, int64(size))
	sent := c.ISend(t.Context(), xs[c.Rank()], next, 1)
	if err := errors.Join(c.Recv(t.Context(), got, (c.Rank()+n-1)%n, 1), sent.Wait(t.Context())); err != nil {
		return err
	}
	return errors.Join(
		same("sum", sum, reduced(t, collective.Sum, xs)), same("part", part, xs[c.Rank()]),
		same("broadcast", one, xs[1]), same("message", got, xs[(c.Rank()+n-1)%n]))
}

// Ranks that wait for a rank that closes fail.
func TestGoneOverTCP(t *testing.T) {
	cs := sockets(t, 3, nil)
	errs := parallel(3, func(r int) error {
		if r == 2 {
			return cs[r].Group().(*tcp.Group).Close()
		}
		return calls["of 65536"](t.Context(), cs[r])
	})
	errs[2] = errs[1]
	checkBroken(t, errs, group.ErrGone, 2)
}

// partCounter counts the messages that are sent from several places in memory.
type partCounter struct {
	*tcp.Group
	messages atomic.Int64
}

func (g *partCounter) SendParts(ctx context.Context, to, tag int, parts [][]byte) error {
	g.messages.Add(1)
	return g.Group.SendParts(ctx, to, tag, parts)
}

// Rows become columns: long rows are sent from where they are, short ones are copied first.
func TestAllToAllPartsInPlace(t *testing.T) {
	const n, rows = 2, 300
	groups := make([]*partCounter, n)
	for r, g := range tcptest.Meet(t, n, tcptest.ByFile(t, n)) {
		groups[r] = &partCounter{Group: g}
	}
	for _, cols := range []int64{2 * collective.ShortestRun / 4, 8} { // of both ranks
		for r, err := range parallel(n, func(r int) error {
			c := must.Value(collective.NewWith(groups[r], &collective.Options{Piece: 64 << 10}))
			dst := zeros(t, tensor.Float32, n*rows*cols/2)
			whole := must.Value(matrix(t, r, rows, cols))
			out, in := make([][]*tensor.Tensor, n), make([][]*tensor.Tensor, n)
			for to := range int64(n) {
				half := must.Value(whole.Slice(1, to*cols/2, (to+1)*cols/2, 1))
				part := must.Value(dst.Slice(0, to*rows*cols/2, (to+1)*rows*cols/2, 1))
				out[to], in[to] = []*tensor.Tensor{half}, []*tensor.Tensor{part}
			}
			if err := c.AllToAllParts(t.Context(), in, out); err != nil {
				return err
			}
			for from := range int64(n) {
				all := must.Value(matrix(t, int(from), rows, cols))
				want := must.Value(all.Slice(1, int64(r)*cols/2, int64(r+1)*cols/2, 1))
				if got := in[from][0].Contents(); !bytes.Equal(got, want.Contents()) {
					return fmt.Errorf("other elements from rank %d than it has sent", from)
				}
			}
			return nil
		}) {
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		}
		for r, g := range groups {
			if in := g.messages.Swap(0) > 0; in != (cols > 8) {
				t.Errorf("rank %d sends rows of %d elements in place: %v", r, cols/2, in)
			}
		}
	}
}

// matrix returns the matrix of a rank.
func matrix(t testing.TB, rank int, rows, cols int64) (*tensor.Tensor, error) {
	return tensor.FromBytes(tensor.Float32, []int64{rows, cols}, numbers(t, tensor.Float32, rank, int(rows*cols)).Contents())
}
