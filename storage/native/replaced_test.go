package native

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// A repair is refused while a save is under way. If the store has no locks, the
// repair replaces the record; the save then fails and keeps the files that the new
// record names.
func TestRepairDuringASave(t *testing.T) {
	for name, c := range map[string]struct {
		locks bool
		want  error
	}{"with locks": {true, blob.ErrLocked}, "without": {false, nil}} {
		t.Run(name, func(t *testing.T) {
			s := stores["file"](t)
			if !c.locks {
				s = struct{ blob.Store }{s}
			} else if runtime.GOOS == "windows" {
				t.Skip("locks cannot be read there")
			}
			sv := storagetest.NewSaving(at(s, nil, storage.ReadOptions{}), storagetest.Storage("first", 1, 1), 1)
			must.Do(t, errors.Join(sv.Plan(t.Context(), []plan.State{small(t, 1)}), sv.Write(t.Context())))
			if _, err := Repair(t.Context(), s, nil); !errors.Is(err, c.want) {
				t.Errorf("Repair = %v; want %v", err, c.want)
			}
			finish := sv.Finish(t.Context())
			if c.locks != (finish == nil) {
				t.Errorf("Finish = %v", finish)
			}
			if finish != nil {
				if err := sv.Abort(t.Context()); err != nil {
					t.Error(err)
				}
			}
			checkSeed(t, s, 1)
			checkWhole(t, s)
		})
	}
}

// interferingStore lets a save replace the checkpoint at an operation.
type interferingStore struct {
	blob.Store
	at      func(op, name string) bool
	replace func()
	once    sync.Once
}

func (s *interferingStore) Open(ctx context.Context, name string) (blob.Reader, error) {
	s.look("open", name)
	return s.Store.Open(ctx, name)
}

func (s *interferingStore) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	s.look("list", prefix)
	return s.Store.List(ctx, prefix)
}

func (s *interferingStore) look(op, name string) {
	if s.at(op, name) {
		s.once.Do(s.replace)
	}
}

// A checkpoint that is replaced meanwhile is not reported as damaged or missing.
func TestVerifyAndRepairDetectReplacement(t *testing.T) {
	inner := stores["mem"](t)
	mustSave(t, inner, "first", 1)
	var opened atomic.Int64
	s := &interferingStore{Store: inner, replace: func() { mustSave(t, inner, "second", 2) }}
	s.at = func(_, name string) bool { // the scan of a data file is over, its header is next
		return strings.HasSuffix(name, dataSuffix) && opened.Add(1) == 2
	}
	c := must.Get(Format{}.Open(t.Context(), s))(t)
	defer c.Close()
	if _, err := c.Verify(t.Context(), nil); !errors.Is(err, storage.ErrChanged) {
		t.Errorf("Verify = %v; want %v", err, storage.ErrChanged)
	}

	for i, at := range []func(op, name string) bool{
		func(op, name string) bool { return op == "open" && strings.HasSuffix(name, indexSuffix) },
		func(op, _ string) bool { return op == "list" },
	} {
		id := fmt.Sprintf("later-%d", i)
		later := &interferingStore{Store: inner, at: at, replace: func() { mustSave(t, inner, id, 3) }}
		rep, err := Repair(t.Context(), later, nil)
		if err != nil || rep.Rebuilt || rep.SaveID != id {
			t.Errorf("Repair = %+v, %v; want nothing to do for save %s", rep, err, id)
		}
	}
}
