package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
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

// DefaultArity is the number of children of a rank in a group.
const DefaultArity = tree.DefaultArity

// TreeOptions configure a simulated job.
type TreeOptions struct {
	PlanOptions
	// Arity is the number of children of a rank. Zero: [DefaultArity].
	Arity int
	// Self is a program with arguments that passes one more argument to [Child].
	Self []string
	Log  Log
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
	dir, err := os.MkdirTemp("", "cairn-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	job := treeJob{PlanOptions: o.PlanOptions, Arity: positive(o.Arity, DefaultArity), Socket: filepath.Join(dir, "rank0")}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: job.Socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	n := newNetwork(job, 0, 1)
	defer n.close()
	defer n.closeValues()
	defer context.AfterFunc(ctx, n.closeValues)()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer ln.Close()
	wg.Go(func() { n.ranks[0].serve(ln) })
	resetPeakRSS()
	began := time.Now()
	others, err := childJob{Tree: &job}.start(ctx, o.Self)
	if err != nil {
		return nil, err
	}
	var report treeReport
	answered := make(chan treeCounts, 1)
	wg.Go(func() {
		var own treeCounts
		if err := others.answer(&report, func() { own = n.counts() }); err != nil {
			cancel(fmt.Errorf("process of the other ranks: %w", err))
		}
		answered <- own
	})
	if err := n.ranks[0].coordinate(ctx, o.Log); err != nil {
		cancel(err)
	}
	peak := PeakRSS()
	own := <-answered
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	r := newTreeResult(&job, &own, &report)
	r.CoordinatorPeak, r.WireBytes = peak, n.ranks[0].planBytes
	r.setTimes(began, n.ranks[0].times, report.Times)
	return r, nil
}

// newTreeResult returns the result without times. own counts what rank 0 did.
func newTreeResult(j *treeJob, own *treeCounts, others *treeReport) *TreeResult {
	traffic := func(k int) TreeTraffic {
		return TreeTraffic{float64(others.Sum[k]+own.Sum[k]) / float64(j.Ranks), others.Most[k], own.Sum[k]}
	}
	return &TreeResult{
		Ranks: j.Ranks, Tensors: j.Tensors, Items: j.Ranks * j.Tensors, Arity: j.Arity, Depth: others.Depth,
		Links:        int(max(others.Links, own.Links)),
		MessagesSent: traffic(messagesSent), MessagesReceived: traffic(messagesReceived),
		BytesSent: traffic(bytesSent), BytesReceived: traffic(bytesReceived),
		Phases: map[string]float64{}, Outside: map[string]float64{}, OthersPeak: others.PeakRSS,
	}
}

// setTimes sets the times, from the events of rank 0 and the last events of the
// other ranks.
func (r *TreeResult) setTimes(began time.Time, own, others map[string]time.Time) {
	last := began
	for _, p := range []struct {
		to   map[string]float64
		name string
		end  time.Time
	}{
		{r.Outside, "local_plans", latest(own["gather"], others["gather"])},
		{r.Phases, "gather", own["gathered"]}, {r.Phases, "decode", own["decoded"]}, {r.Phases, "plan", own["planned"]},
		{r.Phases, "encode", own["scatter"]}, {r.Phases, "scatter", others["scattered"]},
		{r.Outside, "local_decode", others["gather again"]}, // of the outcomes
		{r.Phases, "settle", own["settled"]},
	} {
		p.to[p.name] = p.end.Sub(last).Seconds()
		last = p.end
	}
	for _, s := range r.Phases {
		r.Seconds += s
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// treeJob simulates some of the ranks. As the job of a process, these are all ranks
// except rank 0.
type treeJob struct {
	PlanOptions
	Arity  int
	Socket string // the address of rank 0
}

// treeReport is what the process of the other ranks reports: the last time of each
// event on a rank, of the wall clock, which both processes share.
type treeReport struct {
	treeCounts
	Times   map[string]time.Time
	PeakRSS int64
}

// treeCounts count the links and the traffic of some ranks: the sum of all, and the
// largest number of one.
type treeCounts struct {
	Depth     int
	Links     int64
	Sum, Most [4]int64
}

// The positions in counts of traffic.
const (
	messagesSent = iota
	messagesReceived
	bytesSent
	bytesReceived
)

// run is the process of the other ranks.
func (j *treeJob) run(ctx context.Context, out io.Writer) error {
	// This process holds the plans of thousands of ranks, which would be on many
	// hosts. More frequent garbage collection avoids holding them twice.
	debug.SetGCPercent(25)
	all, ctx := errgroup.WithContext(ctx)
	n := newNetwork(*j, 1, j.Ranks)
	defer n.close()
	defer context.AfterFunc(ctx, n.closeValues)()
	slots := make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	for _, r := range n.ranks[1:] {
		all.Go(func() error { return r.follow(ctx, slots) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	report := treeReport{treeCounts: n.counts(), Times: map[string]time.Time{}, PeakRSS: PeakRSS()}
	for _, r := range n.ranks[1:] {
		for event, at := range r.times {
			report.Times[event] = latest(report.Times[event], at)
		}
	}
	return tell(out, report)
}

// network has the ranks of a simulated job that run in this process. Their links are
// in memory, except those between rank 0 and its children.
type network struct {
	treeJob
	mu    sync.Mutex  // held until all ranks exist
	ranks []*treeRank // by rank; nil: it runs in the other process
}

// newNetwork returns a network with the ranks from first to end-1.
func newNetwork(j treeJob, first, end int) *network {
	n := &network{treeJob: j, ranks: make([]*treeRank, j.Ranks)}
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := first; i < end; i++ {
		r := &treeRank{net: n, rank: i, times: map[string]time.Time{}, conns: map[int]*valueConn{}}
		r.node = tree.New(i, j.Ranks, r, tree.Options{Arity: j.Arity})
		n.ranks[i] = r
	}
	return n
}

// each calls fn for every rank of this process.
func (n *network) each(fn func(*treeRank)) {
	for _, r := range n.ranks {
		if r != nil {
			fn(r)
		}
	}
}

func (n *network) close() {
	var wg sync.WaitGroup
	n.each(func(r *treeRank) { wg.Go(func() { r.node.Close() }) })
	wg.Wait()
}

func (n *network) closeValues() {
	n.each(func(r *treeRank) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, c := range r.conns {
			c.Conn.Close()
		}
	})
}

func (n *network) counts() treeCounts {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out treeCounts
	n.each(func(r *treeRank) {
		out.Links = max(out.Links, r.links.Load())
		for k := range r.traffic {
			out.Sum[k] += r.traffic[k].Load()
			out.Most[k] = max(out.Most[k], r.traffic[k].Load())
		}
		depth := 0
		for at := r.rank; at > 0; at = n.ranks[at].parent {
			depth++
		}
		out.Depth = max(out.Depth, depth)
	})
	return out
}

// treeRank is a simulated rank, and the network as its node sees it.
type treeRank struct {
	net     *network
	rank    int
	node    *tree.Node
	parent  int // guarded by net.mu
	links   atomic.Int64
	traffic [4]atomic.Int64

	// Only the goroutine of the rank uses these.
	times     map[string]time.Time
	planBytes int

	mu    sync.Mutex
	conns map[int]*valueConn // by rank; guarded by mu
}

var (
	_ tree.Network = (*treeRank)(nil)
	_ tree.Values  = (*treeRank)(nil)
)

// coordinate is rank 0's part in planning a save.
func (r *treeRank) coordinate(ctx context.Context, log Log) error {
	o, codec, cache := r.net.PlanOptions, plan.NewSavePlanCodec(), new(plan.Cache)
	_, err := group.Assign(ctx, timing{r.node.World(), r}, "plan", codec, codec,
		func(context.Context) (*plan.SavePlan, error) {
			log.printf("%d ranks make their plans", o.Ranks)
			return cache.Local(localPlan(0, o), options(0, o))
		},
		func(_ context.Context, sent []*plan.SavePlan) ([]*plan.SavePlan, error) {
			r.note("decoded")
			log.printf("rank 0 has %d plans and makes the final ones", len(sent))
			out, _, err := cache.Global(sent, func(ps []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
				return plan.Global(ps, plan.LeastLoaded)
			})
			r.note("planned")
			return out, err
		})
	r.note("settled")
	return err
}

// follow is another rank's part in planning a save. It does what a save does, except
// that it drops the final plan. slots bounds the ranks that work at the same time.
func (r *treeRank) follow(ctx context.Context, slots chan struct{}) error {
	o := r.net.PlanOptions
	codec := group.Func[*plan.SavePlan]{
		EncodeFunc: func(p *plan.SavePlan) ([]byte, error) {
			defer func() { <-slots }()
			return plan.NewSavePlanCodec().Encode(p)
		},
		DecodeFunc: func(b []byte) (*plan.SavePlan, error) {
			slots <- struct{}{}
			defer func() { <-slots }()
			_, err := plan.NewSavePlanCodec().Decode(b)
			return nil, err
		},
	}
	_, err := group.Assign(ctx, timing{r.node.World(), r}, "plan", codec, codec,
		func(context.Context) (*plan.SavePlan, error) {
			slots <- struct{}{}
			p, err := new(plan.Cache).Local(localPlan(r.rank, o), options(r.rank, o))
			if err != nil {
				<-slots
			}
			return p, err
		},
		func(context.Context, []*plan.SavePlan) ([]*plan.SavePlan, error) {
			return nil, fmt.Errorf("rank %d was taken for the coordinator", r.rank)
		})
	return err
}

// note records the time of the first and the second event with that name.
func (r *treeRank) note(event string) {
	if _, ok := r.times[event]; ok {
		event += " again"
	}
	if _, ok := r.times[event]; !ok {
		r.times[event] = time.Now().Round(0) // wall clock, to compare with the other process
	}
}

// timing is a rank's group, which records the times of its calls.
type timing struct {
	group.Group
	r *treeRank
}

func (t timing) Gather(ctx context.Context, root int, v []byte) ([][]byte, error) {
	t.r.note("gather")
	if t.r.planBytes == 0 {
		t.r.planBytes = len(v)
	}
	vs, err := t.Group.Gather(ctx, root, v)
	t.r.note("gathered")
	return vs, err
}

func (t timing) Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error) {
	t.r.note("scatter")
	v, err := t.Group.Scatter(ctx, root, vs)
	t.r.note("scattered")
	return v, err
}

// serve accepts the links of rank 0's children.
func (r *treeRank) serve(ln *net.UnixListener) {
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
			r.addValues(rank, st)
		default:
			err = r.node.Accept(rank, r.count(st))
		}
		if err != nil {
			c.Close()
		}
	}
}

// Dial connects this rank to its parent: by the link that it returns, and by a
// connection for values.
func (r *treeRank) Dial(ctx context.Context, parent int) (tree.Conn, error) {
	r.net.mu.Lock()
	r.parent = parent
	to := r.net.ranks[parent]
	r.net.mu.Unlock()
	if to == nil {
		values, err := r.dialStream(ctx, forValues)
		if err != nil {
			return nil, err
		}
		r.addValues(parent, values)
		link, err := r.dialStream(ctx, forFrames)
		if err != nil {
			return nil, err
		}
		return r.count(link), nil
	}
	a, b := tree.Pipe(4)
	r.addValues(parent, a)
	to.addValues(r.rank, b)
	a, b = tree.Pipe(4)
	if err := to.node.Accept(r.rank, to.count(b)); err != nil {
		return nil, err
	}
	return r.count(a), nil
}

// dialStream connects this rank to rank 0 in the other process.
func (r *treeRank) dialStream(ctx context.Context, purpose uint32) (*stream, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", r.net.Socket)
	if err != nil {
		return nil, err
	}
	s := newStream(conn.(*net.UnixConn))
	return s, s.introduce(r.rank, purpose)
}

// Values returns r, which serves one group.
func (r *treeRank) Values([16]byte) tree.Values { return r }

// valueConn is a connection by which a rank exchanges large values with a neighbour.
// It lasts until closeValues is called.
type valueConn struct {
	tree.Conn
	mu sync.Mutex // held by the goroutine that writes
}

func (r *treeRank) addValues(rank int, c tree.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns[rank] = &valueConn{Conn: c}
}

func (r *treeRank) valueConn(rank int) (*valueConn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.conns[rank]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("no connection for values with rank %d: %w", rank, io.ErrClosedPipe)
}

// Send hands the parts to a neighbour.
func (r *treeRank) Send(_ context.Context, to int, parts ...[]byte) error {
	c, err := r.valueConn(to)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return counted{c.Conn, r}.WriteFrame(bytes.Join(parts, nil))
}

// Release does nothing.
func (r *treeRank) Release([]byte) {}

// Recv returns the next message of a neighbour.
func (r *treeRank) Recv(_ context.Context, from int) ([]byte, error) {
	c, err := r.valueConn(from)
	if err != nil {
		return nil, err
	}
	return counted{c.Conn, r}.ReadFrame()
}

// Close does nothing: the group is over when the simulation is.
func (r *treeRank) Close() {}

// counted is an end of a connection that counts the frames of a rank.
type counted struct {
	tree.Conn
	r *treeRank
}

// count returns a link with its frames counted, and counts the link.
func (r *treeRank) count(c tree.Conn) tree.Conn {
	r.links.Add(1)
	return counted{c, r}
}

func (c counted) WriteFrame(b []byte) error {
	c.r.traffic[messagesSent].Add(1)
	c.r.traffic[bytesSent].Add(int64(len(b)))
	return c.Conn.WriteFrame(b)
}

func (c counted) ReadFrame() ([]byte, error) {
	b, err := c.Conn.ReadFrame()
	if err == nil {
		c.r.traffic[messagesReceived].Add(1)
		c.r.traffic[bytesReceived].Add(int64(len(b)))
	}
	return b, err
}

// The purposes of a connection between the two processes.
const (
	forFrames uint32 = iota
	forValues
)

// stream is a link between the process of rank 0 and that of the other ranks.
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
