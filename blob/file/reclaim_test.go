package file

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// stepped is a removed file of a test. Each step frees one unit and takes a second.
type stepped struct {
	start time.Time

	mu    sync.Mutex
	left  int64           // guarded by mu
	steps []time.Duration // guarded by mu; when each step began
}

func (s *stepped) free() int64 {
	at := time.Since(s.start)
	time.Sleep(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, at)
	s.left--
	return s.left
}

// rest returns how many units are not free.
func (s *stepped) rest() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
}

func addStepped(r *reclaimer, units, room int64) *stepped {
	s := &stepped{left: units, start: time.Now()}
	r.add(units, room, s.free)
	return s
}

const plenty = 1 << 40 // free bytes

func wantSteps(t *testing.T, name string, s *stepped, want ...time.Duration) {
	t.Helper()
	for i := range want {
		want[i] *= time.Second
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.steps, want) {
		t.Errorf("%s was freed at %v; want %v after its removal", name, s.steps, want)
	}
}

func TestReclaimWaitsForTheEndOfASave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reclaimer{delay: 5 * time.Second}
		end := r.begin(t.Context(), 1, plenty)
		f := addStepped(r, 2, plenty)
		time.Sleep(time.Minute)
		end()
		end() // has no effect
		time.Sleep(time.Minute)
		wantSteps(t, "the file", f, 65, 66)
	})
}

// A save that begins while blocks are freed waits for no more than one step, and the rest is
// freed after it.
func TestReclaimPausesForASave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reclaimer{delay: 5 * time.Second}
		f := addStepped(r, 4, plenty)
		time.Sleep(6500 * time.Millisecond) // in the second step
		before := time.Now()
		end := r.begin(t.Context(), 1, plenty)
		if d := time.Since(before); d != 0 {
			t.Errorf("the save waited for %v", d)
		}
		time.Sleep(13500 * time.Millisecond) // until 20 s
		part := r.begin(t.Context(), 1, plenty)
		end()
		time.Sleep(10 * time.Second)
		part() // a save that overlaps with it, or a rank's part of it
		time.Sleep(time.Minute)
		wantSteps(t, "the file", f, 5, 6, 35, 36)
	})
}

// Saves without pauses keep the files of one replaced checkpoint, not of all of them.
func TestReclaimOfTheCheckpointBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reclaimer{delay: 5 * time.Second}
		var files []*stepped
		for range 4 {
			end := r.begin(t.Context(), 1, plenty)
			time.Sleep(10 * time.Second)
			files = append(files, addStepped(r, 2, plenty))
			end()
		}
		for i, f := range files {
			if want := []int64{0, 0, 2, 2}[i]; f.rest() != want {
				t.Errorf("after 4 saves, %d units of the file that save %d removed are left; want %d", f.rest(), i, want)
			}
		}
		// It was freed before the save after the next one: the next one takes 10 s.
		wantSteps(t, "the first file", files[0], 10, 11)
		time.Sleep(time.Minute)
	})
}

func TestReclaimMakesRoomForASave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reclaimer{delay: 5 * time.Second}
		f := addStepped(r, 2, plenty)
		end := r.begin(t.Context(), 1<<30, 1<<30)
		defer end()
		wantSteps(t, "the file", f, 0, 1)
	})
}

func TestReclaimKeepsHalfOfTheFreeSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reclaimer{delay: 5 * time.Second}
		defer r.begin(t.Context(), 1, plenty)()
		first := addStepped(r, 2, 10)
		second := addStepped(r, 3, 10)
		time.Sleep(time.Minute)
		wantSteps(t, "a file of 2 bytes, with 10 free", first)
		third := addStepped(r, 1, 10)
		time.Sleep(time.Minute)
		wantSteps(t, "the first file", first, 60, 61)
		wantSteps(t, "the second file", second, 62, 63, 64)
		wantSteps(t, "the third file", third, 5)
	})
}

func TestReclaimOfAnotherFileSystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reclaimer{delay: 5 * time.Second}
		defer r.begin(t.Context(), 1, plenty)()
		f := addStepped(r, 2, 0)
		time.Sleep(time.Minute)
		wantSteps(t, "a file that does not wait", f, 0, 1)
	})
}

func TestReclaimFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reclaimer{delay: 5 * time.Second}
		if r.flush(t.Context()) {
			t.Error("flush of nothing = true")
		}
		defer r.begin(t.Context(), 1, plenty)()
		f := addStepped(r, 2, plenty)
		if !r.flush(t.Context()) || f.rest() != 0 {
			t.Errorf("flush left %d units; want 0", f.rest())
		}
		addStepped(r, 2, plenty)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if r.flush(ctx) {
			t.Error("flush with a context that has ended = true")
		}
		time.Sleep(time.Minute)
	})
}
