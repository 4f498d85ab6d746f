package demo

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/cairn-ckpt/cairn/plan"
)

const tag = "cairn-demo"

// The training steps at which the state is saved.
const (
	firstStep = 1000
	nextStep  = 1000 // from save to save
)

// runner is the state of a running demo.
type runner struct {
	Config
	model model
	rep   *Report
	step  int64 // of the current checkpoint
	// saver saves the state of a training step from all ranks. loader loads it into
	// other ranks.
	saver  func(ctx context.Context, step int64) (*Save, error)
	loader func(ctx context.Context, step int64) ([]*Load, error)
}

func newRunner(c Config) *runner {
	m := newModel(c.Bytes, c.Ranks, c.LoadRanks)
	m.logger = c.Logger
	p := &runner{Config: c, model: m, rep: &Report{Path: c.Store.String(), Crash: []Crash{}, Kills: []Kill{}}}
	p.loader = p.loadInProcess
	p.saver = func(ctx context.Context, step int64) (*Save, error) { return p.saveInProcess(ctx, p.Store, step) }
	return p
}

// checkPlace returns ErrTaken if the store has content that is not the demo's.
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

// newState returns a rank's state at a training step. made receives each part of a
// tensor and its size.
func (m model) newState(ctx context.Context, rank int, step int64, made func(part plan.Checkpointable, n int64)) (cairn.State, error) {
	return m.state(step, func(s *spec) (any, error) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		part, err := newPart(s, s.save, rank)
		if err != nil {
			return nil, err
		}
		n, err := fillPart(s, part, step)
		made(part, n)
		return part, err
	})
}

func (m model) saveOptions(g group.Group, step int64, moved func(int64)) cairn.SaveOptions {
	return cairn.SaveOptions{
		Group: g, Step: &step, Tags: map[string]string{tag: "made by 'cairn demo'"},
		// No other job saves here, so leftovers of crashed saves can be removed
		// at once.
		SweepAfter: time.Nanosecond,
		Observer:   &cairn.Observer{Moved: moved},
		Logger:     m.logger,
	}
}

// saveRank is one rank's part in saving the state of a training step. moved counts
// the bytes of the state, once when they are made and once when they are written.
func (m model) saveRank(ctx context.Context, g group.Group, s blob.Store, step int64, moved func(int64)) (*Save, error) {
	state, err := m.newState(ctx, g.Rank(), step, func(_ plan.Checkpointable, n int64) { moved(n) })
	if err != nil {
		return nil, err
	}
	if err := g.Barrier(ctx); err != nil {
		return nil, err
	}
	start := time.Now()
	o := m.saveOptions(g, step, moved)
	rep, err := cairn.Save(ctx, s, state, &o)
	if err != nil {
		return nil, err
	}
	return &Save{
		SaveID: rep.SaveID, Step: step, Ranks: g.Size(), Mesh: m.mesh, Files: rep.Files, Speed: speed(rep.Bytes, start),
	}, nil
}

// loadRank is one rank's part in loading the checkpoint of a step into another
// sharding. It compares every byte of the result. moved counts the bytes that the
// rank holds, once when they are read and once when they are compared.
func (m model) loadRank(ctx context.Context, g group.Group, s blob.Store, step int64, moved func(int64)) (*Load, error) {
	parts := map[string]plan.Checkpointable{}
	state, err := m.state(1, func(s *spec) (any, error) {
		part, err := newPart(s, s.load, g.Rank())
		parts[s.path.FQN()] = part
		return part, err
	})
	if err != nil {
		return nil, err
	}
	if err := g.Barrier(ctx); err != nil {
		return nil, err
	}
	start := time.Now()
	rep, err := cairn.Load(ctx, s, state, &cairn.LoadOptions{
		Group: g, RejectUnexpected: true, Observer: &cairn.Observer{Moved: moved}, Logger: m.logger,
	})
	if err != nil {
		return nil, err
	}
	out := &Load{
		Ranks: g.Size(), Needed: rep.Total.Needed, Read: rep.Total.Read, Requests: rep.Total.Requests,
		Speed: speed(rep.Total.Needed, start),
	}
	want, err := m.state(step, func(s *spec) (any, error) { return parts[s.path.FQN()], nil })
	if err != nil {
		return nil, err
	}
	if !reflect.DeepEqual(want, state) {
		return nil, fmt.Errorf("%w: rank %d: loaded %v, saved %v", ErrWrong, g.Rank(), state, want)
	}
	for _, s := range m.specs() {
		n, err := comparePart(s, parts[s.path.FQN()], step)
		if err != nil {
			return nil, err
		}
		out.Compared += n
		moved(n)
	}
	return out, nil
}

