package background

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// TestOverlapStagesAfterReturn holds each save up until SaveAsync has returned. If the
// staging memory is smaller than the state, the state cannot be staged by then. The state
// changes when it is staged.
func TestOverlapStagesAfterReturn(t *testing.T) {
	const size = 300 << 10
	for mode, options := range jobtest.Modes {
		for _, ceiling := range []int64{4 << 20, 64 << 10} {
			t.Run(fmt.Sprint(mode, ceiling), func(t *testing.T) {
				store, s := jobtest.TempStore(t), jobtest.Stager(t, options(ceiling))
				x := jobtest.Numbered(t, size, 3)
				warm := must.Get(cairn.SaveAsync(t.Context(), store, cairn.State{"x": x}, &cairn.AsyncOptions{Stager: s}))(t)
				must.Get(warm.Wait(t.Context()))(t)
				for range 3 {
					want := x.Clone().Contents()
					p := saveOverlapped(t, s, store, cairn.State{"x": x}, ceiling >= size)
					<-p.Staged()
					jobtest.Overwrite(x)
					must.Get(p.Wait(t.Context()))(t)
					if !bytes.Equal(loadBytes(t, store, "x"), want) {
						t.Fatal("x is not what was staged")
					}
				}
			})
		}
	}
}

// saveOverlapped begins a save with Overlap that cannot read the staged state before
// SaveAsync has returned. fits means that the staging memory suffices for the state.
func saveOverlapped(t *testing.T, s *cairn.Stager, store blob.Store, state cairn.State, fits bool) *cairn.Pending {
	t.Helper()
	held := make(chan struct{})
	defer close(held)
	jobtest.Pause(t)
	defer jobtest.Resume(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // staging ends with it
	t.Cleanup(cancel)
	p, err := cairn.SaveAsync(ctx, store, state, &cairn.AsyncOptions{
		Stager: s, Overlap: true, SaveOptions: cairn.SaveOptions{Observer: &cairn.Observer{Planned: func(int64) { <-held }}},
	})
	if err != nil {
		t.Fatalf("SaveAsync of a save that is held up: %v", err)
	}
	select {
	case <-p.Staged():
		if !fits {
			t.Error("SaveAsync has staged the state before it returned")
		}
	default:
	}
	return p
}
