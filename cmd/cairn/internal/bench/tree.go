package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// TreeOptions configure a simulated job.
type TreeOptions struct {
	PlanOptions
	// Arity is the number of children of a rank. Zero: [tree.DefaultArity].
	Arity int
	// Self is a program with arguments that passes one more argument to [Child].
	Self []string
	// Log, if not nil, receives a line about each step.
	Log func(format string, args ...any)
}

// WithDefaults returns o with defaults for zero fields, except the numbers of
// ranks and tensors.
func (o TreeOptions) WithDefaults() TreeOptions {
	o.Arity = positive(o.Arity, tree.DefaultArity)
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	return o
}

// TreeResult is the cost of planning a save in messages, memory and time.
type TreeResult struct {
	Ranks   int `json:"ranks"`
	Tensors int `json:"tensors"`
	Items   int `json:"items"`
	Arity   int `json:"arity"`
	Depth   int `json:"depth"`
	// Links is the largest number of links of a rank.
	Links     int `json:"max_links"`
	WireBytes int `json:"wire_bytes_per_rank"`

	MessagesSent     TreeTraffic `json:"messages_sent"`
	MessagesReceived TreeTraffic `json:"messages_received"`
	BytesSent        TreeTraffic `json:"bytes_sent"`
	BytesReceived    TreeTraffic `json:"bytes_received"`

	// Seconds is the sum of the phases, from the time when all ranks have encoded
	// their plans until all have the outcome.
	Seconds float64            `json:"seconds"`
	Phases  map[string]float64 `json:"phases"`
	// Outside is the ranks' own work, which all do in parallel in a job and one
	// process does here.
	Outside map[string]float64 `json:"outside"`

	CoordinatorPeak int64 `json:"coordinator_peak_rss_bytes"`
	OthersPeak      int64 `json:"others_peak_rss_bytes"`
}

// TreeTraffic counts messages or bytes: the mean of all ranks, the maximum of all
// ranks except rank 0, and rank 0.
type TreeTraffic struct {
	Mean        float64 `json:"mean"`
	Max         int64   `json:"max"`
	Coordinator int64   `json:"coordinator"`
}

