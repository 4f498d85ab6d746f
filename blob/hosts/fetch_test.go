package hosts

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// noise returns n bytes that are the same in every run.
func noise(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{'h'}).Read(p)
	return p
}

func sumOf(p []byte) uint32 { return crc32c.Checksum(p) }

func TestFetch(t *testing.T) {
	ctx := t.Context()
	for _, size := range []int{0, 1, 999, 1000, 1001, 300<<10 + 7} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			b, c := newHost(t), newHost(t)
			local := folder(t)
			s := join(t, local, Config{Piece: 1000 + int64(size/4), Parallel: 3}, b.addr, c.addr)
			data := noise(size)
			put(t, c, "run/x", data)

			must.Do(t, s.Fetch(ctx, "run/x", int64(size), sumOf(data)))
			if got, err := readAll(ctx, local, "run/x"); err != nil || !bytes.Equal(got, data) {
				t.Errorf("the local copy has %d bytes, %v; want the %d of the object", len(got), err, size)
			}
			if err := s.Fetch(ctx, "run/x", int64(size), sumOf(data)); !errors.Is(err, fs.ErrExist) {
				t.Errorf("the second Fetch = %v; want fs.ErrExist", err)
			}
		})
	}
}

// A copy with other bytes never becomes an object. If another host has a good one, Fetch takes
// that.
func TestFetchRefusesDamage(t *testing.T) {
	ctx := t.Context()
	b, c := newHost(t), newHost(t)
	local := folder(t)
	var mu sync.Mutex
	var reported []string
	s := join(t, local, Config{Piece: 1000, Report: func(host, object string, err error) {
		mu.Lock()
		defer mu.Unlock()
		reported = append(reported, host+" "+object)
	}}, b.addr, c.addr)

	data := noise(5000)
	put(t, b, "x", data)
	flip(t, b.Store, "x", 4999)
	err := s.Fetch(ctx, "x", 5000, sumOf(data))
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "b at ") {
		t.Errorf("Fetch of a damaged copy = %v; want ErrDamaged with the host", err)
	}
	put(t, c, "x", data[:4000])
	if err = s.Fetch(ctx, "x", 5000, sumOf(data)); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "4000 bytes") {
		t.Errorf("Fetch of copies of which one is short = %v; want ErrDamaged with its size", err)
	}
	if entries := must.Get(os.ReadDir(local.Dir()))(t); len(entries) != 0 {
		t.Errorf("the local folder has %v; want nothing", entries)
	}

	put(t, c, "x", data)
	must.Do(t, s.Fetch(ctx, "x", 5000, sumOf(data)))
	if got := must.Get(readAll(ctx, local, "x"))(t); !bytes.Equal(got, data) {
		t.Error("the fetched copy differs from the good one")
	}
	if !slices.Contains(reported, "b x") {
		t.Errorf("reports = %v; want one of b", reported)
	}
}

// Parts that this process has are not received. If their bytes are wrong, nothing of them gets into the copy.
func TestFetchHeld(t *testing.T) {
	const size = 9000
	data := noise(size)
	has := func(lo, hi int64) Part {
		return Part{At: lo, Length: hi - lo, Read: func(p []byte, off int64) error {
			copy(p, data[lo+off:hi])
			return nil
		}}
	}
	other := Part{At: 1500, Length: 1000, Read: func(p []byte, off int64) error {
		clear(p)
		return nil
	}}
	broken := Part{At: 8000, Length: 10, Read: func([]byte, int64) error { return errors.New("gone") }}
	for _, c := range []struct {
		name  string
		parts []Part
		held  int64
	}{
		{"no part", nil, 0},
		{"the whole object", []Part{has(0, size)}, size},
		{"within a piece", []Part{has(10, 20)}, 10},
		{"over several pieces", []Part{has(999, 4001)}, 3002},
		{"one after the other", []Part{has(100, 1000), has(1000, 1001), has(1001, 1001), has(1001, 8999)}, 8899},
		{"with gaps", []Part{has(0, 1), has(2, 1000), has(1500, 2500), has(8999, size)}, 2000},
		{"other bytes", []Part{has(0, 100), other, has(8000, size)}, 0},
		{"a part that cannot be read", []Part{has(0, 100), broken}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, local := newHost(t), folder(t)
			s := join(t, local, Config{Piece: 1000}, b.addr)
			put(t, b, "run/x", data)
			held, err := s.FetchHeld(t.Context(), "run/x", size, sumOf(data), c.parts)
			if err != nil || held != c.held {
				t.Fatalf("FetchHeld = %d, %v; want %d", held, err, c.held)
			}
			if got := must.Get(readAll(t.Context(), local, "run/x"))(t); !bytes.Equal(got, data) {
				t.Error("the copy differs from the object")
			}
			want := size - held
			if of := s.Traffic(); of.Received < want || held > 0 && of.Received > want+100*of.Requests {
				t.Errorf("%d bytes were received by %d requests; want %d and little more", of.Received, of.Requests, want)
			}
		})
	}
}

