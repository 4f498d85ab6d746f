package native

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// contents returns the bytes of all objects.
func contents(t testing.TB, s blob.Store) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, name := range storagetest.Names(t, s) {
		b := must.Get(blob.ReadAll(context.Background(), s, name, 1<<30))(t)
		out[name] = b
	}
	return out
}

func remove(t testing.TB, s blob.Store, names ...string) {
	t.Helper()
	for _, name := range names {
		must.Do(t, s.Remove(context.Background(), name))
	}
}

func damage(t testing.TB, s blob.Store, name string) {
	t.Helper()
	must.Do(t, fault.Damage(context.Background(), s, name, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }))
}

func checkContents(t testing.TB, s blob.Store, want map[string][]byte) {
	t.Helper()
	got := contents(t, s)
	for name, b := range want {
		if !bytes.Equal(got[name], b) {
			t.Errorf("%s has %d bytes that differ from the %d that were written", name, len(got[name]), len(b))
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files; want %d", len(got), len(want))
	}
}

const oddIndex = "odd" + indexSuffix

// Repair writes the same bytes as the save: the order of chunks, paths and values.
func TestRepairRestoresEveryByte(t *testing.T) {
	for what, harm := range map[string]func(s blob.Store){
		"the record is lost":        func(s blob.Store) { remove(t, s, recordName) },
		"the index is lost":         func(s blob.Store) { remove(t, s, oddIndex) },
		"both are lost":             func(s blob.Store) { remove(t, s, recordName, oddIndex) },
		"the record is damaged":     func(s blob.Store) { damage(t, s, recordName) },
		"the index is damaged":      func(s blob.Store) { damage(t, s, oddIndex) },
		"both are damaged":          func(s blob.Store) { damage(t, s, recordName); damage(t, s, oddIndex) },
		"the index is another file": func(s blob.Store) { mustWrite(t, s, oddIndex, "hello") },
	} {
		for _, files := range []int{1, 12} { // with twelve, number 10 comes after 9
			s := new(mem.Store)
			saveOdd(t, s, "odd", &options{WriteOptions: storage.WriteOptions{FilesPerRank: files}})
			want := contents(t, s)
			harm(s)
			var read int64
			rep, err := Repair(t.Context(), s, &RepairOptions{Progress: func(n int64) { read += n }})
			if err != nil {
				t.Fatalf("%s: Repair = %v", what, err)
			}
			checkContents(t, s, want)
			if !rep.Rebuilt || rep.SaveID != "odd" || rep.Files != len(want)-2 || rep.Tensors != 7 || rep.Values != 3 {
				t.Errorf("%s: report = %+v", what, rep)
			}
			if read == 0 {
				t.Errorf("%s: no progress was told", what)
			}
			if err := loadOdd(t, at(s, nil, storage.ReadOptions{})); err != nil {
				t.Errorf("%s: load after Repair = %v", what, err)
			}
			checkWhole(t, s)
		}
	}
}

func mustWrite(t testing.TB, s blob.Store, name, text string) {
	t.Helper()
	must.Get(blob.WriteAll(context.Background(), s, name, []byte(text), nil))(t)
}

func TestRepairLeavesAWholeCheckpointAlone(t *testing.T) {
	s := new(mem.Store)
	saveOdd(t, s, "odd", nil)
	f := fault.New(s)
	rep, err := Repair(t.Context(), f, nil)
	if err != nil || rep.Rebuilt || rep.SaveID != "odd" || rep.Files != 4 || rep.Tensors != 7 {
		t.Errorf("Repair = %+v, %v; want nothing to do", rep, err)
	}
	if n := f.Ops().Count(fault.Mutating); n != 0 {
		t.Errorf("%d operations changed something", n)
	}
}

func TestRepairDryRunWritesNothing(t *testing.T) {
	s := new(mem.Store)
	saveOdd(t, s, "odd", nil)
	remove(t, s, recordName, oddIndex)
	before := contents(t, s)
	dry, err := Repair(t.Context(), s, &RepairOptions{DryRun: true})
	if err != nil || !dry.Rebuilt || !dry.DryRun {
		t.Fatalf("Repair = %+v, %v", dry, err)
	}
	checkContents(t, s, before)
	wet := must.Get(Repair(t.Context(), s, nil))(t)
	if dry.DryRun = false; dry.Bytes != wet.Bytes || dry.Tensors != wet.Tensors || dry.SaveID != wet.SaveID {
		t.Errorf("dry run = %+v; then %+v", dry, wet)
	}
}

// Each data file in turn is missing, also if its names are in no other file.
func TestRepairRefusesAnIncompleteSave(t *testing.T) {
	whole := new(mem.Store)
	saveOdd(t, whole, "odd", &options{WriteOptions: storage.WriteOptions{FilesPerRank: 3}})
	for lost, b := range contents(t, whole) {
		if !strings.HasSuffix(lost, dataSuffix) {
			continue
		}
		remove(t, whole, lost)
		for _, what := range [][]string{nil, {recordName}, {recordName, oddIndex}} {
			remove(t, whole, what...)
			before := contents(t, whole)
			if rep, err := Repair(t.Context(), whole, &RepairOptions{Force: true}); !errors.Is(err, storage.ErrIncomplete) {
				t.Errorf("without %s and %q: Repair = %+v, %v; want %v", lost, what, rep, err, storage.ErrIncomplete)
			}
			checkContents(t, whole, before)
		}
		mustWrite(t, whole, lost, string(b))
		if _, err := Repair(t.Context(), whole, nil); err != nil {
			t.Fatalf("with %s again: %v", lost, err)
		}
	}
}

// All files of a rank are missing, and no other file has one of their names.
func TestRepairNoticesAMissingRank(t *testing.T) {
	s := new(mem.Store)
	must.Do(t, saveTwo(t, s, "two", 1, nil))
	remove(t, s, recordName, DataFileName("two", 1, 0))
	_, err := Repair(t.Context(), s, nil)
	if !errors.Is(err, storage.ErrIncomplete) || !strings.Contains(err.Error(), "all files of 1 of the 2 ranks") {
		t.Errorf("Repair = %v; want %v", err, storage.ErrIncomplete)
	}
}

func TestRepairChoosesTheNewestCompleteSave(t *testing.T) {
	s := new(mem.Store)
	for seed, id := range []string{"a1", "a2", "a3"} {
		mustSave(t, s, id, byte(seed))
		for name, b := range contents(t, s) { // the next save would remove them
			mustWrite(t, s, "kept/"+name, string(b))
		}
	}
	for _, name := range storagetest.Names(t, s) {
		if rest, ok := strings.CutPrefix(name, "kept/"); ok && rest != recordName {
			mustWrite(t, s, rest, string(contents(t, s)[name]))
			remove(t, s, name)
		}
	}
	remove(t, s, recordName)
	must.Do(t, fault.Damage(t.Context(), s, DataFileName("a3", 0, 0), func(b []byte) []byte { return b[:4100] }))
	rep, err := Repair(t.Context(), s, nil)
	if err != nil || rep.SaveID != "a2" || rep.Others["a3"] == "" {
		t.Errorf("Repair = %+v, %v; want a2, and why not a3", rep, err)
	}
	checkSeed(t, s, 1)
	if _, err := Repair(t.Context(), s, &RepairOptions{SaveID: "a1"}); !errors.Is(err, storage.ErrExists) {
		t.Errorf("Repair of a1 over a whole a2 = %v; want %v", err, storage.ErrExists)
	}
	if _, err := Repair(t.Context(), s, &RepairOptions{SaveID: "a1", Force: true}); err != nil {
		t.Errorf("Repair of a1 by force = %v", err)
	}
	checkSeed(t, s, 0)
	if _, err := Repair(t.Context(), s, &RepairOptions{SaveID: "a9", Force: true}); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Repair of a save that is not there = %v; want %v", err, storage.ErrNotFound)
	}
	if _, err := Repair(t.Context(), s, &RepairOptions{SaveID: "a3", Force: true}); !errors.Is(err, storage.ErrIncomplete) {
		t.Errorf("Repair of a damaged save = %v; want %v", err, storage.ErrIncomplete)
	}
}

