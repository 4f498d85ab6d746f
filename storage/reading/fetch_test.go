package reading

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/storage"
)

// content returns the bytes of a file.
func content(name string, n int) []byte {
	out := make([]byte, n)
	if _, err := rand.NewChaCha8([32]byte{name[0]}).Read(out); err != nil {
		panic(err)
	}
	return out
}

func putContent(t testing.TB, s blob.Store, name string, n int) {
	t.Helper()
	must.Get(blob.WriteAll(context.Background(), s, name, content(name, n), nil))(t)
}

// takes is a Sink that keeps the bytes.
type takes struct {
	mu    sync.Mutex
	taken [][]byte
	err   error
}

func (s *takes) Take(p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, bytes.Clone(p))
	return s.err
}

// steps is a Stepper that keeps the bytes and the sizes of the steps.
type steps struct {
	takes
	steps []int
}

func (s *steps) Step(p []byte) { s.steps = append(s.steps, len(p)) }

// wanted returns the bytes of a request.
func wanted(q *Request, data []byte) []byte {
	starts := []int64{q.Offset}
	for _, a := range q.Rows {
		var next []int64
		for _, s := range starts {
			for i := range a.Count {
				next = append(next, s+i*a.Pitch)
			}
		}
		starts = next
	}
	var out []byte
	for _, s := range starts {
		out = append(out, data[s:s+q.Width]...)
	}
	return out
}

func drawRequest(t *rapid.T, size int64) Request {
	q := Request{File: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "file"), Width: rapid.Int64Range(1, 200).Draw(t, "width"), Weight: 1}
	span := q.Width
	for range rapid.IntRange(0, 2).Draw(t, "axes") {
		a := Axis{Count: rapid.Int64Range(1, 4).Draw(t, "count"), Pitch: rapid.Int64Range(0, 300).Draw(t, "pitch")}
		q.Rows = append(q.Rows, a)
		span += (a.Count - 1) * a.Pitch
	}
	q.Offset = rapid.Int64Range(0, size-span).Draw(t, "offset")
	if q.Rows == nil && rapid.Bool().Draw(t, "direct") {
		q.Direct = make([]byte, q.Width)
	}
	return q
}

// cacheless is a store with readers that bypass a cache that holds the second half of every
// 16 MiB.
type cacheless struct {
	blob.Store
	direct atomic.Int64 // bytes that were read past it
}

func (s *cacheless) Open(ctx context.Context, name string) (blob.Reader, error) {
	r, err := s.Store.Open(ctx, name)
	return &cachelessReader{r, s}, err
}

type cachelessReader struct {
	blob.Reader
	s *cacheless
}

func (r *cachelessReader) Cached(off, _ int64) bool { return off>>23%2 == 1 }

func (r *cachelessReader) ReadDirect(ctx context.Context, buf []byte, off, n int64) ([]byte, error) {
	if !blob.Aligned(buf) || int64(len(buf)) < n+2*blob.Align {
		return nil, fmt.Errorf("a buffer of %d bytes, aligned %v, for %d", len(buf), blob.Aligned(buf), n)
	}
	r.s.direct.Add(n)
	p := buf[off%blob.Align:][:n]
	return p, r.ReadAt(ctx, p, off)
}

