package blobtest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
)

var sharing = []claim{
	{"OneOfManyIfAbsentWins", func(t *testing.T, s blob.Store) {
		for round := range 5 {
			name := fmt.Sprintf("lock/%d", round)
			winner := raceIfAbsent(t, s, name, 16)
			wantObject(t, s, name, winner)
		}
	}},
	{"ReplacementIsAtomicForReaders", func(t *testing.T, s blob.Store) {
		put(t, s, "a/x", generation(0))
		var done atomic.Bool
		var readers sync.WaitGroup
		for range 3 {
			readers.Go(func() {
				for !done.Load() {
					readGeneration(t, s)
				}
			})
		}
		readers.Go(func() {
			for !done.Load() {
				listGeneration(t, s)
			}
		})
		for g := range 26 {
			put(t, s, "a/x", generation(g))
		}
		done.Store(true)
		readers.Wait()
	}},
	{"WritersOfOneNameDoNotMix", func(t *testing.T, s blob.Store) {
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() { tryPut(t, s, "a/x", generation(g)) })
		}
		wg.Wait()
		readGeneration(t, s)
	}},
	{"ReadersShareAReader", func(t *testing.T, s blob.Store) {
		data := pattern(1<<20, 1)
		put(t, s, "x", string(data))
		r := open(t, s, "x")
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(g), 0))
				for range 50 {
					off := rnd.IntN(len(data))
					p := make([]byte, rnd.IntN(min(len(data)-off, 64<<10)+1))
					if err := r.ReadAt(t.Context(), p, int64(off)); err != nil || !bytes.Equal(p, data[off:off+len(p)]) {
						t.Errorf("ReadAt(%d bytes, %d) is wrong or %v", len(p), off, err)
					}
				}
			})
		}
		wg.Wait()
	}},
	{"CreateAndRemoveSideBySide", func(t *testing.T, s blob.Store) {
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for range 30 { // the last object of a/b/ goes and comes all the time
					name := fmt.Sprintf("a/b/%d", g)
					tryPut(t, s, name, name)
					if err := s.Remove(t.Context(), name); err != nil {
						t.Errorf("Remove(%q) = %v; want nil", name, err)
					}
				}
			})
		}
		wg.Wait()
		if ns := names(t, s, ""); len(ns) > 0 {
			t.Errorf("List = %q; want nothing", ns)
		}
	}},
	{"AbortDuringWrites", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", nil)
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				err := w.WriteAt(t.Context(), make([]byte, 64<<10), int64(g)<<16)
				if err != nil && !errors.Is(err, blob.ErrClosed) {
					t.Errorf("WriteAt = %v; want nil or ErrClosed", err)
				}
			})
		}
		if err := w.Abort(); err != nil {
			t.Errorf("Abort = %v; want nil", err)
		}
		wg.Wait()
		wantNone(t, s, "x")
	}},
	{"WhateverTheOrderItIsAMapOfNames", func(t *testing.T, s blob.Store) {
		const seed = 20
		t.Logf("seed %d", seed)
		walk(t, s, rand.New(rand.NewPCG(seed, 0)), 300)
	}},
}

// raceIfAbsent lets n writers commit the same name at once and returns what
// the winner wrote.
func raceIfAbsent(t *testing.T, s blob.Store, name string, n int) string {
	t.Helper()
	var wg sync.WaitGroup
	start := make(chan struct{})
	won := make(chan string, n)
	for g := range n {
		data := fmt.Sprintf("by %d", g)
		w := create(t, s, name, &blob.CreateOptions{IfAbsent: true})
		write(t, w, data, 0)
		wg.Go(func() {
			<-start
			_, err := w.Commit(t.Context())
			if err == nil {
				won <- data
			} else if !errors.Is(err, fs.ErrExist) {
				t.Errorf("Commit = %v; want nil or fs.ErrExist", err)
			}
		})
	}
	close(start)
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d of %d writers with IfAbsent won; want 1", len(won), n)
	}
	return <-won
}

// generation returns an object all of one byte, of a size that goes with it.
func generation(g int) string {
	return strings.Repeat(string(rune('A'+g%26)), 1000*(1+g%26))
}

// readGeneration checks that a/x is whole and of one generation.
func readGeneration(t *testing.T, s blob.Store) {
	r, err := s.Open(t.Context(), "a/x")
	if err != nil {
		t.Errorf("Open during replacement = %v; want nil", err)
		return
	}
	defer r.Close()
	p := make([]byte, r.Size())
	if err := r.ReadAt(t.Context(), p, 0); err != nil {
		return // the contract allows an error, not a mixture
	}
	if len(p) == 0 || string(p) != generation(int(p[0]-'A')) {
		t.Errorf("a/x = %.10q… of %d bytes; want one generation", p, len(p))
	}
	if info, err := s.Stat(t.Context(), "a/x"); err != nil || info.Size == 0 {
		t.Errorf("Stat during replacement = %+v, %v; want an object", info, err)
	}
}

// listGeneration checks that a/x is listed, once.
func listGeneration(t *testing.T, s blob.Store) {
	var ns []string
	for info, err := range s.List(t.Context(), "a/") {
		if err != nil {
			t.Errorf("List during replacement = %v; want no error", err)
			return
		}
		ns = append(ns, info.Name)
	}
	if len(ns) != 1 || ns[0] != "a/x" {
		t.Errorf("List during replacement = %q; want a/x alone", ns)
	}
}

// walk does n things at random to s and to a map, and compares.
func walk(t *testing.T, s blob.Store, rnd *rand.Rand, n int) {
	t.Helper()
	pool := []string{"a", "b/c", "b/d", "e/f/g", "e/f/h", "e/i", "世"}
	model := map[string]string{}
	for i := range n {
		name, data := pool[rnd.IntN(len(pool))], fmt.Sprintf("%d %s", i, strings.Repeat("z", rnd.IntN(50)))
		old, there := model[name]
		switch rnd.IntN(5) {
		case 0, 1:
			put(t, s, name, data)
			model[name] = data
		case 2:
			_, err := blob.WriteAll(t.Context(), s, name, []byte(data), &blob.CreateOptions{IfAbsent: true})
			if there != errors.Is(err, fs.ErrExist) || !there && err != nil {
				t.Fatalf("step %d: WriteAll(%q, IfAbsent) = %v; object is there: %v", i, name, err, there)
			}
			if !there {
				model[name] = data
			}
		case 3:
			if err := s.Remove(t.Context(), name); err != nil {
				t.Fatalf("step %d: Remove(%q) = %v; want nil", i, name, err)
			}
			delete(model, name)
		case 4:
			if there {
				wantObject(t, s, name, old)
			} else {
				wantNone(t, s, name)
			}
		}
		if got := len(names(t, s, "")); got != len(model) {
			t.Fatalf("step %d: List has %d objects; want %d", i, got, len(model))
		}
	}
}