// Newer files that the record does not name were never committed.
func TestRepairPrefersTheSaveOfTheRecord(t *testing.T) {
	s := new(mem.Store)
	sv := storagetest.NewSaving(at(s, nil, storage.ReadOptions{}), storagetest.Storage("a1", 1, 1), 1)
	must.Do(t, errors.Join(sv.Plan(t.Context(), []plan.State{small(t, 1)}), sv.Write(t.Context())))
	sv.Metadata.PlannerData = json.RawMessage(`{"kept":true}`)
	must.Do(t, sv.Finish(t.Context()))
	want := contents(t, s)
	newer := storagetest.NewSaving(at(s, nil, storage.ReadOptions{}), storagetest.Storage("a2", 2, 1), 1)
	must.Do(t, errors.Join(newer.Plan(t.Context(), []plan.State{small(t, 2)}), newer.Write(t.Context())))
	remove(t, s, "a1"+indexSuffix)
	if rep, err := Repair(t.Context(), s, nil); err != nil || rep.SaveID != "a1" {
		t.Errorf("Repair = %+v, %v; want a1", rep, err)
	}
	checkSeed(t, s, 1)
	remove(t, s, DataFileName("a2", 0, 0))
	checkContents(t, s, want) // with the planner's data
}

func TestRepairRefusesOtherVersions(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "a1", 1)
	mustWrite(t, s, recordName, `{"record": {"format": "cairn", "version": 4}}`)
	for _, force := range []bool{false, true} {
		if _, err := Repair(t.Context(), s, &RepairOptions{Force: force}); !errors.Is(err, storage.ErrVersion) {
			t.Errorf("Repair with force %v = %v; want %v", force, err, storage.ErrVersion)
		}
	}
}

