package saver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
)

// orphan returns a state of generation 7 with one item, after the end of its trainer, and
// the item as the save resolved it before it was staged. staged is the message with the
// position of the item; content is the item's bytes.
func orphan(t *testing.T) (s *savePlanner, r plan.Stream, staged *stagedBody, content []byte) {
	t.Helper()
	arena := make([]byte, 256)
	binary.LittleEndian.PutUint64(arena[64:], 7)
	content = arena[128:138]
	copy(content, "0123456789")
	s = must.Get(newSavePlanner(&saveBody{Generation: 7, Items: []itemBody{{Name: "x", DType: "uint8", Shape: []int64{10}}}}, arena, new(claims)))(t)
	s.block, s.released = 4, func(int) {}
	s.fetch = func(context.Context, fetchBody, []byte) error { return errTrainerGone }
	d, err := s.Resolve(&s.local.Items[0])
	if err != nil || d.Stream == nil {
		t.Fatalf("Resolve = %+v, %v; want a stream", d, err)
	}
	return s, d.Stream, &stagedBody{Generation: 7, Units: []unitBody{{Stamp: 64, Items: []int{0}, At: []int64{128}}}, All: true}, content
}

// TestFetchOfStagedItemAfterTrainer reads an item that was staged after the save had asked
// for it. The trainer has ended, and its last message is handled while the save reads.
func TestFetchOfStagedItemAfterTrainer(t *testing.T) {
	s, r, staged, content := orphan(t)
	handled := make(chan error, 1)
	s.fetch = func(context.Context, fetchBody, []byte) error {
		go func() { handled <- s.stage(staged) }()
		s.fetch = func(context.Context, fetchBody, []byte) error { return errTrainerGone }
		return errTrainerGone
	}
	p := make([]byte, 9)
	if err := r.ReadAt(t.Context(), p, 1); err != nil || !bytes.Equal(p, content[1:]) {
		t.Errorf("ReadAt = %q, %v; want what is staged", p, err)
	}
	if err := <-handled; err != nil {
		t.Error(err)
	}
}

// TestFetchAfterTrainerFails reads items that the trainer has not staged, or staged for
// another save.
func TestFetchAfterTrainerFails(t *testing.T) {
	for claim, c := range map[string]struct {
		prepare func(s *savePlanner, staged *stagedBody) error
		want    error
	}{
		"it was not staged": {func(s *savePlanner, _ *stagedBody) error {
			s.abandon(errTrainerGone)
			return nil
		}, errTrainerGone},
		"its memory holds another generation": {func(s *savePlanner, staged *stagedBody) error {
			binary.LittleEndian.PutUint64(s.arena[64:], 8)
			return s.stage(staged)
		}, stage.ErrGeneration},
	} {
		s, r, staged, _ := orphan(t)
		must.Do(t, c.prepare(s, staged))
		if err := r.ReadAt(t.Context(), make([]byte, 10), 0); !errors.Is(err, c.want) {
			t.Errorf("%s: ReadAt = %v; want %v", claim, err, c.want)
		}
	}
	_, r, _, _ := orphan(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.ReadAt(ctx, make([]byte, 10), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("the save is cancelled: ReadAt = %v; want Canceled", err)
	}
}
