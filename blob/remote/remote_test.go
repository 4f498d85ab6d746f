package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// scripted is a service with requests that are functions of a test. It holds the objects that
// were put.
type scripted struct {
	Service // nil: all other requests panic
	get     func(ctx context.Context, p []byte, off int64) (int, Object, error)
	before  func(ctx context.Context, key string, c Condition) error // of Put
	after   func(key string) error
	remove  func(key string) error // before RemoveVersion

	mu      sync.Mutex
	objects map[string]Object // guarded by mu
}

func (s *scripted) Limits() Limits {
	return Limits{MinPart: 5 << 20, MaxPart: 5 << 30, Parts: 10_000, Removes: 1000}
}

func (s *scripted) Get(ctx context.Context, _, _ string, p []byte, off int64) (int, Object, error) {
	CountRequest(ctx)
	return s.get(ctx, p, off)
}

func (s *scripted) Head(ctx context.Context, key string) (Object, error) {
	CountRequest(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key]
	if !ok {
		return o, fs.ErrNotExist
	}
	return o, nil
}

func (s *scripted) Put(ctx context.Context, key string, body []byte, _ uint32, c Condition) (Object, error) {
	CountRequest(ctx)
	if s.before != nil {
		if err := s.before(ctx, key, c); err != nil {
			return Object{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.objects[key]; ok && c.IfAbsent {
		return Object{}, ErrCondition
	}
	o := Object{Key: key, Size: int64(len(body)), Version: c.Writer, Writer: c.Writer}
	if s.objects == nil {
		s.objects = map[string]Object{}
	}
	s.objects[key] = o
	if s.after != nil {
		return o, s.after(key)
	}
	return o, nil
}

func (s *scripted) RemoveVersion(ctx context.Context, key, version string) error {
	CountRequest(ctx)
	if s.remove != nil {
		if err := s.remove(key); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.objects[key]; !ok || o.Version != version {
		return ErrCondition
	}
	delete(s.objects, key)
	if s.after != nil {
		return s.after(key)
	}
	return nil
}

func (s *scripted) Remove(ctx context.Context, keys []string) error {
	CountRequest(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		delete(s.objects, key)
	}
	return nil
}

func newStore(t *testing.T, s Service, o *Options) *Store {
	t.Helper()
	store := must.Get(New(s, "x", "test://x", o))(t)
	return store
}

func write(t *testing.T, s *Store, name string, o *blob.CreateOptions) error {
	t.Helper()
	_, err := blob.WriteAll(t.Context(), s, name, []byte("bytes"), o)
	return err
}

var errReset = errors.New("reset")

// failing returns a function that fails n times with an error and then does not.
func failing(n int, err error) (func(context.Context, string, Condition) error, *[]time.Time) {
	times := new([]time.Time)
	return func(context.Context, string, Condition) error {
		*times = append(*times, time.Now())
		if len(*times) <= n {
			return err
		}
		return nil
	}, times
}

func TestRetry(t *testing.T) {
	passing := &Error{Err: errReset, Retry: true}
	for name, c := range map[string]struct {
		failures int
		err      error
		policy   Policy
		attempts int
		fails    bool
	}{
		"a passing error":                        {failures: 3, err: passing, attempts: 4},
		"a wrapped one":                          {failures: 1, err: fmt.Errorf("put: %w", passing), attempts: 2},
		"an error that stays":                    {failures: 1, err: &Error{Err: errReset}, attempts: 1, fails: true},
		"an error without an opinion":            {failures: 1, err: errReset, attempts: 1, fails: true},
		"passing errors without an end":          {failures: 1000, err: passing, attempts: 10, fails: true},
		"a bound of the user":                    {failures: 1000, err: passing, policy: Policy{Attempts: 2}, attempts: 2, fails: true},
		"a service that was never reached":       {failures: 1000, err: &Error{Err: errReset, Retry: true, Unreachable: true}, attempts: 3, fails: true},
		"a service that is reached at last":      {failures: 2, err: &Error{Err: errReset, Retry: true, Unreachable: true}, attempts: 3},
		"a service that was never reached, once": {failures: 9, err: &Error{Err: errReset, Retry: true, Unreachable: true}, policy: Policy{Attempts: 1}, attempts: 1, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				before, times := failing(c.failures, c.err)
				var log bytes.Buffer
				s := newStore(t, &scripted{before: before}, &Options{Policy: c.policy, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				err := write(t, s, "a", nil)
				if c.fails != errors.Is(err, errReset) || !c.fails && err != nil {
					t.Errorf("the write = %v", err)
				}
				if c.fails && !strings.Contains(err.Error(), "test://x") {
					t.Errorf("%q does not name the store", err)
				}
				n := s.Traffic()
				if len(*times) != c.attempts || n.Requests != int64(c.attempts) || n.Retries != int64(c.attempts-1) {
					t.Errorf("%d attempts, traffic %+v; want %d attempts", len(*times), n, c.attempts)
				}
				if logged := strings.Count(log.String(), "request is repeated"); logged != c.attempts-1 {
					t.Errorf("%d retries were logged; want %d:\n%s", logged, c.attempts-1, log.String())
				}
			})
		})
	}
}

// Once the service has answered, a time without connections is bridged.
func TestRetryUnreachableLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &scripted{}
		s := newStore(t, v, nil)
		must.Do(t, write(t, s, "a", nil))
		before, times := failing(7, &Error{Err: errReset, Retry: true, Unreachable: true})
		v.before = before
		if err := write(t, s, "b", nil); err != nil || len(*times) != 8 {
			t.Errorf("the write = %v after %d attempts; want success after 8", err, len(*times))
		}
	})
}

func TestRetryPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, times := failing(1000, &Error{Err: errReset, Retry: true})
		s := newStore(t, &scripted{before: before}, &Options{Policy: Policy{Attempts: 12}})
		if err := write(t, s, "a", nil); !errors.Is(err, errReset) {
			t.Fatal(err)
		}
		mean := 100 * time.Millisecond
		for i := 1; i < len(*times); i++ {
			pause := (*times)[i].Sub((*times)[i-1])
			if pause < mean/2 || pause > mean*3/2 {
				t.Errorf("pause %d is %v; want about %v", i, pause, mean)
			}
			mean = min(2*mean, 10*time.Second)
		}
		// The service asks for more.
		before, times = failing(1, &Error{Err: errReset, Retry: true, After: 20 * time.Second})
		s = newStore(t, &scripted{before: before}, nil)
		must.Do(t, write(t, s, "a", nil))
		if pause := (*times)[1].Sub((*times)[0]); pause != 20*time.Second {
			t.Errorf("the pause is %v; want the 20s of the service", pause)
		}
	})
}

func TestRetryEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, _ := failing(1000, &Error{Err: errReset, Retry: true, After: time.Hour})
		s := newStore(t, &scripted{before: before}, nil)
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		begin := time.Now()
		_, err := blob.WriteAll(ctx, s, "a", []byte("x"), nil)
		if d := time.Since(begin); !errors.Is(err, why) || d != time.Second {
			t.Errorf("the write = %v after %v; want %v after a second", err, d, why)
		}
	})
}

// trickle is a body that yields a byte after each pause, until its context ends.
type trickle struct {
	ctx   context.Context
	pause time.Duration
}

func (b trickle) Read(p []byte) (int, error) {
	select {
	case <-time.After(b.pause):
		p[0] = 1
		return 1, nil
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func TestStalls(t *testing.T) {
	const size = 1 << 20 // takes 4 s at the least rate
	for name, c := range map[string]struct {
		pause time.Duration
		want  error
		after time.Duration
	}{
		"no byte":                {pause: time.Hour, want: errStalled, after: 30 * time.Second},
		"a byte now and then":    {pause: 10 * time.Second, want: errSlow, after: 34 * time.Second},
		"bytes, but far too few": {pause: 10 * time.Millisecond, want: errSlow, after: 34 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &scripted{get: func(ctx context.Context, p []byte, _ int64) (int, Object, error) {
					n, err := ReadFull(ctx, trickle{ctx, c.pause}, p)
					return n, Object{Size: size}, err
				}}
				s := newStore(t, v, &Options{Policy: Policy{Attempts: 1, Hedge: -1}})
				r, err := s.OpenKnown(t.Context(), blob.Info{Name: "a", Size: size})
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				err = r.ReadAt(t.Context(), make([]byte, size), 0)
				if d := time.Since(begin); !errors.Is(err, c.want) || d != c.after {
					t.Errorf("ReadAt = %v after %v; want %v after %v", err, d, c.want, c.after)
				}
			})
		})
	}
}