// What cannot be fetched is missing only if all hosts say so.
func TestFetchOfMissingObject(t *testing.T) {
	ctx := t.Context()
	b, c := newHost(t), newHost(t)
	s := join(t, folder(t), Config{}, b.addr, c.addr)
	if err := s.Fetch(ctx, "x", 1, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Fetch of a missing object = %v; want fs.ErrNotExist", err)
	}
	c.stop()
	if err := s.Fetch(ctx, "x", 1, 0); !errors.Is(err, ErrUnreachable) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Fetch without host c = %v; want ErrUnreachable alone", err)
	}
	if err := s.Fetch(ctx, "../x", 1, 0); !errors.Is(err, blob.ErrName) {
		t.Errorf("Fetch of a bad name = %v; want ErrName", err)
	}
}

// All fetches share the rate.
func TestFetchRate(t *testing.T) {
	ctx := t.Context()
	b := newHost(t)
	data := noise(100 << 10)
	for i := range 4 {
		put(t, b, fmt.Sprint(i), data)
	}
	s := join(t, folder(t), Config{Rate: 1 << 20, Piece: 32 << 10}, b.addr)
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			if err := s.Fetch(ctx, fmt.Sprint(i), int64(len(data)), sumOf(data)); err != nil {
				t.Errorf("Fetch = %v; want nil", err)
			}
		})
	}
	wg.Wait()
	// 400 KiB take 390 ms at 1 MiB per second, but the first bytes need not wait.
	if took := time.Since(begin); took < 250*time.Millisecond {
		t.Errorf("four fetches took %v; want the rate to bound them", took)
	}
}

// Several calls for the same object leave one copy.
func TestFetchTogether(t *testing.T) {
	ctx := t.Context()
	b := newHost(t)
	local := folder(t)
	s := join(t, local, Config{Piece: 4096}, b.addr)
	data := noise(100_000)
	put(t, b, "x", data)

	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = s.Fetch(ctx, "x", int64(len(data)), sumOf(data)) })
	}
	wg.Wait()
	done := 0
	for _, err := range errs {
		if err == nil {
			done++
		} else if !errors.Is(err, fs.ErrExist) {
			t.Errorf("Fetch = %v; want nil or fs.ErrExist", err)
		}
	}
	if got := must.Get(readAll(ctx, local, "x"))(t); done != 1 || !bytes.Equal(got, data) {
		t.Errorf("%d calls succeeded; want one, with the bytes of the object", done)
	}
}

// Refetch replaces a damaged object after it has compared the bytes. If no host has a good copy, the damaged
// object stays.
func TestRefetch(t *testing.T) {
	ctx := t.Context()
	b, local, data := newHost(t), folder(t), noise(5000)
	s := join(t, local, Config{Piece: 1000}, b.addr)
	for _, to := range []blob.Store{b, local} {
		put(t, to, "x", data)
	}
	flip(t, local, "x", 7)
	flip(t, b.Store, "x", 4000)
	if err := s.Refetch(ctx, "x", 5000, sumOf(data)); !errors.Is(err, ErrDamaged) {
		t.Errorf("Refetch of a damaged copy = %v; want ErrDamaged", err)
	}
	if got, err := readAll(ctx, local, "x"); err != nil || got[7] == data[7] || got[4000] != data[4000] {
		t.Errorf("the object was changed, %v", err)
	}
	flip(t, b.Store, "x", 4000)
	must.Do(t, s.Refetch(ctx, "x", 5000, sumOf(data)))
	if got, err := readAll(ctx, local, "x"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the object is not the good copy, %v", err)
	}
}

// The hosts that keep a damaged copy are told of it, once for all of its ranges: also this host, by any of its
// processes. A copy that was replaced, or whose host does not answer, is not damaged.
func TestHostsAreToldOfDamage(t *testing.T) {
	var mu sync.Mutex
	told := map[string]int{}
	serving := func(name string, store blob.Store) string {
		s := &server{store: store, secret: secret, stall: patience, handshake: patience, damaged: func(object string) {
			mu.Lock()
			defer mu.Unlock()
			told[name+" "+object]++
		}}
		addr, _ := startServer(t, s)
		return addr
	}
	nobody, stop := startServer(t, &server{store: folder(t), secret: secret, stall: patience, handshake: patience})
	stop()
	local, there := folder(t), folder(t)
	s := join(t, local, Config{Own: []string{nobody, serving("own", local)}}, serving("peer", there))
	report := func(name string, errs ...error) {
		r := must.Get(s.Open(t.Context(), name))(t)
		defer r.Close()
		for _, err := range errs {
			r.(blob.CopyReader).Report(0, err)
		}
	}
	wrong := errors.New("the checksum does not match")
	for store, names := range map[blob.Store][]string{local: {"here", "replaced"}, there: {"there", "silent"}} {
		for _, name := range names {
			put(t, store, name, noise(5000))
		}
	}
	report("here", wrong, wrong, wrong)
	report("there", wrong, ErrUnreachable, wrong)
	report("replaced", blob.ErrChanged)
	report("silent", ErrUnreachable)
	if err := s.peers[0].damaged(t.Context(), "../x"); err == nil {
		t.Error("a name outside of the store was accepted")
	}
	mu.Lock()
	defer mu.Unlock()
	if want := fmt.Sprint(map[string]int{"own here": 1, "peer there": 1}); fmt.Sprint(told) != want {
		t.Errorf("the hosts were told %v; want %s", told, want)
	}
}
