package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
)

// RunRank runs one rank of RunProcs: text is the task that RunProcs passed to its
// Command, and out is read by RunProcs. It meets the other ranks by the
// environment. An error of the task is sent to RunProcs; RunRank returns an error
// only if that fails. logger, if not nil, receives the phases of saves and loads.
func RunRank(ctx context.Context, s blob.Store, text string, out io.Writer, logger *slog.Logger) error {
	r := &rank{store: s, tell: &sender{out: out}, logger: logger}
	if err := json.Unmarshal([]byte(text), &r.task); err != nil {
		return fmt.Errorf("the task of a rank: %w", err)
	}
	done := &outcome{}
	if err := r.run(ctx, done); err != nil {
		done.Error = err.Error()
		if errors.Is(err, group.ErrGone) {
			done.Gone = group.Ranks(err)
		}
	}
	return r.tell.send(message{Done: done})
}

// silence is the time after which a silent process counts as dead. A killed process is
// detected sooner; the report has the time.
const silence = 10 * time.Second

// rank is one process of the demo.
type rank struct {
	task
	store  blob.Store
	tell   *sender
	logger *slog.Logger // nil: none
}

func (r *rank) run(ctx context.Context, done *outcome) error {
	g, err := tcp.Join(ctx, tcp.Config{Job: tag, Timeout: silence, Logger: cmp.Or(r.logger, slog.New(slog.DiscardHandler))})
	if err != nil {
		return err
	}
	defer g.Close()
	m := newModel(r.Bytes, r.Ranks, r.LoadRanks)
	m.logger = r.logger
	if r.Load {
		done.Load, err = m.loadRank(ctx, g, r.store, r.Step, r.tell.moved)
		return err
	}
	if r.Train {
		return r.train(ctx, g, m)
	}
	s := r.store
	if r.Point != "" && r.Victim == g.Rank() {
		s = &killStore{Store: s, point: r.Point, tell: r.tell}
	}
	done.Save, err = m.saveRank(ctx, g, s, r.Step, r.tell.moved)
	return err
}

// sender sends messages. It is safe for concurrent use.
type sender struct {
	mu  sync.Mutex
	out io.Writer // guarded by mu
	sum int64     // bytes not sent yet; guarded by mu
}

// reportBytes is the number of bytes between two messages about progress.
const reportBytes = 1 << 20

func (t *sender) moved(n int64) { _ = t.send(message{Moved: n}) } // a lost message about progress does not matter

// send sends a message. Messages that only count bytes are sent as one.
func (t *sender) send(m message) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sum += m.Moved
	if m.Done == nil && m.Dying == "" && m.Trained == nil && t.sum < reportBytes {
		return nil
	}
	m.Moved, m.Time, t.sum = t.sum, time.Now(), 0
	return json.NewEncoder(t.out).Encode(m)
}

// die kills this process with SIGKILL, without any cleanup.
func (t *sender) die(operation string) {
	_ = t.send(message{Dying: operation}) // there is no other way to report the error
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {} // until the signal arrives
}

// task is the task of one rank, encoded as JSON.
type task struct {
	// Load is set for loading and comparing, and Train for training with saves in the
	// background; otherwise the task is to save.
	Load  bool `json:"load"`
	Train bool `json:"train"`
	// Bytes, Ranks and LoadRanks are those of the configuration. Fewer ranks train.
	Bytes     int64 `json:"bytes"`
	Ranks     int   `json:"ranks"`
	LoadRanks int   `json:"load_ranks"`
	// Step is the training step to save, or of the checkpoint to load.
	Step int64 `json:"step"`
	// Victim is the rank that kills itself at Point. If Point is empty, no rank
	// does.
	Victim int    `json:"victim"`
	Point  string `json:"point"`
	// Saver is the program for saver processes.
	Saver []string `json:"saver"`
	// Job, if not empty, marks the processes that train and those that they start.
	Job string `json:"-"`
}

// message is a line of JSON from a rank to the process that started it.
type message struct {
	// Moved is the number of bytes since the last message.
	Moved int64 `json:"moved,omitempty"`
	// Dying is the operation during which the rank kills itself.
	Dying string `json:"dying,omitempty"`
	// Trained is set when the rank has trained, and its last state is staged.
	Trained *trained `json:"trained,omitempty"`
	// Done is the outcome of the task, in the last message.
	Done *outcome `json:"done,omitempty"`
	// Time is the time of sending.
	Time time.Time `json:"time"`
}

// trained describes the training of a rank.
type trained struct {
	Steps int `json:"steps"`
	// Begun is when the last save began, and Stall how long it stopped training.
	Begun time.Time     `json:"begun"`
	Stall time.Duration `json:"stall"`
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
	w.d.tell.die("write " + w.name)
	return nil
}

// Commit implements [blob.Writer].
func (w *killWriter) Commit(ctx context.Context) (blob.Info, error) {
	if w.name == recordName && w.d.point == killCommit {
		w.d.tell.die("commit " + w.name)
	}
	info, err := w.Writer.Commit(ctx)
	if w.name == recordName && w.d.point == killCommitted && err == nil {
		w.d.tell.die("commit " + w.name)
	}
	return info, err
}
