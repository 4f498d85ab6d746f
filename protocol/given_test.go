package protocol_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
)

// slip is a mistake of a planner, a writer or a reader of these tests: the method, and its
// wrong result.
type slip struct{ method, returns string }

// one returns the result of a method that should return v.
func one[T any](f slip, method string, v *T, err error) (*T, error) {
	if f.method == method {
		return nil, nil
	}
	return v, err
}

// each returns the result of a method that should return a list.
func each[T any](f slip, method string, list []*T, err error) ([]*T, error) {
	if f.method != method || err != nil {
		return list, err
	}
	switch f.returns {
	case "nothing":
		return nil, nil
	case "one too few":
		return list[1:], nil
	case "one too many":
		return append(list[:len(list):len(list)], list[0]), nil
	case "nil for rank 2":
		list = append([]*T{}, list...)
		list[2] = nil
	}
	return list, nil
}

type faultySave struct {
	plan.DefaultSave
	f slip
}

func (p *faultySave) LocalPlan() (*plan.SavePlan, error) {
	q, err := p.DefaultSave.LocalPlan()
	return one(p.f, "planner's LocalPlan", q, err)
}

func (p *faultySave) GlobalPlan(ps []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	out, md, err := p.DefaultSave.GlobalPlan(ps)
	if p.f.method == "planner's GlobalPlan" && err == nil {
		switch p.f.returns {
		case "no metadata":
			md = nil
		case "an empty entry":
			md.Entries[0].Tensor, md.Entries[0].Bytes = nil, nil
		case "an item without a description":
			out[0].Items[0].Info = nil
		case "a box outside of its tensor":
			out[0].Items[0].Box.Offsets = []int64{1}
		}
	}
	out, err = each(p.f, "planner's GlobalPlan", out, err)
	return out, md, err
}

func (p *faultySave) FinishPlan(q *plan.SavePlan) (*plan.SavePlan, error) {
	q, err := p.DefaultSave.FinishPlan(q)
	return one(p.f, "planner's FinishPlan", q, err)
}

func (p *faultySave) Resolve(it *plan.WriteItem) (plan.Data, error) {
	if p.f.method == "planner's Resolve" && it.Kind != plan.KindBytes {
		return plan.Data{}, nil
	}
	return p.DefaultSave.Resolve(it)
}

type faultyWriter struct {
	storage.Writer
	f slip
}

func (w *faultyWriter) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	p, err := w.Writer.PrepareLocalPlan(ctx, p)
	return one(w.f, "writer's PrepareLocalPlan", p, err)
}

func (w *faultyWriter) PrepareGlobalPlan(ctx context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	ps, err := w.Writer.PrepareGlobalPlan(ctx, ps)
	return each(w.f, "writer's PrepareGlobalPlan", ps, err)
}

func (w *faultyWriter) WriteData(ctx context.Context, p *plan.SavePlan, d storage.Resolver) (*storage.WriteResults, error) {
	r, err := w.Writer.WriteData(ctx, p, d)
	return one(w.f, "writer's WriteData", r, err)
}

type faultyLoad struct {
	plan.DefaultLoad
	f slip
}

func (p *faultyLoad) LocalPlan() (*plan.LoadPlan, error) {
	q, err := p.DefaultLoad.LocalPlan()
	return one(p.f, "planner's LocalPlan", q, err)
}

func (p *faultyLoad) GlobalPlan(ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	ps, err := p.DefaultLoad.GlobalPlan(ps)
	return each(p.f, "planner's GlobalPlan", ps, err)
}

func (p *faultyLoad) FinishPlan(q *plan.LoadPlan) (*plan.LoadPlan, error) {
	q, err := p.DefaultLoad.FinishPlan(q)
	return one(p.f, "planner's FinishPlan", q, err)
}

func (p *faultyLoad) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	x, err := p.DefaultLoad.ResolveTensor(it)
	return one(p.f, "planner's ResolveTensor", x, err)
}

type faultyReader struct {
	storage.Reader
	f slip
}

func (r *faultyReader) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	md, err := r.Reader.ReadMetadata(ctx)
	return one(r.f, "reader's ReadMetadata", md, err)
}

