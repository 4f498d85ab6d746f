package native

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// tiny returns a state whose data file has few bytes behind its header.
func tiny(t testing.TB) plan.State {
	return plan.State{"w": storagetest.Filled(t, tensor.Int16, []int64{3, 2}, 1), "n": int64(5), "e": storagetest.Filled(t, tensor.Int8, []int64{0}, 0)}
}

// loadTiny loads what tiny saved. Where it succeeds, everything must be right.
func loadTiny(t testing.TB, s blob.Store) error {
	t.Helper()
	want := tiny(t)
	got := plan.State{"w": storagetest.Filled(t, tensor.Int16, []int64{3, 2}, 9), "n": nil, "e": storagetest.Filled(t, tensor.Int8, []int64{0}, 0)}
	l := storagetest.NewLoading(at(s, nil, &ReaderOptions{Parallel: 1}), 1)
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
	c, err := Open(context.Background(), s)
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

// each calls fn for every file of a small checkpoint, with its bytes, and a
// function that puts others in their place.
func each(t *testing.T, fn func(s blob.Store, name string, b []byte, put func([]byte))) {
	t.Helper()
	s := new(mem.Store)
	if err := save(t, s, "s", tiny(t), nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range names(t, s) {
		b, err := blob.ReadAll(t.Context(), s, name, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		put := func(b []byte) {
			if _, err := blob.WriteAll(t.Context(), s, name, b, nil); err != nil {
				t.Fatal(err)
			}
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
			if err := loadTiny(t, s); err != nil && !isNamed(err) {
				t.Errorf("%s: load = %v; want a named error or the right data", what, err)
			}
			checkFound(t, s, what)
			if t.Failed() {
				return
			}
		}
	})
}

func TestEveryCutIsFound(t *testing.T) {
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
		if err := s.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
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
		if err := save(t, s, id, tiny(t), nil); err != nil {
			t.Fatal(err)
		}
	}
	other, err := blob.ReadAll(t.Context(), b, "b"+indexSuffix, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := blob.WriteAll(t.Context(), a, "a"+indexSuffix, other, nil); err != nil {
		t.Fatal(err)
	}
	if err := loadTiny(t, a); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("load = %v; want %v", err, storage.ErrCorrupt)
	}
	checkFound(t, a, "the index of another save")
}

// forge writes a checkpoint of these entries and files, whose sums hold.
func forge(t testing.TB, entries []meta.Entry, files ...storage.File) blob.Store {
	t.Helper()
	s := new(mem.Store)
	if err := Commit(context.Background(), s, &meta.Metadata{Entries: entries, Storage: storagetest.Storage("f", 1, 1)}, files); err != nil {
		t.Fatal(err)
	}
	return s
}

func chunkAt(shape []int64, file string, offset int64, boxes ...tensor.Box) meta.Entry {
	e := meta.Entry{FQN: "x", Tensor: &meta.Tensor{Shape: shape, Chunks: boxes}}
	e.Tensor.DType = tensor.Uint8
	for _, b := range boxes {
		e.Tensor.Locs = append(e.Tensor.Locs, meta.Location{
			File: file, Offset: offset, Length: b.Volume(), Sums: make([]uint32, Sums(b.Sizes, 1)),
		})
	}
	return e
}

func TestForgedMetadataIsRefused(t *testing.T) {
	const name = "f-r00000-0.safetensors"
	huge := int64(1) << 37
	for what, s := range map[string]blob.Store{
		"a file that the record does not name": forge(t, []meta.Entry{chunkAt([]int64{4}, name, 0, tensor.Whole([]int64{4}))}),
		"bytes behind the end of the file": forge(t,
			[]meta.Entry{chunkAt([]int64{4}, name, 5, tensor.Whole([]int64{4}))}, storage.File{Name: name, Size: 8}),
		"a tensor without chunks": forge(t, []meta.Entry{chunkAt([]int64{1 << 45}, name, 0)}),
		"too few chunks": forge(t,
			[]meta.Entry{chunkAt([]int64{1 << 45}, name, 0, tensor.Box{Offsets: []int64{0}, Sizes: []int64{4}})}, storage.File{Name: name, Size: 8}),
		"a chunk twice": forge(t,
			[]meta.Entry{chunkAt([]int64{4}, name, 0, tensor.Whole([]int64{4}), tensor.Whole([]int64{4}))}, storage.File{Name: name, Size: 8}),
		"a tensor of many gibibytes in a file that is not there": forge(t,
			[]meta.Entry{chunkAt([]int64{huge}, name, 0, tensor.Whole([]int64{huge}))}, storage.File{Name: name, Size: huge}),
		"a value of many gibibytes in a file that is not there": forge(t,
			[]meta.Entry{{FQN: "x", Bytes: &meta.Bytes{Codec: "raw", Size: huge, Loc: meta.Location{
				File: name, Length: huge, Sums: make([]uint32, huge/stripeBytes),
			}}}}, storage.File{Name: name, Size: huge}),
	} {
		if _, err := NewReader(s, nil).ReadMetadata(t.Context()); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("%s: ReadMetadata = %v; want %v", what, err, storage.ErrCorrupt)
		}
		checkNotHeld(t, s, what)
	}
}

// checkNotHeld fails unless looking the entry x up, or asking for its files,
// refuses it.
func checkNotHeld(t *testing.T, s blob.Store, what string) {
	t.Helper()
	c, err := Open(t.Context(), s)
	if err != nil {
		t.Errorf("%s: Open = %v", what, err)
		return
	}
	defer c.Close()
	e, _, err := c.Find(t.Context(), "x")
	if err == nil {
		err = c.CheckHeld(t.Context(), e)
	}
	if !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("%s: Find and CheckHeld = %v; want %v", what, err, storage.ErrCorrupt)
	}
}

