package native

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// tiny returns a state with few bytes behind the header of its data file.
func tiny(t testing.TB) plan.State {
	return plan.State{"w": storagetest.Filled(t, tensor.Int16, []int64{3, 2}, 1), "n": int64(5), "e": storagetest.Filled(t, tensor.Int8, []int64{0}, 0)}
}

// loadTiny loads the state of tiny. If it succeeds, it checks all values.
func loadTiny(t testing.TB, s blob.Store) error {
	t.Helper()
	want := tiny(t)
	got := plan.State{"w": storagetest.Filled(t, tensor.Int16, []int64{3, 2}, 9), "n": nil, "e": storagetest.Filled(t, tensor.Int8, []int64{0}, 0)}
	l := storagetest.NewLoading(at(s, nil, storage.ReadOptions{Parallel: 1}), 1)
	l.Planners[0] = &plan.DefaultLoad{RejectUnexpected: true}
	if err := l.Plan(context.Background(), []plan.State{got}); err != nil {
		return err
	}
	if err := l.Read(context.Background()); err != nil {
		return err
	}
	if !tensor.Equal(got["w"].(*tensor.Tensor), want["w"].(*tensor.Tensor)) || got["n"] != want["n"] {
		t.Errorf("loaded %v; want %v", got, want)
	}
	return nil
}

func isNamed(err error) bool {
	return errors.Is(err, storage.ErrCorrupt) || errors.Is(err, storage.ErrVersion)
}

// checkFound fails unless Open or Verify finds that something is wrong.
func checkFound(t testing.TB, s blob.Store, what string) {
	t.Helper()
	c, err := Format{}.Open(context.Background(), s)
	if err != nil {
		if !isNamed(err) {
			t.Errorf("%s: Open = %v; want a named error", what, err)
		}
		return
	}
	defer c.Close()
	if rep, err := c.Verify(context.Background(), nil); err != nil || len(rep.Problems) == 0 {
		t.Errorf("%s: Verify = %+v, %v; want problems", what, rep, err)
	}
}

// each calls fn for every file of a small checkpoint, with its bytes and a function
// that replaces them.
func each(t *testing.T, fn func(s blob.Store, name string, b []byte, put func([]byte))) {
	t.Helper()
	s := new(mem.Store)
	must.Do(t, save(t, s, "s", tiny(t), nil))
	for _, name := range storagetest.Names(t, s) {
		b := must.Get(blob.ReadAll(t.Context(), s, name, 1<<20))(t)
		put := func(b []byte) {
			must.Get(blob.WriteAll(t.Context(), s, name, b, nil))(t)
		}
		fn(s, name, b, put)
		put(b)
	}
	if err := loadTiny(t, s); err != nil {
		t.Errorf("after all was put back: %v", err)
	}
}

func TestEveryFlippedByteIsFound(t *testing.T) {
	each(t, func(s blob.Store, name string, b []byte, put func([]byte)) {
		for i := range b {
			bad := append([]byte{}, b...)
			bad[i] ^= 1 << (i % 8)
			put(bad)
			what := fmt.Sprintf("%s, byte %d", name, i)
			if unread := strings.HasSuffix(name, dataSuffix) && i < headerAlign; !unread || i%64 == 0 { // loads read no headers
				if err := loadTiny(t, s); err != nil && !isNamed(err) {
					t.Errorf("%s: load = %v; want a named error or the right data", what, err)
				}
			}
			checkFound(t, s, what)
			if t.Failed() {
				return
			}
		}
	})
}

func TestEveryTruncationIsFound(t *testing.T) {
	each(t, func(s blob.Store, name string, b []byte, put func([]byte)) {
		for _, n := range []int{0, 1, 7, 16, len(b) / 2, len(b) - 1} {
			put(b[:n])
			what := fmt.Sprintf("%s, %d bytes of %d", name, n, len(b))
			if err := loadTiny(t, s); !isNamed(err) {
				t.Errorf("%s: load = %v; want a named error", what, err)
			}
			checkFound(t, s, what)
		}
		put(append(b[:len(b):len(b)], 0))
		if err := loadTiny(t, s); !isNamed(err) {
			t.Errorf("%s, one byte more: load = %v; want a named error", name, err)
		}
		checkFound(t, s, name+", one byte more")
	})
}

func TestEveryMissingFileIsFound(t *testing.T) {
	each(t, func(s blob.Store, name string, b []byte, put func([]byte)) {
		must.Do(t, s.Remove(t.Context(), name))
		want := storage.ErrCorrupt
		if name == recordName {
			want = storage.ErrIncomplete
		}
		if err := loadTiny(t, s); !errors.Is(err, want) {
			t.Errorf("without %s: load = %v; want %v", name, err, want)
		}
		if name != recordName {
			checkFound(t, s, "without "+name)
		}
	})
}

// A sound index of the right size, but of another save.
func TestIndexOfAnotherSaveIsRefused(t *testing.T) {
	a, b := new(mem.Store), new(mem.Store)
	for id, s := range map[string]blob.Store{"a": a, "b": b} {
		must.Do(t, save(t, s, id, tiny(t), nil))
	}
	other := must.Get(blob.ReadAll(t.Context(), b, "b"+indexSuffix, 1<<20))(t)
	must.Get(blob.WriteAll(t.Context(), a, "a"+indexSuffix, other, nil))(t)
	if err := loadTiny(t, a); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("load = %v; want %v", err, storage.ErrCorrupt)
	}
	checkFound(t, a, "the index of another save")
}
