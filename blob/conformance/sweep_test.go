package conformance

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/transfer"
)

// testSweptCopies copies checkpoints while another process cleans the target, with the
// least age that there is: every copy is whole.
func testSweptCopies(t *testing.T, src blob.Store, target func() *remote.Store) {
	t.Helper()
	w, err := tensor.Of([]int64{20 << 20}, make([]uint8, 20<<20)) // it takes several parts
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cairn.Save(t.Context(), src, cairn.State{"w": w}, nil); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		dst := target()
		ctx, cancel := context.WithCancel(t.Context())
		swept := make(chan error)
		go func() {
			for ctx.Err() == nil {
				if _, err := formats.Clean(ctx, dst, commit.LeastAge(dst)); err != nil && ctx.Err() == nil {
					swept <- err
					return
				}
			}
			swept <- nil
		}()
		_, err := transfer.Copy(t.Context(), src, dst, &transfer.Options{Full: true})
		cancel()
		if err := errors.Join(err, <-swept); err != nil {
			t.Error(err)
		}
	}
}

func TestS3CopyWhileCleaning(t *testing.T) {
	t.Parallel()
	testSweptCopies(t, openS3(t, nil), func() *remote.Store { return openS3(t, nil) })
}

// The error of a part of an ended upload names possible causes.
func TestS3UploadThatWasEnded(t *testing.T) {
	s := openS3(t, &remote.Options{Policy: remote.Policy{Pause: time.Millisecond}})
	const piece = 5 << 20
	w, err := s.Create(t.Context(), "x", &blob.CreateOptions{Size: 2 * piece, Piece: piece})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	data := noise(piece)
	must.Do(t, w.WriteAt(t.Context(), data, 0))
	if n, err := s.SweepTemp(t.Context(), "", 0); n != 1 || err != nil {
		t.Fatalf("SweepTemp = %d, %v", n, err)
	}
	err = w.WriteAt(t.Context(), data, piece)
	if err == nil {
		_, err = w.Commit(t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), "cairn clean") || strings.Contains(err.Error(), "endpoint") {
		t.Errorf("the error is %v; want a hint about what ends uploads", err)
	}
}
