package commit_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// toy is a format with a record that lists the names of its data files.
var toy = &commit.Format{Name: "toy", Records: []string{"record"}, Also: []string{"also"}, Prefix: "d", Parse: parse, Read: read}

var dataName = regexp.MustCompile(`^d([0-9]+)\.([0-9a-z]*)$`)

func parse(name string) (string, bool) {
	m := dataName.FindStringSubmatch(name)
	if m == nil {
		return "", false
	}
	return m[2], true
}

func read(ctx context.Context, s blob.Store) (*commit.Existing, error) {
	b, err := blob.ReadAll(ctx, s, "record", 1<<20)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, storage.ErrNotFound
	case err != nil:
		return nil, err
	case string(b) == "another version":
		return nil, storage.ErrVersion
	case string(b) == "damaged":
		return nil, storage.ErrCorrupt
	}
	files := strings.Fields(string(b))
	return &commit.Existing{Files: files, Replaced: files}, nil
}

// session returns the session of a rank in a save of two.
func session(rank int, id string) storage.Session {
	return storage.Session{Rank: rank, Size: 2, Coordinator: rank == 0, Storage: meta.Storage{SaveID: id}}
}

func prepare(t testing.TB, p *commit.Committer) error {
	_, err := p.Prepare(t.Context(), &plan.SavePlan{}, nil)
	return err
}

// begin begins a save of two ranks.
func begin(t testing.TB, s blob.Store, id string, o storage.WriteOptions) []*commit.Committer {
	t.Helper()
	var out []*commit.Committer
	for rank := range 2 {
		p := commit.New(s, toy, o)
		must.Do(t, errors.Join(p.SetUp(t.Context(), session(rank, id)), prepare(t, p)))
		out = append(out, p)
	}
	return out
}

// write writes a data file of a rank.
func write(t testing.TB, p *commit.Committer) *storage.WriteResults {
	t.Helper()
	part := must.Get(p.NamePart(t.Context()))(t)
	name := fmt.Sprintf("d%d.%s", p.Session().Rank, part)
	r := must.Get(p.Write(t.Context(), []*commit.DataFile{{Name: name, Parts: []commit.Part{{Length: 4, Literal: []byte("data")}}}}, nil, 4))(t)
	return r
}

// record returns the record of data files.
func record(names ...string) commit.File {
	return commit.File{Name: "record", Data: []byte(strings.Join(names, " "))}
}

// saveAll saves by two ranks.
func saveAll(t testing.TB, s blob.Store, id string, o storage.WriteOptions) error {
	t.Helper()
	var results []*storage.WriteResults
	var names []string
	ps := begin(t, s, id, o)
	for _, p := range ps {
		r := write(t, p)
		results, names = append(results, r), append(names, r.Files[0].Name)
	}
	return ps[0].Commit(t.Context(), record(names...), results)
}

func wantFiles(t *testing.T, s blob.Store, want ...string) {
	t.Helper()
	if got := storagetest.Names(t, s); !slices.Equal(got, want) {
		t.Errorf("files %q; want %q", got, want)
	}
}

func TestDataFileNamesContainTheSaveID(t *testing.T) {
	s := new(mem.Store)
	for _, id := range []string{"one", "two"} {
		must.Do(t, saveAll(t, s, id, storage.WriteOptions{}))
		wantFiles(t, s, "d0."+id, "d1."+id, "record")
	}
}

// A save that fails removes no files of a concurrent save, even if these files came after it
// began.
func TestAbortSparesAnotherSave(t *testing.T) {
	s := new(mem.Store)
	ps := begin(t, s, "slow", storage.WriteOptions{FailIfExists: true})
	results := []*storage.WriteResults{write(t, ps[0]), write(t, ps[1])}
	must.Do(t, saveAll(t, s, "quick", storage.WriteOptions{FailIfExists: true}))
	if err := ps[0].Commit(t.Context(), record("d0.slow", "d1.slow"), results); !errors.Is(err, storage.ErrExists) {
		t.Errorf("Commit = %v; want %v", err, storage.ErrExists)
	}
	for _, p := range ps {
		if err := p.Abort(t.Context()); err != nil {
			t.Error(err)
		}
	}
	wantFiles(t, s, "d0.quick", "d1.quick", "record")
}

