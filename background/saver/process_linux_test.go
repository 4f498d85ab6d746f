package saver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
)

// A process that has refused a message has ended, and its error says why.
func TestProcessThatRefuses(t *testing.T) {
	p := newPair(t, 64<<10)
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
func begin(t *testing.T, p *Process, n int64, folder string) (*stage.Snapshot, chan error) {
	t.Helper()
	setup := plan.SaveSetup{State: plan.State{"w": matrix(t, tensor.Uint8, []int64{n}, 3)}, Size: 1, Coordinator: true}
	s, err := stage.New(new(plan.DefaultSave), setup, p.arena, 1)
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan error, 1)
	r := NewRequest(Save{Store: folder, Format: formats.Native, Storage: meta.Storage{SaveID: "one", Time: time.Unix(1e9, 0)}}, s)
	err = p.Save(r, s, protocol.NewRecorder(t.Context(), protocol.OpSave, 0, nil, nil), func(_ *protocol.SaveReport, err error) {
		s.Close()
		out <- err
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
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

// A save whose state cannot be staged fails: it does not wait for the rest.
func TestProcessSaveThatIsNotStaged(t *testing.T) {
	p := newPair(t, 64<<10)
	if err := p.Join(t.Context(), Meeting{}, 0, 1); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	s, out := begin(t, p, 10_000, folder)
	ctx, cancel := context.WithCancelCause(t.Context())
	mine := errors.New("training goes on")
	cancel(mine)
	if _, err := s.Fill(ctx, false, func() {}); !errors.Is(err, mine) && !errors.Is(err, context.Canceled) {
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
	p := newPair(t, 64<<10)
	if err := p.Join(t.Context(), Meeting{}, 0, 1); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	const n = 300_000
	s, out := begin(t, p, n, folder)
	all, err := s.Fill(t.Context(), false, func() {})
	if err == nil && !all {
		err = s.Rest(t.Context(), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := outcomeOf(t, out); err != nil {
		t.Fatal(err)
	}
	g := gather(t, []Want{{Name: "w", DType: tensor.Uint8, Shape: []int64{n}}})
	if _, err := p.Load(t.Context(), Load{Store: folder, Items: g.wants}, g.piece); err != nil {
		t.Fatal(err)
	}
	g.check(0, matrix(t, tensor.Uint8, []int64{n}, 3))
}
