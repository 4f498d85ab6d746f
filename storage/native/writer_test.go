package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// small returns a state that is quickly saved, and different for each seed.
func small(t testing.TB, seed byte) plan.State {
	return plan.State{
		"w": storagetest.Filled(t, tensor.Float32, []int64{4, 3}, seed), "step": int64(seed),
		"big": slices.Repeat([]byte{seed}, inlineMax+1),
	}
}

func save(t testing.TB, s blob.Store, id string, state plan.State, o *options) error {
	t.Helper()
	return storagetest.Save(context.Background(), at(s, o, storage.ReadOptions{}), storagetest.Storage(id, 1, 1), state)
}

func mustSave(t testing.TB, s blob.Store, id string, seed byte) {
	t.Helper()
	must.Do(t, save(t, s, id, small(t, seed), nil))
}

// seedOf loads a state of small and returns its seed.
func seedOf(t testing.TB, s blob.Store) (byte, error) {
	t.Helper()
	got := plan.State{"w": storagetest.Filled(t, tensor.Float32, []int64{4, 3}, 0), "step": nil, "big": nil}
	if err := storagetest.Load(context.Background(), at(s, nil, storage.ReadOptions{}), got); err != nil {
		return 0, err
	}
	seed := byte(got["step"].(int64))
	want := small(t, seed)
	if !tensor.Equal(got["w"].(*tensor.Tensor), want["w"].(*tensor.Tensor)) || !slices.Equal(got["big"].([]byte), want["big"].([]byte)) {
		t.Error("loaded other bytes than were saved")
	}
	return seed, nil
}

func checkSeed(t testing.TB, s blob.Store, want byte) {
	t.Helper()
	if got, err := seedOf(t, s); err != nil || got != want {
		t.Errorf("loaded %d, %v; want %d", got, err, want)
	}
}

// checkWhole fails unless the checkpoint is whole.
func checkWhole(t testing.TB, s blob.Store) {
	t.Helper()
	c, err := Format{}.Open(context.Background(), s)
	if err != nil {
		t.Errorf("Open = %v", err)
		return
	}
	defer c.Close()
	if rep, err := c.Verify(context.Background(), nil); err != nil || len(rep.Problems) > 0 {
		t.Errorf("Verify = %+v, %v", rep, err)
	}
}

func TestFailIfExists(t *testing.T) {
	s := new(mem.Store)
	o := &options{WriteOptions: storage.WriteOptions{FailIfExists: true}}
	if err := save(t, s, "first", small(t, 1), o); err != nil {
		t.Fatalf("save to an empty store = %v", err)
	}
	if err := save(t, s, "second", small(t, 2), o); !errors.Is(err, storage.ErrExists) {
		t.Errorf("save onto a checkpoint = %v; want %v", err, storage.ErrExists)
	}
	checkSeed(t, s, 1)
	for _, name := range storagetest.Names(t, s) {
		if strings.HasPrefix(name, "second") {
			t.Errorf("%s is left of the save that was refused", name)
		}
	}
	must.Do(t, s.Remove(t.Context(), recordName))
	if err := save(t, s, "third", small(t, 3), o); err != nil {
		t.Errorf("save beside the rest of an unfinished one = %v; want nil", err)
	}
	must.Do(t, fault.Damage(t.Context(), s, recordName, func(b []byte) []byte { return b[:20] }))
	if err := save(t, s, "fourth", small(t, 4), o); !errors.Is(err, storage.ErrExists) {
		t.Errorf("save onto a damaged checkpoint = %v; want %v", err, storage.ErrExists)
	}
}