// Tree simulates the planning of a save by thousands of ranks: every rank makes
// its plan, rank 0 gathers all plans, makes the final plans and scatters them,
// with the steps, codecs, trees and planners of a save. Links are in memory. Rank
// 0 runs in this process and the others in a second one, so that the memory of
// rank 0 can be measured; its links are unix sockets.
func Tree(ctx context.Context, o TreeOptions) (*TreeResult, error) {
	if o.Ranks < 2 || o.Tensors < 1 {
		return nil, fmt.Errorf("%d ranks, %d tensors: want at least two ranks and one tensor", o.Ranks, o.Tensors)
	}
	o = o.WithDefaults()
	dir, err := os.MkdirTemp("", "cairn-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &simulation{TreeOptions: o, socket: filepath.Join(dir, "rank0")}
	return s.run(ctx, cancel)
}

// simulation is the side of rank 0.
type simulation struct {
	TreeOptions
	socket  string
	node    *tree.Node
	traffic traffic
	values  *valueConns
	times   map[string]time.Time
	sent    atomic.Int64 // size of rank 0's plan
}

func (s *simulation) run(ctx context.Context, cancel context.CancelCauseFunc) (*TreeResult, error) {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	s.values = &valueConns{t: &s.traffic}
	s.node = tree.New(0, s.Ranks, simulationEnd{s}, tree.Options{Arity: s.Arity})
	defer s.node.Close()
	defer s.values.closeAll()
	defer context.AfterFunc(ctx, s.values.closeAll)()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer ln.Close()
	wg.Go(func() { s.serve(ln) })
	resetPeakRSS()
	began := time.Now()
	job := childJob{Crowd: &crowdJob{PlanOptions: s.PlanOptions, Arity: s.Arity, Socket: s.socket}}
	others, err := job.start(ctx, s.Self)
	if err != nil {
		return nil, err
	}
	var report crowdReport
	told := make(chan *TreeResult, 1)
	wg.Go(func() {
		var r *TreeResult
		err := others.answer(&report, func() { r = s.counted(&report) })
		if err != nil {
			cancel(fmt.Errorf("process of the other ranks: %w", err))
		}
		told <- r
	})
	if err = s.coordinate(ctx); err != nil {
		cancel(err)
	}
	peak := PeakRSS()
	r := <-told
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	r.CoordinatorPeak = peak
	r.setTimes(began, s.times, &report)
	return r, nil
}

// serve accepts the links of rank 0's children.
func (s *simulation) serve(ln *net.UnixListener) {
	for {
		c, err := ln.AcceptUnix()
		if err != nil {
			return // closed
		}
		st := newStream(c)
		rank, purpose, err := st.peer()
		switch {
		case err != nil:
		case purpose == forValues:
			s.values.add(rank, st)
		default:
			err = s.node.Accept(rank, s.traffic.count(st))
		}
		if err != nil {
			c.Close()
		}
	}
}

// simulationEnd is the network as rank 0 sees it, which dials no rank.
type simulationEnd struct{ s *simulation }

func (e simulationEnd) Dial(_ context.Context, rank int) (tree.Conn, error) {
	return nil, fmt.Errorf("rank 0 dials rank %d: %w", rank, errors.ErrUnsupported)
}

func (e simulationEnd) Values([16]byte) tree.Values { return e.s.values }

// coordinate is rank 0's part in planning a save.
func (s *simulation) coordinate(ctx context.Context) error {
	codec := plan.NewSavePlanCodec()
	cache := new(plan.Cache)
	g := &timing{Group: s.node.World(), times: map[string]time.Time{}, sent: &s.sent}
	s.times = g.times
	_, err := group.ReduceScatter(ctx, g, "plan", codec, codec,
		func(context.Context) (*plan.SavePlan, error) {
			s.Log("%d ranks make their plans", s.Ranks)
			return cache.Local(localPlan(0, s.PlanOptions), options(0, s.PlanOptions))
		},
		func(_ context.Context, sent []*plan.SavePlan) ([]*plan.SavePlan, error) {
			g.note("decoded")
			s.Log("rank 0 has %d plans and makes the final ones", len(sent))
			out, _, err := cache.Global(sent, func(ps []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
				return plan.Global(ps, plan.LeastLoaded)
			})
			g.note("planned")
			return out, err
		})
	g.note("settled")
	return err
}

// counted returns the result without times.
func (s *simulation) counted(c *crowdReport) *TreeResult {
	n := float64(s.Ranks)
	all := func(sum, most, own int64) TreeTraffic { return TreeTraffic{float64(sum+own) / n, most, own} }
	t := &s.traffic
	return &TreeResult{
		Ranks: s.Ranks, Tensors: s.Tensors, Items: s.Ranks * s.Tensors, Arity: s.Arity, Depth: c.Depth,
		Links: int(max(c.Links, t.links.Load())), WireBytes: int(s.sent.Load()),
		MessagesSent:     all(c.Messages.Sent, c.Messages.MostSent, t.sent.Load()),
		MessagesReceived: all(c.Messages.Received, c.Messages.MostReceived, t.received.Load()),
		BytesSent:        all(c.Bytes.Sent, c.Bytes.MostSent, t.sentBytes.Load()),
		BytesReceived:    all(c.Bytes.Received, c.Bytes.MostReceived, t.receivedBytes.Load()),
		Phases:           map[string]float64{}, Outside: map[string]float64{}, OthersPeak: c.PeakRSS,
	}
}

// setTimes sets the times. Some of them come from the process of the other ranks.
func (r *TreeResult) setTimes(began time.Time, at map[string]time.Time, c *crowdReport) {
	if c.Arrived.Before(at["came"]) { // rank 0 itself was last
		c.Arrived = at["came"]
	}
	last := began
	for _, p := range []struct {
		to   map[string]float64
		name string
		end  time.Time
	}{
		{r.Outside, "local_plans", c.Arrived},
		{r.Phases, "gather", at["gathered"]}, {r.Phases, "decode", at["decoded"]}, {r.Phases, "plan", at["planned"]},
		{r.Phases, "encode", at["encoded"]}, {r.Phases, "scatter", c.Scattered},
		{r.Outside, "local_decode", c.Accepted},
		{r.Phases, "settle", at["settled"]},
	} {
		p.to[p.name] = p.end.Sub(last).Seconds()
		last = p.end
	}
	for _, s := range r.Phases {
		r.Seconds += s
	}
}

// timing is rank 0's group, which records the times of its calls.
type timing struct {
	group.Group
	times map[string]time.Time
	sent  *atomic.Int64
}

// note records the time of the first event with that name.
func (t *timing) note(name string) {
	if t.times[name].IsZero() {
		t.times[name] = time.Now().Round(0) // wall clock, to compare with the other process
	}
}

func (t *timing) Gather(ctx context.Context, root int, v []byte) ([][]byte, error) {
	t.note("came")
	t.sent.CompareAndSwap(0, int64(len(v)))
	vs, err := t.Group.Gather(ctx, root, v)
	t.note("gathered")
	return vs, err
}

func (t *timing) Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error) {
	t.note("encoded")
	return t.Group.Scatter(ctx, root, vs)
}