func TestBody(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	b := NewBody(t.Context(), data)
	var out bytes.Buffer
	if n, err := b.WriteTo(&out); err != nil || n != int64(len(data)) || !bytes.Equal(out.Bytes(), data) {
		t.Errorf("WriteTo = %d, %v", n, err)
	}
	if _, err := b.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, data) {
		t.Errorf("Read = %d bytes, %v", len(got), err)
	}
	if n, err := ReadFull(t.Context(), strings.NewReader("abc"), make([]byte, 4)); n != 3 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("ReadFull of too little = %d, %v", n, err)
	}
}

// A read continues after a broken answer at the same offset, in the same object.
func TestReadGoesOn(t *testing.T) {
	data := make([]byte, 100)
	for i := range data {
		data[i] = byte(i)
	}
	broken := &Error{Err: errReset, Retry: true}
	for name, c := range map[string]struct {
		bytes    []int  // of each answer; 100: all that are left
		versions string // of each answer
		damage   bool   // the first answer is complete, with an error about its checksum
		offsets  []int64
		want     error
	}{
		"one break":           {bytes: []int{30, 100}, versions: "11", offsets: []int64{0, 30}},
		"several breaks":      {bytes: []int{30, 0, 20, 100}, versions: "1111", offsets: []int64{0, 30, 30, 50}},
		"another object":      {bytes: []int{30, 100}, versions: "12", offsets: []int64{0, 30}, want: blob.ErrChanged},
		"a wrong checksum":    {bytes: []int{100, 100}, versions: "11", damage: true, offsets: []int64{0, 0}},
		"each answer breaks":  {bytes: []int{1, 1, 1, 1}, versions: "1111", offsets: []int64{0, 1, 2, 3}, want: errReset},
		"breaks without ends": {bytes: []int{0, 0, 0, 0}, versions: "1111", offsets: []int64{0, 0, 0, 0}, want: errReset},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var offsets []int64
				v := &scripted{get: func(_ context.Context, p []byte, off int64) (int, Object, error) {
					i := len(offsets)
					offsets = append(offsets, off)
					n := copy(p[:min(len(p), c.bytes[i])], data[off:])
					o := Object{Size: int64(len(data)), Version: c.versions[i : i+1]}
					if c.damage && i == 0 {
						p[0]++
						return n, o, broken
					}
					if n < len(p) {
						return n, o, broken
					}
					return n, o, nil
				}}
				s := newStore(t, v, &Options{Policy: Policy{Attempts: 4}})
				r, err := s.OpenKnown(t.Context(), blob.Info{Name: "a", Size: int64(len(data))})
				if err != nil {
					t.Fatal(err)
				}
				p := make([]byte, len(data))
				err = r.ReadAt(t.Context(), p, 0)
				if !errors.Is(err, c.want) || err == nil && !bytes.Equal(p, data) {
					t.Errorf("ReadAt = %v, %v; want %v", p, err, c.want)
				}
				if !slices.Equal(offsets, c.offsets) {
					t.Errorf("the requests are for %v; want %v", offsets, c.offsets)
				}
				if n := s.Traffic().Retries; n != int64(len(c.offsets)-1) {
					t.Errorf("%d retries; want %d", n, len(c.offsets)-1)
				}
			})
		})
	}
}

