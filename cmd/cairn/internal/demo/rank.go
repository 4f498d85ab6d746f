package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
