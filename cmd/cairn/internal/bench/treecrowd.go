package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
	"github.com/cairn-ckpt/cairn/plan"
)

// crowdJob is to be all ranks but the coordinator.
type crowdJob struct {
	PlanOptions
	Arity int
	// Socket is where the coordinator waits for those right below it.
	Socket string
}

// crowdReport is what the crowd tells in the end. Times are those of the clock,
// which the coordinator's process has too.
type crowdReport struct {
	Arrived   time.Time // the last rank had made its plan and encoded it
	Scattered time.Time // the last rank had got its part
	Accepted  time.Time // the last rank had decoded it
	Items     int64     // in the plans that came back
	Depth     int
	Links     int64 // the most of one rank
	Messages  flow
	Bytes     flow
	PeakRSS   int64
}

// flow is how much of something ranks send and receive.
type flow struct {
	Sent, Received, MostSent, MostReceived int64
}

func (f *flow) add(sent, received int64) {
	f.Sent, f.Received = f.Sent+sent, f.Received+received
	f.MostSent, f.MostReceived = max(f.MostSent, sent), max(f.MostReceived, received)
}

// crowd are the ranks above 0 of a simulation, with links in memory, save for
// those to rank 0.
type crowd struct {
	crowdJob
	mu      sync.Mutex   // held until all nodes are there
	nodes   []*tree.Node // by rank; that of rank 0 is nil
	traffic []traffic
	above   []int // by rank
	slots   chan struct{}

	arrived, scattered, accepted atomic.Int64 // nanoseconds of the clock
	items                        atomic.Int64
}

// run is the process of the crowd.
func (j *crowdJob) run(ctx context.Context, out io.Writer) error {
	// The plans of thousands of ranks are here, which would be on as many hosts:
	// rather collect them often than hold them twice.
	debug.SetGCPercent(25)
	c := &crowd{
		crowdJob: *j, nodes: make([]*tree.Node, j.Ranks), traffic: make([]traffic, j.Ranks), above: make([]int, j.Ranks),
		slots: make(chan struct{}, 2*runtime.GOMAXPROCS(0)),
	}
	c.mu.Lock()
	for r := 1; r < j.Ranks; r++ {
		c.nodes[r] = tree.New(r, j.Ranks, crowdEnd{c, r}, tree.Options{Arity: j.Arity})
	}
	c.mu.Unlock()
	defer c.close()
	var all errgroup.Group
	for r := 1; r < j.Ranks; r++ {
		all.Go(func() error { return c.rank(ctx, r) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	return tell(out, c.report())
}

func (c *crowd) close() {
	var wg sync.WaitGroup
	for _, n := range c.nodes[1:] {
		wg.Go(func() { n.Close() })
	}
	wg.Wait()
}

func (c *crowd) report() *crowdReport {
	r := &crowdReport{
		Arrived: time.Unix(0, c.arrived.Load()), Scattered: time.Unix(0, c.scattered.Load()),
		Accepted: time.Unix(0, c.accepted.Load()), Items: c.items.Load(), PeakRSS: PeakRSS(),
	}
	for rank := 1; rank < c.Ranks; rank++ {
		t := &c.traffic[rank]
		r.Links = max(r.Links, t.links.Load())
		r.Messages.add(t.sent.Load(), t.received.Load())
		r.Bytes.add(t.sentBytes.Load(), t.receivedBytes.Load())
		depth := 0
		for at := rank; at > 0; at = c.above[at] {
			depth++
		}
		r.Depth = max(r.Depth, depth)
	}
	return r
}

// rank is one rank's part in the planning of a save. What it does is what a save
// does, except that the final plan is looked at and not kept.
func (c *crowd) rank(ctx context.Context, rank int) error {
	g := &passing{Group: c.nodes[rank].World(), crowd: c}
	codec := plan.NewSavePlanCodec()
	send := group.Func[*plan.SavePlan]{EncodeFunc: func(p *plan.SavePlan) ([]byte, error) {
		defer func() { <-c.slots }()
		return codec.Encode(p)
	}}
	accept := group.Func[int]{DecodeFunc: func(b []byte) (int, error) {
		c.slots <- struct{}{}
		defer func() { <-c.slots }()
		p, err := plan.NewSavePlanCodec().Decode(b)
		if err != nil {
			return 0, err
		}
		return len(p.Items), nil
	}}
	n, err := group.ReduceScatter(ctx, g, "plan", send, accept,
		func(context.Context) (*plan.SavePlan, error) {
			c.slots <- struct{}{} // as many at a time as there is a use for
			p, err := new(plan.Cache).Local(localPlan(rank, c.PlanOptions), options(rank, c.PlanOptions))
			if err != nil {
				<-c.slots
			}
			return p, err
		},
		func(context.Context, []*plan.SavePlan) ([]int, error) {
			return nil, fmt.Errorf("rank %d was taken for the coordinator", rank)
		})
	c.items.Add(int64(n))
	return err
}

// passing is a rank's group, which notes when the rank comes by.
type passing struct {
	group.Group
	crowd *crowd
	came  bool
}

func (p *passing) Gather(ctx context.Context, root int, v []byte) ([][]byte, error) {
	if !p.came {
		p.came = true
		latest(&p.crowd.arrived)
	} else { // how the rank fared
		latest(&p.crowd.accepted)
	}
	return p.Group.Gather(ctx, root, v)
}

func (p *passing) Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error) {
	v, err := p.Group.Scatter(ctx, root, vs)
	latest(&p.crowd.scattered)
	return v, err
}

// latest sets t to now, unless that is later already.
func latest(t *atomic.Int64) {
	now := time.Now().UnixNano()
	for {
		old := t.Load()
		if old >= now || t.CompareAndSwap(old, now) {
			return
		}
	}
}

// crowdEnd is the network as one rank of the crowd sees it.
type crowdEnd struct {
	c    *crowd
	rank int
}

// Dial connects this rank to the one above.
func (e crowdEnd) Dial(ctx context.Context, rank int) (tree.Conn, error) {
	e.c.mu.Lock()
	e.c.above[e.rank] = rank
	e.c.mu.Unlock()
	if rank == 0 {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", e.c.Socket)
		if err != nil {
			return nil, err
		}
		s := newStream(conn.(*net.UnixConn))
		return e.c.traffic[e.rank].count(s), s.introduce(e.rank)
	}
	a, b := tree.Pipe(4)
	if err := e.c.nodes[rank].Accept(e.rank, e.c.traffic[rank].count(b)); err != nil {
		return nil, err
	}
	return e.c.traffic[e.rank].count(a), nil
}
