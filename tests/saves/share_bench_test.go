package saves

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/storage"
)

// slow is a store that all ranks together read at 200 MiB a second.
type slow struct {
	blob.Store
	mu sync.Mutex
}

type slowReader struct {
	blob.Reader
	s *slow
}

func (s *slow) Open(ctx context.Context, name string) (blob.Reader, error) {
	r, err := s.Store.Open(ctx, name)
	return slowReader{r, s}, err
}

func (r slowReader) ReadAt(ctx context.Context, p []byte, off int64) error {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	time.Sleep(time.Duration(len(p)) * time.Second / (200 << 20))
	return r.Reader.ReadAt(ctx, p, off)
}

// BenchmarkLoadReplicas loads the same state on four ranks, each for itself and
// shared. From memory, the fastest store there is, it measures the cost of sharing.
func BenchmarkLoadReplicas(b *testing.B) {
	fast, _, bytes := saved(b, "native")
	b.Run("memory", func(b *testing.B) { benchReplicas(b, fast, bytes) })
	b.Run("slow", func(b *testing.B) { benchReplicas(b, &slow{Store: fast}, bytes) })
}

func benchReplicas(b *testing.B, store blob.Store, bytes int64) {
	const n = 4
	states := make([]cairn.State, n)
	for r := range states {
		states[r], _ = replicated(b, 0)
	}
	run := func(b *testing.B, load func(share bool) (storage.ReadStats, error)) {
		for _, share := range []bool{false, true} {
			b.Run(fmt.Sprintf("share=%v", share), func(b *testing.B) {
				b.SetBytes(n * bytes)
				var st storage.ReadStats
				for b.Loop() {
					var err error
					if st, err = load(share); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(st.Read)/(1<<20), "MiB-read")
				b.ReportMetric(float64(st.Received)/(1<<20), "MiB-received")
			})
		}
	}
	load := func(g group.Group, share bool, st *storage.ReadStats) error {
		rep, err := cairn.Load(b.Context(), store, states[g.Rank()], &cairn.LoadOptions{Group: g, Share: share})
		if err == nil && g.Rank() == 0 {
			*st = rep.Total
		}
		return err
	}
	b.Run("inproc", func(b *testing.B) {
		gs := inproc.New(n)
		run(b, func(share bool) (st storage.ReadStats, err error) {
			err = together(gs, func(g group.Group) error { return load(g, share, &st) })
			return st, err
		})
	})
	b.Run("tcp", func(b *testing.B) {
		gs := tcptest.Meet(b, n, tcptest.ByFile(b, n))
		run(b, func(share bool) (st storage.ReadStats, err error) {
			err = together(gs, func(g group.Group) error { return load(g, share, &st) })
			return st, err
		})
	})
}
