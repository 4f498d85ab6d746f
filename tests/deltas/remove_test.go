package deltas

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// stepAt returns the store of a step that saveChain has saved.
func stepAt(t testing.TB, dir string, i int) *file.Store {
	return must.Get(file.Open(filepath.Join(dir, fmt.Sprintf("step-%d", i)), nil))(t)
}

// onCreate calls a function before the first object with a name that ends with suffix is made.
type onCreate struct {
	blob.Store
	suffix string
	once   sync.Once
	do     func()
}

func (s *onCreate) Unwrap() blob.Store { return s.Store }

func (s *onCreate) Create(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
	if strings.HasSuffix(name, s.suffix) {
		s.once.Do(s.do)
	}
	return s.Store.Create(ctx, name, o)
}

// save fails, or the files to which it refers stay when the removal is finished.
func TestInterruptedRemovalOfTheBaseOfASave(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 7)
	jobtest.SaveChain(t, dir, s, 1, 1)
	s.Step()
	store := &onCreate{Store: stepAt(t, dir, 1), suffix: ".delta", do: func() {
		bad := fault.New(stepAt(t, dir, 0), fault.Rule{On: fault.Remove, Match: func(n string) bool { return n != "cairn.json" }, Times: -1, Do: fault.Fail(syscall.EIO)})
		if _, err := formats.Remove(t.Context(), bad, nil); !errors.Is(err, syscall.EIO) {
			t.Errorf("Remove = %v; want %v", err, syscall.EIO)
		}
	}}
	// A base that is found later has no lock until the end of the save.
	find := func(context.Context) (string, error) { return "step-0", nil }
	_, err := cairn.Save(t.Context(), store, s.Parts(t, 0, 1), &cairn.SaveOptions{Base: &storage.Base{Find: find}})
	if !errors.Is(err, storage.ErrRemoving) {
		t.Errorf("Save = %v; want %v", err, storage.ErrRemoving)
	}
	must.Get(formats.FinishRemovals(t.Context(), stepAt(t, dir, 0)))(t)
	if err == nil {
		checkContents(t, stepAt(t, dir, 1), s.Clone(t), s.State, 1)
	}
}

// If an operation of the removal of a base fails, the base stays.
func TestFaultsOfTheRemovalOfABase(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 8)
	want := jobtest.SaveChain(t, dir, s, 2, 1)
	for n := range deep.Steps[int64]() {
		store := fault.New(stepAt(t, dir, 0), fault.Rule{Nth: n, Do: fault.Fail(syscall.EIO)})
		if _, err := formats.Remove(t.Context(), store, nil); err == nil {
			t.Fatalf("operation %d of a removal fails, and a base is removed", n)
		}
		if int64(len(store.Ops())) < n {
			break
		}
	}
	checkContents(t, stepAt(t, dir, 1), want[1], s.State, 1)
}

// A checkpoint of a later version may refer to any other one, so none of them is removed.
func TestRemovalBesideALaterVersion(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 14)
	jobtest.SaveChain(t, dir, s, 2, 1)
	name := filepath.Join(dir, "step-1", "cairn.json")
	b := must.Get(os.ReadFile(name))(t)
	later := strings.Replace(string(b), `"version": 3`, `"version": 9`, 1)
	if later == string(b) {
		t.Fatal("the record has another version than 3")
	}
	_, rec, _ := strings.Cut(later, `"record": `)
	rec = strings.TrimSuffix(rec, "\n}\n")
	sum := crc32.Checksum([]byte(rec), crc32.MakeTable(crc32.Castagnoli))
	must.Do(t, os.WriteFile(name, fmt.Appendf(nil, "{\n  \"crc32c\": \"%08x\",\n  \"record\": %s\n}\n", sum, rec), 0o666))
	if _, err := formats.Remove(t.Context(), stepAt(t, dir, 0), nil); !errors.Is(err, storage.ErrVersion) {
		t.Errorf("Remove = %v; want %v", err, storage.ErrVersion)
	}
}
