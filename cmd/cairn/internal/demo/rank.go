package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
)

// RunRank plays one rank of RunProcs: the task is one that RunProcs handed to
// its Command, and out is read by it. It meets the others by the environment. An
// error of the task itself is told to RunProcs; what is returned is that it could
// not be.
func RunRank(ctx context.Context, s blob.Store, text string, out io.Writer) error {
	r := &rank{store: s, tell: &teller{out: out}}
	if err := json.Unmarshal([]byte(text), &r.task); err != nil {
		return fmt.Errorf("the task of a rank: %w", err)
	}
	done := &outcome{}
	if err := r.play(ctx, done); err != nil {
		done.Error, done.Gone = err.Error(), goneRanks(err)
	}
	return r.tell.message(message{Done: done})
}

// rank is one process of the demo.
type rank struct {
	task
	store blob.Store
	tell  *teller
}

func (r *rank) play(ctx context.Context, done *outcome) error {
	g, err := tcp.Join(ctx, tcp.Config{Job: jobName, Timeout: r.Timeout})
	if err != nil {
		return err
	}
	defer g.Close()
	if r.Load {
		return r.load(ctx, g, done)
	}
	return r.save(ctx, g, done)
}

func (r *rank) save(ctx context.Context, g group.Group, done *outcome) error {
	m := r.model()
	state, err := m.filled(ctx, r.Step, g.Rank(), func(int64) {})
	if err != nil {
		return err
	}
	s := r.store
	if r.Point != "" && r.Victim == g.Rank() {
		s = &deadly{Store: s, point: r.Point, tell: r.tell}
	}
	start := time.Now()
	rep, err := cairn.Save(ctx, s, state, saveOptions(g, r.Step, r.tell.moved))
	if err != nil {
		return err
	}
	done.Save = &Save{
		SaveID: rep.SaveID, Step: r.Step, Ranks: g.Size(), Mesh: m.mesh, Files: rep.Files, Speed: speed(rep.Bytes, start),
	}
	return nil
}

func (r *rank) load(ctx context.Context, g group.Group, done *outcome) error {
	m := r.model()
	state, err := m.empty(g.Rank())
	if err != nil {
		return err
	}
	start := time.Now()
	rep, err := cairn.Load(ctx, r.store, state, &cairn.LoadOptions{
		Group: g, RejectUnexpected: true, Observer: &cairn.Observer{Moved: r.tell.moved},
	})
	if err != nil {
		return err
	}
	done.Load = &Load{
		Ranks: g.Size(), Needed: rep.Total.Needed, Read: rep.Total.Read, Requests: rep.Total.Requests,
		Speed: speed(rep.Total.Needed, start),
	}
	done.Load.Compared, err = m.compare(state, r.Step, r.tell.moved)
	return err
}

// goneRanks returns the ranks that an error says are gone.
func goneRanks(err error) []int {
	if !errors.Is(err, group.ErrGone) {
		return nil
	}
	return group.Ranks(err)
}

// teller sends messages. It may be used by several goroutines at once.
type teller struct {
	mu  sync.Mutex
	out io.Writer // guarded by mu
	sum int64     // bytes that were not told yet; guarded by mu
}

// tellBytes is after how many bytes they are told.
const tellBytes = 1 << 20

func (t *teller) moved(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sum += n; t.sum >= tellBytes {
		_ = t.send(message{}) // that one matters little
	}
}

// message sends a message, with the bytes that were moved since the last one.
func (t *teller) message(m message) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.send(m)
}

// send is message for who holds mu.
func (t *teller) send(m message) error {
	m.Moved, m.Time = t.sum, time.Now()
	t.sum = 0
	return json.NewEncoder(t.out).Encode(m)
}

// jobName is the name under which the demo's ranks meet, again and again.
const jobName = "cairn-demo"

