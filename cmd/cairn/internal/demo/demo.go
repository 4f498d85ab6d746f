// Package demo runs a small training job that shows cairn's guarantees: it saves
// a sharded state, loads it into another number of ranks and another sharding,
// compares it byte by byte, crashes saves, and kills trainers while their states are
// saved in the background. Ranks are goroutines or processes.
// It prints nothing and needs only a store and, for processes, a program that
// calls RunRank; the command line prints its Report.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// ErrWrong reports a result that violates cairn's guarantees.
var ErrWrong = errors.New("the demo found a fault")

// ErrTaken reports a directory that has other content or is in use by another
// demo.
var ErrTaken = errors.New("nothing was touched")

// MinBytes is the smallest size of the state.
const MinBytes = 64 << 10

// MaxRanks bounds the ranks of the demo, which are goroutines.
const MaxRanks = 1024

// Config configures the demo. Store must be set; zero fields have defaults.
type Config struct {
	Store blob.Store
	// Bytes is the approximate size of the state. Zero: 64 MiB.
	Bytes int64
	// Ranks is the number of ranks that save, LoadRanks of those that load. Zero:
	// 8 and 3.
	Ranks, LoadRanks int
	// Command is a program with arguments that calls RunRank on the same store,
	// with a task as its last argument. RunProcs needs it.
	Command []string
	// Saver is a program with arguments that is a saver process, as in
	// [saver.Options]. Both are nil if no other process can open the store; then Run
	// does not save in the background.
	Saver []string
	// Env is added to the environment of the processes.
	Env []string
	// Watch, if not nil, receives the progress of the demo.
	Watch Watcher
	// Stderr, if not nil, receives what the processes print to stderr. Otherwise that
	// is part of the error if they fail.
	Stderr io.Writer
	// Logger, if not nil, receives the phases of saves and loads in this process.
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
	// "kill", "background" or "overwrite". Its part of the report is set; that of the state is
	// set with the save.
	End(step string, r *Report)
}

type noWatcher struct{}

func (noWatcher) Begin(string, int64) {}
func (noWatcher) Moved(int64)         {}
func (noWatcher) End(string, *Report) {}

func (c Config) withDefaults() Config {
	c.Bytes = cmp.Or(c.Bytes, 64<<20)
	c.Ranks, c.LoadRanks = cmp.Or(c.Ranks, 8), cmp.Or(c.LoadRanks, 3)
	if c.Watch == nil {
		c.Watch = noWatcher{}
	}
	return c
}

func (c Config) check() error {
	if c.Bytes < MinBytes {
		return fmt.Errorf("a state of %d bytes: at least %d", c.Bytes, MinBytes)
	}
	if n := min(c.Ranks, c.LoadRanks); n < 1 {
		return fmt.Errorf("%d ranks: at least 1", n)
	}
	if n := max(c.Ranks, c.LoadRanks); n > MaxRanks {
		return fmt.Errorf("%d ranks: at most %d", n, MaxRanks)
	}
	return nil
}

// Run runs the demo at the root of the store, which must be empty or hold the
// files of an earlier demo; otherwise, or if another demo uses the same Dir, the
// error wraps ErrTaken. It leaves a checkpoint there. The error wraps ErrWrong if
// a result is not as guaranteed.
func Run(ctx context.Context, c Config) (*Report, error) {
	return runStages(ctx, c, func(p *runner) []stage {
		return []stage{p.save, p.verify, p.load, p.crashes, newProcRunner(p).background, p.overwrite}
	})
}

// stage is a part of the demo.
type stage func(ctx context.Context) error

func runStages(ctx context.Context, c Config, stages func(p *runner) []stage) (*Report, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	unlock, err := lock(ctx, c.Store)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := checkPlace(ctx, c.Store); err != nil {
		return nil, err
	}
	p := newRunner(c)
	for _, stage := range stages(p) {
		if err := stage(ctx); err != nil {
			return p.rep, err
		}
	}
	p.rep.OK = true
	return p.rep, nil
}

// lock locks the store against other demos until unlock is called or this process
// ends: a demo would take another one's files for leftovers, and report a fault. It
// does nothing if the store has no locks.
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

// Report is the result of the demo. Steps that were not reached are nil.
type Report struct {
	OK    bool    `json:"ok"`
	Path  string  `json:"path"`
	State State   `json:"state"`
	Save  *Save   `json:"save"`
	Check *Check  `json:"verify"`
	Load  *Load   `json:"load"`
	Crash []Crash `json:"crashes"`
	// Procs is set if ranks were processes, some of which were killed. Then Crash
	// is empty, otherwise Kills is.
	Procs bool   `json:"procs"`
	Kills []Kill `json:"kills"`
	// Background are the saves in the background, after the crashes.
	Background *Background `json:"background"`
	// Overwrite is the complete save over the checkpoint, after the crashes.
	Overwrite *Save `json:"overwrite"`
	// Digest is inspect.Combine of the final checkpoint.
	Digest string `json:"digest"`
}

// State describes the state that is saved.
type State struct {
	Layers   int   `json:"layers"`
	Width    int64 `json:"width"`
	Tensors  int   `json:"tensors"`
	Objects  int   `json:"objects"`
	NumBytes int64 `json:"nbytes"`
}

// Save describes a save.
type Save struct {
	SaveID string `json:"save_id"`
	Step   int64  `json:"step"`
	Ranks  int    `json:"ranks"`
	Mesh   []int  `json:"mesh"`
	Files  int    `json:"files"` // data files
	Speed
}

// Check describes a full verification.
type Check struct {
	Files  int   `json:"files"` // with the index
	Chunks int64 `json:"chunks"`
	Speed
}

// Load describes a load into other ranks.
type Load struct {
	Ranks int `json:"ranks"`
	// Needed and Read are the bytes that the ranks requested and that were read
	// from files; Speed counts Needed. Compared are the bytes that were equal to
	// what was saved.
	Needed   int64 `json:"bytes_needed"`
	Read     int64 `json:"bytes_read"`
	Requests int64 `json:"requests"`
	Compared int64 `json:"bytes_compared"`
	Speed
}

// Crash describes a save that crashed, and the state of the store afterwards.
type Crash struct {
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

// Kill describes a save during which a process was killed, and the state of the
// store afterwards.
type Kill struct {
	Crash
	// Rank is the rank that was killed.
	Rank int `json:"rank"`
	// Survivors is the number of other ranks. Each returned an error that names
	// the killed rank.
	Survivors int `json:"survivors"`
	// Known is the time in seconds from the death until the last survivor
	// returned.
	Known float64 `json:"seconds_until_known"`
	// Errors are the different texts of their errors.
	Errors []string `json:"errors"`
}

// Speed is a number of bytes and the time they took.
type Speed struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

func speed(bytes int64, since time.Time) Speed {
	return Speed{Bytes: bytes, Seconds: time.Since(since).Seconds()}
}

// PerSecond returns bytes per second.
func (s Speed) PerSecond() float64 {
	if s.Seconds <= 0 {
		return 0
	}
	return float64(s.Bytes) / s.Seconds
}
