package fetch

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

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/blob/meter"
	"github.com/cairn-ckpt/cairn/internal/bufpool"
	"github.com/cairn-ckpt/cairn/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errOnPurpose = errors.New("went wrong on purpose")

// content is what a file of the tests holds.
func content(name string, n int) []byte {
	out := make([]byte, n)
	if _, err := rand.NewChaCha8([32]byte{name[0]}).Read(out); err != nil {
		panic(err)
	}
	return out
}

func put(t testing.TB, s blob.Store, name string, n int) {
	t.Helper()
	if _, err := blob.WriteAll(context.Background(), s, name, content(name, n), nil); err != nil {
		t.Fatal(err)
	}
}

// sink keeps what it is given.
type sink struct {
	mu    sync.Mutex
	taken [][]byte
	err   error
}

func (s *sink) Take(p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, bytes.Clone(p))
	return s.err
}

// stepper also keeps the steps.
type stepper struct {
	sink
	steps []int
}

func (s *stepper) Step(p []byte) { s.steps = append(s.steps, len(p)) }

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

// Whatever is asked for in whatever order, everybody gets his own bytes, once.
func TestEverybodyGetsHisBytes(t *testing.T) {
	const size = 4000
	store := new(mem.Store)
	put(t, store, "a", size)
	put(t, store, "b", size)
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(0, 20).Draw(rt, "requests")
		requests, sinks := make([]Request, n), make([]*sink, n)
		for i := range requests {
			requests[i], sinks[i] = drawRequest(rt, size), &sink{}
			requests[i].To = sinks[i]
		}
		asked := slices.Clone(requests) // Run sorts them
		var done atomic.Int64
		m := meter.New(store)
		st, err := Run(t.Context(), requests, Options{
			Open: m.Open, Parallel: rapid.IntRange(0, 3).Draw(rt, "parallel"), BufferBytes: rapid.Int64Range(0, 9000).Draw(rt, "budget"),
			Gap: rapid.Int64Range(0, 100).Draw(rt, "gap"), Dear: rapid.Bool().Draw(rt, "dear"), Done: func(w int64) { done.Add(w) },
		})
		if err != nil {
			rt.Fatal(err)
		}
		for i := range asked {
			want := wanted(&asked[i], content(asked[i].File, size))
			if len(sinks[i].taken) != 1 || !bytes.Equal(sinks[i].taken[0], want) {
				rt.Fatalf("%+v was given %x; want %x", asked[i], sinks[i].taken, want)
			}
		}
		got := m.Counts()
		if done.Load() != int64(n) || st != (Stats{got.BytesRead, got.Reads}) || got.Opens > 2 {
			rt.Fatalf("%d of %d done, stats %+v, store %+v", done.Load(), n, st, got)
		}
	})
}

func TestNeighboursAreReadTogether(t *testing.T) {
	store := new(mem.Store)
	put(t, store, "a", 4<<20)
	for name, c := range map[string]struct {
		offsets []int64
		o       Options
		reads   int64
	}{
		"side by side":              {[]int64{0, 100, 200}, Options{}, 1},
		"in any order":              {[]int64{200, 0, 100}, Options{}, 1},
		"apart":                     {[]int64{0, 101}, Options{}, 2},
		"apart by a gap":            {[]int64{0, 101}, Options{Gap: 1}, 1},
		"over each other":           {[]int64{0, 50, 60}, Options{}, 1},
		"over more than a mebibyte": {[]int64{0, 1<<20 - 100, 1 << 20}, Options{Gap: 1 << 20}, 2},
		"where requests are dear":   {[]int64{0, 1<<20 - 100, 1 << 20}, Options{Gap: 1 << 20, Dear: true}, 1},
		"over more than the budget": {[]int64{0, 4000, 8000}, Options{Gap: 4000, BufferBytes: 1}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			var requests []Request
			for _, o := range c.offsets {
				requests = append(requests, Request{File: "a", Offset: o, Width: 100, To: &sink{}})
			}
			c.o.Open = store.Open
			if st, err := Run(t.Context(), requests, c.o); err != nil || st.Requests != c.reads {
				t.Errorf("Run = %+v, %v; want %d reads", st, err, c.reads)
			}
		})
	}
}

func TestStepsOfADirectRead(t *testing.T) {
	store := new(mem.Store)
	put(t, store, "a", 600<<10)
	for _, dear := range []bool{false, true} {
		s := &stepper{}
		q := Request{File: "a", Offset: 10, Width: 590 << 10, Direct: make([]byte, 590<<10), To: s}
		if _, err := Run(t.Context(), []Request{q}, Options{Open: store.Open, Dear: dear}); err != nil {
			t.Fatal(err)
		}
		want := map[bool][]int{false: {256 << 10, 256 << 10, 78 << 10}, true: {590 << 10}}[dear]
		if !slices.Equal(s.steps, want) || !bytes.Equal(q.Direct, content("a", 600<<10)[10:][:590<<10]) {
			t.Errorf("dear %v: steps %v; want %v, or other bytes", dear, s.steps, want)
		}
	}
}

func TestBuffersStayWithinTheBudget(t *testing.T) {
	store := new(mem.Store)
	put(t, store, "a", 4<<20)
	var requests []Request
	for i := range int64(16) {
		requests = append(requests, Request{File: "a", Offset: i * 200_000, Width: 100_000, To: &sink{}})
	}
	bufpool.ResetPeak()
	lent := bufpool.Stats().Lent
	if _, err := Run(t.Context(), requests, Options{Open: store.Open, Parallel: 8, BufferBytes: 300_000}); err != nil {
		t.Fatal(err)
	}
	if peak := bufpool.Stats().Peak - lent; peak > 300_000 {
		t.Errorf("buffers took %d bytes; want at most 300000", peak)
	}
}

func TestErrorsEndTheRun(t *testing.T) {
	store := new(mem.Store)
	put(t, store, "a", 5000)
	plain := func(to Sink) Request { return Request{File: "a", Offset: 10, Width: 20, To: to} }
	rows := func(to Sink) Request { return Request{File: "a", Width: 20, Rows: []Axis{{3, 100}}, To: to} }
	direct := func(to Sink) Request { return Request{File: "a", Width: 20, Direct: make([]byte, 20), To: to} }
	for kind, make := range map[string]func(Sink) Request{"a run": plain, "rows": rows, "a direct read": direct} {
		for name, c := range map[string]struct {
			rule fault.Rule
			sink error
			want error
		}{
			"the file cannot be opened": {rule: fault.Rule{On: fault.Open, Do: fault.Fail(errOnPurpose)}, want: errOnPurpose},
			"the file cannot be read":   {rule: fault.Rule{On: fault.Read, Do: fault.Fail(errOnPurpose)}, want: errOnPurpose},
			"the file is cut short":     {rule: fault.Rule{On: fault.Open, Do: fault.Truncate(5)}, want: storage.ErrCorrupt},
			"the sink refuses":          {sink: errOnPurpose, want: errOnPurpose},
		} {
			t.Run(fmt.Sprintf("%s of %s", name, kind), func(t *testing.T) {
				f := fault.New(store, c.rule)
				_, err := Run(t.Context(), []Request{make(&sink{err: c.sink})}, Options{Open: f.Open})
				if !errors.Is(err, c.want) {
					t.Errorf("Run = %v; want %v", err, c.want)
				}
			})
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errOnPurpose)
	s := &sink{}
	if _, err := Run(ctx, []Request{plain(s)}, Options{Open: store.Open}); !errors.Is(err, errOnPurpose) || len(s.taken) > 0 {
		t.Errorf("Run of a finished context = %v; want its cause", err)
	}
}
