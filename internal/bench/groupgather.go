package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/group/tcp"
)

// GroupGather is the gathering of large values from many ranks, which are
// goroutines with connections of their own. Rates are in 10^9 bytes a second of
// what rank 0 gets; the floor is as many bytes by 8 plain connections to it.
type GroupGather struct {
	Ranks   int     `json:"ranks"`
	Bytes   int     `json:"bytes_per_rank"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"gbs"`
	Floor   float64 `json:"floor_gbs"`
	Ratio   float64 `json:"ratio"`
	// Hops is how many connections a byte crosses in the mean. Between hosts they
	// work side by side; here all are this machine's work.
	Hops float64 `json:"hops"`
}

// arity is how many ranks stand below one by default, and so how many
// connections rank 0 is sent values by.
const arity = 8

// gatherMany takes the figure, ours and the floor's in turn.
func gatherMany(ctx context.Context, o GroupOptions) (*GroupGather, error) {
	n := o.GatherRanks
	if n < 2 {
		return nil, fmt.Errorf("%d ranks: want at least two", n)
	}
	floor, err := newFunnel(arity, (n-1)*o.GatherBytes)
	if err != nil {
		return nil, err
	}
	defer floor.close()
	var ours, floors []time.Duration
	value := make([]byte, o.GatherBytes)
	err = onRoutines(ctx, n, func(ctx context.Context, g *tcp.Group) error {
		for i := range o.Repeat + 1 {
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			took, err := timed(func() error { return gatherOnce(ctx, g, value) })
			if err != nil {
				return err
			}
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			if g.Rank() != 0 {
				continue
			}
			plain, err := timed(floor.move)
			if err != nil {
				return err
			}
			if i > 0 { // the first round warms up
				ours, floors = append(ours, took), append(floors, plain)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	total := int64(n-1) * int64(o.GatherBytes)
	r := &GroupGather{
		Ranks: n, Bytes: o.GatherBytes, Seconds: median(ours).Seconds(),
		Rate: gbs(total, median(ours)), Floor: gbs(total, median(floors)),
	}
	r.Ratio = r.Rate / r.Floor
	for rank := 1; rank < n; rank++ {
		for at := rank; at > 0; at = (at - 1) / arity {
			r.Hops += 1 / float64(n-1)
		}
	}
	return r, nil
}

func gatherOnce(ctx context.Context, g *tcp.Group, value []byte) error {
	vs, err := g.Gather(ctx, 0, value)
	if err != nil || g.Rank() != 0 {
		return err
	}
	for r, v := range vs {
		if len(v) != len(value) {
			return fmt.Errorf("value of rank %d has %d bytes, not %d", r, len(v), len(value))
		}
	}
	return nil
}

// funnel is plain connections to one reader.
type funnel struct {
	ln       net.Listener
	in, out  []net.Conn
	from, to [][]byte // memory for each connection
}

// newFunnel opens connections that move so many bytes in all, in even parts.
func newFunnel(conns, total int) (f *funnel, err error) {
	f = new(funnel)
	if f.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	for i := range conns {
		var out, in net.Conn
		if out, err = net.Dial("tcp", f.ln.Addr().String()); err == nil {
			f.out = append(f.out, out)
			in, err = f.ln.Accept()
		}
		if err != nil {
			f.close()
			return nil, err
		}
		part := total*(i+1)/conns - total*i/conns
		f.in = append(f.in, in)
		f.from, f.to = append(f.from, make([]byte, part)), append(f.to, make([]byte, part))
	}
	return f, nil
}

// move moves the bytes once.
func (f *funnel) move() error {
	var all errgroup.Group
	for i := range f.in {
		all.Go(func() error { _, err := f.out[i].Write(f.from[i]); return err })
		all.Go(func() error { _, err := io.ReadFull(f.in[i], f.to[i]); return err })
	}
	return all.Wait()
}

func (f *funnel) close() {
	f.ln.Close()
	for _, c := range f.in {
		c.Close()
	}
	for _, c := range f.out {
		c.Close()
	}
}
