// Package demo shows cairn's guarantees with a small training state: it saves the
// state from some ranks, loads it into other ranks with another sharding, compares
// every byte, crashes saves at several points, and overwrites the checkpoint. Then it
// loses a host of a job with checkpoints in memory. Ranks are goroutines. The package prints nothing and needs only a store; the command
// line prints its Report.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/inspect"
)

// ErrTaken reports a directory that has other content or is in use by another
// demo.
var ErrTaken = errors.New("nothing was touched")

// errWrong reports a result that violates cairn's guarantees.
var errWrong = errors.New("the demo found a fault")

const (
	// MinBytes is the smallest size of the state.
	MinBytes = 64 << 10
	// MaxRanks is the largest number of ranks.
	MaxRanks = 1024

	tag        = "cairn-demo"
	recordName = "cairn.json" // the commit record of the native format
	stepSize   = 1000         // training steps from save to save
)

// Config configures the demo. Store must be set; zero fields have defaults.
type Config struct {
	Store blob.Store
	// Bytes is the approximate size of the state. Zero: 64 MiB.
	Bytes int64
	// Ranks is the number of ranks that save, and LoadRanks the number of ranks that
	// load. Zero: 8 and 3.
	Ranks, LoadRanks int
	// Watch, if not nil, receives the progress of the demo.
	Watch Watcher
	// Logger, if not nil, receives the phases of saves and loads.
	Logger *slog.Logger
}

// Watcher receives the progress of the demo: phases, which move bytes, and steps,
// which may have several phases.
type Watcher interface {
	// Begin begins a phase that will move this number of bytes. The previous
	// phase has ended.
	Begin(phase string, bytes int64)
	// Moved counts bytes. It must be safe for concurrent use.
	Moved(bytes int64)
	// End reports that a step has succeeded: "save", "verify", "load", "crash",
	// "overwrite" or "memory". Its part of the report is set.
	End(step string, r *Report)
}

type noWatcher struct{}

func (noWatcher) Begin(string, int64) {}
func (noWatcher) Moved(int64)         {}
func (noWatcher) End(string, *Report) {}

// Report is the result of the demo. Steps that were not reached are nil.
type Report struct {
	OK    bool          `json:"ok"`
	Path  string        `json:"path"`
	State stateReport   `json:"state"`
	Save  *saveReport   `json:"save"`
	Check *checkReport  `json:"verify"`
	Load  *loadReport   `json:"load"`
	Crash []crashReport `json:"crashes"`
	// Overwrite is the complete save over the checkpoint, after the crashes.
	Overwrite *saveReport `json:"overwrite"`
	// Memory is a job with checkpoints in memory that has lost a host.
	Memory *memoryReport `json:"memory"`
	// Digest is the digest of the final checkpoint.
	Digest string `json:"digest"`
}

// stateReport describes the state that is saved.
type stateReport struct {
	Layers   int   `json:"layers"`
	Width    int64 `json:"width"`
	Tensors  int   `json:"tensors"`
	Objects  int   `json:"objects"`
	NumBytes int64 `json:"bytes"`
}

// saveReport describes a save.
type saveReport struct {
	SaveID string `json:"save_id"`
	Step   int64  `json:"step"`
	Ranks  int    `json:"ranks"`
	Mesh   []int  `json:"mesh"`
	Files  int    `json:"files"` // data files
	Speed
}

// checkReport describes a full verification.
type checkReport struct {
	Files  int   `json:"files"` // with the index
	Chunks int64 `json:"chunks"`
	Speed
}

// loadReport describes a load into other ranks.
type loadReport struct {
	Ranks int `json:"ranks"`
	// Needed is the number of bytes that the ranks requested, Read the number that
	// was read from files; Speed counts Needed. Compared is the number of bytes that
	// were compared with the saved state.
	Needed   int64 `json:"bytes_needed"`
	Read     int64 `json:"bytes_read"`
	Requests int64 `json:"requests"`
	Compared int64 `json:"bytes_compared"`
	Speed
}

// crashReport describes a save that crashed, and the state of the store afterwards.
type crashReport struct {
	// At is the progress of the save at the crash, Operation the operation that
	// failed.
	At        string `json:"at"`
	Operation string `json:"operation"`
	// Survivor is "old" or "new": the complete checkpoint that was found.
	Survivor string `json:"survivor"`
	SaveID   string `json:"save_id"`
	Digest   string `json:"digest"`
	// LeftFiles and LeftBytes count the files of the crashed save that no record
	// names.
	LeftFiles int   `json:"left_files"`
	LeftBytes int64 `json:"left_bytes"`
}

// Speed is a number of bytes and the time they took.
type Speed struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

