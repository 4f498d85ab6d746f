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

// RunRank runs one rank of RunProcs: text is the task that RunProcs passed to its
// Command, and out is read by RunProcs. It meets the other ranks by the
// environment. An error of the task is sent to RunProcs; RunRank returns an error
// only if that fails.
func RunRank(ctx context.Context, s blob.Store, text string, out io.Writer) error {
	r := &rank{store: s, tell: &sender{out: out}}
	if err := json.Unmarshal([]byte(text), &r.task); err != nil {
		return fmt.Errorf("the task of a rank: %w", err)
	}
	done := &outcome{}
	if err := r.run(ctx, done); err != nil {
		done.Error, done.Gone = err.Error(), goneRanks(err)
	}
	return r.tell.message(message{Done: done})
}

// rank is one process of the demo.
type rank struct {
	task
	store blob.Store
	tell  *sender
}

func (r *rank) run(ctx context.Context, done *outcome) error {
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
		s = &killStore{Store: s, point: r.Point, tell: r.tell}
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

// goneRanks returns the dead ranks that an error names.
func goneRanks(err error) []int {
	if !errors.Is(err, group.ErrGone) {
		return nil
	}
	return group.Ranks(err)
}

// sender sends messages. It is safe for concurrent use.
type sender struct {
	mu  sync.Mutex
	out io.Writer // guarded by mu
	sum int64     // bytes not sent yet; guarded by mu
}

// reportBytes is the number of bytes between two messages about progress.
const reportBytes = 1 << 20

func (t *sender) moved(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sum += n; t.sum >= reportBytes {
		_ = t.send(message{}) // a lost message about progress does not matter
	}
}

// message sends a message, with the bytes that were moved since the last one.
func (t *sender) message(m message) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.send(m)
}

// send is message for callers that hold mu.
func (t *sender) send(m message) error {
	m.Moved, m.Time = t.sum, time.Now()
	t.sum = 0
	return json.NewEncoder(t.out).Encode(m)
}

// jobName is the name under which the demo's ranks meet.
const jobName = "cairn-demo"

// task is the task of one rank, encoded as JSON.
type task struct {
	// Load is set for loading and comparing; otherwise the task is to save.
	Load bool `json:"load"`
	// Bytes, Ranks and LoadRanks are those of the configuration.
	Bytes     int64 `json:"bytes"`
	Ranks     int   `json:"ranks"`
	LoadRanks int   `json:"load_ranks"`
	// Step is the training step to save, or of the checkpoint to load.
	Step int64 `json:"step"`
	// Timeout is the time after which a silent rank counts as dead.
	Timeout time.Duration `json:"timeout"`
	// Victim is the rank that kills itself at Point. If Point is empty, no rank
	// does.
	Victim int    `json:"victim"`
	Point  string `json:"point"`
}

func (t *task) model() model { return newModel(t.Bytes, t.Ranks, t.LoadRanks) }

// message is a line of JSON from a rank to the process that started it.
type message struct {
	// Moved is the number of bytes since the last message.
	Moved int64 `json:"moved,omitempty"`
	// Dying is the operation during which the rank kills itself.
	Dying string `json:"dying,omitempty"`
	// Done is the outcome of the task, in the last message.
	Done *outcome `json:"done,omitempty"`
	// Time is the time of sending.
	Time time.Time `json:"time"`
}

// outcome is the outcome of a rank's task.
type outcome struct {
	Save *Save `json:"save,omitempty"`
	Load *Load `json:"load,omitempty"`
	// Error is the text of the error, Gone the dead ranks that it names.
	Error string `json:"error,omitempty"`
	Gone  []int  `json:"gone,omitempty"`
}

// The points of a save at which a process is killed.
const (
	killWriting   = "writing data"
	killCommit    = "record written, not in place"
	killCommitted = "record in place, ranks not notified"
)

// killStore is a store that kills this process at a point of a save.
type killStore struct {
	blob.Store
	point string
	tell  *sender
}

var (
	_ blob.Store   = (*killStore)(nil)
	_ blob.Wrapper = (*killStore)(nil)
)

// Unwrap implements [blob.Wrapper].
func (d *killStore) Unwrap() blob.Store { return d.Store }

// Create implements [blob.Store].
func (d *killStore) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	w, err := d.Store.Create(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	return &killWriter{w, d, name}, nil
}

// die kills this process with SIGKILL, without any cleanup.
func (d *killStore) die(operation string) {
	_ = d.tell.message(message{Dying: operation}) // there is no other way to report the error
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {} // until the signal arrives
}

type killWriter struct {
	blob.Writer
	d    *killStore
	name string
}

// WriteAt implements [blob.Writer]. It writes only half of the last write.
func (w *killWriter) WriteAt(ctx context.Context, p []byte, off int64) error {
	if w.d.point != killWriting || !isData(w.name) {
		return w.Writer.WriteAt(ctx, p, off)
	}
	_ = w.Writer.WriteAt(ctx, p[:len(p)/2], off)
	w.d.die("write " + w.name)
	return nil
}

// Commit implements [blob.Writer].
func (w *killWriter) Commit(ctx context.Context) (blob.Info, error) {
	if w.name == recordName && w.d.point == killCommit {
		w.d.die("commit " + w.name)
	}
	info, err := w.Writer.Commit(ctx)
	if w.name == recordName && w.d.point == killCommitted && err == nil {
		w.d.die("commit " + w.name)
	}
	return info, err
}

// trackedStore is a store that records its writers, so that their resources can be
// freed after a simulated crash.
type trackedStore struct {
	blob.Store

	mu      sync.Mutex
	writers []blob.Writer // guarded by mu
}

var (
	_ blob.Store   = (*trackedStore)(nil)
	_ blob.Wrapper = (*trackedStore)(nil)
)

// Unwrap implements [blob.Wrapper].
func (m *trackedStore) Unwrap() blob.Store { return m.Store }

// Create implements [blob.Store].
func (m *trackedStore) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	w, err := m.Store.Create(ctx, name, opts)
	if err == nil {
		m.mu.Lock()
		m.writers = append(m.writers, w)
		m.mu.Unlock()
	}
	return w, err
}

// abortAll aborts the writers that are still open.
func (m *trackedStore) abortAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.writers {
		w.Abort() // does nothing once committed; errors do not matter here
	}
	m.writers = nil
}