// crowdJob runs all ranks except rank 0.
type crowdJob struct {
	PlanOptions
	Arity int
	// Socket is the address of rank 0.
	Socket string
}

// crowdReport is the final report of the crowd. Times are of the wall clock,
// which both processes share.
type crowdReport struct {
	Arrived   time.Time // the last rank has encoded its plan
	Scattered time.Time // the last rank has received its part
	Accepted  time.Time // the last rank has decoded its part
	Items     int64     // in the final plans
	Depth     int
	Links     int64 // the largest number of a rank
	Messages  flow
	Bytes     flow
	PeakRSS   int64
}

// flow counts messages or bytes that ranks send and receive.
type flow struct {
	Sent, Received, MostSent, MostReceived int64
}

func (f *flow) add(sent, received int64) {
	f.Sent, f.Received = f.Sent+sent, f.Received+received
	f.MostSent, f.MostReceived = max(f.MostSent, sent), max(f.MostReceived, received)
}

// crowd has all ranks except rank 0. Their links are in memory, except those to
// rank 0.
type crowd struct {
	crowdJob
	mu      sync.Mutex   // held until all nodes exist
	nodes   []*tree.Node // by rank; nil for rank 0
	traffic []traffic
	values  []*valueConns
	above   []int // parent by rank
	slots   chan struct{}

	arrived, scattered, accepted atomic.Int64 // wall clock in nanoseconds
	items                        atomic.Int64
}

// run is the process of the crowd.
func (j *crowdJob) run(ctx context.Context, out io.Writer) error {
	// This process holds the plans of thousands of ranks, which would be on many
	// hosts. More frequent garbage collection avoids holding them twice.
	debug.SetGCPercent(25)
	c := &crowd{
		crowdJob: *j, nodes: make([]*tree.Node, j.Ranks), traffic: make([]traffic, j.Ranks), above: make([]int, j.Ranks),
		slots: make(chan struct{}, 2*runtime.GOMAXPROCS(0)),
	}
	c.values = make([]*valueConns, j.Ranks)
	for r := range c.values {
		c.values[r] = &valueConns{t: &c.traffic[r]}
	}
	all, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() {
		for _, v := range c.values {
			v.closeAll()
		}
	})()
	c.mu.Lock()
	for r := 1; r < j.Ranks; r++ {
		c.nodes[r] = tree.New(r, j.Ranks, crowdEnd{c, r}, tree.Options{Arity: j.Arity})
	}
	c.mu.Unlock()
	defer c.close()
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

// rank is one rank's part in planning a save. It does what a save does, except
// that it drops the final plan.
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
			c.slots <- struct{}{} // bounds the ranks that plan at the same time
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

// passing is a rank's group, which records the times of its calls.
type passing struct {
	group.Group
	crowd *crowd
	came  bool
}

func (p *passing) Gather(ctx context.Context, root int, v []byte) ([][]byte, error) {
	if !p.came {
		p.came = true
		latest(&p.crowd.arrived)
	} else { // the outcome of the rank
		latest(&p.crowd.accepted)
	}
	return p.Group.Gather(ctx, root, v)
}

func (p *passing) Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error) {
	v, err := p.Group.Scatter(ctx, root, vs)
	latest(&p.crowd.scattered)
	return v, err
}

// latest sets t to the current time unless t is later.
func latest(t *atomic.Int64) {
	now := time.Now().UnixNano()
	for {
		old := t.Load()
		if old >= now || t.CompareAndSwap(old, now) {
			return
		}
	}
}

// crowdEnd is the network of one rank of the crowd.
type crowdEnd struct {
	c    *crowd
	rank int
}

// Dial connects this rank to its parent: by the link that it returns, and by a
// connection for values.
func (e crowdEnd) Dial(ctx context.Context, rank int) (tree.Conn, error) {
	e.c.mu.Lock()
	e.c.above[e.rank] = rank
	e.c.mu.Unlock()
	if rank == 0 {
		values, err := e.dialCoordinator(ctx, forValues)
		if err != nil {
			return nil, err
		}
		e.c.values[e.rank].add(0, values)
		link, err := e.dialCoordinator(ctx, forFrames)
		if err != nil {
			return nil, err
		}
		return e.c.traffic[e.rank].count(link), nil
	}
	a, b := tree.Pipe(4)
	e.c.values[e.rank].add(rank, a)
	e.c.values[rank].add(e.rank, b)
	a, b = tree.Pipe(4)
	if err := e.c.nodes[rank].Accept(e.rank, e.c.traffic[rank].count(b)); err != nil {
		return nil, err
	}
	return e.c.traffic[e.rank].count(a), nil
}

