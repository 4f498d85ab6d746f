//go:build unix

package protocol_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// These tests are the fault matrix: a rank that is a process dies in every way, at
// every step of a save and of a load, as coordinator or not. All other ranks must
// return an error that names it, and the last good checkpoint must be whole.

// Ways to go. A rank that is cut off lives on, and so does one that was stopped
// and goes on later: they must come to an error too.
const (
	byKill  = "kill"
	byStop  = "stop"
	byCut   = "cut"
	byLeave = "leave"
)

var ways = []string{byKill, byStop, byCut, byLeave}

// The work of the ranks when one of them goes.
const (
	opSave  = "save"
	opLoad  = "load"
	opShare = "share" // a load in which ranks read for each other
)

// order is the task of a rank, as a line of JSON.
type order struct {
	Meet string // the file by which the ranks meet
	Dir  string // of the checkpoint
	Rank int
	Op   string
	// At is where this rank goes, and How. Empty: it does not.
	At, How string
}

// outcome is the answer of a rank, as a line of JSON.
type outcome struct {
	Err string // empty where all went well
	// Gone says that the error wraps group.ErrGone; Ranks are those it names.
	Gone  bool
	Ranks []int
	// Uncertain says that the error wraps storage.ErrUncertain, Late that it
	// wraps context.DeadlineExceeded: no rank noticed the death.
	Uncertain, Late bool
}

// point is a place at which a rank can go.
type point struct {
	op, at string
	global bool // only the coordinator comes there
}

// points are the methods that a save and a load call, in their order: between
// any two of them a rank is inside of the protocol itself.
var points = []point{
	{opSave, "stateful.State", false},
	{opSave, "planner.SetUp", false},
	{opSave, "writer.SetUp", false},
	{opSave, "planner.LocalPlan", false},
	{opSave, "writer.PrepareLocalPlan", false},
	{opSave, "planner.GlobalPlan", true},
	{opSave, "writer.PrepareGlobalPlan", true},
	{opSave, "planner.FinishPlan", false},
	{opSave, "planner.Resolve", false},
	{opSave, "writer.HasWritten", false},
	{opSave, "writer.Finish", true},
	{opSave, "writer.HasFinished", true},
	{opLoad, "stateful.State", false},
	{opLoad, "reader.ReadMetadata", false},
	{opLoad, "planner.SetUp", false},
	{opLoad, "reader.SetUp", false},
	{opLoad, "planner.LocalPlan", false},
	{opLoad, "reader.PrepareLocalPlan", false},
	{opLoad, "planner.GlobalPlan", true},
	{opLoad, "reader.PrepareGlobalPlan", true},
	{opLoad, "planner.FinishPlan", false},
	{opLoad, "planner.ResolveTensor", false},
	{opLoad, "planner.CommitTensor", false},
	{opLoad, "reader.HasRead", false},
	{opLoad, "stateful.Load", false},
	{opShare, "planner.ResolveTensor", false},
	{opShare, "planner.CommitTensor", false},
	{opShare, "reader.HasRead", false},
}

// death is one cell of the matrix.
type death struct {
	point
	how  string
	rank int
}

func (d death) String() string { return fmt.Sprintf("%s %s %s rank %d", d.op, d.at, d.how, d.rank) }

func matrix() []death {
	var all []death
	for _, p := range points {
		for _, how := range ways {
			all = append(all, death{p, how, 0})
			if !p.global {
				all = append(all, death{p, how, size - 1})
			}
		}
	}
	return all
}

// The other ranks return an error that names the dead rank and find a whole
// checkpoint. With another process in its place the ranks can meet again.
func TestDeathOfRankIsNoticed(t *testing.T) {
	all := matrix()
	next := make(chan death, len(all)) // each job takes one when it is done with another
	for _, d := range all {
		next <- d
	}
	close(next)
	for lane := range lanes {
		t.Run(fmt.Sprintf("job %d", lane), func(t *testing.T) {
			t.Parallel()
			j := newJob(t)
			for d := range next {
				t.Run(d.String(), func(t *testing.T) { j.play(t, d) })
			}
		})
	}
}

// job is a few processes that live through many deaths of one of them. It meets
// under one name all the time.
type job struct {
	dir, meet string
	store     blob.Store
	ranks     [size]*process // nil: to be started
	owner     *testing.T     // the processes end with it
}

func newJob(t *testing.T) *job {
	t.Helper()
	j := &job{dir: t.TempDir(), meet: filepath.Join(t.TempDir(), "meet"), owner: t}
	var err error
	if j.store, err = file.Open(j.dir, nil); err != nil {
		t.Fatal(err)
	}
	return j
}

