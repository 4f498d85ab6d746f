package formats_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
)

// kind is a way to write a checkpoint of one rank.
type kind struct {
	format storage.Format
	alone  bool // the rank saves without a group
}

// kinds are all of them, by name.
var kinds = map[string]kind{
	"native":           {format: native.Format{}},
	"torchdcp":         {format: torchdcp.Format{}},
	"torchdcp, alone":  {format: torchdcp.Format{}, alone: true},
	"hyper":            {format: hyper.Format{}},
	"hyper, old":       {format: hyper.Format{Old: true}},
	"hyper, alone":     {format: hyper.Format{}, alone: true},
	"hf, one file":     {format: hf.Format{}},
	"hf, an index":     {format: hf.Format{Shards: 2}},
	"hf, distributed":  {format: hf.Format{Distributed: true}},
	"torch":            {format: torchfile.Format{File: "model.pt"}},
	"torch of another": {format: torchfile.Format{File: "pytorch_model.bin"}},
}

// begin returns a save that has not begun.
func (k kind) begin(s blob.Store, id string, o storage.WriteOptions) *storagetest.Saving {
	o.Others, o.RankLocal = formats.CheckOthers, k.alone
	p := storagetest.Setup{Format: k.format, Write: o}.At(s)
	return storagetest.NewSaving(p, storagetest.Storage(id, 1, 1), 1)
}

func (k kind) save(t testing.TB, s blob.Store, id string, seed byte, o storage.WriteOptions) error {
	return k.begin(s, id, o).Run(t.Context(), []plan.State{stateOf(t, seed)})
}

// otherStores are the stores of the tests below, by name.
var otherStores = map[string]func(t *testing.T) blob.Store{
	"memory":                       func(*testing.T) blob.Store { return withoutVersions{new(mem.Store)} },
	"with versions, as in a cloud": func(*testing.T) blob.Store { return new(mem.Store) },
	"folder": func(t *testing.T) blob.Store {
		s := must.Get(file.Open(t.TempDir(), &file.Options{NoSync: true}))(t)
		return s
	},
}

// withoutVersions hides the capabilities of a store.
type withoutVersions struct{ blob.Store }

// contents returns the objects of a store.
func contents(t testing.TB, s blob.Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, name := range storagetest.Names(t, s) {
		b := must.Get(blob.ReadAll(t.Context(), s, name, 1<<30))(t)
		out[name] = string(b)
	}
	return out
}

// checkLoads checks that opening the store gives the state of that seed.
func checkLoads(t *testing.T, s blob.Store, seed byte) {
	t.Helper()
	open := func(ctx context.Context, s blob.Store) (storage.Checkpoint, error) { return formats.Open(ctx, s, nil) }
	p := storagetest.Place{Reader: func() storage.Reader { return storage.NewReader(open, s, storage.ReadOptions{}) }}
	got := stateOf(t, 0)
	if err := storagetest.Load(t.Context(), p, got); err != nil {
		t.Error(err)
		return
	}
	for name, want := range stateOf(t, seed) {
		if !tensor.Equal(got[name].(*tensor.Tensor), want.(*tensor.Tensor)) {
			t.Errorf("%q is not in the checkpoint with seed %d", name, seed)
		}
	}
}

