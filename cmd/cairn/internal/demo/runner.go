package demo

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/inspect"
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
	// saver saves the state of a training step from all ranks.
	saver func(ctx context.Context, step int64) (*Save, error)
}

func newRunner(c Config) *runner {
	m := newModel(c.Bytes, c.Ranks, c.LoadRanks)
	p := &runner{Config: c, model: m, rep: &Report{Path: c.Store.String(), Crash: []Crash{}, Kills: []Kill{}}}
	p.saver = p.saveInProcess
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

// states returns the state of every rank at a training step.
func (p *runner) states(ctx context.Context, step int64) ([]cairn.State, error) {
	p.Watch.Begin("state", p.model.held())
	out := make([]cairn.State, p.Ranks)
	err := inproc.Run(ctx, p.Ranks, func(ctx context.Context, g group.Group) (err error) {
		out[g.Rank()], err = p.model.filled(ctx, step, g.Rank(), p.Watch.Moved)
		return err
	})
	return out, err
}

// filled returns the state of one rank that saves at a training step.
func (m model) filled(ctx context.Context, step int64, rank int, moved func(int64)) (cairn.State, error) {
	return m.state(step, func(s *spec) (any, error) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		part, err := newPart(s, s.save, rank)
		if err != nil {
			return nil, err
		}
		n, err := fillPart(s, part, step)
		moved(n)
		return part, err
	})
}

// empty returns the state of one rank that loads.
func (m model) empty(rank int) (cairn.State, error) {
	return m.state(1, func(s *spec) (any, error) { return newPart(s, s.load, rank) })
}

