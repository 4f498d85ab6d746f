package commit_test

import (
	"context"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// dying is a store with the lock of one save. The process of the save dies after the locks
// were listed a number of times.
type dying struct {
	*mem.Store
	lists  int
	locked bool // the lock is there
	last   func()
}

func (s *dying) owner() blob.Owner {
	if s.lists > 0 {
		return blob.OwnerAlive
	}
	return blob.OwnerDead
}

func (s *dying) Locks(context.Context, string) ([]blob.Lock, error) {
	if !s.locked {
		return nil, nil
	}
	l := blob.Lock{Name: "save-toy-a", Owner: s.owner()}
	if s.lists--; s.lists == 0 && s.last != nil {
		s.last()
	}
	return []blob.Lock{l}, nil
}

func (s *dying) TryLock(_ context.Context, name string, _ []byte) (blob.HeldLock, error) {
	if name == "save-toy-a" && s.owner() == blob.OwnerAlive {
		return nil, blob.ErrLocked
	}
	return &dyingLock{s, name}, nil
}

type dyingLock struct {
	s    *dying
	name string
}

func (l *dyingLock) SetNote([]byte) error       { return nil }
func (l *dyingLock) Beat(context.Context) error { return nil }
func (l *dyingLock) Leave() error               { return nil }

func (l *dyingLock) Release() error {
	l.s.locked = l.s.locked && l.name != "save-toy-a"
	return nil
}

// If a process dies while its folder is swept, at any moment, the next sweep removes its
// files: its lock stays as long as files of it may be there.
func TestSweepWhileAProcessDies(t *testing.T) {
	for lists := range 5 {
		for _, adds := range []bool{false, true} {
			s := &dying{Store: new(mem.Store), lists: lists, locked: true}
			storagetest.Put(t, s, "d0.a", []byte("x"))
			if adds {
				s.last = func() { storagetest.Put(t, s, "d1.a", []byte("x")) } // its last act
			}
			for range 4 { // it is dead before the last one
				must.Get(commit.Sweep(t.Context(), s, toy, 1<<60, nil))(t)
				if names := storagetest.Names(t, s); len(names) > 0 && !s.locked {
					t.Errorf("the process dies after %d lists, adds a file: %v: its lock is gone, its files are not: %v", lists, adds, names)
				}
			}
			if names := storagetest.Names(t, s); len(names) > 0 || s.locked {
				t.Errorf("the process dies after %d lists, adds a file: %v: %v are left, its lock: %v", lists, adds, names, s.locked)
			}
		}
	}
}
