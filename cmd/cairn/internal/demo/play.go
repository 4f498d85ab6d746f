package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/inspect"
)

// tag marks the demo's checkpoints as such.
const tag = "cairn-demo"

// The training steps at which the state is saved.
const (
	firstStep = 1000
	nextStep  = 1000 // from save to save
)

// play is a demo under way.
type play struct {
	Config
	model model
	rep   *Report
	step  int64 // of the checkpoint that is there
	// saver saves the state of a training step from all ranks.
	saver func(ctx context.Context, step int64) (*Save, error)
}

func newPlay(c Config) *play {
	m := newModel(c.Bytes, c.Ranks, c.LoadRanks)
	p := &play{Config: c, model: m, rep: &Report{Path: c.Store.String(), Crash: []Crash{}, Kills: []Kill{}}}
	p.saver = p.saveInProcess
	return p
}

// checkPlace refuses a place that holds something that is not the demo's.
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

// states makes the state of every rank at a training step.
func (p *play) states(ctx context.Context, step int64) ([]cairn.State, error) {
	p.Watch.Begin("state", p.model.held())
	out := make([]cairn.State, p.Ranks)
	err := inproc.Run(ctx, p.Ranks, func(ctx context.Context, g group.Group) (err error) {
		out[g.Rank()], err = p.model.filled(ctx, step, g.Rank(), p.Watch.Moved)
		return err
	})
	return out, err
}

// filled makes the state of one rank that saves at a training step.
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

// empty makes the state of one rank that loads.
func (m model) empty(rank int) (cairn.State, error) {
	return m.state(1, func(s *spec) (any, error) { return newPart(s, s.load, rank) })
}

// saveTo saves the states of all ranks over whatever is in the store.
func (p *play) saveTo(ctx context.Context, s blob.Store, states []cairn.State, step int64) (*Save, error) {
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

// saveOptions returns how the demo saves.
func saveOptions(g group.Group, step int64, moved func(int64)) *cairn.SaveOptions {
	return &cairn.SaveOptions{
		Group: g, Step: &step, Tags: map[string]string{tag: "made by 'cairn demo'"},
		// No other job saves here, so what crashed saves left need not age.
		SweepAfter: time.Nanosecond,
		Observer:   &cairn.Observer{Moved: moved},
	}
}

// saveInProcess makes the state and saves it, with goroutines as ranks.
func (p *play) saveInProcess(ctx context.Context, step int64) (*Save, error) {
	states, err := p.states(ctx, step)
	if err != nil {
		return nil, err
	}
	return p.saveTo(ctx, p.Store, states, step)
}

// save saves the first checkpoint.
func (p *play) save(ctx context.Context) error {
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

// describe fills in the report what the checkpoint says of the state.
func (p *play) describe(ctx context.Context) error {
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

// verify checks the first checkpoint and takes its digest.
func (p *play) verify(ctx context.Context) error {
	f, err := p.examine(ctx)
	if err != nil {
		return err
	}
	p.rep.Check, p.rep.Digest = &f.check, f.digest
	p.Watch.End("verify", p.rep)
	return nil
}

// load loads the checkpoint into other ranks and compares every byte.
func (p *play) load(ctx context.Context) error {
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
