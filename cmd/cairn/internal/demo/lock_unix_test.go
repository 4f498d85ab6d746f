//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package demo_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/demo"
)

// second is a watcher that starts another demo when the first one has saved.
type second struct {
	notes
	play func()
}

func (s *second) End(step string, r *demo.Report) {
	if step == "save" {
		s.play()
	}
	s.notes.End(step, r)
}

func TestDemoLocksItsDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	store := func() *file.Store {
		s, err := file.Open(dir, &file.Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	c := demo.Config{Store: store(), Bytes: demo.MinBytes, Ranks: 2, LoadRanks: 1}
	w := &second{play: func() {
		other := c
		other.Store, other.Watch = store(), nil
		rep, err := demo.Run(t.Context(), other)
		if rep != nil || !errors.Is(err, demo.ErrTaken) || !strings.Contains(err.Error(), "another demo is at work in "+dir) {
			t.Errorf("a second demo: Run = %+v, %v; want ErrTaken", rep, err)
		}
	}}
	c.Watch = w
	for range 2 { // the lock is free again
		if rep, err := demo.Run(t.Context(), c); err != nil || !rep.OK {
			t.Fatalf("Run = %+v, %v; want OK", rep, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}
