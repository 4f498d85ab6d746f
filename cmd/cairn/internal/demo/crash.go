package demo

import (
	"context"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/blob/fault"
)

// recordName is the native format's commit record.
const recordName = "cairn.json"

func isData(name string) bool  { return strings.HasSuffix(name, ".safetensors") }
func isIndex(name string) bool { return strings.HasSuffix(name, "-index.cairn") }

// crashPoint is a place in a save at which the demo lets the process die.
type crashPoint struct {
	at   string
	rule fault.Rule
	// committed says that the new checkpoint must be there afterwards.
	committed bool
}

// crashPoints lists the places, in the order in which a save comes by.
func crashPoints(ranks int) []crashPoint {
	record, half := fault.Named(recordName), int64(ranks+1)/2
	return []crashPoint{
		{at: "writing data", rule: fault.Rule{On: fault.Write, Match: isData, Nth: half, Do: fault.Crash()}},
		{at: "some data files written", rule: fault.Rule{On: fault.Commit, Match: isData, Nth: half, Do: fault.Crash()}},
		{at: "all data files written, no index", rule: fault.Rule{On: fault.Create, Match: isIndex, Do: fault.Crash()}},
		{at: "index written, no record", rule: fault.Rule{On: fault.Create, Match: record, Do: fault.Crash()}},
		{at: "record written, not in place", rule: fault.Rule{On: fault.Commit, Match: record, Do: fault.Crash()}},
		{at: "record in place, nobody told", rule: fault.Rule{On: fault.Commit, Match: record, Do: fault.CrashLate()}, committed: true},
	}
}

// crashes lets one save after the other crash and looks at what is there then.
func (p *play) crashes(ctx context.Context) error {
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

func (p *play) crash(ctx context.Context, point crashPoint) (*Crash, error) {
	step := p.step + nextStep
	states, err := p.states(ctx, step)
	if err != nil {
		return nil, err
	}
	dying := &mortal{Store: p.Store}
	defer dying.reap()
	s := fault.New(dying, point.rule)
	_, err = p.saveTo(ctx, s, states, step)
	if !point.committed {
		defer func() { p.clean(context.WithoutCancel(ctx), s.Ops()) }()
	}
	if err := fellAsPlanned(ctx, s, err); err != nil {
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

// fellAsPlanned checks that a save ended with an error and by the crash.
func fellAsPlanned(ctx context.Context, s *fault.Store, err error) error {
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

// survivedOld checks that the checkpoint is the one that was there before.
func (p *play) survivedOld(f *finding) error {
	if f.step != p.step || f.digest != p.rep.Digest {
		return fmt.Errorf("%w: the old checkpoint is not what it was: %s, step %d", ErrWrong, f.saveID, f.step)
	}
	return nil
}

// survivedNew checks that the checkpoint is that of a step that was saved just
// now, whole.
func (p *play) survivedNew(f *finding, step int64) error {
	if f.step != step || f.digest == p.rep.Digest {
		return fmt.Errorf("%w: after the commit the checkpoint is still %s, step %d", ErrWrong, f.saveID, f.step)
	}
	p.step, p.rep.Digest = f.step, f.digest
	return nil
}

// clean removes what a save that crashed before its commit has created, lest
// the demo fill the disk. What it cannot remove the last save sweeps.
func (p *play) clean(ctx context.Context, ops fault.Ops) {
	for _, e := range ops.Log {
		if e.Op == fault.Create && e.Name != recordName {
			_ = p.Store.Remove(ctx, e.Name)
		}
	}
}