func TestRepairWithoutDataFiles(t *testing.T) {
	s := new(mem.Store)
	mustWrite(t, s, "model.safetensors", "x")
	if _, err := Repair(t.Context(), s, nil); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Repair = %v; want %v", err, storage.ErrNotFound)
	}
}

// If the store fails, Repair does not fall back on an older save.
func TestRepairDoesNotFallBackOnFaults(t *testing.T) {
	for n := range deep.Steps[int64]() {
		inner := new(mem.Store)
		mustSave(t, inner, "a1", 1)
		older := contents(t, inner)[DataFileName("a1", 0, 0)]
		mustSave(t, inner, "a2", 2)
		mustWrite(t, inner, DataFileName("a1", 0, 0), string(older))
		remove(t, inner, recordName, "a2"+indexSuffix)
		s := fault.New(inner, fault.Rule{Nth: n, Do: fault.Fail(syscall.EIO)})
		_, err := Repair(t.Context(), s, nil)
		if int64(len(s.Ops())) < n {
			if err != nil {
				t.Errorf("Repair without a fault = %v", err)
			}
			checkSeed(t, inner, 2)
			return
		}
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("operation %d fails: Repair = %v; want %v", n, err, syscall.EIO)
		}
		if rec, err := readRecord(t.Context(), inner); err == nil {
			t.Errorf("operation %d fails: there is a record of %s", n, rec.SaveID)
		}
	}
}

func TestCrashAtEveryStepOfRepair(t *testing.T) {
	for what, harm := range map[string]func(s blob.Store){
		"whole, by force": func(blob.Store) {},
		"without record":  func(s blob.Store) { remove(t, s, recordName) },
		"without index":   func(s blob.Store) { remove(t, s, "a1"+indexSuffix) },
		"without both":    func(s blob.Store) { remove(t, s, recordName, "a1"+indexSuffix) },
	} {
		for _, rule := range []func(int64) fault.Rule{fault.CrashAt, fault.CrashLateAt} {
			for n := range deep.Steps[int64]() {
				inner := new(mem.Store)
				mustSave(t, inner, "a1", 1)
				want := contents(t, inner)
				harm(inner)
				s := fault.New(inner, rule(n))
				_, err := Repair(t.Context(), s, &RepairOptions{Force: true})
				if strings.HasPrefix(what, "whole") || err == nil {
					checkOneOf(t, inner, 1)
					checkContents(t, inner, want)
				}
				if _, err := Repair(t.Context(), inner, nil); err != nil {
					t.Errorf("%s: Repair after a crash at %d = %v", what, n, err)
				}
				checkContents(t, inner, want)
				if !s.Crashed() {
					break
				}
			}
		}
	}
}