// A read that takes much longer than most is made again, and the first answer counts.
func TestHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		var mu sync.Mutex
		slow := func(call int) time.Duration {
			if call == 40 {
				return time.Minute
			}
			return time.Second
		}
		v := &scripted{get: func(ctx context.Context, p []byte, off int64) (int, Object, error) {
			mu.Lock()
			calls++
			wait := slow(calls)
			mu.Unlock()
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return 0, Object{}, ctx.Err()
			}
			for i := range p {
				p[i] = byte(off)
			}
			return len(p), Object{Size: 1000, Version: "1"}, nil
		}}
		s := newStore(t, v, &Options{Policy: Policy{Idle: time.Hour}})
		r := must.Get(s.OpenKnown(t.Context(), blob.Info{Name: "a", Size: 1000}))(t)
		for i := range int64(60) {
			p := make([]byte, 10)
			begin := time.Now()
			if err := r.ReadAt(t.Context(), p, i); err != nil || p[9] != byte(i) {
				t.Fatalf("read %d = %v, %v", i, p, err)
			}
			want := time.Second
			if i == 39 {
				want = 4 * time.Second // three times the usual time, and the second answer
			}
			if d := time.Since(begin); d != want {
				t.Errorf("read %d took %v; want %v", i, d, want)
			}
		}
		if n := s.Traffic(); n.Hedges != 1 || n.Requests != 61 || n.Retries != 0 {
			t.Errorf("traffic = %+v; want one hedge of 61 requests", n)
		}
	})
}

// A service that has become slow does not get more work.
func TestHedgesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := time.Millisecond
		v := &scripted{get: func(ctx context.Context, p []byte, _ int64) (int, Object, error) {
			select {
			case <-time.After(wait):
				return len(p), Object{Size: 1000, Version: "1"}, nil
			case <-ctx.Done():
				return 0, Object{}, ctx.Err()
			}
		}}
		s := newStore(t, v, nil)
		r := must.Get(s.OpenKnown(t.Context(), blob.Info{Name: "a", Size: 1000}))(t)
		for i := range 200 {
			if i == 100 {
				wait = 10 * time.Second
			}
			must.Do(t, r.ReadAt(t.Context(), make([]byte, 10), 0))
		}
		if n := s.Traffic(); n.Hedges == 0 || n.Hedges*20 > n.Requests {
			t.Errorf("traffic = %+v; want some hedges, at most one of twenty", n)
		}
	})
}

func TestPatience(t *testing.T) {
	var c pace
	if got := c.patience(100, time.Second); got != 10*time.Second {
		t.Errorf("patience without reads = %v; want ten times the least", got)
	}
	if got := c.patience(100, -1); got != 0 {
		t.Errorf("patience without hedging = %v; want none", got)
	}
	for range 100 {
		c.note(100, time.Second)
		c.note(8<<20, 10*time.Second)
	}
	c.note(100, time.Hour) // one slow answer among many has no effect
	for n, want := range map[int]time.Duration{100: 3 * time.Second, 1 << 20: 3 * time.Second, 8 << 20: 30 * time.Second, 64 << 20: 10 * time.Second} {
		if got := c.patience(n, time.Second); got != want {
			t.Errorf("patience of %d bytes = %v; want %v", n, got, want)
		}
	}
	if got := c.patience(100, time.Minute); got != time.Minute {
		t.Errorf("patience = %v; want at least a minute", got)
	}
}

func TestPartSize(t *testing.T) {
	s := newStore(t, &scripted{}, nil)
	for name, c := range map[string]struct {
		opts blob.CreateOptions
		want int64
	}{
		"no options":                  {want: 8 << 20},
		"a small object":              {opts: blob.CreateOptions{Size: 100}, want: 8 << 20},
		"a piece":                     {opts: blob.CreateOptions{Piece: 16 << 20}, want: 16 << 20},
		"a piece below the least":     {opts: blob.CreateOptions{Piece: 1 << 20}, want: 5 << 20},
		"a piece that does not fit":   {opts: blob.CreateOptions{Piece: 3 << 20}, want: 6 << 20},
		"too many parts":              {opts: blob.CreateOptions{Size: 1 << 40}, want: (1<<40/10_000/blob.Align + 1) * blob.Align},
		"too many pieces":             {opts: blob.CreateOptions{Size: 1 << 40, Piece: 8 << 20}, want: 112 << 20},
		"the largest object":          {opts: blob.CreateOptions{Size: 50_000 << 30, Piece: 8 << 20}, want: 5 << 30},
		"an object that is too large": {opts: blob.CreateOptions{Size: 50_001 << 30}},
	} {
		got, err := s.partSize(c.opts)
		if got != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%s: partSize = %d, %v; want %d", name, got, err, c.want)
		}
		if err == nil && c.opts.Size > got*int64(s.limits.Parts) {
			t.Errorf("%s: parts of %d bytes are too many", name, got)
		}
	}
}

