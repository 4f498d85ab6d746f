package plan_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// job is ranks that save several times, each with its cache, as package protocol
// lets them. Plans are sent through the codec.
type job struct {
	caches  []*plan.Cache
	options func(rank int) string
	plan    func([]*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error)
	// The results of the last save.
	sent, answers []*plan.SavePlan
	planned       bool
	md            *meta.Metadata
}

func newJob(ranks int) *job {
	j := &job{plan: global, options: func(rank int) string { return fmt.Sprintf("T %d/%d", rank, ranks) }}
	for range ranks {
		j.caches = append(j.caches, new(plan.Cache))
	}
	return j
}

// global plans without a cache.
func global(plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	return plan.Global(plans, plan.LeastLoaded)
}

// save takes the ranks' local plans through one save and returns their final
// ones.
func (j *job) save(locals ...*plan.SavePlan) ([]*plan.SavePlan, error) {
	if err := j.exchange(locals); err != nil {
		return nil, err
	}
	return j.finish()
}

// exchange is the part of a save before Finish.
func (j *job) exchange(locals []*plan.SavePlan) error {
	codec := plan.NewSavePlanCodec()
	j.sent, j.planned = make([]*plan.SavePlan, len(locals)), false
	for r, p := range locals {
		sent, err := j.caches[r].Local(p, j.options(r))
		if err != nil {
			return err
		}
		if j.sent[r], err = carried(codec, sent); err != nil {
			return err
		}
	}
	answers, md, err := j.caches[0].Global(j.sent, func(full []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
		j.planned = true
		return j.plan(full)
	})
	if err != nil {
		return err
	}
	j.md, j.answers = md, make([]*plan.SavePlan, len(answers))
	for r := range answers {
		if j.answers[r], err = carried(codec, answers[r]); err != nil {
			return err
		}
	}
	return nil
}

func carried(codec plan.SavePlanCodec, p *plan.SavePlan) (*plan.SavePlan, error) {
	b, err := codec.Encode(p)
	if err != nil {
		return nil, err
	}
	return codec.Decode(b)
}

func (j *job) finish() ([]*plan.SavePlan, error) {
	finals := make([]*plan.SavePlan, len(j.answers))
	for r, a := range j.answers {
		var err error
		if finals[r], err = j.caches[r].Finish(a); err != nil {
			return nil, err
		}
	}
	return finals, nil
}

// unchanged lists the ranks with unchanged plans.
func unchanged(plans []*plan.SavePlan) []int {
	out := []int{}
	for r, p := range plans {
		if p.Unchanged {
			out = append(out, r)
		}
	}
	return out
}

// three are the local plans of three ranks: each has rows of x, the first two
// share y.
func three() []*plan.SavePlan {
	x := func(at int64) plan.WriteItem { return item("x", []int64{6}, span(at, 2)) }
	return []*plan.SavePlan{planOf(x(0), replica("y", 3)), planOf(x(2), replica("y", 3)), planOf(x(4), bytesItem("v", 5))}
}

// Whatever changes from save to save, whichever ranks are restarted and whatever saves fail,
// the ranks write the plans of a planner without memory. (By the rule that does not look at
// sizes: the plan has no sizes of values.)
func TestCacheDoesNotChangeResults(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		j := newJob(3)
		j.plan = func(plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
			return plan.Global(plans, plan.LowestRank)
		}
		for range rapid.IntRange(1, 8).Draw(t, "saves") {
			locals := three()
			for r, p := range locals {
				p.Items = append(p.Items, bytesItem("size", rapid.Int64Range(0, 2).Draw(t, "size")))
				switch rapid.IntRange(0, 6).Draw(t, "change") {
				case 0:
					p.Items = append(p.Items, replica("shared", 7))
				case 1:
					p.Items = append(p.Items, replica(fmt.Sprint("own", r), 2))
				case 2:
					j.caches[r].Forget()
				}
			}
			fail := rapid.IntRange(0, 4).Draw(t, "fail") == 0
			err := j.exchange(locals)
			if errors.Is(err, plan.ErrStale) { // as package protocol does
				for _, c := range j.caches {
					c.Forget()
				}
				err = j.exchange(locals)
			}
			if err != nil {
				t.Fatal(err)
			}
			if fail {
				continue
			}
			finals := must.Get(j.finish())(t)
			want, md, err := j.plan(locals)
			if d := cmp.Diff(lines(want), lines(finals)) + cmp.Diff(md, j.md); d != "" || err != nil {
				t.Fatalf("%v: -want +got\n%s", err, d)
			}
			checkSizes(t, locals, finals, j.md)
		}
	})
}