// saveInProcess saves the state of a step, with goroutines as ranks.
func (p *runner) saveInProcess(ctx context.Context, s blob.Store, step int64) (out *Save, err error) {
	err = inproc.Run(ctx, p.Ranks, func(ctx context.Context, g group.Group) error {
		saved, err := p.model.saveRank(ctx, g, s, step, p.Watch.Moved)
		if g.Rank() == 0 {
			out = saved
		}
		return err
	})
	return out, err
}

// loadInProcess loads the checkpoint of a step, with goroutines as ranks.
func (p *runner) loadInProcess(ctx context.Context, step int64) ([]*Load, error) {
	out := make([]*Load, p.LoadRanks)
	err := inproc.Run(ctx, p.LoadRanks, func(ctx context.Context, g group.Group) (err error) {
		out[g.Rank()], err = p.model.loadRank(ctx, g, p.Store, step, p.Watch.Moved)
		return err
	})
	return out, err
}

// beginSave begins a phase in which all ranks make their states and save them.
func (p *runner) beginSave() { p.Watch.Begin("save", p.model.held()+p.model.bytes()) }

func (p *runner) save(ctx context.Context) error {
	p.beginSave()
	s, err := p.saver(ctx, firstStep)
	if err != nil {
		return err
	}
	p.rep.Save, p.step = s, firstStep
	if err := p.describe(ctx); err != nil {
		return err
	}
	p.Watch.End("save", p.rep)
	return nil
}

// describe adds a description of the state to the report.
func (p *runner) describe(ctx context.Context) error {
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
	p.rep.State = State{Layers: layers, Width: p.model.width, Tensors: int(t.Tensors), Objects: int(t.Objects), NumBytes: t.NumBytes}
	return nil
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

// load loads the checkpoint into other ranks, which compare every byte.
func (p *runner) load(ctx context.Context) error {
	p.Watch.Begin("load", 2*p.model.wanted())
	loads, err := p.loader(ctx, p.step)
	if err != nil {
		return err
	}
	p.rep.Load = loads[0]
	for _, l := range loads[1:] {
		p.rep.Load.Compared += l.Compared
	}
	p.Watch.End("load", p.rep)
	return nil
}

// recordName is the native format's commit record.
const recordName = "cairn.json"

func isData(name string) bool  { return strings.HasSuffix(name, ".safetensors") }
func isIndex(name string) bool { return strings.HasSuffix(name, "-index.cairn") }

// crashPoint is a point of a save at which the demo simulates a crash.
type crashPoint struct {
	at   string
	rule fault.Rule
	// committed is set if the new checkpoint must exist afterwards.
	committed bool
}

// crashPoints lists the crash points in the order of a save.
func crashPoints(ranks int) []crashPoint {
	record, half := fault.Named(recordName), int64(ranks+1)/2
	return []crashPoint{
		{at: "writing data", rule: fault.Rule{On: fault.Write, Match: isData, Nth: half, Do: fault.Crash()}},
		{at: "some data files written", rule: fault.Rule{On: fault.Commit, Match: isData, Nth: half, Do: fault.Crash()}},
		{at: "all data files written, no index", rule: fault.Rule{On: fault.Create, Match: isIndex, Do: fault.Crash()}},
		{at: "index written, no record", rule: fault.Rule{On: fault.Create, Match: record, Do: fault.Crash()}},
		{at: "record written, not in place", rule: fault.Rule{On: fault.Commit, Match: record, Do: fault.Crash()}},
		{at: "record in place, ranks not notified", rule: fault.Rule{On: fault.Commit, Match: record, Do: fault.CrashLate()}, committed: true},
	}
}

// crashes crashes one save after the other and checks the store.
func (p *runner) crashes(ctx context.Context) error {
	for _, point := range crashPoints(p.Ranks) {
		c, err := p.crash(ctx, point)
		if err != nil {
			return fmt.Errorf("crash with %s: %w", point.at, err)
		}
		p.rep.Crash = append(p.rep.Crash, *c)
		p.Watch.End("crash", p.rep)
	}
	return nil
}

func (p *runner) crash(ctx context.Context, point crashPoint) (*Crash, error) {
	p.beginSave()
	step := p.step + nextStep
	dying := &trackedStore{Store: p.Store}
	defer dying.abortAll()
	s := fault.New(dying, point.rule)
	_, err := p.saveInProcess(ctx, s, step)
	if !point.committed {
		defer func() { p.clean(context.WithoutCancel(ctx), s.Ops()) }()
	}
	if err := checkCrashed(ctx, s, err); err != nil {
		return nil, err
	}
	log := s.Ops()
	c := &Crash{At: point.at, Operation: log[len(log)-1].String()}
	return c, p.examineCrash(ctx, c, step, point.committed)
}

// examineCrash examines the checkpoint after a save of step that crashed, and
// completes c. committed tells whether the checkpoint must be the new one.
func (p *runner) examineCrash(ctx context.Context, c *Crash, step int64, committed bool) error {
	f, err := p.examine(ctx)
	if err != nil {
		return err
	}
	c.SaveID, c.Digest, c.Survivor = f.saveID, f.digest, "old"
	if c.LeftFiles, c.LeftBytes, err = f.leftovers(ctx, p.Store); err != nil {
		return err
	}
	if !committed {
		if f.step != p.step || f.digest != p.rep.Digest {
			return fmt.Errorf("%w: the old checkpoint is not what it was: %s, step %d", ErrWrong, f.saveID, f.step)
		}
		return nil
	}
	if f.step != step || f.digest == p.rep.Digest {
		return fmt.Errorf("%w: after the commit the checkpoint is still %s, step %d", ErrWrong, f.saveID, f.step)
	}
	c.Survivor, p.step, p.rep.Digest = "new", f.step, f.digest
	return nil
}

// checkCrashed checks that a save failed because of the crash.
func checkCrashed(ctx context.Context, s *fault.Store, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !s.Crashed():
		return fmt.Errorf("%w: the save did not reach the crash point: %w", ErrWrong, err)
	case err == nil:
		return fmt.Errorf("%w: the save reports success", ErrWrong)
	}
	return nil
}