func TestRangeSize(t *testing.T) {
	for _, c := range []struct{ n, parallel, want int }{
		{1, 16, 8 << 20}, {64 << 20, 16, 8 << 20}, {256 << 20, 16, 16 << 20}, {1 << 30, 16, 64 << 20}, {8 << 30, 16, 64 << 20}, {1 << 30, 1, 1 << 30},
	} {
		if got := rangeSize(c.n, c.parallel); got != c.want {
			t.Errorf("rangeSize(%d, %d) = %d; want %d", c.n, c.parallel, got, c.want)
		}
	}
}

// If the answer of the write that makes the object visible gets lost, the writer finds
// out whether the object is its own.
func TestLostAnswer(t *testing.T) {
	lost := &Error{Err: errReset, Retry: true, Sent: true}
	for name, c := range map[string]struct {
		attempts int
		other    bool // another writer was first
		want     error
	}{
		"the next attempt meets the object": {attempts: 3},
		"there is no next attempt":          {attempts: 1},
		"another writer was first":          {attempts: 3, other: true, want: fs.ErrExist},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &scripted{}
				s := newStore(t, v, &Options{Policy: Policy{Attempts: c.attempts}})
				s.probe.kept = true
				once := true
				v.after = func(string) error {
					if once {
						once = false
						return lost
					}
					return nil
				}
				if c.other {
					v.before = func(_ context.Context, key string, _ Condition) error {
						if once {
							once = false
							v.objects = map[string]Object{key: {Key: key, Writer: "another"}}
							return lost
						}
						return nil
					}
				}
				if err := write(t, s, "a", &blob.CreateOptions{IfAbsent: true}); !errors.Is(err, c.want) {
					t.Errorf("the write = %v; want %v", err, c.want)
				}
			})
		})
	}
}

// deaf is a service that ignores conditions.
type deaf struct{ scripted }

func (s *deaf) Put(ctx context.Context, key string, body []byte, sum uint32, c Condition) (Object, error) {
	return s.scripted.Put(ctx, key, body, sum, Condition{Writer: c.Writer})
}

func TestServiceWithoutConditions(t *testing.T) {
	s := newStore(t, new(deaf), nil)
	if err := write(t, s, "a", &blob.CreateOptions{IfAbsent: true}); !errors.Is(err, ErrNoConditions) {
		t.Errorf("the write = %v; want %v", err, ErrNoConditions)
	}
	s = newStore(t, new(deaf), &Options{Unconditional: true})
	if err := write(t, s, "a", &blob.CreateOptions{IfAbsent: true}); err != nil {
		t.Error(err)
	}
	if err := write(t, s, "a", &blob.CreateOptions{IfAbsent: true}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the second write = %v; want %v", err, fs.ErrExist)
	}
	honest := newStore(t, new(scripted), nil)
	for _, name := range []string{"a", "b"} {
		if err := write(t, honest, name, &blob.CreateOptions{IfAbsent: true}); err != nil {
			t.Error(err)
		}
	}
	if n := honest.Traffic().Requests; n != 3 {
		t.Errorf("%d requests for two objects; want 3, one to probe", n)
	}
}

// pending is a service with uploads. Their sizes take a request each.
type pending struct {
	scripted
	keys []string
	size func(key string) (int64, error)
}