// PerSecond returns bytes per second.
func (s Speed) PerSecond() float64 {
	if s.Seconds <= 0 {
		return 0
	}
	return float64(s.Bytes) / s.Seconds
}

func speed(bytes int64, since time.Time) Speed {
	return Speed{Bytes: bytes, Seconds: time.Since(since).Seconds()}
}

// Run runs the demo at the root of the store, which must be empty or hold the
// checkpoint of an earlier demo; otherwise, or if another demo uses the store, the
// error wraps ErrTaken. It leaves a checkpoint there.
func Run(ctx context.Context, c Config) (*Report, error) {
	c.Bytes, c.Ranks, c.LoadRanks = cmp.Or(c.Bytes, 64<<20), cmp.Or(c.Ranks, 8), cmp.Or(c.LoadRanks, 3)
	if c.Watch == nil {
		c.Watch = noWatcher{}
	}
	if lo, hi := min(c.Ranks, c.LoadRanks), max(c.Ranks, c.LoadRanks); c.Bytes < MinBytes || lo < 1 || hi > MaxRanks {
		return nil, fmt.Errorf("%d bytes, %d and %d ranks: want at least %d bytes and 1 to %d ranks",
			c.Bytes, c.Ranks, c.LoadRanks, MinBytes, MaxRanks)
	}
	unlock, err := lock(ctx, c.Store)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := checkPlace(ctx, c.Store); err != nil {
		return nil, err
	}
	p := &runner{Config: c, model: newModel(c.Bytes, c.Ranks, c.LoadRanks), rep: &Report{Path: c.Store.String(), Crash: []crashReport{}}}
	for _, step := range []func(context.Context) error{p.save, p.verify, p.load, p.crashes, p.overwrite, p.memory} {
		if err := step(ctx); err != nil {
			return p.rep, err
		}
	}
	p.rep.OK = true
	return p.rep, nil
}

// lock locks the store against other demos until unlock is called or this process
// ends. The files of another demo would look like leftovers. A store without locks
// is not locked.
func lock(ctx context.Context, s blob.Store) (unlock func(), err error) {
	l, ok := blob.As[blob.Locker](s)
	if !ok {
		return func() {}, nil
	}
	held, err := l.TryLock(ctx, tag, nil)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return func() {}, nil
	case errors.Is(err, blob.ErrLocked):
		return nil, fmt.Errorf("another demo is at work in %s: %w", s, ErrTaken)
	case err != nil:
		return nil, err
	}
	return func() { _ = held.Release() }, nil // a remaining lock ends with this process
}

// checkPlace returns ErrTaken if the store has content of other programs.
func checkPlace(ctx context.Context, s blob.Store) error {
	c, err := cairn.Open(ctx, s)
	if err == nil {
		defer c.Close()
		if c.Info().Tags[tag] == "" {
			return fmt.Errorf("%s holds a checkpoint that is not the demo's: %w", s, ErrTaken)
		}
		return nil
	}
	if !errors.Is(err, cairn.ErrNotFound) {
		return err
	}
	for info, err := range s.List(ctx, "") {
		if err != nil {
			return err
		}
		return fmt.Errorf("%s is not empty: it holds %s: %w", s, info.Name, ErrTaken)
	}
	return nil
}

// runner is a running demo.
type runner struct {
	Config
	model *model
	rep   *Report
	step  int64 // of the current checkpoint
}

func (p *runner) save(ctx context.Context) (err error) {
	if p.rep.Save, err = p.saveStep(ctx, p.Store, stepSize); err != nil {
		return err
	}
	p.step = stepSize
	c, err := cairn.Open(ctx, p.Store)
	if err != nil {
		return err
	}
	defer c.Close()
	md, err := c.Metadata(ctx)
	if err != nil {
		return err
	}
	t := inspect.Summarize(c, md).Totals
	p.rep.State = stateReport{Layers: layers, Width: p.model.width, Tensors: int(t.Tensors), Objects: int(t.Objects), NumBytes: t.NumBytes}
	p.Watch.End("save", p.rep)
	return nil
}

// saveStep saves the state of a training step from all ranks.
func (p *runner) saveStep(ctx context.Context, s blob.Store, step int64) (out *saveReport, err error) {
	p.Watch.Begin("save", p.model.bytes)
	if err := p.model.train(ctx, step); err != nil {
		return nil, err
	}
	start := time.Now()
	err = inproc.Run(ctx, p.Ranks, func(ctx context.Context, g group.Group) error {
		state, err := p.model.part(g.Rank())
		if err != nil {
			return err
		}
		rep, err := cairn.Save(ctx, s, state, &cairn.SaveOptions{
			Group: g, Step: &step, Tags: map[string]string{tag: "made by 'cairn demo'"},
			// No other job saves here, so leftovers of crashed saves can be removed at once.
			SweepAfter: time.Nanosecond,
			Overwrite:  true, // the demo stands for one job, also after a crash
			Observer:   &cairn.Observer{Moved: p.Watch.Moved},
			Logger:     p.Logger,
		})
		if err == nil && g.Rank() == 0 {
			out = &saveReport{rep.SaveID, step, p.Ranks, p.model.mesh, rep.Files, speed(rep.Bytes, start)}
		}
		return err
	})
	return out, err
}