func TestFetchBypassesTheCacheForLargeReads(t *testing.T) {
	const size = 24 << 20
	store := &cacheless{Store: new(mem.Store)}
	putContent(t, store, "a", size)
	data := content("a", size)
	for _, c := range []struct {
		name    string
		request Request // of one run
		o       FetchOptions
		direct  int64
	}{
		{"into its place", Request{Offset: 10, Width: 3 << 20, Direct: make([]byte, 3<<20)}, FetchOptions{}, 3 << 20},
		{"into its place, some of it cached", Request{Offset: 10, Width: 17 << 20, Direct: make([]byte, 17<<20)}, FetchOptions{}, 9 << 20},
		{"into its place, cached", Request{Offset: 8 << 20, Width: 2 << 20, Direct: make([]byte, 2<<20)}, FetchOptions{}, 0},
		{"into its place, within a budget", Request{Offset: 10, Width: 1 << 20, Direct: make([]byte, 1<<20)}, FetchOptions{ReadOptions: storage.ReadOptions{BufferBytes: 300 << 10}}, 1 << 20},
		{"into its place, no room for a buffer", Request{Offset: 10, Width: 1 << 20, Direct: make([]byte, 1<<20)}, FetchOptions{ReadOptions: storage.ReadOptions{BufferBytes: 100 << 10}}, 0},
		{"into its place, through the cache", Request{Width: 9 << 20, Direct: make([]byte, 9<<20)}, FetchOptions{Cached: true}, 0},
		{"into its place, a small one", Request{Width: 1 << 10, Direct: make([]byte, 1<<10)}, FetchOptions{}, 0},
		{"into a buffer", Request{Offset: 7, Width: 3 << 20}, FetchOptions{}, 3 << 20},
		{"into a buffer, cached", Request{Offset: 8 << 20, Width: 3 << 20}, FetchOptions{}, 0},
		{"into a buffer, through the cache", Request{Width: 3 << 20}, FetchOptions{Cached: true}, 0},
		{"into a buffer as large as the budget", Request{Width: 1 << 20}, FetchOptions{ReadOptions: storage.ReadOptions{BufferBytes: 1 << 20}}, 0},
		{"into a buffer, a small one", Request{Width: 1 << 10}, FetchOptions{}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			store.direct.Store(0)
			s := &steps{}
			q, width := c.request, c.request.Width
			q.File, q.To = "a", s
			c.o.Open = store.Open
			lent := work.Stats().Lent
			work.ResetPeak()
			must.Get(Fetch(t.Context(), []Request{q}, c.o))(t)
			if peak := work.Stats().Peak - lent; c.o.BufferBytes > 0 && peak > c.o.BufferBytes {
				t.Errorf("buffers took %d bytes; want at most %d", peak, c.o.BufferBytes)
			}
			if len(s.taken) != 1 || !bytes.Equal(s.taken[0], data[q.Offset:q.Offset+width]) {
				t.Error("other bytes than are stored")
			}
			if got := store.direct.Load(); got != c.direct {
				t.Errorf("%d bytes went past the cache; want %d", got, c.direct)
			}
			sum := 0
			for _, n := range s.steps {
				sum += n
			}
			if q.Direct != nil && int64(sum) != width {
				t.Errorf("steps of %d bytes; want %d", sum, width)
			}
		})
	}
}

// For any requests in any order, each Sink receives its own bytes once.
func TestFetchGivesEachRequestItsBytes(t *testing.T) {
	const size = 4000
	store := new(mem.Store)
	putContent(t, store, "a", size)
	putContent(t, store, "b", size)
	deep.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(0, 20).Draw(rt, "requests")
		requests, sinks := make([]Request, n), make([]*takes, n)
		for i := range requests {
			requests[i], sinks[i] = drawRequest(rt, size), &takes{}
			requests[i].To = sinks[i]
		}
		asked := slices.Clone(requests) // Fetch sorts them
		var done atomic.Int64
		m := fault.New(store)
		st := must.Get(Fetch(t.Context(), requests, FetchOptions{
			Open: m.Open, ReadOptions: storage.ReadOptions{Parallel: rapid.IntRange(0, 3).Draw(rt, "parallel"), BufferBytes: rapid.Int64Range(0, 9000).Draw(rt, "budget")},
			Gap: rapid.Int64Range(0, 100).Draw(rt, "gap"), Slow: rapid.Bool().Draw(rt, "slow"), Done: func(w int64) { done.Add(w) },
		}))(rt)
		for i := range asked {
			want := wanted(&asked[i], content(asked[i].File, size))
			if len(sinks[i].taken) != 1 || !bytes.Equal(sinks[i].taken[0], want) {
				rt.Fatalf("%+v was given %x; want %x", asked[i], sinks[i].taken, want)
			}
		}
		got := m.Ops()
		if done.Load() != int64(n) || st != (fetchStats{got.Bytes(fault.Read), got.Count(fault.Read)}) || got.Count(fault.Open) > 2 {
			rt.Fatalf("%d of %d done, stats %+v, store %+v", done.Load(), n, st, got)
		}
	})
}