// dialCoordinator connects this rank to rank 0.
func (e crowdEnd) dialCoordinator(ctx context.Context, purpose uint32) (*stream, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", e.c.Socket)
	if err != nil {
		return nil, err
	}
	s := newStream(conn.(*net.UnixConn))
	return s, s.introduce(e.rank, purpose)
}

func (e crowdEnd) Values([16]byte) tree.Values { return e.c.values[e.rank] }

// valueConns are the connections by which a rank exchanges large values with its
// neighbours. They serve one group, and last until closeAll is called.
type valueConns struct {
	t *traffic

	mu    sync.Mutex
	conns map[int]*valueConn // by rank; guarded by mu
}

type valueConn struct {
	tree.Conn
	mu sync.Mutex // held by the goroutine that writes
}

func (v *valueConns) add(rank int, c tree.Conn) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.conns == nil {
		v.conns = make(map[int]*valueConn)
	}
	v.conns[rank] = &valueConn{Conn: c}
}

func (v *valueConns) conn(rank int) (*valueConn, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if c := v.conns[rank]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("no connection for values with rank %d: %w", rank, io.ErrClosedPipe)
}

// Send hands b to a neighbour.
func (v *valueConns) Send(_ context.Context, to int, b []byte) error {
	c, err := v.conn(to)
	if err != nil {
		return err
	}
	v.t.countSent(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.WriteFrame(b)
}

// Recv returns the next message of a neighbour.
func (v *valueConns) Recv(_ context.Context, from int) ([]byte, error) {
	c, err := v.conn(from)
	if err != nil {
		return nil, err
	}
	b, err := c.ReadFrame()
	if err == nil {
		v.t.countReceived(b)
	}
	return b, err
}

// Close does nothing: the group is over when the simulation is.
func (v *valueConns) Close() {}

func (v *valueConns) closeAll() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range v.conns {
		c.Conn.Close()
	}
}

// traffic counts the messages and bytes of one rank.
type traffic struct {
	links                    atomic.Int64
	sent, received           atomic.Int64
	sentBytes, receivedBytes atomic.Int64
}

// counted is an end of a link that counts frames.
type counted struct {
	tree.Conn
	t *traffic
}

// count returns c with its frames counted in t, and counts the link.
func (t *traffic) count(c tree.Conn) tree.Conn {
	t.links.Add(1)
	return counted{c, t}
}

func (t *traffic) countSent(b []byte) {
	t.sent.Add(1)
	t.sentBytes.Add(int64(len(b)))
}

func (t *traffic) countReceived(b []byte) {
	t.received.Add(1)
	t.receivedBytes.Add(int64(len(b)))
}

func (c counted) WriteFrame(b []byte) error {
	c.t.countSent(b)
	return c.Conn.WriteFrame(b)
}

func (c counted) ReadFrame() ([]byte, error) {
	b, err := c.Conn.ReadFrame()
	if err == nil {
		c.t.countReceived(b)
	}
	return b, err
}

// The purposes of a connection between the two processes.
const (
	forFrames uint32 = iota
	forValues
)

// stream is a link between the coordinator's process and that of the others.
type stream struct {
	*net.UnixConn
	tree.FrameWriter
	r *bufio.Reader
}

func newStream(c *net.UnixConn) *stream {
	return &stream{c, tree.FrameWriter{W: c}, bufio.NewReaderSize(c, 64<<10)}
}

func (s *stream) ReadFrame() ([]byte, error) { return tree.ReadFrame(s.r, tree.MaxFrame) }

// introduce sends the rank of this end and the purpose of the connection as the
// first frame.
func (s *stream) introduce(rank int, purpose uint32) error {
	b := binary.LittleEndian.AppendUint32(nil, uint32(rank))
	return s.WriteFrame(binary.LittleEndian.AppendUint32(b, purpose))
}

// peer returns the rank of the other end and the purpose of the connection.
func (s *stream) peer() (rank int, purpose uint32, err error) {
	b, err := s.ReadFrame()
	if err != nil {
		return 0, 0, err
	}
	if len(b) != 8 {
		return 0, 0, fmt.Errorf("introduction of %d bytes: %w", len(b), tree.ErrFrame)
	}
	return int(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint32(b[4:]), nil
}