// clean removes the files of a save that crashed before its commit, to limit the
// use of disk space. The last save removes what remains.
func (p *runner) clean(ctx context.Context, ops fault.Ops) {
	for _, e := range ops {
		if e.Op == fault.Create && e.Name != recordName {
			_ = p.Store.Remove(ctx, e.Name)
		}
	}
}

// finding is the result of examining the checkpoint.
type finding struct {
	saveID string
	step   int64
	check  Check
	digest string
	// named are the files of the checkpoint.
	named map[string]bool
}

// examine opens the current checkpoint, verifies it and computes its digest.
func (p *runner) examine(ctx context.Context) (*finding, error) {
	c, err := cairn.Open(ctx, p.Store)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	p.Watch.Begin("verify", c.TotalBytes())
	start := time.Now()
	rep, err := c.Verify(ctx, p.Watch.Moved)
	if err != nil {
		return nil, err
	}
	f := &finding{saveID: c.Info().SaveID, step: stepOf(c), named: map[string]bool{recordName: true}}
	f.check = Check{Files: rep.Files, Chunks: rep.Chunks, Speed: speed(rep.Bytes, start)}
	for _, file := range c.Files() {
		f.named[file.Name] = true
	}
	md, err := c.Metadata(ctx)
	if err != nil {
		return nil, err
	}
	p.Watch.Begin("digest", p.model.bytes())
	digests, err := inspect.Digests(ctx, c, inspect.Select(md), p.Watch.Moved)
	if err != nil {
		return nil, err
	}
	f.digest = inspect.Combine(digests)
	return f, nil
}

// stepOf returns the step of a checkpoint, or -1 if it has none: the demo always
// records one.
func stepOf(c *cairn.Checkpoint) int64 {
	if s := c.Info().Step; s != nil {
		return *s
	}
	return -1
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
	p.beginSave()
	step := p.step + nextStep
	s, err := p.saver(ctx, step)
	if err != nil {
		return err
	}
	f, err := p.examine(ctx)
	if err != nil {
		return err
	}
	if f.saveID != s.SaveID || f.step != step {
		return fmt.Errorf("%w: after a complete save of %s the checkpoint is %s", ErrWrong, s.SaveID, f.saveID)
	}
	if n, bytes, err := f.leftovers(ctx, p.Store); err != nil || n > 0 {
		return fmt.Errorf("%w: after a complete save %d files of %d bytes are left that no record names: %w", ErrWrong, n, bytes, err)
	}
	p.rep.Overwrite, p.rep.Digest, p.step = s, f.digest, step
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
	m.writers = nil
}