func TestFetchJoinsNeighbours(t *testing.T) {
	store := new(mem.Store)
	putContent(t, store, "a", 4<<20)
	for name, c := range map[string]struct {
		offsets []int64
		o       FetchOptions
		reads   int64
	}{
		"side by side":              {[]int64{0, 100, 200}, FetchOptions{}, 1},
		"in any order":              {[]int64{200, 0, 100}, FetchOptions{}, 1},
		"apart":                     {[]int64{0, 101}, FetchOptions{}, 2},
		"apart by a gap":            {[]int64{0, 101}, FetchOptions{Gap: 1}, 1},
		"over each other":           {[]int64{0, 50, 60}, FetchOptions{}, 1},
		"over more than a mebibyte": {[]int64{0, 1<<20 - 100, 1 << 20}, FetchOptions{Gap: 1 << 20}, 2},
		"slow requests":             {[]int64{0, 1<<20 - 100, 1 << 20}, FetchOptions{Gap: 1 << 20, Slow: true}, 1},
		"over more than the budget": {[]int64{0, 4000, 8000}, FetchOptions{Gap: 4000, ReadOptions: storage.ReadOptions{BufferBytes: 1}}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			var requests []Request
			for _, o := range c.offsets {
				requests = append(requests, Request{File: "a", Offset: o, Width: 100, To: &takes{}})
			}
			c.o.Open = store.Open
			if st, err := Fetch(t.Context(), requests, c.o); err != nil || st.Requests != c.reads {
				t.Errorf("Fetch = %+v, %v; want %d reads", st, err, c.reads)
			}
		})
	}
}

func TestFetchStepsThroughDirectReads(t *testing.T) {
	store := new(mem.Store)
	putContent(t, store, "a", 600<<10)
	for _, slow := range []bool{false, true} {
		s := &steps{}
		q := Request{File: "a", Offset: 10, Width: 590 << 10, Direct: make([]byte, 590<<10), To: s}
		must.Get(Fetch(t.Context(), []Request{q}, FetchOptions{Open: store.Open, Slow: slow}))(t)
		want := map[bool][]int{false: {256 << 10, 256 << 10, 78 << 10}, true: {590 << 10}}[slow]
		if !slices.Equal(s.steps, want) || !bytes.Equal(q.Direct, content("a", 600<<10)[10:][:590<<10]) {
			t.Errorf("slow %v: steps %v; want %v, or other bytes", slow, s.steps, want)
		}
	}
}

// crowd is a store that counts the reads past the cache that are under way at the same time.
type crowd struct {
	blob.Store
	now, most atomic.Int64
}

func (s *crowd) Open(ctx context.Context, name string) (blob.Reader, error) {
	r, err := s.Store.Open(ctx, name)
	return &crowdReader{r, s}, err
}

type crowdReader struct {
	blob.Reader
	s *crowd
}

func (*crowdReader) Cached(int64, int64) bool { return false }

func (r *crowdReader) ReadDirect(ctx context.Context, buf []byte, off, n int64) ([]byte, error) {
	now := r.s.now.Add(1)
	defer r.s.now.Add(-1)
	for most := r.s.most.Load(); now > most && !r.s.most.CompareAndSwap(most, now); {
		most = r.s.most.Load()
	}
	time.Sleep(time.Millisecond)
	return buf[:n], r.ReadAt(ctx, buf[:n], off)
}

