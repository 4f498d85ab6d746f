package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/cairn-ckpt/cairn/collective"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/tensor"
)

// GroupCollective is the throughput of a tensor collective between processes, in
// 10^9 bytes a second.
type GroupCollective struct {
	Op        string `json:"op"`
	Processes int    `json:"processes"`
	Bytes     int64  `json:"bytes"`
	// Rate is bytes of the tensor over time, Wire the bytes that have to cross
	// between the processes, all together, over time.
	Rate float64 `json:"gbs"`
	Wire float64 `json:"wire_gbs"`
	// Floor is the rate at which as many bytes cross by as many plain connections
	// between as many processes, from and into memory as large as the tensor;
	// Ratio is Wire over it.
	Floor float64 `json:"floor_wire_gbs"`
	Ratio float64 `json:"ratio"`
	// Cached is the same with memory that stays in a processor's cache: what
	// connections can do where nothing has to come from memory.
	Cached      float64 `json:"cached_wire_gbs"`
	CachedRatio float64 `json:"cached_ratio"`
}

// contest is a collective and its floors.
type contest struct {
	op            string
	run           func(context.Context) error
	check         float32 // what the tensor holds then
	send, receive int64   // of this rank by plain connections
	crossing      int64   // of all ranks
	took          [3][]time.Duration
}

// The turns of a round.
const (
	ours = iota
	plain
	cached
)

// throughput takes the figures of all collectives, which are the same on all
// ranks but for small differences.
func throughput(ctx context.Context, g *tcp.Group, j *rankJob) ([]GroupCollective, error) {
	comm, err := collective.New(g, nil)
	if err != nil {
		return nil, err
	}
	wires, err := newRing(ctx, g)
	if err != nil {
		return nil, err
	}
	defer wires.close()
	t, err := tensor.New(tensor.Float32, []int64{max(1, j.Bytes/4)})
	if err != nil {
		return nil, err
	}
	mem, _ := t.Bytes()
	wires.spare = bytes.Repeat([]byte{1}, len(mem))
	contests := newContests(comm, t)
	for i := range j.Repeat + 1 {
		for _, c := range contests {
			if err := c.round(ctx, g, wires, t, i); err != nil {
				return nil, fmt.Errorf("%s: %w", c.op, err)
			}
		}
	}
	var out []GroupCollective
	for _, c := range contests {
		wire := func(turn int) float64 { return gbs(c.crossing, median(c.took[turn])) }
		f := GroupCollective{
			Op: c.op, Processes: g.Size(), Bytes: t.NumBytes(),
			Rate: gbs(t.NumBytes(), median(c.took[ours])), Wire: wire(ours), Floor: wire(plain), Cached: wire(cached),
		}
		f.Ratio, f.CachedRatio = f.Wire/f.Floor, f.Wire/f.Cached
		out = append(out, f)
	}
	return out, nil
}

// newContests returns the collectives with what has to cross: in an all-reduce
// every rank sends and receives 2(n-1)/n of the tensor, in a broadcast every rank
// but the first receives it once and every one but the last sends it on.
func newContests(comm *collective.Comm, t *tensor.Tensor) []*contest {
	n, size := int64(comm.Size()), t.NumBytes()
	share := 2 * (n - 1) * size / n
	reduce := &contest{
		op: "all_reduce", send: share, receive: share, crossing: n * share, check: float32(n*(n+1)) / 2,
		run: func(ctx context.Context) error { return comm.AllReduce(ctx, t, collective.Sum) },
	}
	spread := &contest{
		op: "broadcast", send: size, receive: size, crossing: (n - 1) * size, check: 1,
		run: func(ctx context.Context) error { return comm.Broadcast(ctx, t, 0) },
	}
	if comm.Rank() == 0 {
		spread.receive = 0
	}
	if comm.Rank() == comm.Size()-1 {
		spread.send = 0
	}
	return []*contest{reduce, spread}
}

// round takes all figures once, each round another one first. The first round
// warms up.
func (c *contest) round(ctx context.Context, g group.Group, wires *ring, t *tensor.Tensor, i int) error {
	mem, _ := t.Bytes()
	small := min(len(mem), wireBuffer)
	for k := range len(c.took) {
		turn := (i + k) % len(c.took)
		run := c.run
		switch turn {
		case plain:
			run = func(context.Context) error { return wires.move(c.send, c.receive, mem, wires.spare) }
		case cached:
			run = func(context.Context) error { return wires.move(c.send, c.receive, mem[:small], wires.spare[:small]) }
		}
		fill(t, float32(g.Rank()+1))
		d, err := together(ctx, g, run)
		if err != nil {
			return err
		}
		if i > 0 {
			c.took[turn] = append(c.took[turn], d)
		}
		if turn != ours {
			continue
		}
		if err := holds(t, c.check); err != nil {
			return err
		}
	}
	return nil
}

// together returns how long fn takes until it is done on all ranks.
func together(ctx context.Context, g group.Group, fn func(context.Context) error) (time.Duration, error) {
	if err := g.Barrier(ctx); err != nil {
		return 0, err
	}
	return timed(func() error {
		if err := fn(ctx); err != nil {
			return err
		}
		return g.Barrier(ctx)
	})
}

// fill sets all elements of a float32 tensor.
func fill(t *tensor.Tensor, v float32) {
	mem, _ := t.Bytes()
	binary.LittleEndian.PutUint32(mem, math.Float32bits(v))
	for n := 4; n < len(mem); n *= 2 {
		copy(mem[n:], mem[:n])
	}
}

// holds returns an error unless some elements of t, the first and the last among
// them, are v.
func holds(t *tensor.Tensor, v float32) error {
	mem, _ := t.Bytes()
	n := len(mem) / 4
	for k := range 100 {
		i := (n - 1) * k / 99
		if got := math.Float32frombits(binary.LittleEndian.Uint32(mem[4*i:])); got != v {
			return fmt.Errorf("element %d of %d is %v, not %v", i, n, got, v)
		}
	}
	return nil
}