// task is what a process does, as one rank. It travels as JSON.
type task struct {
	// Load says to load and compare, where not to save.
	Load bool `json:"load"`
	// Bytes, Ranks and LoadRanks are those of the configuration.
	Bytes     int64 `json:"bytes"`
	Ranks     int   `json:"ranks"`
	LoadRanks int   `json:"load_ranks"`
	// Step is the training step to save, or that is there to be loaded.
	Step int64 `json:"step"`
	// Timeout is after how long a silent rank counts as gone.
	Timeout time.Duration `json:"timeout"`
	// Victim kills itself at a point, a killPoint. Without one nobody does.
	Victim int    `json:"victim"`
	Point  string `json:"point"`
}

func (t *task) model() model { return newModel(t.Bytes, t.Ranks, t.LoadRanks) }

// message is what a rank tells the process that has started it: one line of JSON.
type message struct {
	// Moved are bytes since the last message.
	Moved int64 `json:"moved,omitempty"`
	// Dying is the operation that the rank does not survive.
	Dying string `json:"dying,omitempty"`
	// Done is how the task ended, if it did.
	Done *outcome `json:"done,omitempty"`
	// Time is when it was sent.
	Time time.Time `json:"time"`
}

// outcome is how a rank's task ended.
type outcome struct {
	Save *Save `json:"save,omitempty"`
	Load *Load `json:"load,omitempty"`
	// Error is the error's text, Gone the ranks that it says are gone.
	Error string `json:"error,omitempty"`
	Gone  []int  `json:"gone,omitempty"`
}

// The points of a save at which a process is killed.
const (
	killWriting   = "writing data"
	killCommit    = "record written, not in place"
	killCommitted = "record in place, nobody told"
)

// deadly is a store under which this process dies.
type deadly struct {
	blob.Store
	point string
	tell  *teller
}

var (
	_ blob.Store   = (*deadly)(nil)
	_ blob.Wrapper = (*deadly)(nil)
)

// Unwrap implements [blob.Wrapper].
func (d *deadly) Unwrap() blob.Store { return d.Store }

// Create implements [blob.Store].
func (d *deadly) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	w, err := d.Store.Create(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	return &deadlyWriter{w, d, name}, nil
}

// die kills this process, as SIGKILL does: nothing is cleaned up.
func (d *deadly) die(operation string) {
	_ = d.tell.message(message{Dying: operation}) // there is nobody else to tell
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {} // until it arrives
}

type deadlyWriter struct {
	blob.Writer
	d    *deadly
	name string
}

// WriteAt implements [blob.Writer]. Of what is written last only half arrives.
func (w *deadlyWriter) WriteAt(ctx context.Context, p []byte, off int64) error {
	if w.d.point != killWriting || !isData(w.name) {
		return w.Writer.WriteAt(ctx, p, off)
	}
	_ = w.Writer.WriteAt(ctx, p[:len(p)/2], off)
	w.d.die("write " + w.name)
	return nil
}

// Commit implements [blob.Writer].
func (w *deadlyWriter) Commit(ctx context.Context) (blob.Info, error) {
	if w.name == recordName && w.d.point == killCommit {
		w.d.die("commit " + w.name)
	}
	info, err := w.Writer.Commit(ctx)
	if w.name == recordName && w.d.point == killCommitted && err == nil {
		w.d.die("commit " + w.name)
	}
	return info, err
}

// mortal is a store that remembers its writers, so that what they hold can be
// freed after a crash: a process that really died would hold nothing.
type mortal struct {
	blob.Store

	mu      sync.Mutex
	writers []blob.Writer // guarded by mu
}

var (
	_ blob.Store   = (*mortal)(nil)
	_ blob.Wrapper = (*mortal)(nil)
)

// Unwrap implements [blob.Wrapper].
func (m *mortal) Unwrap() blob.Store { return m.Store }

// Create implements [blob.Store].
func (m *mortal) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	w, err := m.Store.Create(ctx, name, opts)
	if err == nil {
		m.mu.Lock()
		m.writers = append(m.writers, w)
		m.mu.Unlock()
	}
	return w, err
}

// reap ends the writers that nobody ended.
func (m *mortal) reap() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.writers {
		w.Abort() // does nothing once committed; the rest is only tidying
	}
	m.writers = nil
}