// A save in a store of its own uses plain names, and the same ones when it is continued.
func TestPrivateSaveUsesPlainNames(t *testing.T) {
	s := new(mem.Store)
	storagetest.Put(t, s, "d0.", []byte("of the first attempt"))
	p := commit.New(s, toy, storage.WriteOptions{})
	sess := session(0, "one")
	sess.Journal, sess.Private = new(storagetest.Journal), true
	must.Do(t, p.SetUp(t.Context(), sess))
	if part, err := p.NamePart(t.Context()); part != "" || err != nil {
		t.Errorf("NamePart = %q, %v; want none", part, err)
	}
	storagetest.Put(t, s, "also", []byte("a checkpoint"))
	if part, err := p.NamePart(t.Context()); part != "one" || err != nil {
		t.Errorf("NamePart beside a checkpoint = %q, %v; want the id", part, err)
	}
}

func TestAbortRemovesOnlyFilesOfItsSave(t *testing.T) {
	s := new(mem.Store)
	for _, name := range []string{"d0.", "d0.other", "d1.", "mine"} {
		storagetest.Put(t, s, name, []byte("there before"))
	}
	ps := begin(t, s, "new", storage.WriteOptions{})
	for _, p := range ps {
		write(t, p)
	}
	storagetest.Put(t, s, "d2.new", []byte("of a rank that is gone"))
	storagetest.Put(t, s, "d3.", []byte("of another program"))
	storagetest.Put(t, s, "d3.stranger", []byte("of another save"))
	for range 2 {
		if err := ps[0].Abort(t.Context()); err != nil { // rank 1 is gone too
			t.Error(err)
		}
	}
	wantFiles(t, s, "d0.", "d0.other", "d1.", "d3.", "d3.stranger", "mine")
}

func TestSecondWriteReplacesTheFirst(t *testing.T) {
	s := new(mem.Store)
	ps := begin(t, s, "new", storage.WriteOptions{})
	write(t, ps[1])
	write(t, ps[1])
	wantFiles(t, s, "d1.new")
}

func TestPrepareRefusesCheckpointsThatMustStay(t *testing.T) {
	for name, c := range map[string]struct {
		record string
		opts   storage.WriteOptions
		want   error
	}{
		"there is one":       {"d0.", storage.WriteOptions{FailIfExists: true}, storage.ErrExists},
		"a damaged one":      {"damaged", storage.WriteOptions{FailIfExists: true}, storage.ErrExists},
		"of another version": {"another version", storage.WriteOptions{}, storage.ErrVersion},
		"of the same save":   {"d0.new", storage.WriteOptions{}, storage.ErrExists},
	} {
		s := new(mem.Store)
		storagetest.Put(t, s, "record", []byte(c.record))
		p := commit.New(s, toy, c.opts)
		if err := errors.Join(p.SetUp(t.Context(), session(0, "new")), prepare(t, p)); !errors.Is(err, c.want) {
			t.Errorf("%s: Prepare = %v; want %v", name, err, c.want)
		}
	}
	s := new(mem.Store)
	storagetest.Put(t, s, "record", []byte("damaged"))
	var warned []error
	ps := begin(t, s, "new", storage.WriteOptions{})
	sess := session(0, "new")
	sess.Warn = func(err error) { warned = append(warned, err) }
	must.Do(t, ps[0].SetUp(t.Context(), sess))
	r := write(t, ps[0])
	if err := ps[0].Commit(t.Context(), record("d0.new"), []*storage.WriteResults{r}); err != nil {
		t.Errorf("over a damaged checkpoint: Commit = %v", err)
	}
	if len(warned) != 1 || !errors.Is(warned[0], storage.ErrCorrupt) {
		t.Errorf("warned of %v; want the damage", warned)
	}
}

