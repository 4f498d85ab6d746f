package native

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// hugeReader claims a size that does not fit into memory.
type hugeReader struct{ blob.Reader }

func (hugeReader) Size() int64 { return 1 << 40 }

type hugeStore struct{ blob.Store }

func (s hugeStore) Open(ctx context.Context, name string) (blob.Reader, error) {
	r, err := s.Store.Open(ctx, name)
	if name == recordName && err == nil {
		r = hugeReader{r}
	}
	return r, err
}

func TestOpenRefusesAHugeRecord(t *testing.T) {
	s := new(mem.Store)
	must.Do(t, save(t, s, "s", tiny(t), nil))
	if _, err := (Format{}).Open(t.Context(), hugeStore{s}); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("Open = %v; want %v", err, storage.ErrCorrupt)
	}
}

func TestOpenWithoutCheckpoint(t *testing.T) {
	dir := t.TempDir()
	open := func(path string) blob.Store {
		s := must.Get(file.Open(path, nil))(t)
		return s
	}
	if _, err := (Format{}).Open(t.Context(), open(filepath.Join(dir, "no", "such"))); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Open of a folder that is not there = %v; want %v", err, storage.ErrNotFound)
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("x"), 0o666))
	if _, err := (Format{}).Open(t.Context(), open(dir)); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Open of a folder of other things = %v; want %v", err, storage.ErrNotFound)
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, recordName), 0o777))
	if _, err := (Format{}).Open(t.Context(), open(dir)); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Open of a folder with the record's name = %v; want %v", err, storage.ErrNotFound)
	}
	for _, why := range []error{syscall.EROFS, syscall.EACCES} {
		s := fault.New(new(mem.Store), fault.Rule{On: fault.Create, Times: -1, Do: fault.Fail(why)})
		if err := save(t, s, "s", tiny(t), nil); !errors.Is(err, why) {
			t.Errorf("save to a store that cannot create files = %v; want %v", err, why)
		}
		s = fault.New(new(mem.Store), fault.Rule{On: fault.Open, Times: -1, Do: fault.Fail(why)})
		if _, err := (Format{}).Open(t.Context(), s); !errors.Is(err, why) || errors.Is(err, storage.ErrNotFound) {
			t.Errorf("Open of a store that cannot be read = %v; want %v", err, why)
		}
	}
}

// A checkpoint is opened, then replaced, and then read.
func TestLoadDetectsReplacement(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "first", 1)
	l := storagetest.NewLoading(at(s, nil, storage.ReadOptions{}), 1)
	must.Do(t, l.Plan(t.Context(), []plan.State{small(t, 0)}))
	c := must.Get(Format{}.Open(t.Context(), s))(t)
	defer c.Close()
	mustSave(t, s, "second", 2)
	if err := l.Read(t.Context()); !errors.Is(err, storage.ErrChanged) || errors.Is(err, storage.ErrCorrupt) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadData = %v; want %v", err, storage.ErrChanged)
	}
	if _, err := c.Verify(t.Context(), nil); !errors.Is(err, storage.ErrChanged) {
		t.Errorf("Verify = %v; want %v", err, storage.ErrChanged)
	}
	checkSeed(t, s, 2)
}

// replacingStore saves another checkpoint when the first index is opened.
type replacingStore struct {
	blob.Store
	replace func()
}

func (s *replacingStore) Open(ctx context.Context, name string) (blob.Reader, error) {
	if strings.HasSuffix(name, indexSuffix) && s.replace != nil {
		do := s.replace
		s.replace = nil
		do()
	}
	return s.Store.Open(ctx, name)
}

func TestOpenRetriesAfterReplacement(t *testing.T) {
	inner := new(mem.Store)
	mustSave(t, inner, "first", 1)
	s := &replacingStore{Store: inner, replace: func() { mustSave(t, inner, "second", 2) }}
	c := must.Get(Format{}.Open(t.Context(), s))(t)
	defer c.Close()
	if c.Storage().SaveID != "second" {
		t.Errorf("Open = save %s; want the second", c.Storage().SaveID)
	}
}
