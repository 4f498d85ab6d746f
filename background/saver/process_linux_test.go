package saver

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
)

// newPair returns a saver that runs in this process, so that the race detector sees both
// sides.
func newPair(t *testing.T, arenaSize int64) (*Process, *stage.Arena) {
	t.Helper()
	a := must.Get(stage.NewShared(arenaSize))(t)
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(theirs)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		defer conn.Close()
		served <- Serve(context.Background(), conn, a.File(), nil)
	}()
	p := newProcess(ours, func() error { return <-served })
	t.Cleanup(func() {
		p.Disconnect()
		<-p.Ended()
		if now, _ := a.Used(); now != 0 {
			t.Errorf("%d bytes of the arena are in use at the end", now)
		}
		a.Close()
	})
	must.Do(t, p.greet(t.Context()))
	return p, a
}

// A process that has refused a message has ended, and its error says why.
func TestProcessThatRefuses(t *testing.T) {
	p, _ := newPair(t, 64<<10)
	p.post("dance", struct{}{})
	select {
	case <-p.Ended():
	case <-time.After(patience):
		t.Fatal("the process does not end")
	}
	if !errors.Is(p.err, ErrSaver) || !errors.Is(p.err, ErrMessage) {
		t.Errorf("%v; want ErrSaver and ErrMessage", p.err)
	}
	if err := p.Join(t.Context(), Meeting{}, 0, 1); !errors.Is(err, ErrSaver) {
		t.Errorf("Join = %v; want ErrSaver", err)
	}
}

// begin starts a save of a tensor of n bytes. The outcome goes to the channel.
func begin(t *testing.T, p *Process, a *stage.Arena, n int64, folder string) (*stage.Snapshot, chan error) {
	t.Helper()
	setup := plan.SaveSetup{State: plan.State{"w": matrix(t, tensor.Uint8, []int64{n}, 3)}, Size: 1, Coordinator: true}
	s := must.Get(stage.New(new(plan.DefaultSave), setup, a, 1))(t)
	out := make(chan error, 1)
	r := NewSaveMessage(SaveRequest{Store: folder, Format: formats.Native, SaveID: "one", Time: "2026-01-02T03:04:05Z"}, s)
	must.Do(t, p.Save(r, s, protocol.NewRecorder(t.Context(), protocol.OpSave, 0, nil, nil), func(_ *protocol.SaveReport, err error) {
		s.Close()
		out <- err
	}, nil))
	return s, out
}

// outcomeOf waits for the outcome of a save.
func outcomeOf(t *testing.T, out chan error) error {
	t.Helper()
	select {
	case err := <-out:
		return err
	case <-time.After(patience):
		t.Fatal("the save does not end")
		return nil
	}
}

// A save fails if its state cannot be staged: it does not wait for the rest.
func TestProcessSaveThatIsNotStaged(t *testing.T) {
	p, a := newPair(t, 64<<10)
	must.Do(t, p.Join(t.Context(), Meeting{}, 0, 1))
	folder := t.TempDir()
	s, out := begin(t, p, a, 10_000, folder)
	ctx, cancel := context.WithCancelCause(t.Context())
	mine := errors.New("training goes on")
	cancel(mine)
	all, err := s.Fill(ctx, false, func() {})
	if err == nil && !all { // the saver may hold the memory of the arena still
		err = s.Rest(ctx, nil)
	}
	if !errors.Is(err, mine) && !errors.Is(err, context.Canceled) {
		t.Errorf("Fill = %v; want %v", err, mine)
	}
	if err := outcomeOf(t, out); err == nil {
		t.Error("the save succeeded")
	}
	if published(t, folder) != "" {
		t.Error("the save was published")
	}
}

// A save of a state that is larger than the arena reads the rest from the trainer.
func TestProcessSaveLargerThanTheArena(t *testing.T) {
	p, a := newPair(t, 64<<10)
	must.Do(t, p.Join(t.Context(), Meeting{}, 0, 1))
	folder := t.TempDir()
	const n = 300_000
	s, out := begin(t, p, a, n, folder)
	all, err := s.Fill(t.Context(), false, func() {})
	if err == nil && !all {
		err = s.Rest(t.Context(), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	must.Do(t, outcomeOf(t, out))
	if got := published(t, folder); got != string(matrix(t, tensor.Uint8, []int64{n}, 3).Contents()) {
		t.Errorf("the checkpoint has %d other bytes", len(got))
	}
}