// saveTo saves the states of all ranks, replacing the checkpoint in the store.
func (p *runner) saveTo(ctx context.Context, s blob.Store, states []cairn.State, step int64) (*Save, error) {
	p.Watch.Begin("save", p.model.bytes())
	var rep *cairn.SaveReport
	start := time.Now()
	err := inproc.Run(ctx, p.Ranks, func(ctx context.Context, g group.Group) error {
		r, err := cairn.Save(ctx, s, states[g.Rank()], saveOptions(g, step, p.Watch.Moved))
		if g.Rank() == 0 {
			rep = r
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Save{
		SaveID: rep.SaveID, Step: step, Ranks: p.Ranks, Mesh: p.model.mesh, Files: rep.Files, Speed: speed(rep.Bytes, start),
	}, nil
}

// saveOptions returns the options of the demo's saves.
func saveOptions(g group.Group, step int64, moved func(int64)) *cairn.SaveOptions {
	return &cairn.SaveOptions{
		Group: g, Step: &step, Tags: map[string]string{tag: "made by 'cairn demo'"},
		// No other job saves here, so leftovers of crashed saves can be removed
		// at once.
		SweepAfter: time.Nanosecond,
		Observer:   &cairn.Observer{Moved: moved},
	}
}

// saveInProcess makes the state and saves it, with goroutines as ranks.
func (p *runner) saveInProcess(ctx context.Context, step int64) (*Save, error) {
	states, err := p.states(ctx, step)
	if err != nil {
		return nil, err
	}
	return p.saveTo(ctx, p.Store, states, step)
}

func (p *runner) save(ctx context.Context) error {
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

// load loads the checkpoint into other ranks and compares every byte.
func (p *runner) load(ctx context.Context) error {
	p.Watch.Begin("load", p.model.wanted())
	states := make([]cairn.State, p.LoadRanks)
	var rep *cairn.LoadReport
	start := time.Now()
	err := inproc.Run(ctx, p.LoadRanks, func(ctx context.Context, g group.Group) (err error) {
		s, err := p.model.empty(g.Rank())
		if err != nil {
			return err
		}
		states[g.Rank()] = s
		r, err := cairn.Load(ctx, p.Store, s, &cairn.LoadOptions{
			Group: g, RejectUnexpected: true, Observer: &cairn.Observer{Moved: p.Watch.Moved},
		})
		if g.Rank() == 0 {
			rep = r
		}
		return err
	})
	if err != nil {
		return err
	}
	p.rep.Load = &Load{
		Ranks: p.LoadRanks, Needed: rep.Total.Needed, Read: rep.Total.Read, Requests: rep.Total.Requests,
		Speed: speed(rep.Total.Needed, start),
	}
	p.Watch.Begin("compare", p.model.wanted())
	if p.rep.Load.Compared, err = p.compare(ctx, states); err != nil {
		return err
	}
	p.Watch.End("load", p.rep)
	return nil
}

// compare compares the loaded states of all ranks with what was saved and returns
// the bytes of the tensors.
func (p *runner) compare(ctx context.Context, states []cairn.State) (int64, error) {
	var total atomic.Int64
	err := inproc.Run(ctx, len(states), func(_ context.Context, g group.Group) error {
		n, err := p.model.compare(states[g.Rank()], p.step, p.Watch.Moved)
		total.Add(n)
		return err
	})
	return total.Load(), err
}

// compare compares the loaded state of one rank with what was saved at a step and
// returns the bytes of the tensors.
func (m model) compare(state cairn.State, step int64, moved func(int64)) (total int64, err error) {
	parts := map[string]any{}
	want, err := m.state(step, func(s *spec) (any, error) { return s, nil })
	if err != nil {
		return 0, err
	}
	if err := compareValues("", want, state, parts); err != nil {
		return 0, err
	}
	for fqn, s := range m.specs() {
		n, err := comparePart(s, parts[fqn], step)
		if err != nil {
			return total, err
		}
		total += n
		moved(n)
	}
	return total, nil
}

// compareValues compares the values of two states. If want has a spec, it adds
// got's value to parts under the spec's name.
func compareValues(at string, want, got any, parts map[string]any) error {
	switch w := want.(type) {
	case *spec:
		parts[w.fqn] = got
		return nil
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%w: %s: loaded %v", ErrWrong, at, got)
		}
		for k := range w {
			if err := compareValues(at+"."+k, w[k], g[k], parts); err != nil {
				return err
			}
		}
		return nil
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%w: %s: loaded %v", ErrWrong, at, got)
		}
		for i := range w {
			if err := compareValues(fmt.Sprintf("%s.%d", at, i), w[i], g[i], parts); err != nil {
				return err
			}
		}
		return nil
	}
	if !reflect.DeepEqual(want, got) {
		return fmt.Errorf("%w: %s: loaded %v, saved %v", ErrWrong, at, got, want)
	}
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
	step := p.step + nextStep
	states, err := p.states(ctx, step)
	if err != nil {
		return nil, err
	}
	dying := &trackedStore{Store: p.Store}
	defer dying.abortAll()
	s := fault.New(dying, point.rule)
	_, err = p.saveTo(ctx, s, states, step)
	if !point.committed {
		defer func() { p.clean(context.WithoutCancel(ctx), s.Ops()) }()
	}
	if err := checkCrashed(ctx, s, err); err != nil {
		return nil, err
	}
	f, err := p.examine(ctx)
	if err != nil {
		return nil, err
	}
	log := s.Ops().Log
	c := &Crash{At: point.at, Operation: log[len(log)-1].String(), SaveID: f.saveID, Digest: f.digest}
	if c.LeftFiles, c.LeftBytes, err = f.leftovers(ctx, p.Store); err != nil {
		return nil, err
	}
	if point.committed {
		c.Survivor = "new"
		return c, p.survivedNew(f, step)
	}
	c.Survivor = "old"
	return c, p.survivedOld(f)
}

// checkCrashed checks that a save failed because of the crash.
func checkCrashed(ctx context.Context, s *fault.Store, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !s.Crashed():
		return fmt.Errorf("%w: the save did not come by: %w", ErrWrong, err)
	case err == nil:
		return fmt.Errorf("%w: the save reports success", ErrWrong)
	}
	return nil
}

// survivedOld checks that the checkpoint is the old one.
func (p *runner) survivedOld(f *finding) error {
	if f.step != p.step || f.digest != p.rep.Digest {
		return fmt.Errorf("%w: the old checkpoint is not what it was: %s, step %d", ErrWrong, f.saveID, f.step)
	}
	return nil
}

// survivedNew checks that the checkpoint is the one of the step that was just
// saved.
func (p *runner) survivedNew(f *finding, step int64) error {
	if f.step != step || f.digest == p.rep.Digest {
		return fmt.Errorf("%w: after the commit the checkpoint is still %s, step %d", ErrWrong, f.saveID, f.step)
	}
	p.step, p.rep.Digest = f.step, f.digest
	return nil
}

// clean removes the files of a save that crashed before its commit, to limit the
// use of disk space. The last save removes what remains.
func (p *runner) clean(ctx context.Context, ops fault.Ops) {
	for _, e := range ops.Log {
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
	digests, err := inspect.Digests(ctx, c, inspect.Select(md), &inspect.DigestOptions{Progress: p.Watch.Moved})
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
