package cairn

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
)

// PreemptOptions change how a Preemption works. Nil means the defaults.
type PreemptOptions struct {
	// Group has the ranks that stop at the same step. Nil: this process stops alone. Calls
	// on it must not overlap, so Requested is called by the goroutine that also makes the
	// other collective calls.
	Group group.Group
	// Grace is the time from the first signal to the end of the job, as the scheduler has
	// it. Zero: it is not known, and the log does not compare with a deadline.
	Grace time.Duration
	// Logger receives two records of rank 0: that a signal came, and whether the save was
	// complete in time. Nil: slog.Default.
	Logger *slog.Logger
}

// Preemption notes the signals that announce the end of a job, so that all ranks save at
// the same step. OnSignal makes one; the zero value does not work.
//
// Its methods are for one goroutine, except for Close.
type Preemption struct {
	options PreemptOptions
	signals chan os.Signal
	ended   chan struct{} // closed once the reader of signals has ended
	once    sync.Once
	agreed  *notice // the notice that the ranks have agreed on; nil: no signal

	mu   sync.Mutex
	mine *notice // the first signal of this rank
}

// notice is a signal that a rank has received.
type notice struct {
	Signal string    `json:"signal"`
	Time   time.Time `json:"time"`
	rank   int       // that received it
}

// OnSignal begins to note signals, SIGTERM if none is given. While the Preemption is not
// closed, they do not end this process. Other channels of signal.Notify receive them too.
//
// A training loop asks Requested after each step, on all ranks, and saves if it returns
// true:
//
//	preempt := cairn.OnSignal(&cairn.PreemptOptions{Group: g, Grace: 90 * time.Second}, syscall.SIGTERM)
//	defer preempt.Close()
func OnSignal(opts *PreemptOptions, signals ...os.Signal) *Preemption {
	p := &Preemption{signals: make(chan os.Signal, 8), ended: make(chan struct{})}
	if opts != nil {
		p.options = *opts
	}
	if p.options.Group == nil {
		p.options.Group = group.Solo()
	}
	if len(signals) == 0 {
		signals = []os.Signal{syscall.SIGTERM}
	}
	signal.Notify(p.signals, signals...)
	go p.note()
	return p
}

// note keeps the first signal. The following ones are dropped: the save has begun, or
// begins at the next step.
func (p *Preemption) note() {
	defer close(p.ended)
	for s := range p.signals {
		p.mu.Lock()
		if p.mine == nil {
			p.mine = &notice{Signal: s.String(), Time: time.Now()}
		}
		p.mu.Unlock()
	}
}

// Close ends the noting of signals. A signal that comes later has the effect that it had
// before OnSignal.
func (p *Preemption) Close() {
	p.once.Do(func() {
		signal.Stop(p.signals) // when it returns, no signal is sent any more
		close(p.signals)
		<-p.ended
	})
}

// Requested reports whether any rank has received a signal. All ranks of the group call it,
// after each step or after every k-th step, and get the same answer. It costs one all-gather
// of a few bytes. After it has returned true, it returns true without asking the other ranks.
func (p *Preemption) Requested(ctx context.Context) (bool, error) {
	if p.agreed != nil {
		return true, nil
	}

	p.mu.Lock()
	mine := p.mine
	p.mu.Unlock()

	var msg []byte
	if mine != nil {
		var err error
		if msg, err = json.Marshal(mine); err != nil {
			return false, err
		}
	}

	g := p.options.Group
	all, err := g.AllGather(ctx, msg)
	if err != nil {
		return false, fmt.Errorf("agree on a signal: %w", err)
	}

	var first *notice
	for rank, b := range all {
		if len(b) == 0 {
			continue
		}
		n := &notice{rank: rank}
		if err := json.Unmarshal(b, n); err != nil {
			return false, fmt.Errorf("agree on a signal: rank %d: %w", rank, err)
		}
		if first == nil || n.Time.Before(first.Time) {
			first = n
		}
	}

	if p.agreed = first; first != nil {
		p.log(slog.LevelInfo, "preempt: the job is about to end", "seconds_after_signal", p.seconds())
	}
	return first != nil, nil
}