// verify checks the first checkpoint and computes its digest.
func (p *runner) verify(ctx context.Context) error {
	f, err := p.examine(ctx)
	if err != nil {
		return err
	}
	p.rep.Check, p.rep.Digest = &f.check, f.digest
	p.Watch.End("verify", p.rep)
	return nil
}

// load loads the checkpoint into other ranks, which compare every byte with the
// saved state.
func (p *runner) load(ctx context.Context) error {
	p.Watch.Begin("load", 2*p.model.wanted())
	start := time.Now()
	compared := make([]int64, p.LoadRanks)

	err := inproc.Run(ctx, p.LoadRanks, func(ctx context.Context, g group.Group) error {
		state, parts, err := p.model.empty(g.Rank())
		if err != nil {
			return err
		}
		rep, err := cairn.Load(ctx, p.Store, state, &cairn.LoadOptions{
			Group: g, RejectUnexpected: true, Observer: &cairn.Observer{Moved: p.Watch.Moved}, Logger: p.Logger,
		})
		if err != nil {
			return err
		}

		if g.Rank() == 0 {
			p.rep.Load = &loadReport{
				Ranks: g.Size(), Needed: rep.Total.Needed, Read: rep.Total.Read, Requests: rep.Total.Requests,
				Speed: speed(rep.Total.Needed, start),
			}
		}

		for _, part := range parts {
			n, err := part.compare()
			if err != nil {
				return fmt.Errorf("rank %d: %w", g.Rank(), err)
			}
			compared[g.Rank()] += n
			p.Watch.Moved(n)
		}

		if want := p.model.values(p.step); !reflect.DeepEqual(onlyValues(state), want) {
			return fmt.Errorf("%w: rank %d: loaded %v, saved %v", errWrong, g.Rank(), state, want)
		}
		return nil
	})
	if err != nil {
		return err
	}

	for _, n := range compared {
		p.rep.Load.Compared += n
	}
	p.Watch.End("load", p.rep)
	return nil
}

// crashPoint is a point of a save at which the demo simulates a crash.
type crashPoint struct {
	at   string
	rule fault.Rule
	// committed is set if the new checkpoint must exist afterwards.
	committed bool
}

// crashes crashes one save after the other, in the order of the steps of a save, and
// checks the store.
func (p *runner) crashes(ctx context.Context) error {
	isData := func(name string) bool { return strings.HasSuffix(name, ".safetensors") }
	isIndex := func(name string) bool { return strings.HasSuffix(name, "-index.cairn") }
	record, half := fault.Named(recordName), int64(p.Ranks+1)/2
	for _, point := range []crashPoint{
		{at: "writing data", rule: fault.Rule{On: fault.Write, Match: isData, Nth: half, Do: fault.Crash()}},
		{at: "some data files written", rule: fault.Rule{On: fault.Commit, Match: isData, Nth: half, Do: fault.Crash()}},
		{at: "all data files written, no index", rule: fault.Rule{On: fault.Create, Match: isIndex, Do: fault.Crash()}},
		{at: "index written, no record", rule: fault.Rule{On: fault.Create, Match: record, Do: fault.Crash()}},
		{at: "record written, not in place", rule: fault.Rule{On: fault.Commit, Match: record, Do: fault.Crash()}},
		{at: "record in place, ranks not notified", rule: fault.Rule{On: fault.Commit, Match: record, Do: fault.CrashLate()}, committed: true},
	} {
		c, err := p.crash(ctx, point)
		if err != nil {
			return fmt.Errorf("crash with %s: %w", point.at, err)
		}
		p.rep.Crash = append(p.rep.Crash, *c)
		p.Watch.End("crash", p.rep)
	}
	return nil
}