// play lets one rank go and checks the other ranks.
func (j *job) play(t *testing.T, d death) {
	j.saveOld(t)
	for r := range j.ranks {
		if j.ranks[r] == nil {
			j.ranks[r] = start(j.owner)
		}
		o := order{Meet: j.meet, Dir: j.dir, Rank: r, Op: d.op}
		if r == d.rank {
			o.At, o.How = d.at, d.how
		}
		j.ranks[r].order(t, o)
	}
	uncertain := false
	for r, p := range j.ranks {
		if r != d.rank {
			uncertain = j.checkSurvivor(t, r, p, d) || uncertain
		}
	}
	victim := j.ranks[d.rank]
	j.ranks[d.rank] = nil
	j.checkStore(t, d, uncertain)
	checkVictim(t, victim, d)
}

// checkSurvivor checks the answer of another rank, and reports whether it could not tell
// which checkpoint is there.
func (j *job) checkSurvivor(t *testing.T, r int, p *process, d death) bool {
	t.Helper()
	got, ok := p.outcome(t)
	switch {
	case !ok:
		j.ranks[r] = nil
		t.Errorf("rank %d ended", r)
	case got.Err == "":
		t.Errorf("rank %d went on as if nothing were", r)
	case got.Late || !got.Gone || !slices.Equal(got.Ranks, []int{d.rank}):
		t.Errorf("rank %d returned %q (names %v); want that rank %d is gone", r, got.Err, got.Ranks, d.rank)
	}
	return got.Uncertain
}

// checkVictim checks that a rank that lives on has come to an error too.
func checkVictim(t *testing.T, p *process, d death) {
	t.Helper()
	if d.how == byStop {
		p.Continue(t)
	}
	got, ok := p.outcome(t)
	switch lives := d.how == byStop || d.how == byCut; {
	case lives != ok:
		t.Errorf("the rank that went said %+v, %v; want %v", got, ok, lives)
	case lives && (got.Err == "" || got.Late):
		t.Errorf("the rank that was away returned %q; want an error in time", got.Err)
	}
	p.In.Close()
}

// checkStore checks that a whole checkpoint is there: the old one, unless the new
// one was complete, or that is unknown.
func (j *job) checkStore(t *testing.T, d death, uncertain bool) {
	t.Helper()
	c, err := native.Format{}.Open(t.Context(), j.store)
	if err != nil {
		t.Errorf("no checkpoint is left: %v", err)
		return
	}
	defer c.Close()
	if rep, err := c.Verify(t.Context(), nil); err != nil || len(rep.Problems) > 0 {
		t.Errorf("the checkpoint is not whole: %v, %v", rep, err)
	}
	md := must.Get(c.Metadata(t.Context()))(t)
	state := plan.State{"n": nil}
	err = protocol.Read(t.Context(), storage.ReaderOf(c, storage.ReadOptions{}), md, new(plan.DefaultLoad), state)
	step := *md.Storage.Step
	if err != nil || state["n"] != step {
		t.Errorf("the checkpoint of step %d has n = %v, %v", step, state["n"], err)
	}
	if step != oldStep && d.at != "writer.HasFinished" && !uncertain {
		t.Errorf("the checkpoint is of step %d; want the old one", step)
	}
}

// saveOld puts the checkpoint there that a save is to replace.
func (j *job) saveOld(t *testing.T) {
	t.Helper()
	must.Do(t, inproc.Run(t.Context(), size, func(ctx context.Context, g group.Group) error {
		_, err := protocol.Save(ctx, deathJob(g, j.store, oldStep))
		return err
	}))
}

// process is a rank that carries orders out.
type process struct{ *tcptest.Process }

// start starts a process, which ends with the test.
func start(t *testing.T) *process {
	t.Helper()
	return &process{tcptest.Start(t, rankVariable+"=1")}
}

func (p *process) order(t *testing.T, o order) {
	t.Helper()
	must.Do(t, json.NewEncoder(p.In).Encode(o))
}

// outcome returns the answer of the process to its order. False: it has ended.
func (p *process) outcome(t *testing.T) (outcome, bool) {
	t.Helper()
	var out outcome
	line, ok := p.Line()
	if !ok {
		return out, false
	}
	if err := json.Unmarshal([]byte(line), &out); err != nil {
		t.Fatalf("outcome %q: %v", line, err)
	}
	return out, true
}

const (
	// size is the number of ranks. They are in a chain: the middle rank has two
	// neighbours.
	size = 3
	// timeout is how long a rank may be silent: long enough for a busy machine; half of the
	// matrix waits for it.
	timeout = 6 * time.Second
	// limit is when a rank that was not noticed is a fault of ours.
	limit = time.Minute
)