func TestCommitChecksDataFiles(t *testing.T) {
	for name, spoil := range map[string]func(s blob.Store){
		"gone":    func(s blob.Store) { s.Remove(t.Context(), "d1.new") },
		"another": func(s blob.Store) { storagetest.Put(t, s, "d1.new", []byte("longer data")) },
	} {
		s := new(mem.Store)
		ps := begin(t, s, "new", storage.WriteOptions{})
		results := []*storage.WriteResults{write(t, ps[0]), write(t, ps[1])}
		spoil(s)
		if err := ps[0].Commit(t.Context(), record("d0.new", "d1.new"), results); err == nil || errors.Is(err, storage.ErrUncertain) {
			t.Errorf("a file is %s: Commit = %v; want a refusal", name, err)
		}
		if err := ps[0].Abort(t.Context()); err != nil {
			t.Error(err)
		}
		wantFiles(t, s)
	}
}

func TestCommitErrorUncertain(t *testing.T) {
	eio := fault.Rule{On: fault.Commit, Match: fault.Named("record"), Do: fault.FailLate(syscall.EIO)}
	blind := fault.Rule{On: fault.Open, Match: fault.Named("record"), Nth: 3, Times: -1, Do: fault.Fail(syscall.EIO)}
	for name, rules := range map[string][]fault.Rule{"it exists": {eio}, "it cannot be read": {eio, blind}} {
		inner := new(mem.Store)
		storagetest.Put(t, inner, "record", []byte("d0.old"))
		storagetest.Put(t, inner, "d0.old", []byte("data"))
		err := saveAll(t, fault.New(inner, rules...), "new", storage.WriteOptions{})
		if !errors.Is(err, storage.ErrUncertain) || !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: Commit = %v; want %v", name, err, storage.ErrUncertain)
		}
		wantFiles(t, inner, "d0.new", "d0.old", "d1.new", "record")
	}
}

// lateStore carries out the write of the record even if it is cancelled, but only when
// something is removed.
type lateStore struct {
	*mem.Store
	cancel func()
	late   func()
}

func (s *lateStore) ReadGap() int64 { return 1 } // it is a service

func (s *lateStore) Create(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
	w, err := s.Store.Create(ctx, name, o)
	if name == "record" {
		w = &lateWriter{w, s}
	}
	return w, err
}

func (s *lateStore) Remove(ctx context.Context, name string) error {
	if s.late != nil {
		s.late()
	}
	return s.Store.Remove(ctx, name)
}

type lateWriter struct {
	blob.Writer
	s *lateStore
}

func (w *lateWriter) Commit(ctx context.Context) (blob.Info, error) {
	w.s.cancel()
	if ctx.Err() == nil {
		return w.Writer.Commit(ctx)
	}
	w.s.late = func() { w.Writer.Commit(context.Background()) }
	return blob.Info{}, context.Cause(ctx)
}

func (w *lateWriter) Abort() error { return nil }

// A save that is cancelled while a service writes its record leaves the old checkpoint or
// the new one, with all files.
func TestCancelledWhileTheRecordIsWritten(t *testing.T) {
	inner := new(mem.Store)
	storagetest.Put(t, inner, "record", []byte("d0.old"))
	storagetest.Put(t, inner, "d0.old", []byte("data"))
	ctx, cancel := context.WithCancel(t.Context())
	s := &lateStore{Store: inner, cancel: cancel}
	ps := begin(t, s, "new", storage.WriteOptions{})
	results := []*storage.WriteResults{write(t, ps[0]), write(t, ps[1])}
	if err := ps[0].Commit(ctx, record("d0.new", "d1.new"), results); err != nil {
		t.Logf("Commit = %v", err)
		if err := ps[0].Abort(t.Context()); err != nil {
			t.Error(err)
		}
	}
	now := must.Get(read(t.Context(), inner))(t)
	for _, name := range now.Files {
		if _, err := inner.Stat(t.Context(), name); err != nil {
			t.Errorf("the record names %v: %v", now.Files, err)
		}
	}
}

