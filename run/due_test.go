package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
)

// noGroup is a group that must not get a message.
type noGroup struct{ group.Group }

// testdata/due.json has the cases of this test and of tests in Python: python/tests/test_run.py and with_torch.
func TestDue(t *testing.T) {
	var cases []struct {
		Policy     string
		Steps      []int64
		Seconds    int64
		Calls, Due []int64
		Error      string
	}
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile("testdata/due.json"))(t), &cases))
	if len(cases) < 10 {
		t.Fatalf("there are %d cases", len(cases))
	}
	for _, c := range cases {
		p, err := ParsePolicy(c.Policy)
		var d *Due
		if err == nil {
			d, err = NewDue(p)
		}
		if c.Error != "" {
			if err == nil || err.Error() != c.Error || !errors.Is(err, ErrPolicy) {
				t.Errorf("NewDue(%q) = %v; want %s", c.Policy, err, c.Error)
			}
			continue
		}
		if err != nil || !slices.Equal(d.steps, c.Steps) || d.period != time.Duration(c.Seconds)*time.Second {
			t.Errorf("NewDue(%q) = %+v, %v; want steps %v and %d seconds", c.Policy, d, err, c.Steps, c.Seconds)
			continue
		}
		var due []int64
		for _, step := range c.Calls {
			if must.Get(d.At(t.Context(), noGroup{}, step))(t) {
				due = append(due, step)
			}
		}
		if !slices.Equal(due, c.Due) {
			t.Errorf("%q is due in %v of %v; want %v", c.Policy, due, c.Calls, c.Due)
		}
	}
}

// A policy of a program is checked, and so is a step.
func TestDueRefuses(t *testing.T) {
	for _, p := range []Policy{{}, {Rules: []Rule{EverySteps(0)}}, {Rules: []Rule{Every(time.Millisecond)}}, {Rules: []Rule{nil}}, {AtMost: 1}} {
		if d, err := NewDue(p); !errors.Is(err, ErrPolicy) {
			t.Errorf("NewDue(%v) = %v, %v; want ErrPolicy", p, d, err)
		}
	}
	d := must.Get(NewDue(Policy{Rules: []Rule{EverySteps(2)}}))(t)
	if due, err := d.At(t.Context(), noGroup{}, -1); due || !errors.Is(err, storage.ErrOptions) {
		t.Errorf("At(-1) = %v, %v; want ErrOptions", due, err)
	}
}

// counting is a group that counts broadcasts.
type counting struct {
	group.Group
	sent *int
}

func (c counting) Broadcast(ctx context.Context, root int, msg []byte) ([]byte, error) {
	*c.sent++
	return c.Group.Broadcast(ctx, root, msg)
}

// The ranks decide alike by the clock of rank 0, although each is at another moment, and rarely ask.
func TestDueByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ranks, steps = 3, 400
		said, sent := make([][]int64, ranks), make([]int, ranks)
		var all sync.WaitGroup
		for rank, g := range inproc.New(ranks) {
			all.Go(func() {
				d, err := NewDue(Policy{Rules: []Rule{Every(20 * time.Second), EverySteps(70)}})
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Duration(rank) * time.Hour) // and so its first call is later
				for step := range int64(steps) {
					time.Sleep(time.Second)
					due, err := d.At(t.Context(), counting{g, &sent[rank]}, step+1)
					if err != nil {
						t.Error(err)
						return
					}
					if due {
						said[rank] = append(said[rank], step+1)
					}
				}
			})
		}
		all.Wait()
		for rank := range ranks {
			if !slices.Equal(said[rank], said[0]) || sent[rank] != sent[0] {
				t.Errorf("rank %d saves in %v after %d questions; rank 0 in %v after %d", rank, said[rank], sent[rank], said[0], sent[0])
			}
		}
		for i, step := range said[0][1:] {
			if gap := step - said[0][i]; gap > 25 {
				t.Errorf("after step %d, the next save is %d seconds later", said[0][i], gap)
			}
		}
		for step := int64(70); step <= steps; step += 70 {
			if !slices.Contains(said[0], step) {
				t.Errorf("no save is due in step %d", step)
			}
		}
		if sent[0] > steps/2 {
			t.Errorf("%d calls asked rank 0 %d times", steps, sent[0])
		}
	})
}

// After many short steps, such as batches that are passed over, a save is not much too late.
func TestDueAfterShortSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := must.Get(NewDue(Policy{Rules: []Rule{Every(time.Hour)}}))(t)
		for step := range int64(10_000) {
			time.Sleep(time.Millisecond)
			must.Get(d.At(t.Context(), group.Solo(), step))(t)
		}
		began := time.Now()
		for step := int64(10_000); ; step++ {
			time.Sleep(10 * time.Second)
			if must.Get(d.At(t.Context(), group.Solo(), step))(t) {
				break
			}
		}
		if late := time.Since(began) - time.Hour; late > maxSkip*10*time.Second {
			t.Errorf("the save is %v late", late)
		}
	})
}

// Ranks that call At with different steps would wait for each other in different saves.
func TestDueOfDifferentSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errs := make([]error, 2)
		var all sync.WaitGroup
		for rank, g := range inproc.New(2) {
			all.Go(func() {
				d, err := NewDue(Policy{Rules: []Rule{Every(time.Hour)}})
				if err == nil {
					_, err = d.At(t.Context(), g, int64(5+rank))
				}
				errs[rank] = err
			})
		}
		all.Wait()
		want := "rank 1 asks whether a save is due in step 6, and rank 0 in step 5"
		if got := fmt.Sprint(errs[1]); errs[0] != nil || !errors.Is(errs[1], storage.ErrOptions) || got != "unusable options: "+want {
			t.Errorf("At = %v and %v; want an error of rank 1: %s", errs[0], errs[1], want)
		}
	})
}