func (p *runner) crash(ctx context.Context, point crashPoint) (*crashReport, error) {
	step, dying := p.step+stepSize, &trackedStore{Store: p.Store}
	defer dying.abortAll()
	s := fault.New(dying, point.rule)
	_, err := p.saveStep(ctx, s, step)

	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case !s.Crashed():
		return nil, fmt.Errorf("%w: the save did not reach the crash point: %w", errWrong, err)
	case err == nil:
		return nil, fmt.Errorf("%w: the save reports success", errWrong)
	}

	f, err := p.examine(ctx)
	if err != nil {
		return nil, err
	}

	ops := s.Ops()
	c := &crashReport{At: point.at, Operation: ops[len(ops)-1].String(), Survivor: "old", SaveID: f.saveID, Digest: f.digest}
	if c.LeftFiles, c.LeftBytes, err = f.leftovers(ctx, p.Store); err != nil {
		return nil, err
	}
	isOld, isNew := f.step == p.step && f.digest == p.rep.Digest, f.step == step && f.digest != p.rep.Digest
	if isOld == point.committed || isNew != point.committed {
		return nil, fmt.Errorf("%w: the checkpoint is %s of step %d", errWrong, f.saveID, f.step)
	}

	for _, e := range ops { // to limit the use of disk space; the last save removes the rest
		if e.Op == fault.Create && !f.named[e.Name] {
			_ = p.Store.Remove(ctx, e.Name)
		}
	}
	if point.committed {
		c.Survivor, p.step, p.rep.Digest = "new", f.step, f.digest
	}

	return c, nil
}

// finding is the result of examining the checkpoint.
type finding struct {
	saveID string
	step   int64
	check  checkReport
	digest string
	named  map[string]bool // the files of the checkpoint
}

// examine opens the current checkpoint, verifies it and computes its digest.
func (p *runner) examine(ctx context.Context) (*finding, error) {
	c, err := cairn.Open(ctx, p.Store)
	if err != nil {
		return nil, err
	}
	defer c.Close()

	info := c.Info()
	if info.Step == nil {
		return nil, fmt.Errorf("%w: the checkpoint %s has no step", errWrong, info.SaveID)
	}

	p.Watch.Begin("verify", c.TotalBytes())
	start := time.Now()
	rep, err := c.Verify(ctx, p.Watch.Moved)
	if err != nil {
		return nil, err
	}

	f := &finding{saveID: info.SaveID, step: *info.Step, named: map[string]bool{recordName: true}}
	f.check = checkReport{Files: rep.Files, Chunks: rep.Chunks, Speed: speed(rep.Bytes, start)}
	for _, file := range c.Files() {
		f.named[file.Name] = true
	}

	md, err := c.Metadata(ctx)
	if err != nil {
		return nil, err
	}

	p.Watch.Begin("digest", p.model.bytes)
	digests, err := inspect.Digests(ctx, c, inspect.Select(md), p.Watch.Moved)
	if err != nil {
		return nil, err
	}
	f.digest = inspect.Combine(digests)
	return f, nil
}

// leftovers counts the objects that do not belong to the checkpoint.
func (f *finding) leftovers(ctx context.Context, s blob.Store) (n int, bytes int64, err error) {
	for info, err := range s.List(ctx, "") {
		if err != nil {
			return 0, 0, err
		}
		if !f.named[info.Name] {
			n++
			bytes += info.Size
		}
	}
	return n, bytes, nil
}

// overwrite saves a complete checkpoint over the last one and examines it.
func (p *runner) overwrite(ctx context.Context) error {
	s, err := p.saveStep(ctx, p.Store, p.step+stepSize)
	if err != nil {
		return err
	}
	f, err := p.examine(ctx)
	if err != nil {
		return err
	}
	if f.saveID != s.SaveID || f.step != s.Step {
		return fmt.Errorf("%w: after a complete save of %s the checkpoint is %s", errWrong, s.SaveID, f.saveID)
	}
	if n, bytes, err := f.leftovers(ctx, p.Store); err != nil || n > 0 {
		return fmt.Errorf("%w: after a complete save %d files of %d bytes are left that no record names: %w", errWrong, n, bytes, err)
	}
	p.rep.Overwrite, p.rep.Digest = s, f.digest
	p.Watch.End("overwrite", p.rep)
	return nil
}

// trackedStore is a store that records its writers, so that their resources can be
// freed after a simulated crash.
type trackedStore struct {
	blob.Store

	mu      sync.Mutex
	writers []blob.Writer // guarded by mu
}

var (
	_ blob.Store   = (*trackedStore)(nil)
	_ blob.Wrapper = (*trackedStore)(nil)
)

// Unwrap implements [blob.Wrapper].
func (m *trackedStore) Unwrap() blob.Store { return m.Store }

// Create implements [blob.Store].
func (m *trackedStore) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	w, err := m.Store.Create(ctx, name, opts)
	if err == nil {
		m.mu.Lock()
		m.writers = append(m.writers, w)
		m.mu.Unlock()
	}
	return w, err
}

// abortAll aborts the writers that are still open.
func (m *trackedStore) abortAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.writers {
		w.Abort() // does nothing once committed; errors do not matter here
	}
}