func TestSetUpChecksTheSaveID(t *testing.T) {
	for id, ok := range map[string]bool{"a": true, "A-1": true, "": false, "-a": false, "a_b": false, "a/b": false, "ü": false, strings.Repeat("a", 65): false} {
		err := commit.New(new(mem.Store), toy, storage.WriteOptions{}).SetUp(t.Context(), session(0, id))
		if (err == nil) != ok || !ok && !errors.Is(err, blob.ErrName) {
			t.Errorf("SetUp with the id %q = %v", id, err)
		}
	}
}

func TestLocateRefusesIncompleteTensors(t *testing.T) {
	md := &meta.Metadata{Entries: []meta.Entry{{FQN: "x", Tensor: &meta.Tensor{Shape: []int64{4}}}}}
	p := commit.New(new(mem.Store), toy, storage.WriteOptions{})
	if _, err := p.Locate(md, nil); !errors.Is(err, meta.ErrInvalid) {
		t.Errorf("Locate of a tensor without chunks = %v; want %v", err, meta.ErrInvalid)
	}
}

func TestAbortContinuesAfterAnError(t *testing.T) {
	inner, broken := new(mem.Store), errors.New("broken")
	s := fault.New(inner, fault.Rule{On: fault.Remove, Match: fault.Named("d0.new"), Do: fault.Fail(broken)})
	ps := begin(t, s, "new", storage.WriteOptions{})
	for _, p := range ps {
		write(t, p)
	}
	if err := ps[0].Abort(t.Context()); !errors.Is(err, broken) {
		t.Errorf("Abort = %v; want %v", err, broken)
	}
	wantFiles(t, inner, "d0.new")
}

func TestCheckFiles(t *testing.T) {
	results := []*storage.WriteResults{{}, {Files: []storage.File{{Name: "a", Size: 3}, {Name: "b", Size: 0}}}}
	for name, c := range map[string]struct {
		have map[string]int64
		want error
	}{
		"all there":     {map[string]int64{"a": 3, "b": 0, "c": 1}, nil},
		"one is gone":   {map[string]int64{"a": 3}, fs.ErrNotExist},
		"one is longer": {map[string]int64{"a": 4, "b": 0}, storage.ErrCorrupt},
	} {
		if err := commit.CheckFiles(c.have, results); !errors.Is(err, c.want) {
			t.Errorf("%s: CheckFiles = %v; want %v", name, err, c.want)
		}
	}
}

func TestWithStorageDataAddsStorageData(t *testing.T) {
	before := []*plan.SavePlan{{}, {}}
	after, err := commit.WithStorageData(before, map[string]int{"ranks": 2})
	if err != nil || len(after) != 2 || string(after[1].StorageData) != `{"ranks":2}` {
		t.Errorf("WithStorageData = %v, %v; want the number in both", after, err)
	}
	if before[0].StorageData != nil {
		t.Error("WithStorageData changed a plan that it was given")
	}
}

// If several records hide the new one, readers find the first of them until they find
// the new one, whenever the process dies.
func TestCommitRemovesHidingRecordsInOrder(t *testing.T) {
	several := *toy
	several.Records = []string{"first", "second", "record"}
	for n := int64(1); ; n++ {
		inner := new(mem.Store)
		storagetest.Put(t, inner, "first", nil)
		storagetest.Put(t, inner, "second", nil)
		s := fault.New(inner, fault.CrashLateAt(n))
		p := commit.New(s, &several, storage.WriteOptions{})
		err := errors.Join(p.SetUp(t.Context(), session(0, "new")), prepare(t, p))
		if err == nil {
			err = p.Commit(t.Context(), record(), nil)
		}
		names := storagetest.Names(t, inner)
		switch {
		case slices.Contains(names, "first"):
		case slices.Contains(names, "second") || !slices.Contains(names, "record"):
			t.Errorf("after operation %d there are %q; want the first record or only the new one", n, names)
		}
		if !s.Crashed() {
			if err != nil {
				t.Errorf("Commit = %v", err)
			}
			wantFiles(t, inner, "record")
			return
		}
	}
}
