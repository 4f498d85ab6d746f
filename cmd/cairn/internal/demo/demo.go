// Package demo plays a small training job through everything that cairn
// promises: a sharded state is saved, loaded into another number of ranks and
// another sharding, compared byte by byte, and survives saves that crash. Ranks
// are goroutines or processes. It prints nothing and needs nothing but a store,
// and for processes a program that calls RunRank; the command line shows what
// its Report says.
package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// ErrWrong reports that something did not turn out as cairn promises.
var ErrWrong = errors.New("the demo found a fault")

// ErrTaken reports a place that holds something that is not the demo's, or in
// which another demo is at work.
var ErrTaken = errors.New("nothing was touched")

// MinBytes is the smallest state the demo makes.
const MinBytes = 64 << 10

// MaxRanks bounds the ranks of the demo, which are goroutines.
const MaxRanks = 1024

// Config says what to play. Store must be set; zero fields have defaults.
type Config struct {
	Store blob.Store
	// Dir is the directory of the store, which is made if need be and kept from
	// other demos. Empty: it is none, or nobody else is there.
	Dir string
	// Bytes is about the size of the state. Zero: 64 MiB.
	Bytes int64
	// Ranks save, LoadRanks load. Zero: 8 and 3.
	Ranks, LoadRanks int
	// Command is a program with arguments that calls RunRank with a task, which is
	// added as the last argument, on the same store. It is for RunProcs.
	Command []string
	// Env is added to the environment of the processes.
	Env []string
	// Timeout is after how long a silent process counts as gone. Survivors know of
	// one that was killed sooner; the report says when. Zero: 10 s.
	Timeout time.Duration
	// Watch, if not nil, is told how far the demo is.
	Watch Watcher
}

// Watcher is told of the demo's progress: of phases, which move bytes, and of
// the steps of the story, which may have several phases.
type Watcher interface {
	// Begin says that a phase begins, which will move so many bytes. The one
	// before has ended.
	Begin(phase string, bytes int64)
	// Moved is told of bytes. It may be called from several goroutines at once.
	Moved(bytes int64)
	// End says that a step has ended well: "save", "verify", "load", "crash",
	// "kill" or "overwrite". Its part of the report is filled in; that of the state with
	// the save.
	End(step string, r *Report)
}

type nobody struct{}

func (nobody) Begin(string, int64) {}
func (nobody) Moved(int64)         {}
func (nobody) End(string, *Report) {}

func (c Config) withDefaults() Config {
	if c.Bytes == 0 {
		c.Bytes = 64 << 20
	}
	if c.Ranks == 0 {
		c.Ranks = 8
	}
	if c.LoadRanks == 0 {
		c.LoadRanks = 3
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Watch == nil {
		c.Watch = nobody{}
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

// Run plays the demo at the root of the store, which must hold nothing or what
// an earlier demo left; anything else, or another demo that has the same Dir, is
// ErrTaken. It leaves a checkpoint there.
// The error wraps ErrWrong if anything is not as promised.
func Run(ctx context.Context, c Config) (*Report, error) {
	return perform(ctx, c, func(p *play) []act { return []act{p.save, p.verify, p.load, p.crashes, p.overwrite} })
}

// act is a part of the demo.
type act func(ctx context.Context) error

func perform(ctx context.Context, c Config, acts func(p *play) []act) (*Report, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	unlock, err := lockPlace(c.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := checkPlace(ctx, c.Store); err != nil {
		return nil, err
	}
	p := newPlay(c)
	for _, act := range acts(p) {
		if err := act(ctx); err != nil {
			return p.rep, err
		}
	}
	p.rep.OK = true
	return p.rep, nil
}

// Report says what the demo did. A step that was not reached is nil.
type Report struct {
	OK    bool    `json:"ok"`
	Path  string  `json:"path"`
	State State   `json:"state"`
	Save  *Save   `json:"save"`
	Check *Check  `json:"verify"`
	Load  *Load   `json:"load"`
	Crash []Crash `json:"crashes"`
	// Procs says that ranks were processes, of which some were killed; where
	// not, Kills is empty, and where they were Crash is.
	Procs bool   `json:"procs"`
	Kills []Kill `json:"kills"`
	// Overwrite is the complete save over the checkpoint, after the crashes.
	Overwrite *Save `json:"overwrite"`
	// Digest is inspect.Combine of the checkpoint that is left.
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
	// Needed and Read are the bytes that the ranks asked for and that were
	// read from files to satisfy them; Speed counts the former. Compared are
	// those found equal to what was saved.
	Needed   int64 `json:"bytes_needed"`
	Read     int64 `json:"bytes_read"`
	Requests int64 `json:"requests"`
	Compared int64 `json:"bytes_compared"`
	Speed
}

// Crash describes a save that stopped dead, and what was there afterwards.
type Crash struct {
	// At says how far the save was, Operation which one it did not survive.
	At        string `json:"at"`
	Operation string `json:"operation"`
	// Survivor is "old" or "new": the checkpoint that was found whole.
	Survivor string `json:"survivor"`
	SaveID   string `json:"save_id"`
	Digest   string `json:"digest"`
	// LeftFiles and LeftBytes count what the crash left that no record names.
	LeftFiles int   `json:"left_files"`
	LeftBytes int64 `json:"left_bytes"`
}

// Kill describes a save during which a process was killed, and what was there
// afterwards.
type Kill struct {
	Crash
	// Rank was killed.
	Rank int `json:"rank"`
	// Survivors are the other ranks, each of which returned an error that names
	// the one that was killed.
	Survivors int `json:"survivors"`
	// Known is how many seconds after the death the last of them returned.
	Known float64 `json:"seconds_until_known"`
	// Errors are what they returned, each text once.
	Errors []string `json:"errors"`
}

// Speed is how many bytes took how long.
type Speed struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

func speed(bytes int64, since time.Time) Speed {
	return Speed{Bytes: bytes, Seconds: time.Since(since).Seconds()}
}

// PerSecond returns the bytes of a second.
func (s Speed) PerSecond() float64 {
	if s.Seconds <= 0 {
		return 0
	}
	return float64(s.Bytes) / s.Seconds
}