// Both saves begin before there is a checkpoint.
func TestFailIfExistsAtTheCommit(t *testing.T) {
	s := new(mem.Store)
	p := at(s, &options{WriteOptions: storage.WriteOptions{FailIfExists: true}}, storage.ReadOptions{})
	first := storagetest.NewSaving(p, storagetest.Storage("first", 1, 1), 1)
	second := storagetest.NewSaving(p, storagetest.Storage("second", 2, 1), 1)
	for i, sv := range []*storagetest.Saving{first, second} {
		must.Do(t, errors.Join(sv.Plan(t.Context(), []plan.State{small(t, byte(i+1))}), sv.Write(t.Context())))
	}
	must.Do(t, second.Finish(t.Context()))
	if err := first.Finish(t.Context()); !errors.Is(err, storage.ErrExists) || errors.Is(err, storage.ErrUncertain) {
		t.Errorf("Finish = %v; want %v", err, storage.ErrExists)
	}
	must.Do(t, first.Abort(t.Context()))
	checkSeed(t, s, 2)
	checkWhole(t, s)
	if n := len(storagetest.Names(t, s)); n != 3 {
		t.Errorf("%d files are left; want record, index and one data file", n)
	}
}

func TestSaveReplacesADamagedCheckpoint(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "first", 1)
	must.Do(t, fault.Damage(t.Context(), s, recordName, func(b []byte) []byte { return b[:20] }))
	mustSave(t, s, "second", 2)
	checkSeed(t, s, 2)
}

func TestSaveDoesNotReplaceANewerVersion(t *testing.T) {
	s := new(mem.Store)
	newer := []byte(`{"record": {"format": "cairn", "version": 4}}`)
	must.Get(blob.WriteAll(t.Context(), s, recordName, newer, nil))(t)
	if err := save(t, s, "old", small(t, 1), nil); !errors.Is(err, storage.ErrVersion) {
		t.Errorf("save = %v; want %v", err, storage.ErrVersion)
	}
	if got := storagetest.Names(t, s); !slices.Equal(got, []string{recordName}) {
		t.Errorf("the place holds %q; want the record alone", got)
	}
	if _, err := storage.NewReader(Format{}.Open, s, storage.ReadOptions{}).ReadMetadata(t.Context()); !errors.Is(err, storage.ErrVersion) {
		t.Errorf("ReadMetadata = %v; want %v", err, storage.ErrVersion)
	}
}

// A store that cannot be listed is not an empty store.
func TestSaveFailsIfTheStoreCannotBeListed(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "first", 1)
	f := fault.New(s, fault.Rule{On: fault.Open, Match: fault.Named(recordName), Do: fault.Fail(syscall.EIO)})
	if err := save(t, f, "second", small(t, 2), &options{WriteOptions: storage.WriteOptions{FailIfExists: true}}); !errors.Is(err, syscall.EIO) {
		t.Errorf("save = %v; want %v", err, syscall.EIO)
	}
	if n := f.Ops().Count(fault.Create); n != 0 {
		t.Errorf("%d objects were begun", n)
	}
}

func TestSetUpRefusesInvalidStorage(t *testing.T) {
	good := storagetest.Storage("id", 1, 1)
	for name, spoil := range map[string]func(st *meta.Storage){
		"a save id with a slash": func(st *meta.Storage) { st.SaveID = "../id" },
		"no save id":             func(st *meta.Storage) { st.SaveID = "" },
		"a tag that is no text":  func(st *meta.Storage) { st.Tags = map[string]string{"a": "\xff"} },
		"a year out of range":    func(st *meta.Storage) { st.Time = time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC) },
		"a negative world":       func(st *meta.Storage) { st.WorldSize = -1 },
	} {
		st := good
		spoil(&st)
		w := newWriter(new(mem.Store), options{})
		if err := w.SetUp(t.Context(), storage.Session{Size: 1, Storage: st}); err == nil {
			t.Errorf("%s: SetUp = nil; want a refusal", name)
		}
	}
}

