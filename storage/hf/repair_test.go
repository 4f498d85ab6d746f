package hf

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

const modelIndex = "model.safetensors.index.json"

func TestRepair(t *testing.T) {
	for claim, c := range map[string]struct {
		damage  func(t *testing.T, s *mem.Store)
		o       RepairOptions
		rebuilt bool
		err     error
	}{
		"nothing to do":   {damage: func(*testing.T, *mem.Store) {}},
		"by force":        {damage: func(*testing.T, *mem.Store) {}, o: RepairOptions{Force: true}, rebuilt: true},
		"a lost index":    {damage: func(t *testing.T, s *mem.Store) { storagetest.Remove(t, s, modelIndex) }, rebuilt: true},
		"a damaged index": {damage: func(t *testing.T, s *mem.Store) { putBytes(t, s, modelIndex, "{") }, rebuilt: true},
		"an index of another name": {damage: func(t *testing.T, s *mem.Store) {
			putBytes(t, s, modelIndex, indexTo("z", "model-x-00001-of-00002.safetensors"))
		}, rebuilt: true},
		"a lost file": {damage: func(t *testing.T, s *mem.Store) {
			storagetest.Remove(t, s, modelIndex)
			storagetest.Remove(t, s, "model-x-00002-of-00002.safetensors")
		}, err: storage.ErrIncomplete},
		"a lost file behind an index": {damage: func(t *testing.T, s *mem.Store) { storagetest.Remove(t, s, "model-x-00002-of-00002.safetensors") }, err: storage.ErrIncomplete},
		"a damaged file": {damage: func(t *testing.T, s *mem.Store) {
			storagetest.Remove(t, s, modelIndex)
			putBytes(t, s, "model-x-00002-of-00002.safetensors", "x")
		}, err: storage.ErrCorrupt},
		"a name in two files": {damage: func(t *testing.T, s *mem.Store) {
			storagetest.Remove(t, s, modelIndex)
			put(t, s, "model-x-00002-of-00002.safetensors", nil, made{"a", storagetest.Filled(t, tensor.Float32, []int64{2}, 1)})
		}, err: ErrIndex},
		"two sets": {damage: func(t *testing.T, s *mem.Store) {
			storagetest.Remove(t, s, modelIndex)
			put(t, s, "other-00001-of-00001.safetensors", nil, made{"a", storagetest.Filled(t, tensor.Float32, []int64{2}, 1)})
		}, err: ErrAmbiguous},
	} {
		for _, dry := range []bool{true, false} {
			s := new(mem.Store)
			must.Do(t, storagetest.Save(t.Context(), at(s, &options{Format: Format{Shards: 2}}), storagetest.Storage("x", 1, 1), letters(t, 4)))
			want := must.Get(blob.ReadAll(t.Context(), s, modelIndex, 1<<20))(t)
			c.damage(t, s)
			before := storagetest.Names(t, s)
			o := c.o
			o.DryRun = dry
			rep, err := Repair(t.Context(), s, &o)
			if c.err != nil || err != nil {
				if !errors.Is(err, c.err) || c.err == nil {
					t.Errorf("%s: Repair = %v; want %v", claim, err, c.err)
				}
				continue
			}
			if rep.Rebuilt != c.rebuilt || rep.Files != 2 || rep.Tensors != 4 || rep.SaveID != "x" {
				t.Errorf("%s: Repair = %+v; want rebuilt %v, 4 tensors in 2 files", claim, rep, c.rebuilt)
			}
			if dry {
				if d := cmp.Diff(before, storagetest.Names(t, s)); d != "" {
					t.Errorf("%s: a dry run changed files:\n%s", claim, d)
				}
				continue
			}
			got, err := blob.ReadAll(t.Context(), s, modelIndex, 1<<20)
			if d := cmp.Diff(string(want), string(got)); d != "" || err != nil {
				t.Errorf("%s: the index: %v, -want +got\n%s", claim, err, d)
			}
		}
	}
}

// The commit of the distributed form cannot be rebuilt.
func TestRepairOfTheDistributedForm(t *testing.T) {
	s := new(mem.Store)
	must.Do(t, storagetest.Save(t.Context(), at(s, &options{Format: Format{Distributed: true}}), storagetest.Storage("x", 1, 1), letters(t, 4)))
	storagetest.Remove(t, s, commitName)
	if _, err := Repair(t.Context(), s, nil); !errors.Is(err, storage.ErrIncomplete) || !strings.Contains(err.Error(), "only the index of numbered files can be rebuilt") {
		t.Errorf("Repair = %v; want ErrIncomplete with the reason", err)
	}
}