func (r *faultyReader) PrepareLocalPlan(ctx context.Context, p *plan.LoadPlan) (*plan.LoadPlan, error) {
	p, err := r.Reader.PrepareLocalPlan(ctx, p)
	return one(r.f, "reader's PrepareLocalPlan", p, err)
}

func (r *faultyReader) PrepareGlobalPlan(ctx context.Context, ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	ps, err := r.Reader.PrepareGlobalPlan(ctx, ps)
	return each(r.f, "reader's PrepareGlobalPlan", ps, err)
}

// slips returns the slips of methods that return one value and of methods that
// return a list.
func slips(single, lists []string) []slip {
	var out []slip
	for _, m := range single {
		out = append(out, slip{m, "nothing"})
	}
	for _, m := range lists {
		for _, r := range []string{"nothing", "one too few", "one too many", "nil for rank 2"} {
			out = append(out, slip{m, r})
		}
	}
	return out
}

// checkNamed fails unless every rank's error names the method and is not a panic.
func checkNamed(t *testing.T, f slip, errs []error) {
	t.Helper()
	for r, err := range errs {
		known := errors.Is(err, plan.ErrProtocol) || errors.Is(err, meta.ErrInvalid)
		if !known || errors.Is(err, group.ErrPanic) || !strings.Contains(err.Error(), "the "+f.method) {
			t.Errorf("rank %d returned %v; want an error that names the %s", r, err, f.method)
		}
	}
}

func TestResultsOfSavePlannersAndWritersAreChecked(t *testing.T) {
	all := slips([]string{"planner's LocalPlan", "planner's FinishPlan", "planner's Resolve", "writer's PrepareLocalPlan", "writer's WriteData"},
		[]string{"planner's GlobalPlan", "writer's PrepareGlobalPlan"})
	all = append(all, slip{"planner's GlobalPlan", "no metadata"}, slip{"planner's GlobalPlan", "an empty entry"})
	for _, f := range all {
		for _, cached := range []bool{false, true} {
			s := new(mem.Store)
			errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
				job := saveJob(t, g, s, "a", 1)
				job.Planner, job.Writer = &faultySave{f: f}, &faultyWriter{job.Writer, f}
				if cached {
					job.Cache = new(plan.Cache)
				}
				_, err := protocol.Save(ctx, job)
				return err
			})
			t.Logf("%s returns %s", f.method, f.returns)
			checkNamed(t, f, errs)
		}
	}
}

// A group of one checks plans like a group of several.
func TestItemsOfFinalPlansAreChecked(t *testing.T) {
	for _, returns := range []string{"an item without a description", "a box outside of its tensor"} {
		for _, ranks := range []int{1, 2} {
			s := new(mem.Store)
			err := inproc.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) error {
				job := saveJob(t, g, s, "a", 1)
				job.State = plan.State{"b": job.State["b"]}
				job.Planner = &faultySave{f: slip{"planner's GlobalPlan", returns}}
				_, err := protocol.Save(ctx, job)
				return err
			})
			if !errors.Is(err, plan.ErrProtocol) || errors.Is(err, group.ErrPanic) {
				t.Errorf("%d ranks, GlobalPlan returns %s: %v; want ErrProtocol", ranks, returns, err)
			}
		}
	}
}

func TestResultsOfLoadPlannersAndReadersAreChecked(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "a", 1)
	for _, f := range slips([]string{"planner's LocalPlan", "planner's FinishPlan", "planner's ResolveTensor", "reader's ReadMetadata", "reader's PrepareLocalPlan"},
		[]string{"planner's GlobalPlan", "reader's PrepareGlobalPlan"}) {
		errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
			_, err := protocol.Load(ctx, protocol.RankLoad{
				Group: g, State: blank(t, g.Rank()), Planner: &faultyLoad{f: f}, Reader: &faultyReader{storage.NewReader(native.Format{}.Open, s, storage.ReadOptions{}), f},
			})
			return err
		})
		t.Logf("%s returns %s", f.method, f.returns)
		checkNamed(t, f, errs)
	}
}
