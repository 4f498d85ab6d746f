package orbax_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/orbax"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// openAny opens and verifies whatever a store holds. Both end, with a named error or with a report.
func openAny(t *testing.T, s *mem.Store) {
	t.Helper()
	ck, err := orbax.Format{}.Open(t.Context(), s)
	if err != nil {
		if !errors.Is(err, storage.ErrCorrupt) && !errors.Is(err, storage.ErrVersion) && !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrIncomplete) {
			t.Fatalf("Open = %v; want a named error", err)
		}
		return
	}
	defer ck.Close()
	if ck.TotalBytes() > 1<<20 {
		return
	}
	if _, err := ck.Verify(t.Context(), nil); err != nil && !errors.Is(err, storage.ErrVersion) {
		t.Fatalf("Verify = %v; want a report", err)
	}
}

// FuzzTree changes _METADATA and the other files of JSON.
func FuzzTree(f *testing.F) {
	for _, name := range []string{"tree_kinds", "tree_kinds_rich", "prng_keys", "old053_aggregate_mixed", "bare_leaf"} {
		files := fixtureFiles(f, name+"/input")
		f.Add(files["_METADATA"], files["_strings.json"], files["checkpoint"], files["_CHECKPOINT_METADATA"])
	}
	f.Fuzz(func(t *testing.T, tree, texts, packed, step []byte) {
		s := new(mem.Store)
		storagetest.Put(t, s, "_METADATA", tree)
		storagetest.Put(t, s, "_strings.json", texts)
		storagetest.Put(t, s, "checkpoint", packed)
		storagetest.Put(t, s, "_CHECKPOINT_METADATA", step)
		storagetest.Put(t, s, "w/.zarray", []byte(`{"zarr_format":2,"shape":[2],"chunks":[2],"dtype":"|i1","order":"C","compressor":null,"fill_value":null}`))
		storagetest.Put(t, s, "w/0", []byte{1, 2})
		openAny(t, s)
	})
}

// FuzzArray changes the metadata of an array and one of its chunks, in a database and in files.
func FuzzArray(f *testing.F) {
	for _, c := range []struct{ fixture, array string }{{"zarr3_plain_mesh1d", "params.big"}, {"zarr2_plain_mesh2d", "both"}, {"multi_process_plain", "params.big"}} {
		files := fixtureFiles(f, c.fixture+"/input")
		for name, b := range files {
			if strings.HasPrefix(name, c.array+"/") && !strings.Contains(name, "zarr") {
				f.Add(files[c.array+"/.zarray"], files[c.array+"/zarr.json"], b)
				break
			}
		}
	}
	f.Fuzz(func(t *testing.T, two, three, chunk []byte) {
		values := map[string][]byte{"a/.zarray": two, "a/0.0": chunk, "a/0": chunk, "b/zarr.json": three, "b/c/0/0": chunk, "b/c": chunk}
		database, files := new(mem.Store), new(mem.Store)
		writeOCDBT(t, database, values)
		for name, b := range values {
			if name != "b/c" { // it is a folder
				storagetest.Put(t, files, name, b)
			}
		}
		openAny(t, database)
		openAny(t, files)
	})
}

// FuzzStep changes the names of files.
func FuzzStep(f *testing.F) {
	for _, name := range []string{"manager_steps", "old053_manager", "killed_before_merge", "unmerged"} {
		var names []string
		for file := range fixtureFiles(f, name+"/input") {
			names = append(names, file)
		}
		f.Add(strings.Join(names, "\n"))
	}
	f.Fuzz(func(t *testing.T, names string) {
		s := new(mem.Store)
		for _, name := range strings.Split(names, "\n") {
			var content []byte
			if json.Valid([]byte(name)) {
				content = []byte(name)
			}
			w, err := s.Create(t.Context(), name, nil)
			if err != nil {
				continue // no store accepts the name
			}
			if len(content) > 0 {
				err = w.WriteAt(t.Context(), content, 0)
			}
			if err == nil {
				_, _ = w.Commit(t.Context()) // without an object, the name is left out
			}
			w.Abort()
		}
		openAny(t, s)
		if _, err := orbax.Newest(t.Context(), s); err != nil && !errors.Is(err, storage.ErrIncomplete) {
			t.Fatalf("Newest = %v; want a named error", err)
		}
	})
}