// Files that contradict their names, themselves or each other.
func TestRepairRefusesContradictions(t *testing.T) {
	swap := func(old, new string) func([]byte) []byte {
		return func(b []byte) []byte {
			if !bytes.Contains(b, []byte(old)) || len(old) != len(new) {
				t.Fatalf("%q is not there or not as long as %q", old, new)
			}
			return bytes.Replace(b, []byte(old), []byte(new), 1)
		}
	}
	first, second := DataFileName("odd", 0, 0), DataFileName("odd", 1, 0)
	for what, c := range map[string]struct {
		file string
		edit func([]byte) []byte
	}{
		"another rank":        {first, swap(`\"rank\":0`, `\"rank\":1`)},
		"another save":        {first, swap(`\"save_id\":\"odd\"`, `\"save_id\":\"odx\"`)},
		"another step":        {second, swap(`\"step\":7`, `\"step\":8`)},
		"another world":       {second, swap(`\"world_size\":2`, `\"world_size\":3`)},
		"more files":          {first, swap(`\"files\":2`, `\"files\":3`)},
		"fewer files":         {first, swap(`\"files\":2`, `\"files\":1`)},
		"another number":      {first, swap(`\"number\":0`, `\"number\":1`)},
		"more ranks":          {first, swap(`\"ranks\":2`, `\"ranks\":3`)},
		"another dtype":       {second, swap(`\"dtype\":\"float32\"`, `\"dtype\":\"complex\"`)},
		"a dtype of its size": {second, swap(`\"dtype\":\"float32\",\"shape\":[9,7],\"chunk\":`, `\"dtype\":\"uint32\", \"shape\":[9,7],\"chunk\":`)},
		"another shape":       {second, swap(`[9,7]`, `[9,6]`)},
		"a box outside":       {second, swap(`\"offsets\":[5,0]`, `\"offsets\":[9,0]`)},
		"another version":     {first, swap(`{\"version\":1`, `{\"version\":3`)},
		"no description":      {first, swap(`"cairn":"{`, `"corin":"{`)},
		"no JSON":             {first, swap(`{\"version\":1`, `[\"version\":1`)},
		"an item unknown":     {first, swap(`\"items\":{`, `\"itemz\":{`)},
	} {
		s := new(mem.Store)
		saveOdd(t, s, "odd", &options{WriteOptions: storage.WriteOptions{FilesPerRank: 1}})
		remove(t, s, recordName)
		must.Do(t, fault.Damage(t.Context(), s, c.file, c.edit))
		rep, err := Repair(t.Context(), s, nil)
		if !errors.Is(err, storage.ErrIncomplete) || !slices.Contains(storagetest.Names(t, s), c.file) {
			t.Errorf("%s: Repair = %+v, %v; want a refusal", what, rep, err)
		}
	}
}

func TestRepairByForceDoesNotHideDamage(t *testing.T) {
	store := new(mem.Store)
	saveOdd(t, store, "odd", nil)
	damage(t, store, DataFileName("odd", 0, 0))
	if _, err := Repair(t.Context(), store, &RepairOptions{Force: true}); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("Repair by force of a damaged data file = %v; want %v", err, storage.ErrCorrupt)
	}
	c := must.Get(Format{}.Open(t.Context(), store))(t)
	defer c.Close()
	if rep, err := c.Verify(t.Context(), nil); err != nil || len(rep.Problems) == 0 {
		t.Errorf("Verify afterwards = %+v, %v; want the damage", rep, err)
	}
}

// damageTensor changes a byte of a tensor of one chunk, and returns the file that it is
// in.
func damageTensor(t testing.TB, s blob.Store, fqn string) string {
	t.Helper()
	c := must.Get(Format{}.Open(context.Background(), s))(t)
	defer c.Close()
	e, ok, err := c.Find(context.Background(), fqn)
	if err != nil || !ok {
		t.Fatalf("Find(%q) = %v, %v", fqn, ok, err)
	}
	loc := e.Tensor.Locs[0]
	must.Do(t, fault.Damage(context.Background(), s, loc.File, func(b []byte) []byte { b[loc.Offset] ^= 1; return b }))
	return loc.File
}

// verified returns the problems that a verification finds.
func verified(t testing.TB, s blob.Store) []storage.VerifyProblem {
	t.Helper()
	c := must.Get(Format{}.Open(context.Background(), s))(t)
	defer c.Close()
	rep, err := c.Verify(context.Background(), nil)
	if err != nil && !errors.Is(err, storage.ErrCorrupt) {
		t.Fatal(err)
	}
	return rep.Problems
}