// Values in the index are also in a header of limited length.
func TestInlineValuesAreBounded(t *testing.T) {
	p := &plan.SavePlan{}
	for i := range 2 * inlineTotal / inlineMax {
		p.Items = append(p.Items, *item(fmt.Sprint("v", i), inlineMax))
	}
	p.Items = append(p.Items, *item("small", 1))
	zeros := make([]byte, inlineMax)
	out := &storage.WriteResults{}
	values, items, err := new(writer).inline(p, zeroResolver(zeros), out)
	if err != nil {
		t.Fatal(err)
	}
	if len(values) == 0 || len(items) == 0 || len(out.Items) != len(values) || len(values)+len(items) != len(p.Items) {
		t.Errorf("%d values are in the index, %d are not; want some of each", len(values), len(items))
	}
	f, err := lay("f", nil, nil, &selfDescription{Values: values})
	if err != nil || len(f.header) > inlineTotal {
		t.Errorf("the values make a header of %d bytes, %v; want at most %d", len(f.header), err, inlineTotal)
	}
}

// A name costs a header more than a small value does.
func TestNamesOfInlineValuesAreBounded(t *testing.T) {
	p := &plan.SavePlan{}
	for i := range 100_000 {
		p.Items = append(p.Items, *item(fmt.Sprintf("%s%06d", strings.Repeat("n", 200), i), 1))
	}
	values, items, err := new(writer).inline(p, zeroResolver([]byte{0}), &storage.WriteResults{})
	if err != nil || len(values) == 0 || len(items) == 0 {
		t.Fatalf("%d values in the index, %d not, %v; want some of each", len(values), len(items), err)
	}
	f, err := lay("f", nil, nil, &selfDescription{Values: values})
	if err != nil || len(f.header) > inlineTotal {
		t.Errorf("the values make a header of %d bytes, %v; want at most %d", len(f.header), err, inlineTotal)
	}
}

// zeroResolver resolves values to the first of its bytes.
type zeroResolver []byte

func (z zeroResolver) Resolve(it *plan.WriteItem) (plan.Data, error) {
	return plan.Data{Bytes: z[:it.Size]}, nil
}

// Finish refuses to record a file that was removed before the commit.
func TestFinishRefusesMissingFiles(t *testing.T) {
	for name, harm := range map[string]func(s blob.Store, file string) error{
		"gone": func(s blob.Store, file string) error { return s.Remove(context.Background(), file) },
		"cut short": func(s blob.Store, file string) error {
			return fault.Damage(context.Background(), s, file, func(b []byte) []byte { return b[:5] })
		},
	} {
		s := new(mem.Store)
		sv := storagetest.NewSaving(at(s, nil, storage.ReadOptions{}), storagetest.Storage("id", 1, 1), 1)
		must.Do(t, errors.Join(sv.Plan(t.Context(), []plan.State{small(t, 1)}), sv.Write(t.Context())))
		must.Do(t, harm(s, sv.Results[0].Files[0].Name))
		if err := sv.Finish(t.Context()); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("%s: Finish = %v; want a refusal", name, err)
		}
		if _, err := readRecord(t.Context(), s); err == nil {
			t.Errorf("%s: a record names what is not there", name)
		}
	}
}

func TestFileBytesMakeMoreFiles(t *testing.T) {
	state := plan.State{"large": storagetest.Filled(t, tensor.Uint8, []int64{5000}, 1)}
	for i := range 10 {
		state[fmt.Sprint("w", i)] = storagetest.Filled(t, tensor.Uint8, []int64{1000}, byte(i))
	}
	for _, tt := range []struct {
		fileBytes int64
		files     int
	}{{0, 1}, {1 << 20, 1}, {15000, 1}, {5000, 3}, {1000, 11}, {1, 11}} {
		s := new(mem.Store)
		must.Do(t, save(t, s, "a", state, &options{Format: Format{FileBytes: tt.fileBytes}}))
		c := must.Get(Format{}.Open(t.Context(), s))(t)
		if got := len(c.Files()) - 1; got != tt.files { // without the index
			t.Errorf("FileBytes %d: %d files; want %d", tt.fileBytes, got, tt.files)
		}
		c.Close()
	}
}