// A save over a checkpoint of another format writes no file. A save over one of its own
// format replaces it, unless it may not. A load returns the checkpoint of the last successful
// save.
func TestSaveOverEveryFormat(t *testing.T) {
	for where, open := range otherStores {
		for old, k := range kinds {
			for young, l := range kinds {
				t.Run(where+": "+young+" over "+old, func(t *testing.T) {
					s := open(t)
					must.Do(t, k.save(t, s, "first", 1, storage.WriteOptions{}))
					before := contents(t, s)
					for _, o := range []storage.WriteOptions{{FailIfExists: true}, {}} {
						watched := fault.New(s)
						err := l.save(t, watched, fmt.Sprint("second-", o.FailIfExists), 2, o)
						other := k.format.Name() != l.format.Name()
						typed, ok := errors.AsType[*storage.OtherFormatError](err)
						if other && (!ok || !errors.Is(err, storage.ErrExists) || typed.Found != k.format.Name() || typed.Format != l.format.Name()) {
							t.Fatalf("FailIfExists %v: %v; want an error that names both formats", o.FailIfExists, err)
						}
						if err != nil {
							if !other && !errors.Is(err, storage.ErrExists) {
								t.Fatal(err)
							}
							if ops := watched.Ops(); ops.Count(fault.Mutating) > 0 {
								t.Errorf("FailIfExists %v: the save that was refused has written:\n%v", o.FailIfExists, ops)
							}
							if after := contents(t, s); !maps.Equal(after, before) {
								t.Errorf("FailIfExists %v: the store has %v; want %v", o.FailIfExists, slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
							}
							checkLoads(t, s, 1)
							continue
						}
						if o.FailIfExists && young != "torch" && young != "torch of another" { // files with other names do not concern the save
							t.Error("FailIfExists has no effect")
						}
						if l.format.Name() != formats.Torch || old == young {
							checkLoads(t, s, 2)
						}
					}
				})
			}
		}
	}
}

// Files of a checkpoint without its record, such as the files of a killed save, would
// hide a new checkpoint of some formats.
func TestSaveOverTheRestOfAnotherFormat(t *testing.T) {
	for old, k := range kinds {
		if k.format.Name() == formats.Torch {
			continue // without its only file there is no rest
		}
		for young, l := range kinds {
			if k.format.Name() == l.format.Name() {
				continue
			}
			t.Run(young+" over "+old, func(t *testing.T) {
				s := new(mem.Store)
				must.Do(t, k.save(t, s, "first", 1, storage.WriteOptions{}))
				storagetest.Remove(t, s, "cairn.json", ".metadata", "__0.metadata", "0.metadata", "model.safetensors.index.json", "cairn-save.json")
				if err := l.save(t, s, "second", 2, storage.WriteOptions{}); !errors.Is(err, storage.ErrExists) {
					t.Errorf("%v; want ErrExists", err)
				}
			})
		}
	}
}

// A save looks again before its commit. If a save in another format has committed since it
// began, one of both is confirmed, and that one is loaded.
func TestOtherFormatAppearsBeforeTheCommit(t *testing.T) {
	for where, open := range otherStores {
		for other, k := range kinds {
			for name, l := range kinds {
				if k.format.Name() == l.format.Name() || l.alone {
					continue
				}
				t.Run(where+": "+other+" before the commit of "+name, func(t *testing.T) {
					s := open(t)
					committed := false
					watched := fault.New(s, fault.Rule{On: fault.Create, Match: func(string) bool {
						if !committed {
							committed = true
							if err := k.save(t, s, "other", 2, storage.WriteOptions{}); err != nil {
								t.Error(err)
							}
						}
						return false
					}})
					err := l.save(t, watched, "late", 1, storage.WriteOptions{FailIfExists: true})
					if !errors.Is(err, storage.ErrExists) {
						t.Errorf("FailIfExists: %v; want ErrExists", err)
					}
					checkLoads(t, s, 2)
					if names := storagetest.Names(t, s); slices.Contains(names, ".metadata") && !strings.HasPrefix(name, "native") {
						return // a format cannot tell which of its files the record of the other one needs, so they stay
					} else if slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, "late") }) {
						t.Errorf("the save that was refused has left files: %v", names)
					}
				})
			}
		}
	}
}

// Files that are no checkpoint, or that libraries write beside one, do not matter.
func TestSaveBesideOtherFiles(t *testing.T) {
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			s := new(mem.Store)
			for _, other := range []string{"training_args.bin", "config.json", "tokenizer.json", "notes.txt", "old/cairn.json", "old/model.safetensors"} {
				storagetest.Put(t, s, other, []byte("x"))
			}
			must.Do(t, k.save(t, s, "save", 1, storage.WriteOptions{FailIfExists: true}))
			checkLoads(t, s, 1)
		})
	}
}
