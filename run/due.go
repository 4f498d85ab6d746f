package run

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/storage"
)

// Due says in which steps a job saves: by a policy of the rules EverySteps and Every. Each rank of
// the job makes one with the same policy. Its methods are safe for concurrent use.
type Due struct {
	text   string
	steps  []int64
	period time.Duration // the shortest one; zero: there is none

	mu    sync.Mutex
	begun bool  // guarded by mu, like the rest
	last  int64 // the step of the last call
	calls int   // since rank 0 was asked
	skip  int   // the next calls that need not ask
	// The clock of rank 0.
	saved time.Time // of the last save or of the first call
	asked time.Time
}

// maxSkip bounds the calls without a question to rank 0: they may take much longer than the calls
// from which rank 0 has estimated their number.
const maxSkip = 100

// NewDue returns a Due by a policy. The error wraps ErrPolicy if the policy has no rule, or one that
// does not say when to save, such as Last.
func NewDue(p Policy) (*Due, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	unfit := func(text fmt.Stringer) error {
		return fmt.Errorf(`%w: %q does not say when to save: want rules such as "every 500 steps" and "every 30 minutes"`, ErrPolicy, text)
	}

	d := &Due{text: p.String()}
	for _, r := range p.Rules {
		switch r := r.(type) {
		case EverySteps:
			d.steps = append(d.steps, int64(r))
		case Every:
			if d.period == 0 || time.Duration(r) < d.period {
				d.period = time.Duration(r)
			}
		default:
			return nil, unfit(r)
		}
	}
	if p.AtMost > 0 || len(p.Rules) == 0 {
		return nil, unfit(Policy{AtMost: p.AtMost})
	}
	return d, nil
}

// String returns the text of the policy. It is empty for nil.
func (d *Due) String() string {
	if d == nil {
		return ""
	}
	return d.text
}

// At reports whether a save is due in a step, the same on all ranks of g. All ranks call it in each
// step, and save if it returns true.
//
// EverySteps(500) is due in the first call at or after each multiple of 500, and in step 0 if that is
// the first call. Every(30 * time.Minute) is due when this time has passed since the first call, or
// since At has returned true. Only the clock of rank 0 counts for it. Rank 0 is asked in some of the
// calls: after 100 calls at most. Without a rule Every, At sends no messages.
func (d *Due) At(ctx context.Context, g group.Group, step int64) (bool, error) {
	if step < 0 {
		return false, fmt.Errorf("%w: the step is %d", storage.ErrOptions, step)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.last
	if !d.begun {
		before = step - 1
	}
	d.begun, d.last = true, step
	due := slices.ContainsFunc(d.steps, func(n int64) bool { return multiples(step, n) > multiples(before, n) })

	if d.period > 0 {
		over, err := d.over(ctx, g, step)
		if err != nil {
			return false, err
		}
		due = due || over
	}
	if due {
		d.saved = time.Now()
	}
	return due, nil
}

// multiples returns how many multiples of n are from 0 to step, which is -1 or more.
func multiples(step, n int64) int64 {
	if step < 0 {
		return 0
	}
	return step/n + 1
}

// dueVerdict is the answer of rank 0 for a step.
type dueVerdict struct {
	Step int64 `json:"step"`
	Over bool  `json:"over"` // the time has passed
	Skip int   `json:"skip"` // calls that need not ask
}

// over reports whether the time has passed on rank 0. Between two questions, all ranks count the same
// calls.
func (d *Due) over(ctx context.Context, g group.Group, step int64) (bool, error) {
	d.calls++
	if d.skip > 0 {
		d.skip--
		return false, nil
	}
	said, err := group.Broadcast(ctx, g, "due", 0, group.JSON[dueVerdict](), func(context.Context) (dueVerdict, error) {
		return d.ask(step, time.Now()), nil
	})
	if err != nil {
		return false, fmt.Errorf("whether a save is due in step %d: %w", step, err)
	}
	if said.Step != step {
		return false, fmt.Errorf("%w: rank %d asks whether a save is due in step %d, and rank 0 in step %d", storage.ErrOptions, g.Rank(), step, said.Step)
	}
	d.calls, d.skip = 0, said.Skip
	return said.Over, nil
}

// ask returns on rank 0 whether the time has passed. If not, half of the calls that fit into the rest
// need not ask.
func (d *Due) ask(step int64, now time.Time) dueVerdict {
	first := d.saved.IsZero()
	if first {
		d.saved, d.asked = now, now
	}
	left := d.period - now.Sub(d.saved)
	each := now.Sub(d.asked) / time.Duration(max(d.calls, 1))
	d.asked = now

	v := dueVerdict{Step: step, Over: left <= 0}
	if !first && left > 0 {
		v.Skip = int(min(left/max(each, time.Microsecond)/2, maxSkip))
	}
	return v
}