// Left returns the time until the deadline, which is negative after it. False: no signal
// was agreed on, or PreemptOptions.Grace is zero.
func (p *Preemption) Left() (time.Duration, bool) {
	if p.agreed == nil || p.options.Grace == 0 {
		return 0, false
	}
	return time.Until(p.agreed.Time.Add(p.options.Grace)), true
}

// lastWord is how long before the deadline Save logs that the save is not complete: after
// it, the process may be killed at any time.
const lastWord = 2 * time.Second

// Save saves a state and waits until the checkpoint is complete, at AsyncOptions.Remote
// too. It is SaveAsync and the wait for it, so that a Stager with a saver process completes
// the save even if this process is killed at the end of the grace period. All ranks call
// it. AsyncOptions.Group is the group of the Preemption if it is nil.
//
// Rank 0 logs when the state is staged, when the checkpoint is complete, and how long before
// or after the deadline. An upload that fails is an error, although the local checkpoint is
// complete.
func (p *Preemption) Save(ctx context.Context, store blob.Store, state State, opts *AsyncOptions) (*SaveReport, error) {
	var o AsyncOptions
	if opts != nil {
		o = *opts
	}
	if o.Group == nil && o.RankLocal == nil {
		o.Group = p.options.Group
	}
	// A save that is under way, or has failed, is no reason to do without the last one.
	o.ReturnLast = false
	if o.Busy == BusySkip {
		o.Busy = BusyWait
	}
	pending, err := SaveAsync(ctx, store, state, &o)
	if err != nil {
		p.log(slog.LevelError, "preempt: the save has failed", "seconds_after_signal", p.seconds(), "error", err)
		return nil, err
	}
	p.log(slog.LevelInfo, "preempt: the save is staged", "seconds_after_signal", p.seconds())
	defer p.warnBefore()()
	report, err := pending.Wait(ctx)
	if err == nil {
		_, err = pending.WaitUploaded(ctx)
	}
	p.outcome(err)
	return report, err
}

// warnBefore logs shortly before the deadline, or now if that is over, that the save is not
// complete, unless the function that it returns is called earlier.
func (p *Preemption) warnBefore() (stop func()) {
	left, ok := p.Left()
	if !ok {
		return func() {}
	}
	warn := func() {
		left, _ := p.Left()
		p.log(slog.LevelWarn, "preempt: the save is not complete", "seconds_before_deadline", left.Seconds())
	}
	if left -= min(lastWord, p.options.Grace/10); left <= 0 {
		warn()
		return func() {}
	}
	t := time.AfterFunc(left, warn)
	return func() { t.Stop() }
}

// outcome logs how a save ended.
func (p *Preemption) outcome(err error) {
	args := []any{"seconds_after_signal", p.seconds()}
	left, bounded := p.Left()
	switch {
	case err != nil:
		p.log(slog.LevelError, "preempt: the save has failed", append(args, "error", err)...)
	case bounded && left < 0:
		p.log(slog.LevelWarn, "preempt: the save is complete, but late", append(args, "seconds_after_deadline", -left.Seconds())...)
	case bounded:
		p.log(slog.LevelInfo, "preempt: the save is complete in time", append(args, "seconds_before_deadline", left.Seconds())...)
	default:
		p.log(slog.LevelInfo, "preempt: the save is complete", args...)
	}
}

// seconds returns the time since the signal.
func (p *Preemption) seconds() float64 {
	if p.agreed == nil {
		return 0
	}
	return time.Since(p.agreed.Time).Seconds()
}

// log logs a record on rank 0.
func (p *Preemption) log(level slog.Level, msg string, args ...any) {
	if p.options.Group.Rank() != 0 {
		return
	}
	if p.agreed != nil {
		args = append([]any{"signal", p.agreed.Signal, "signal_rank", p.agreed.rank}, args...)
	}
	cmp.Or(p.options.Logger, slog.Default()).Log(context.Background(), level, msg, args...)
}