func (s *pending) Uploads(_ context.Context, prefix string, _ bool, _ string) (page []PendingUpload, next string, err error) {
	for _, key := range s.keys {
		if strings.HasPrefix(key, prefix) {
			page = append(page, PendingUpload{Key: key, ID: "id"})
		}
	}
	return page, "", nil
}

func (s *pending) UploadSize(_ context.Context, u PendingUpload) (int64, error) { return s.size(u.Key) }

// Uploads with unreadable sizes are found all the same, and uploads that end meanwhile are
// left out.
func TestSizesOfUploads(t *testing.T) {
	broken := errors.New("broken")
	s := newStore(t, &pending{keys: []string{"x/a", "x/ended", "x/secret", "x/b/deep"}, size: func(key string) (int64, error) {
		switch key {
		case "x/ended":
			return 0, fs.ErrNotExist
		case "x/secret":
			return 0, fs.ErrPermission
		case "x/b/deep":
			return 0, broken
		}
		return 7, nil
	}}, nil)
	got, err := s.Temps(t.Context(), "")
	if err != nil || len(got) != 2 || got[0].Size != 7 || !strings.Contains(got[1].Name, "secret") || got[1].Size != 0 {
		t.Errorf("Temps = %+v, %v; want a of 7 bytes, and secret of an unknown size", got, err)
	}
	if _, err := s.Temps(t.Context(), "b"); !errors.Is(err, broken) || !errors.Is(err, blob.ErrService) {
		t.Errorf("Temps of b = %v; want %v of a service", err, broken)
	}
	if dirs, err := s.TempFolders(t.Context(), ""); err != nil || !slices.Equal(dirs, []string{"b"}) {
		t.Errorf("TempFolders = %q, %v; want b", dirs, err)
	}
}

// The removal of a version is repeated like other requests. If the answer to an attempt got
// lost, the object that is gone is not an error.
func TestRemoveVersion(t *testing.T) {
	lost := &Error{Err: errReset, Retry: true, Sent: true}
	for name, c := range map[string]struct {
		service  *scripted
		version  string
		absent   bool
		want     error
		stays    bool
		requests int64
	}{
		"the version":                {version: "1", requests: 2},
		"another version":            {version: "2", want: blob.ErrChanged, stays: true, requests: 1},
		"no object":                  {version: "1", absent: true, want: fs.ErrNotExist, requests: 1},
		"an attempt that was lost":   {service: &scripted{remove: once(lost)}, version: "1", requests: 4},
		"an answer that was lost":    {service: &scripted{after: once(lost)}, version: "1", requests: 3},
		"replaced after the look":    {service: &scripted{remove: once(ErrCondition)}, version: "1", want: blob.ErrChanged, stays: true, requests: 2},
		"a service without the like": {service: &scripted{remove: once(errors.ErrUnsupported)}, version: "1", requests: 3},
		"an error that stays":        {service: &scripted{remove: once(errReset)}, version: "1", want: errReset, stays: true, requests: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if c.service == nil {
					c.service = new(scripted)
				}
				c.service.objects = map[string]Object{"x/a": {Key: "x/a", Version: "1"}}
				if c.absent {
					clear(c.service.objects)
				}
				s := newStore(t, c.service, nil)
				err := s.RemoveVersion(t.Context(), "a", c.version)
				if !errors.Is(err, c.want) || c.want == nil && err != nil {
					t.Errorf("RemoveVersion = %v; want %v", err, c.want)
				}
				if absent := errors.Is(err, fs.ErrNotExist); absent != c.absent || absent && !errors.Is(err, blob.ErrChanged) {
					t.Errorf("RemoveVersion = %v; the object was absent: %v", err, c.absent)
				}
				if _, there := c.service.objects["x/a"]; there != c.stays {
					t.Errorf("the object is there: %v; want %v", there, c.stays)
				}
				if n := s.Traffic().Requests; n != c.requests {
					t.Errorf("%d requests; want %d", n, c.requests)
				}
			})
		})
	}
}

// once returns a function that returns err at its first call.
func once(err error) func(string) error {
	return func(string) error {
		first := err
		err = nil
		return first
	}
}