func TestCheckHeldOfSoundEntries(t *testing.T) {
	s := new(mem.Store)
	state := plan.State{"x": storagetest.Filled(t, tensor.Uint8, []int64{2 << 20}, 1), "v": make([]byte, 2<<20), "i": 1}
	if err := save(t, s, "id", state, nil); err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name := range state {
		e, ok, err := c.Find(t.Context(), name)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		if err := c.CheckHeld(t.Context(), e); err != nil {
			t.Errorf("CheckHeld(%s) = %v; want nil", name, err)
		}
	}
}

func TestVerifyTellsWhatIsWrong(t *testing.T) {
	const name = "f-r00000-0.safetensors"
	b := tensor.Whole([]int64{4})
	e, f := chunkAt([]int64{4}, name, 0, b), chunkAt([]int64{4}, name, 2, b)
	f.FQN = "y"
	s := forge(t, []meta.Entry{e, f}, storage.File{Name: name, Size: 8})
	if _, err := blob.WriteAll(t.Context(), s, name, make([]byte, 8), nil); err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rep, err := c.Verify(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, p := range rep.Problems {
		fmt.Fprintf(&all, "%s: %q: %s\n", p.File, p.FQN, p.Text)
	}
	for _, want := range []string{`"y": its bytes overlap those of "x"`, "its checksum is", "invalid safetensors header"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("problems lack %q:\n%s", want, &all)
		}
	}
	if rep.Files != 2 || rep.Chunks != 2 || rep.Bytes != c.TotalBytes() {
		t.Errorf("report = %+v; want 2 files, 2 chunks, %d bytes", rep, c.TotalBytes())
	}
}

func TestVerifyCountsAgree(t *testing.T) {
	s := new(mem.Store)
	if err := save(t, s, "s", tiny(t), nil); err != nil {
		t.Fatal(err)
	}
	rec, err := readRecord(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	rec.Totals.Chunks++
	b, err := encodeRecord(rec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := blob.WriteAll(t.Context(), s, recordName, b, nil); err != nil {
		t.Fatal(err)
	}
	checkFound(t, s, "a record that counts one chunk more")
}

// hugeReader claims a size that nobody wants in memory.
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

func TestHugeRecordIsNotRead(t *testing.T) {
	s := new(mem.Store)
	if err := save(t, s, "s", tiny(t), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), hugeStore{s}); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("Open = %v; want %v", err, storage.ErrCorrupt)
	}
}

func TestPlacesThatAreNone(t *testing.T) {
	dir := t.TempDir()
	open := func(path string) blob.Store {
		s, err := file.Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if _, err := Open(t.Context(), open(filepath.Join(dir, "no", "such"))); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Open of a folder that is not there = %v; want %v", err, storage.ErrNotFound)
	}
	if err := os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), open(dir)); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Open of a folder of other things = %v; want %v", err, storage.ErrNotFound)
	}
	if err := os.Mkdir(filepath.Join(dir, recordName), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), open(dir)); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Open where a folder has the record's name = %v; want %v", err, storage.ErrNotFound)
	}
	for _, why := range []error{syscall.EROFS, syscall.EACCES} {
		s := fault.New(new(mem.Store), fault.Rule{On: fault.Create, Times: -1, Do: fault.Fail(why)})
		if err := save(t, s, "s", tiny(t), nil); !errors.Is(err, why) {
			t.Errorf("save where nothing can be made = %v; want %v", err, why)
		}
		s = fault.New(new(mem.Store), fault.Rule{On: fault.Open, Times: -1, Do: fault.Fail(why)})
		if _, err := Open(t.Context(), s); !errors.Is(err, why) || errors.Is(err, storage.ErrNotFound) {
			t.Errorf("Open where nothing can be read = %v; want %v", err, why)
		}
	}
}

// Opened, replaced, and then asked for its bytes.
func TestReplacedMeanwhileIsNotCorrupt(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "first", 1)
	l := storagetest.NewLoading(at(s, nil, nil), 1)
	if err := l.Plan(t.Context(), []plan.State{small(t, 0)}); err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	mustSave(t, s, "second", 2)
	if err := l.Read(t.Context()); !errors.Is(err, storage.ErrChanged) || errors.Is(err, storage.ErrCorrupt) || !errors.Is(err, fs.ErrNotExist) {
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

func TestOpenSeesTheNewOneWhereItIsReplacedMeanwhile(t *testing.T) {
	inner := new(mem.Store)
	mustSave(t, inner, "first", 1)
	s := &replacingStore{Store: inner, replace: func() { mustSave(t, inner, "second", 2) }}
	c, err := Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Storage().SaveID != "second" {
		t.Errorf("Open = save %s; want the second", c.Storage().SaveID)
	}
}

// Empty tensors take no bytes, so they overlap nothing, wherever they stand.
func TestVerifyOfEmptyTensors(t *testing.T) {
	s := new(mem.Store)
	state := plan.State{
		"a": storagetest.Filled(t, tensor.Int8, []int64{5}, 1), "b": storagetest.Filled(t, tensor.Float64, []int64{0, 3}, 1),
		"c": storagetest.Filled(t, tensor.Float64, []int64{2, 0}, 1), "d": storagetest.Filled(t, tensor.Int8, []int64{0}, 1),
	}
	if err := save(t, s, "s", state, nil); err != nil {
		t.Fatal(err)
	}
	verify(t, s)
	remove(t, s, recordName)
	if _, err := Repair(t.Context(), s, nil); err != nil {
		t.Errorf("Repair = %v", err)
	}
	verify(t, s)
}