// rankVariable is set in processes that are a rank.
const rankVariable = "CAIRN_DEATHS_RANK"

func init() {
	if os.Getenv(rankVariable) != "" {
		serve()
		os.Exit(0)
	}
}

// serve carries orders out, until there are no more.
func serve() {
	in := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var o order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			panic(err)
		}
		if err := out.Encode(carryOut(o)); err != nil {
			panic(err)
		}
	}
}

func carryOut(o order) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	w := new(tcptest.Wires)
	g, err := tcp.Join(ctx, tcp.Config{
		Rendezvous: "file://" + o.Meet, Job: "deaths", Rank: o.Rank, Size: size,
		Secret: []byte("of the matrix"), Timeout: timeout, Arity: 1, Wrap: w.Wrap,
	})
	if err == nil {
		defer g.Close()
		err = act(ctx, g, o, deathTrap{o.At, sync.OnceFunc(func() { goAway(o.How, g, w) })})
	}
	return outcomeOf(err)
}

func outcomeOf(err error) outcome {
	if err == nil {
		return outcome{}
	}
	return outcome{
		Err: err.Error(), Gone: errors.Is(err, group.ErrGone),
		Uncertain: errors.Is(err, storage.ErrUncertain), Late: errors.Is(err, context.DeadlineExceeded),
		Ranks: group.Ranks(err),
	}
}

// goAway ends this rank for the others. It returns if the rank itself continues.
func goAway(how string, g *tcp.Group, w *tcptest.Wires) {
	switch how {
	case byKill:
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case byStop:
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case byCut:
		w.Cut()
	case byLeave:
		g.Close()
		os.Exit(0)
	}
}

func act(ctx context.Context, g group.Group, o order, t deathTrap) error {
	store, err := file.Open(o.Dir, nil)
	if err != nil {
		return err
	}
	at := func(point string) error {
		return group.Each(ctx, g, "state", func(context.Context) error { return t.enter(point) })
	}
	if err := at("stateful.State"); err != nil {
		return err
	}
	if o.Op == opSave {
		job := deathJob(g, store, newStep)
		job.Planner, job.Writer = &SavePlanner{Hook: t.enter}, &Writer{Writer: job.Writer, Hook: t.enter}
		_, err := protocol.Save(ctx, job)
		return err
	}
	_, err = protocol.Load(ctx, protocol.RankLoad{
		Group: g, Planner: &LoadPlanner{Hook: t.enter, Share: true}, State: stateOf(g.Rank(), 0),
		Reader: &Reader{Reader: storage.NewReader(native.Format{}.Open, store, storage.ReadOptions{}), Hook: t.enter}, Share: o.Op == opShare,
	})
	if err != nil {
		return err
	}
	return at("stateful.Load")
}

// deathJob returns one rank's part in a save of that step.
func deathJob(g group.Group, s blob.Store, step int64) protocol.RankSave {
	now := time.Now()
	return protocol.RankSave{
		Group: g, Planner: new(plan.DefaultSave), State: stateOf(g.Rank(), step),
		Writer:  storagetest.NewWriter(native.Format{}, s, storage.WriteOptions{}),
		Storage: meta.Storage{SaveID: storage.NewSaveID(now, rand.Uint32()), Step: &step, Time: now, WorldSize: size, Writer: "test"},
	}
}

// The steps of the checkpoint that is there and of the one that is to replace it.
const oldStep, newStep = 1, 2

// stateOf returns a rank's part of a state with numbers that depend on the step.
func stateOf(rank int, step int64) plan.State {
	same := make([]float32, 1000)
	for i := range same {
		same[i] = float32(step)*1000 + float32(i)
	}
	x, err := tensor.Of([]int64{int64(len(same))}, same)
	if err != nil {
		panic(err)
	}
	rows := shard.Placed{Mesh: shard.Mesh{Shape: []int{size}}, Placements: []shard.Placement{shard.Shard(0)}}
	part, err := shard.Empty(rows, tensor.Int64, []int64{size * 50, 20}, rank)
	if err != nil {
		panic(err)
	}
	v, err := tensor.Values[int64](part.Local())
	if err != nil {
		panic(err)
	}
	for i := range v {
		v[i] = step
	}
	return plan.State{"same": x, "part": part, "n": step}
}

// deathTrap goes off when a rank comes to a point.
type deathTrap struct {
	at  string
	die func()
}

func (t deathTrap) enter(point string) error {
	if point == t.at {
		t.die()
	}
	return nil
}