// All fetches of a process together read at most four ranges at the same time past the cache.
func TestFetchBoundsReadsPastTheCache(t *testing.T) {
	const reads, size = 24, largeBytes
	store := &crowd{Store: new(mem.Store)}
	putContent(t, store, "a", reads*size)
	data := content("a", reads*size)
	var fetches sync.WaitGroup
	for range 3 {
		fetches.Go(func() {
			var requests []Request
			for i := range int64(reads) {
				requests = append(requests, Request{File: "a", Offset: i * size, Width: size, Direct: make([]byte, size), To: &takes{}})
			}
			if _, err := Fetch(t.Context(), requests, FetchOptions{Open: store.Open, ReadOptions: storage.ReadOptions{Parallel: 16}}); err != nil {
				t.Error(err)
			}
			for _, q := range requests {
				if !bytes.Equal(q.Direct, data[q.Offset:][:size]) {
					t.Errorf("other bytes at %d", q.Offset)
				}
			}
		})
	}
	fetches.Wait()
	if most := store.most.Load(); most != 4 {
		t.Errorf("%d reads at the same time; want 4", most)
	}
}

// If requests are slow, a direct read is one request, however large it is.
func TestFetchReadsSlowStoresAtOnce(t *testing.T) {
	const size = 2*pieceBytes + 5000
	store := new(mem.Store)
	putContent(t, store, "a", size)
	for slow, want := range map[bool]int64{false: 3, true: 1} {
		q := Request{File: "a", Offset: 10, Width: size - 10, Direct: make([]byte, size-10), To: &takes{}}
		st, err := Fetch(t.Context(), []Request{q}, FetchOptions{Open: store.Open, Slow: slow})
		if err != nil || st.Requests != want || !bytes.Equal(q.Direct, content("a", size)[10:]) {
			t.Errorf("slow %v: Fetch = %+v, %v; want %d reads, or the bytes differ", slow, st, err, want)
		}
	}
}

func TestFetchStaysWithinTheBudget(t *testing.T) {
	store := new(mem.Store)
	putContent(t, store, "a", 4<<20)
	var requests []Request
	for i := range int64(16) {
		requests = append(requests, Request{File: "a", Offset: i * 200_000, Width: 100_000, To: &takes{}})
	}
	work.ResetPeak()
	lent := work.Stats().Lent
	must.Get(Fetch(t.Context(), requests, FetchOptions{Open: store.Open, ReadOptions: storage.ReadOptions{Parallel: 8, BufferBytes: 300_000}}))(t)
	if peak := work.Stats().Peak - lent; peak > 300_000 {
		t.Errorf("buffers took %d bytes; want at most 300000", peak)
	}
}

func TestFetchReturnsErrors(t *testing.T) {
	store := new(mem.Store)
	putContent(t, store, "a", 5000)
	plain := func(to Sink) Request { return Request{File: "a", Offset: 10, Width: 20, To: to} }
	rows := func(to Sink) Request { return Request{File: "a", Width: 20, Rows: []Axis{{3, 100}}, To: to} }
	direct := func(to Sink) Request { return Request{File: "a", Width: 20, Direct: make([]byte, 20), To: to} }
	for kind, make := range map[string]func(Sink) Request{"a run": plain, "rows": rows, "a direct read": direct} {
		for name, c := range map[string]struct {
			rule  fault.Rule
			takes error
			want  error
		}{
			"the file cannot be opened": {rule: fault.Rule{On: fault.Open, Do: fault.Fail(errOnPurpose)}, want: errOnPurpose},
			"the file cannot be read":   {rule: fault.Rule{On: fault.Read, Do: fault.Fail(errOnPurpose)}, want: errOnPurpose},
			"the file is cut short":     {rule: fault.Rule{On: fault.Open, Do: fault.Truncate(5)}, want: storage.ErrCorrupt},
			"the sink returns an error": {takes: errOnPurpose, want: errOnPurpose},
		} {
			t.Run(fmt.Sprintf("%s of %s", name, kind), func(t *testing.T) {
				f := fault.New(store, c.rule)
				_, err := Fetch(t.Context(), []Request{make(&takes{err: c.takes})}, FetchOptions{Open: f.Open})
				if !errors.Is(err, c.want) {
					t.Errorf("Fetch = %v; want %v", err, c.want)
				}
			})
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errOnPurpose)
	s := &takes{}
	if _, err := Fetch(ctx, []Request{plain(s)}, FetchOptions{Open: store.Open}); !errors.Is(err, errOnPurpose) || len(s.taken) > 0 {
		t.Errorf("Fetch of a finished context = %v; want its cause", err)
	}
}
