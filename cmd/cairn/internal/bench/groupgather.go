package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tree"
)

// GroupGather is the gathering of large values from many ranks, which are
// goroutines with connections of their own. Rates are in 10^9 bytes a second of
// what rank 0 gets; the floor is as many bytes by as many plain connections to it
// as there are from ranks right below it in a large group.
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

// gatherMany takes the figure, ours and the floor's in turn.
func gatherMany(ctx context.Context, o GroupOptions) (*GroupGather, error) {
	n := o.GatherRanks
	if n < 2 {
		return nil, fmt.Errorf("%d ranks: want at least two", n)
	}
	total := (n - 1) * o.GatherBytes
	floor, err := newFunnel(tree.DefaultArity, total)
	if err != nil {
		return nil, err
	}
	defer floor.close()
	d := &gatherDuel{value: make([]byte, o.GatherBytes), floor: floor}
	err = onRoutines(ctx, n, func(ctx context.Context, g *tcp.Group) error {
		return d.rounds(ctx, g, o.Repeat)
	})
	if err != nil {
		return nil, err
	}
	r := &GroupGather{
		Ranks: n, Bytes: o.GatherBytes, Seconds: median(d.ours).Seconds(), Hops: meanHops(n),
		Rate: gbs(int64(total), median(d.ours)), Floor: gbs(int64(total), median(d.floors)),
	}
	r.Ratio = r.Rate / r.Floor
	return r, nil
}

// gatherDuel times gathers, and after each the floor.
type gatherDuel struct {
	value        []byte // of every rank
	floor        *funnel
	ours, floors []time.Duration // rank 0's to append to
}

// rounds is one rank's part.
func (d *gatherDuel) rounds(ctx context.Context, g *tcp.Group, repeat int) error {
	for i := range repeat + 1 {
		took, err := d.gather(ctx, g)
		if err != nil {
			return err
		}
		if g.Rank() != 0 {
			continue
		}
		plain, err := timed(d.floor.move)
		if err != nil {
			return err
		}
		if i > 0 { // the first round warms up
			d.ours, d.floors = append(d.ours, took), append(d.floors, plain)
		}
	}
	return nil
}

// gather times one gather, with barriers around it.
func (d *gatherDuel) gather(ctx context.Context, g *tcp.Group) (time.Duration, error) {
	if err := g.Barrier(ctx); err != nil {
		return 0, err
	}
	took, err := timed(func() error { return gatherOnce(ctx, g, d.value) })
	if err != nil {
		return 0, err
	}
	return took, g.Barrier(ctx)
}

// meanHops returns how many connections stand between rank 0 and another one of n
// ranks in the mean.
func meanHops(n int) float64 {
	hops := 0
	for rank := 1; rank < n; rank++ {
		for at := rank; at > 0; at = (at - 1) / tree.DefaultArity {
			hops++
		}
	}
	return float64(hops) / float64(n-1)
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
