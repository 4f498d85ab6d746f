package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tree"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// GroupOptions configure the measurement of groups of ranks over TCP.
type GroupOptions struct {
	// Ranks are the group sizes for latency, with goroutines as ranks. Empty: 2,
	// 8 and 64.
	Ranks []int
	// LatencyProcs are the group sizes for latency, with processes as ranks. Nil:
	// 2 and 8.
	LatencyProcs []int
	// Calls is the number of calls for a latency. Zero: 1000.
	Calls int
	// GatherRanks is the number of ranks that send a large value to rank 0, and
	// GatherBytes its size. Zero: 256, and 146 KiB.
	GatherRanks, GatherBytes int
	// Procs are the numbers of processes for tensor collectives. Nil: 2 and 4.
	Procs []int
	// Bytes is the size of a tensor. Zero: 256 MiB.
	Bytes int64
	// Repeat is the number of throughput measurements, which alternate with those
	// of the floor. Medians count. Zero: 5.
	Repeat int
	// Self is a program with arguments that passes one more argument to [Child].
	Self []string
	Log  Log
}

// WithDefaults returns o with defaults for zero fields.
func (o GroupOptions) WithDefaults() GroupOptions {
	if len(o.Ranks) == 0 {
		o.Ranks = []int{2, 8, 64}
	}
	if o.LatencyProcs == nil {
		o.LatencyProcs = []int{2, 8}
	}
	if o.Procs == nil {
		o.Procs = []int{2, 4}
	}
	o.Calls = positive(o.Calls, 1000)
	o.GatherRanks, o.GatherBytes = positive(o.GatherRanks, 256), positive(o.GatherBytes, 146<<10)
	o.Bytes, o.Repeat = positive(o.Bytes, 256<<20), positive(o.Repeat, 5)
	return o
}

