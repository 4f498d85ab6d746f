package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/blob/s3"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// quick is a policy for servers on this machine.
var quick = remote.Policy{
	Attempts: 14, Pause: 2 * time.Millisecond, MaxPause: 100 * time.Millisecond, Idle: time.Second, Hedge: 200 * time.Millisecond,
}

func startProxy(t *testing.T, rate float64, seed uint64, change ...func(*proxy)) *proxy {
	t.Helper()
	p := must.Get(newProxy(endpoint, rate, seed, change...))(t)
	t.Cleanup(func() { p.Close() })
	return p
}

// Checkpoints are saved, replaced and loaded through a proxy that disturbs requests.
// SEED repeats a run as far as the scheduler allows.
func TestS3Faults(t *testing.T) {
	t.Parallel() // it waits for much of its time
	saves, seed := deep.Rounds(50, 1000), deep.Seed(t)
	for _, rate := range []float64{0.01, 0.2} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			saveAndLoad(t, startProxy(t, rate, seed), saves)
		})
	}
}

func saveAndLoad(t *testing.T, p *proxy, saves int) {
	const savers = 16
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	var mu sync.Mutex
	var total struct{ requests, retries, hedges int64 }
	var log bytes.Buffer // guarded by slog's handler
	logger := slog.New(slog.NewTextHandler(&log, nil))
	var wg sync.WaitGroup
	for saver := range savers {
		wg.Go(func() {
			for i := saver; i < saves && !t.Failed(); i += savers {
				s, err := s3.Open(ctx, fmt.Sprintf("s3://bucket/%d/x?endpoint=%s", folders.Add(1), p.URL()), &remote.Options{Policy: quick, Logger: logger})
				if err != nil {
					t.Error(err)
					return
				}
				if err := saveAndLoadOnce(ctx, s, i); err != nil {
					t.Errorf("checkpoint %d: %v", i, err)
				}
				n := s.Traffic()
				mu.Lock()
				total.requests += n.Requests
				total.retries += n.Retries
				total.hedges += n.Hedges
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	faults := 0
	for f, n := range p.Counts() {
		if f != faultSlow {
			faults += n
		}
	}
	t.Logf("%d requests, %d retries, %d hedges; %v", total.requests, total.retries, total.hedges, p.Counts())
	if logged := int64(bytes.Count(log.Bytes(), []byte("request is repeated"))); logged != total.retries {
		t.Errorf("%d retries were logged, %d were counted", logged, total.retries)
	}
	// A hedged read hides a fault, and so does net/http if it reads over a connection that
	// it has used before.
	if total.retries+total.hedges < int64(faults)/2 {
		t.Errorf("%d retries and %d hedges for %d faults", total.retries, total.hedges, faults)
	}
}

// saveAndLoadOnce saves a state, replaces it by another one, and loads that. Some are
// large enough for several parts.
func saveAndLoadOnce(ctx context.Context, s *remote.Store, i int) error {
	n := 1 + i*37%2000
	if i%20 == 7 {
		n = 3 << 20
	}
	for add := range 2 {
		values := make([]float32, n)
		for j := range values {
			values[j] = float32(j%1000*(i+1) + add)
		}
		w, err := tensor.Of([]int64{int64(n)}, values)
		want := cairn.State{"w": w, "step": i + add}
		if err == nil {
			_, err = cairn.Save(ctx, s, want, nil)
		}
		if err != nil {
			return fmt.Errorf("save: %w", err)
		}
		got, _, err := cairn.LoadNew(ctx, s, nil)
		if err != nil {
			return fmt.Errorf("load: %w", err)
		}
		loaded, ok := got["w"].(*tensor.Tensor)
		if !ok || !tensor.Equal(loaded, w) || fmt.Sprint(got["step"]) != fmt.Sprint(want["step"]) {
			return errors.New("what was loaded differs from what was saved")
		}
	}
	return nil
}