func TestRepairKeepsTheChecksumsOfTheIndex(t *testing.T) {
	const name = "nested.a\"<b>☃.0"
	for what, harm := range map[string]func(s blob.Store){
		"the record is lost":    func(s blob.Store) { remove(t, s, recordName) },
		"the record is damaged": func(s blob.Store) { damage(t, s, recordName) },
	} {
		for _, dry := range []bool{true, false} {
			s := new(mem.Store)
			saveOdd(t, s, "odd", nil)
			file := damageTensor(t, s, name)
			harm(s)
			rep, err := Repair(t.Context(), s, &RepairOptions{DryRun: dry})
			if err != nil || !rep.Rebuilt || rep.Recomputed != 0 {
				t.Fatalf("%s: Repair = %+v, %v; want no new checksums", what, rep, err)
			}
			if len(rep.Problems) != 1 || rep.Problems[0].File != file || !slices.Equal(rep.Problems[0].FQNs, []string{name}) {
				t.Errorf("%s: problems = %+v; want %q in %s", what, rep.Problems, name, file)
			}
			if dry {
				continue
			}
			if got := verified(t, s); len(got) != 1 || got[0].File != file || got[0].FQN != name {
				t.Errorf("%s: Verify after Repair finds %+v; want %q in %s", what, got, name, file)
			}
			if err := loadOdd(t, at(s, nil, storage.ReadOptions{})); !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("%s: load after Repair = %v; want %v", what, err, storage.ErrCorrupt)
			}
		}
	}
}

// The index has several blocks. One is damaged; the checksums in the others are kept.
func TestRepairKeepsTheChecksumsOfTheRestOfAnIndex(t *testing.T) {
	state := plan.State{
		"a": storagetest.Filled(t, tensor.Float32, []int64{2}, 1),
		"z": storagetest.Filled(t, tensor.Float32, []int64{2}, 2),
	}
	for i := range 20 {
		state[fmt.Sprintf("m%02d", i)] = slices.Repeat([]byte{byte(i)}, 8000) // inside the index
	}
	s := new(mem.Store)
	must.Do(t, storagetest.Save(t.Context(), at(s, nil, storage.ReadOptions{}), storagetest.Storage("many", 1, 1), state))
	before := contents(t, s)
	file := damageTensor(t, s, "z")
	remove(t, s, recordName)
	index := "many" + indexSuffix
	must.Do(t, fault.Damage(t.Context(), s, index, func(b []byte) []byte { b[indexHeaderSize+20] ^= 1; return b }))
	rep, err := Repair(t.Context(), s, nil)
	if err != nil || rep.Recomputed != 1 {
		t.Fatalf("Repair = %+v, %v; want a new checksum for one tensor", rep, err)
	}
	if got := verified(t, s); len(got) != 1 || got[0].File != file || got[0].FQN != "z" {
		t.Errorf("Verify after Repair finds %+v; want z in %s", got, file)
	}
	if !bytes.Equal(contents(t, s)[index], before[index]) {
		t.Errorf("the rebuilt index differs from the one that was written")
	}
}

// Without an index, the record still shows that a data file is damaged.
func TestRepairKeepsTheChecksumsOfTheRecord(t *testing.T) {
	s := new(mem.Store)
	saveOdd(t, s, "odd", nil)
	file := damageTensor(t, s, "nested.a\"<b>☃.0")
	remove(t, s, oddIndex)
	before := contents(t, s)
	if rep, err := Repair(t.Context(), s, nil); !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), file) {
		t.Errorf("Repair = %+v, %v; want %v and %s", rep, err, storage.ErrCorrupt, file)
	}
	checkContents(t, s, before)
	rep, err := Repair(t.Context(), s, &RepairOptions{Force: true})
	if err != nil || len(rep.Problems) != 1 || rep.Problems[0].File != file {
		t.Errorf("Repair by force = %+v, %v; want a problem with %s", rep, err, file)
	}
	if got := verified(t, s); len(got) != 1 || got[0].File != file {
		t.Errorf("Verify after Repair finds %+v; want %s", got, file)
	}
}