func positive[T int | int64](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// GroupResult is the result of Group.
type GroupResult struct {
	Latency     []GroupLatency    `json:"latency"`
	Gather      *GroupGather      `json:"gather"`
	Collectives []GroupCollective `json:"collectives"`
	Repeat      int               `json:"repeat"`
}

// Group measures groups of ranks on this machine: the latency of calls, the
// gathering of large values, and the throughput of tensor collectives between
// processes. The floor of throughput is the same number of bytes over the same
// number of plain connections.
func Group(ctx context.Context, o GroupOptions) (*GroupResult, error) {
	o = o.WithDefaults()
	r := &GroupResult{Repeat: o.Repeat}
	for _, n := range o.Ranks {
		o.Log.printf("latency of %d ranks", n)
		err := onRoutines(ctx, n, func(ctx context.Context, g *tcp.Group) error {
			l, err := latency(ctx, g, o.Calls, "goroutines")
			if g.Rank() == 0 {
				r.Latency = append(r.Latency, l...)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("latency of %d ranks: %w", n, err)
		}
	}
	for _, n := range o.LatencyProcs {
		o.Log.printf("latency of %d processes", n)
		var l []GroupLatency
		if err := onProcesses(ctx, n, o.Self, &rankJob{Calls: o.Calls}, &l); err != nil {
			return nil, fmt.Errorf("latency of %d processes: %w", n, err)
		}
		r.Latency = append(r.Latency, l...)
	}
	o.Log.printf("gather of %d bytes from %d ranks", o.GatherBytes, o.GatherRanks)
	var err error
	if r.Gather, err = gatherMany(ctx, o); err != nil {
		return nil, fmt.Errorf("gather from %d ranks: %w", o.GatherRanks, err)
	}
	for _, n := range o.Procs {
		o.Log.printf("collectives of %d processes, %d rounds", n, o.Repeat)
		var c []GroupCollective
		if err := onProcesses(ctx, n, o.Self, &rankJob{Bytes: o.Bytes, Repeat: o.Repeat}, &c); err != nil {
			return nil, fmt.Errorf("collectives of %d processes: %w", n, err)
		}
		r.Collectives = append(r.Collectives, c...)
	}
	return r, nil
}

// onProcesses starts n processes that run the job as ranks of a group, and
// decodes the result of rank 0 into v.
func onProcesses(ctx context.Context, n int, self []string, j *rankJob, v any) error {
	if len(self) == 0 {
		return errNoSelf
	}
	arg, err := childJob{Rank: j}.argument()
	if err != nil {
		return err
	}
	var out bytes.Buffer
	remarks := make([]bytes.Buffer, n)
	_, err = launch.Run(ctx, launch.Config{
		N: n, Command: append(self[:len(self):len(self)], arg),
		Streams: func(rank int) (stdout, stderr io.Writer) {
			if rank == 0 {
				return &out, &remarks[rank]
			}
			return nil, &remarks[rank]
		},
	})
	if err == nil {
		return json.Unmarshal(out.Bytes(), v)
	}
	for rank := range remarks {
		if text := bytes.TrimSpace(remarks[rank].Bytes()); len(text) > 0 {
			err = fmt.Errorf("%w; rank %d: %s", err, rank, text)
		}
	}
	return err
}

// rankJob runs one rank of a group of processes, which the environment describes.
type rankJob struct {
	// Calls is the number of calls for the latency. Zero: measure throughput.
	Calls int `json:",omitempty"`
	// Redistribute says that the throughput is that of redistributions.
	Redistribute bool `json:",omitempty"`
	// Bytes and Repeat are those of [GroupOptions] or [RedistributeOptions].
	Bytes  int64 `json:",omitempty"`
	Repeat int   `json:",omitempty"`
}

// run runs one rank. Rank 0 prints the figures.
func (j *rankJob) run(ctx context.Context, out io.Writer) error {
	g, err := tcp.Join(ctx, tcp.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer g.Close()
	var figures any
	switch {
	case j.Calls > 0:
		figures, err = latency(ctx, g, j.Calls, "processes")
	case j.Redistribute:
		figures, err = redistribute(ctx, g, j)
	default:
		figures, err = throughput(ctx, g, j)
	}
	if err != nil || g.Rank() != 0 {
		return err
	}
	return json.NewEncoder(out).Encode(figures)
}

// GroupGather is the gathering of large values from many ranks, which are
// goroutines with their own connections. Rates are in 10^9 bytes a second that
// rank 0 receives. The floor is the same number of bytes over as many plain
// connections as rank 0 has in a large group.
type GroupGather struct {
	Ranks   int     `json:"ranks"`
	Bytes   int     `json:"bytes_per_rank"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"gbs"`
	Floor   float64 `json:"floor_gbs"`
	Ratio   float64 `json:"ratio"`
	// Hops is the mean number of connections that a byte crosses. Between hosts
	// they work in parallel; here all are on this machine.
	Hops float64 `json:"hops"`
}

// gatherMany alternates the measurements of cairn and the floor.
func gatherMany(ctx context.Context, o GroupOptions) (*GroupGather, error) {
	n := o.GatherRanks
	if n < 2 {
		return nil, fmt.Errorf("%d ranks: want at least two", n)
	}
	total := (n - 1) * o.GatherBytes
	floor, err := newFunnel(ctx, tree.DefaultArity, total)
	if err != nil {
		return nil, err
	}
	defer floor.close()
	value := make([]byte, o.GatherBytes) // of every rank
	var gathers, floors []time.Duration  // only rank 0 appends
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
			if i > 0 { // the first round is a warm-up
				gathers, floors = append(gathers, took), append(floors, plain)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r := &GroupGather{
		Ranks: n, Bytes: o.GatherBytes, Seconds: median(gathers).Seconds(), Hops: meanHops(n),
		Rate: gbs(int64(total), median(gathers)), Floor: gbs(int64(total), median(floors)),
	}
	r.Ratio = r.Rate / r.Floor
	return r, nil
}

// meanHops returns the mean number of connections between rank 0 and the other
// ranks of n.
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

// funnel has plain connections to one reader.
type funnel struct {
	conns    []*plainConns
	from, to []byte
}

// newFunnel opens connections for total bytes, in equal parts.
func newFunnel(ctx context.Context, conns, total int) (*funnel, error) {
	f := &funnel{from: make([]byte, total), to: make([]byte, total)}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	for range conns {
		c, err := connect(ctx, ln, ln.Addr().String())
		if err != nil {
			f.close()
			return nil, err
		}
		f.conns = append(f.conns, c)
	}
	return f, nil
}

// move moves the bytes once.
func (f *funnel) move() error {
	var all errgroup.Group
	for i, c := range f.conns {
		begin, end := len(f.to)*i/len(f.conns), len(f.to)*(i+1)/len(f.conns)
		n := int64(end - begin)
		all.Go(func() error { return c.move(n, n, f.from[begin:end], f.to[begin:end]) })
	}
	return all.Wait()
}

func (f *funnel) close() {
	for _, c := range f.conns {
		c.close()
	}
}

// GroupCollective is the throughput of a tensor collective between processes, in
// 10^9 bytes a second.
type GroupCollective struct {
	Op        string `json:"op"`
	Processes int    `json:"processes"`
	Bytes     int64  `json:"bytes"`
	// Rate is bytes of the tensor over time. Wire is all bytes that must cross
	// between the processes over time.
	Rate float64 `json:"gbs"`
	Wire float64 `json:"wire_gbs"`
	// Floor is the rate of the same number of bytes over the same number of plain
	// connections between the same number of processes, from and to memory of the
	// size of the tensor. Ratio is Wire over Floor.
	Floor float64 `json:"floor_wire_gbs"`
	Ratio float64 `json:"ratio"`
	// Cached is the same with memory that fits a processor's cache, which shows
	// the rate of connections without memory traffic.
	Cached      float64 `json:"cached_wire_gbs"`
	CachedRatio float64 `json:"cached_ratio"`
}

// contest is a collective and its floors.
type contest struct {
	op            string
	run           func(context.Context) error
	check         float32 // elements of the result
	send, receive int64   // bytes of this rank over plain connections
	crossing      int64   // bytes of all ranks
	took          [3][]time.Duration
}

// The measurements of a round.
const (
	ours = iota
	plain
	cached
)

// throughput measures all collectives. The figures are nearly the same on all
// ranks.
func throughput(ctx context.Context, g *tcp.Group, j *rankJob) ([]GroupCollective, error) {
	comm, err := collective.New(g)
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
	spare := bytes.Repeat([]byte{1}, len(mem)) // to receive into
	contests := newContests(comm, t)
	for i := range j.Repeat + 1 {
		for _, c := range contests {
			if err := c.round(ctx, g, wires, t, spare, i); err != nil {
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

// newContests returns the collectives and the bytes that must cross: in an
// all-reduce every rank sends and receives 2(n-1)/n of the tensor, in a broadcast
// every rank but the first receives it once and every rank but the last forwards
// it.
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

// round runs all measurements once, in an order that rotates with the rounds. The
// first round is a warm-up.
func (c *contest) round(ctx context.Context, g group.Group, wires *plainConns, t *tensor.Tensor, spare []byte, i int) error {
	mem, _ := t.Bytes()
	small := min(len(mem), wireBuffer)
	for k := range len(c.took) {
		turn := (i + k) % len(c.took)
		run := c.run
		switch turn {
		case plain:
			run = func(context.Context) error { return wires.move(c.send, c.receive, mem, spare) }
		case cached:
			run = func(context.Context) error { return wires.move(c.send, c.receive, mem[:small], spare[:small]) }
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

// together returns the time until fn is done on all ranks.
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

// holds returns an error unless a sample of t's elements, including the first and
// the last, equals v.
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

// GroupLatency is the latency of a collective call.
type GroupLatency struct {
	// Op is barrier, or gather of 1 KiB from each rank.
	Op    string `json:"op"`
	Ranks int    `json:"ranks"`
	// As is the kind of ranks: goroutines or processes.
	As     string  `json:"as"`
	Median float64 `json:"median_us"`
	P99    float64 `json:"p99_us"`
}

// smallValue is the size of the value of each rank in a gather for latency.
const smallValue = 1 << 10

// latency measures consecutive calls on rank 0.
func latency(ctx context.Context, g *tcp.Group, calls int, as string) ([]GroupLatency, error) {
	value := make([]byte, smallValue)
	var out []GroupLatency
	for _, c := range []struct {
		op  string
		run func() error
	}{
		{"barrier", func() error { return g.Barrier(ctx) }},
		{"gather", func() error { _, err := g.Gather(ctx, 0, value); return err }},
	} {
		took := make([]time.Duration, 0, calls)
		for i := range calls + calls/10 {
			t, err := timed(c.run)
			if err != nil {
				return nil, err
			}
			if i >= calls/10 { // the first calls are a warm-up
				took = append(took, t)
			}
		}
		out = append(out, GroupLatency{c.op, g.Size(), as, microseconds(took, 0.5), microseconds(took, 0.99)})
	}
	return out, nil
}

// microseconds returns a quantile of times.
func microseconds(took []time.Duration, q float64) float64 {
	return float64(quantile(took, q)) / float64(time.Microsecond)
}

// quantile returns the smallest value that at least the fraction q does not
// exceed.
func quantile(took []time.Duration, q float64) time.Duration {
	took = slices.Sorted(slices.Values(took))
	return took[max(0, int(math.Ceil(q*float64(len(took))))-1)]
}

func median(took []time.Duration) time.Duration { return quantile(took, 0.5) }

// onRoutines runs fn on n ranks in this process that are connected by TCP.
func onRoutines(ctx context.Context, n int, fn func(context.Context, *tcp.Group) error) error {
	dir, err := os.MkdirTemp("", "cairn-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	secret := []byte(rand.Text())
	groups := make([]*tcp.Group, n)
	defer func() {
		var wg sync.WaitGroup
		for _, g := range groups {
			if g != nil {
				wg.Go(func() { g.Close() })
			}
		}
		wg.Wait()
	}()
	all, joining := errgroup.WithContext(ctx)
	for r := range n {
		all.Go(func() (err error) {
			groups[r], err = tcp.Join(joining, tcp.Config{
				Meet: &tcp.File{Path: filepath.Join(dir, "meet")}, Rank: r, Size: n, Secret: secret,
				Logger: slog.New(slog.DiscardHandler),
			})
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	all, ctx = errgroup.WithContext(ctx)
	for _, g := range groups {
		all.Go(func() error { return fn(ctx, g) })
	}
	return all.Wait()
}

// plainConns are a connection to write to and one to read from.
type plainConns struct{ to, from net.Conn }

// wireBuffer is the size of a write or read of a plain connection.
const wireBuffer = 1 << 20

// connect dials addr and accepts a connection from ln.
func connect(ctx context.Context, ln net.Listener, addr string) (*plainConns, error) {
	to, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	from, err := ln.Accept()
	if err != nil {
		to.Close()
		return nil, err
	}
	return &plainConns{to, from}, nil
}

// newRing connects each rank of a group to the next.
func newRing(ctx context.Context, g group.Group) (*plainConns, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	addrs, err := g.AllGather(ctx, []byte(ln.Addr().String()))
	if err != nil {
		return nil, err
	}
	return connect(ctx, ln, string(addrs[(g.Rank()+1)%g.Size()]))
}

func (r *plainConns) close() {
	r.to.Close()
	r.from.Close()
}

// move sends and receives bytes at the same time, reading and writing the two
// buffers repeatedly.
func (r *plainConns) move(send, receive int64, from, into []byte) error {
	var both errgroup.Group
	both.Go(func() error { return pump(r.to.Write, send, from) })
	both.Go(func() error { return pump(r.from.Read, receive, into) })
	return both.Wait()
}

// pump calls do with consecutive parts of mem, from the start again at its end,
// until n bytes are done.
func pump(do func([]byte) (int, error), n int64, mem []byte) error {
	at := 0
	for n > 0 {
		k, err := do(mem[at:min(int64(at)+min(n, wireBuffer), int64(len(mem)))])
		if err != nil {
			return err
		}
		n -= int64(k)
		at = (at + k) % len(mem)
	}
	return nil
}
