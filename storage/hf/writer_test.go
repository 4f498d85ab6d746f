package hf

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// letters is a state of tensors of 10 bytes and more: a has 10, b 20 and so on.
func letters(t testing.TB, n int) plan.State {
	state := plan.State{}
	for i := range n {
		state[string(rune('a'+i))] = storagetest.Filled(t, tensor.Uint8, []int64{int64(10 * (i + 1))}, byte(i))
	}
	return state
}

func TestNamesOfFiles(t *testing.T) {
	for name, c := range map[string]struct {
		o     *options
		ranks int
		want  []string
	}{
		"one file":           {nil, 1, []string{"model.safetensors"}},
		"no index for one":   {&options{Format: Format{MaxShardBytes: 1000}}, 1, []string{"model.safetensors"}},
		"an oversized alone": {&options{Format: Format{MaxShardBytes: 30}}, 1, []string{"model-x-00001-of-00003.safetensors", "model-x-00002-of-00003.safetensors", "model-x-00003-of-00003.safetensors", "model.safetensors.index.json"}},
		"two equal parts":    {&options{Format: Format{Shards: 2}}, 1, []string{"model-x-00001-of-00002.safetensors", "model-x-00002-of-00002.safetensors", "model.safetensors.index.json"}},
		"a part of nothing":  {&options{Format: Format{Shards: 9}}, 1, []string{"model-x-00001-of-00003.safetensors", "model-x-00002-of-00003.safetensors", "model-x-00003-of-00003.safetensors", "model.safetensors.index.json"}},
		"distributed":        {&options{Format: Format{Distributed: true}}, 1, []string{"cairn-save.json", "shard-00001-x-model-00001-of-00001.safetensors"}},
		"several ranks": {&options{Format: Format{MaxShardBytes: 60}}, 3, []string{
			"cairn-save.json", "shard-00002-x-model-00001-of-00002.safetensors", "shard-00002-x-model-00002-of-00002.safetensors",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := new(mem.Store)
			states := make([]plan.State, c.ranks)
			for i := range states {
				states[i] = plan.State{}
			}
			states[c.ranks/2] = letters(t, 4)
			must.Do(t, storagetest.Save(t.Context(), at(s, c.o), storagetest.Storage("x", 1, c.ranks), states...))
			if d := cmp.Diff(c.want, storagetest.Names(t, s)); d != "" {
				t.Errorf("files: -want +got\n%s", d)
			}
		})
	}
}

func TestTextOfTheIndex(t *testing.T) {
	s := new(mem.Store)
	state := letters(t, 3)
	state["<ä>"] = state["a"]
	delete(state, "a")
	must.Do(t, storagetest.Save(t.Context(), at(s, &options{Format: Format{MaxShardBytes: 30}}), storagetest.Storage("x", 1, 1), state))
	b, err := blob.ReadAll(t.Context(), s, "model.safetensors.index.json", 1000)
	want := `{
  "metadata": {
    "total_size": 60
  },
  "weight_map": {
    "<ä>": "model-x-00001-of-00002.safetensors",
    "b": "model-x-00001-of-00002.safetensors",
    "c": "model-x-00002-of-00002.safetensors"
  }
}
`
	if d := cmp.Diff(want, string(b)); d != "" || err != nil {
		t.Errorf("%v: -want +got\n%s", err, d)
	}
}

// Every tensor begins at a multiple of its element's size, and the header has the fields
// that PyTorch's readers need.
func TestHeaders(t *testing.T) {
	s := new(mem.Store)
	state := plan.State{}
	for i, d := range able().DTypes {
		state[d.String()] = storagetest.Filled(t, d, []int64{int64(i%3 + 1)}, 1)
	}
	must.Do(t, storagetest.Save(t.Context(), at(s, &options{Format: Format{Distributed: true}}), storagetest.Storage("x", 1, 1), state))
	f := must.Get(readFile(t.Context(), s, "shard-00001-x-model-00001-of-00001.safetensors"))(t)
	for _, e := range f.header.Entries {
		d, err := tensor.ParseDType(e.Name)
		if err != nil || (f.header.Size+e.Begin)%int64(d.Size()) != 0 {
			t.Errorf("%s begins at %d (%v)", e.Name, f.header.Size+e.Begin, err)
		}
	}
	m := f.header.Metadata
	if m["format"] != "pt" || m["DCP_VERSION"] != "1.0" || !strings.Contains(m["DCP_SHARDING_INFO"], `"bool":{"saved_offsets":[0]}`) {
		t.Errorf("metadata = %v", m)
	}
}

// PrepareLocalPlan returns the names of all items that the format cannot store.
func TestNotRepresentable(t *testing.T) {
	s := new(mem.Store)
	state := plan.State{
		"fine": storagetest.Filled(t, tensor.Float32, []int64{2}, 1), "step": int64(3),
		"complex": storagetest.Filled(t, tensor.Complex128, []int64{2}, 1), "__metadata__": storagetest.Filled(t, tensor.Float32, []int64{2}, 1),
	}
	err := storagetest.Save(t.Context(), at(s, nil), storagetest.Storage("x", 1, 1), state)
	if !errors.Is(err, storage.ErrNotRepresentable) {
		t.Fatalf("Save = %v; want ErrNotRepresentable", err)
	}
	for _, name := range []string{`"step"`, `"complex"`, `"__metadata__"`} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("Save = %v; want %s named", err, name)
		}
	}
	if strings.Contains(err.Error(), "fine") || len(storagetest.Names(t, s)) > 0 {
		t.Errorf("Save = %v, and %q are there; want nothing", err, storagetest.Names(t, s))
	}
}

// A file can have a name only once, so two chunks of a name are written to two files.
func TestChunksOfOneName(t *testing.T) {
	s := new(mem.Store)
	x := storagetest.Filled(t, tensor.Int32, []int64{6, 2}, 1)
	box := func(at int64) tensor.Box { return tensor.Box{Offsets: []int64{at, 0}, Sizes: []int64{2, 2}} }
	cut := shard.Explicit{ByRank: map[int][]shard.Part{0: {
		{Box: box(4), Local: []int64{0, 0}}, {Box: box(0), Local: []int64{2, 0}}, {Box: box(2), Local: []int64{4, 0}},
	}}}
	must.Do(t, storagetest.Save(t.Context(), at(s, nil), storagetest.Storage("x", 1, 1), plan.State{"x": storagetest.Cut(t, cut, x, 0), "y": x}))
	if n := len(storagetest.Names(t, s)); n != 4 {
		t.Errorf("%d files; want three and the commit", n)
	}
	got := loadAll(t, s, Format{})
	if !tensor.Equal(got["x"].(*tensor.Tensor), x) || !tensor.Equal(got["y"].(*tensor.Tensor), x) {
		t.Error("other elements than were saved")
	}
}

// A save never replaces a checkpoint under names that the writer does not use, and with
// FailIfExists it replaces no checkpoint.
func TestSaveRefusesToReplace(t *testing.T) {
	for name, always := range map[string]bool{
		"model.safetensors": false, "model.safetensors.index.json": false, "cairn-save.json": false,
		"any.safetensors": true, "diffusion_pytorch_model.safetensors": true, "any.safetensors.index.json": true,
	} {
		for _, o := range []*options{{WriteOptions: storage.WriteOptions{FailIfExists: true}}, {}} {
			for _, j := range []storage.Journal{nil, new(storagetest.Journal)} {
				s := new(mem.Store)
				putBytes(t, s, name, "not even one")
				w := newWriter(s, *o)
				must.Do(t, w.SetUp(t.Context(), storage.Session{Size: 1, Coordinator: true, Storage: storagetest.Storage("x", 1, 1), Journal: j}))
				want := error(nil)
				if o.FailIfExists || always {
					want = storage.ErrExists
				}
				if _, err := w.PrepareLocalPlan(t.Context(), &plan.SavePlan{}); !errors.Is(err, want) {
					t.Errorf("beside %s: PrepareLocalPlan = %v; want %v", name, err, want)
				}
				if err := w.Abort(t.Context()); err != nil || len(storagetest.Names(t, s)) != 1 {
					t.Errorf("Abort = %v, and left %q", err, storagetest.Names(t, s))
				}
			}
		}
	}
}

// save saves a state of one rank with a journal, and does not clean up.
func save(ctx context.Context, s blob.Store, state plan.State, j storage.Journal) error {
	sv := storagetest.NewSaving(at(s, &options{Format: Format{MaxShardBytes: 40}, WriteOptions: storage.WriteOptions{FilesPerRank: 1}}), storagetest.Storage("x", 1, 1), 1)
	sv.Journal = j
	if err := sv.Plan(ctx, []plan.State{state}); err != nil {
		return err
	}
	if err := sv.Write(ctx); err != nil {
		return err
	}
	return sv.Finish(ctx)
}

// A save with a journal does not write finished files again.
func TestSaveContinues(t *testing.T) {
	inner, state := new(mem.Store), letters(t, 6)
	j := new(storagetest.Journal)
	bad := fault.New(inner, fault.Rule{On: fault.Commit, Nth: 3, Times: -1, Do: fault.Fail(errOnPurpose)})
	if err := save(t.Context(), bad, state, j); !errors.Is(err, errOnPurpose) {
		t.Fatalf("the first save = %v; want its fault", err)
	}
	if _, err := (Format{}).Open(t.Context(), inner); !errors.Is(err, storage.ErrIncomplete) {
		t.Errorf("Open = %v; want ErrIncomplete", err)
	}
	if err := save(t.Context(), inner, state, j); err != nil {
		t.Fatalf("the second save = %v", err)
	}
	if j.Found() != 2 {
		t.Errorf("%d files were known; want 2", j.Found())
	}
	for name, want := range state {
		if got := loadAll(t, inner, Format{})[name].(*tensor.Tensor); !tensor.Equal(got, want.(*tensor.Tensor)) {
			t.Errorf("%q is not what was saved", name)
		}
	}
}

var errOnPurpose = errors.New("went wrong on purpose")

// The coordinator also removes the files of ranks that died, and no other files.
func TestAbortFindsTheFilesOfOtherRanks(t *testing.T) {
	s := new(mem.Store)
	sv := storagetest.NewSaving(at(s, nil), storagetest.Storage("x", 1, 2), 2)
	must.Do(t, errors.Join(sv.Plan(t.Context(), []plan.State{letters(t, 2), {"z": storagetest.Filled(t, tensor.Float32, []int64{2}, 1)}}), sv.Write(t.Context())))
	self := must.Get(json.Marshal(saved{SaveID: "another"}))(t)
	const other = "shard-00003-model-00001-of-00001.safetensors"
	put(t, s, other, map[string]string{keySave: string(self)})
	putBytes(t, s, "x-00001-of-00001.safetensors", "broken")
	if n := len(storagetest.Names(t, s)); n != 4 {
		t.Fatalf("%d files before Abort", n)
	}
	must.Do(t, sv.Writers[0].Abort(t.Context()))
	if got := storagetest.Names(t, s); !slices.Equal(got, []string{other, "x-00001-of-00001.safetensors"}) {
		t.Errorf("Abort left %q; want only what is not of this save", got)
	}
}

// The distributed form can be opened only if it has the commit of its own save.
func TestCommitOfTheDistributedForm(t *testing.T) {
	for claim, c := range map[string]struct {
		state  plan.State
		commit func(s *mem.Store)
		want   error
	}{
		"as it was saved":             {letters(t, 3), func(*mem.Store) {}, nil},
		"without a tensor":            {plan.State{}, func(*mem.Store) {}, nil},
		"no commit":                   {letters(t, 3), func(s *mem.Store) { storagetest.Remove(t, s, commitName) }, storage.ErrIncomplete},
		"of another save":             {letters(t, 3), func(s *mem.Store) { putBytes(t, s, commitName, `{"save_id":"y"}`) }, storage.ErrIncomplete},
		"a manifest that is not JSON": {letters(t, 3), func(s *mem.Store) { putBytes(t, s, commitName, "{") }, storage.ErrCorrupt},
		"a list without its files": {letters(t, 3), func(s *mem.Store) {
			putBytes(t, s, commitName, `{"save_id":"x","files":{"y.safetensors":1}}`)
		}, storage.ErrCorrupt},
	} {
		s := new(mem.Store)
		must.Do(t, storagetest.Save(t.Context(), at(s, nil), storagetest.Storage("x", 7, 2), plan.State{}, c.state))
		c.commit(s)
		ck, err := Format{}.Open(t.Context(), s)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: Open = %v; want %v", claim, err, c.want)
		}
		if err == nil && (*ck.Storage().Step != 7 || ck.Files()[0].Name != commitName || len(ck.Files()) != 2) {
			t.Errorf("%s: step %d, files %v; want step 7, the commit and one more", claim, *ck.Storage().Step, ck.Files())
		}
	}
}

// The tensors of a lost file of the distributed form are missing. All others can be read.
func TestLostFileOfTheDistributedForm(t *testing.T) {
	const last = "shard-00004-x-model-00001-of-00001.safetensors"
	second := strings.Replace(last, "shard-00004", "shard-00002", 1)
	for claim, c := range map[string]struct {
		damage  func(s *mem.Store)
		err     string   // of Open
		missing []string // names
		files   []string // with problems
		notes   int
	}{
		"no file is lost":     {damage: func(*mem.Store) {}},
		"the last rows":       {damage: func(s *mem.Store) { storagetest.Remove(t, s, last) }, missing: []string{"a"}, files: []string{last}},
		"rows between others": {damage: func(s *mem.Store) { storagetest.Remove(t, s, second) }, missing: []string{"a"}, files: []string{second}},
		"two files, one of them damaged": {damage: func(s *mem.Store) {
			storagetest.Remove(t, s, last)
			putBytes(t, s, second, "\x02\x00")
		}, missing: []string{"a"}, files: []string{commitName, second, last}},
		"a file of another size": {
			damage: func(s *mem.Store) { rows("[6,0]", tensor.Int32, 3, 2)(t, s, last) }, missing: []string{"a"}, files: []string{last},
		},
		"a stray file": {damage: func(s *mem.Store) {
			put(t, s, "stray.safetensors", nil, made{"x", storagetest.Filled(t, tensor.Int32, []int64{1}, 1)})
		}},
		"all files": {damage: func(s *mem.Store) {
			for _, name := range storagetest.Names(t, s) {
				if name != commitName {
					storagetest.Remove(t, s, name)
				}
			}
		}, err: second + ": checkpoint is corrupt: the file is missing"},
		"no list, as earlier versions wrote it": {damage: func(s *mem.Store) { putBytes(t, s, commitName, `{"save_id":"x"}`) }, notes: 1},
		"a file above the folder":               {damage: func(s *mem.Store) { putBytes(t, s, commitName, `{"save_id":"x","files":{"../a":1}}`) }, err: "leaves the folder"},
		"other shapes": {damage: func(s *mem.Store) {
			b := must.Get(blob.ReadAll(t.Context(), s, commitName, 1<<20))(t)
			putBytes(t, s, commitName, strings.Replace(string(b), " 8,\n", " 9,\n", 1))
		}, err: `cairn-save.json: checkpoint is corrupt: invalid sharding: "a": volume: `},
	} {
		t.Run(claim, func(t *testing.T) {
			s := new(mem.Store)
			x := storagetest.Filled(t, tensor.Int32, []int64{8, 2}, 1)
			states := make([]plan.State, 4)
			for r := range states {
				states[r] = plan.State{"a": storagetest.Cut(t, storagetest.Along(0, 4), x, r)}
			}
			states[0]["b"] = x
			must.Do(t, storagetest.Save(t.Context(), at(s, nil), storagetest.Storage("x", 7, 4), states...))
			c.damage(s)
			ck, err := Format{}.Open(t.Context(), s)
			if c.err != "" {
				if !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), c.err) {
					t.Errorf("Open = %v; want ErrCorrupt and %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if n := len(ck.Storage().Notes); n != c.notes {
				t.Errorf("%d notes; want %d", n, c.notes)
			}
			checkMissing(t, s, ck, 2, c.missing, c.files)
		})
	}
}

// checkMissing checks that a checkpoint of n names lacks some, and that Verify
// reports problems of files.
func checkMissing(t *testing.T, s blob.Store, ck storage.Checkpoint, n int, missing, files []string) {
	t.Helper()
	md := must.Get(ck.Metadata(t.Context()))(t)
	var names []string
	for _, m := range md.Missing {
		names = append(names, m.FQN)
		if _, _, err := ck.Find(t.Context(), m.FQN); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("Find(%q) = %v; want ErrCorrupt", m.FQN, err)
		}
		load := &plan.DefaultLoad{AllowMissing: true}
		must.Do(t, load.SetUp(plan.LoadSetup{State: plan.State{m.FQN: nil}, Metadata: md, Size: 1}))
		if _, err := load.LocalPlan(); !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), m.FQN) {
			t.Errorf("LocalPlan that wants %q = %v; want ErrCorrupt with the name", m.FQN, err)
		}
	}
	if d := cmp.Diff(missing, names); d != "" {
		t.Errorf("missing: -want +got\n%s", d)
	}
	if len(md.Entries) != n-len(missing) {
		t.Errorf("%d names can be read; want %d", len(md.Entries), n-len(missing))
	}
	for i := range md.Entries {
		if err := storagetest.Load(t.Context(), storagetest.Place{Reader: func() storage.Reader {
			return storage.NewReader(Format{}.Open, s, storage.ReadOptions{})
		}}, plan.State{md.Entries[i].FQN: storagetest.Filled(t, md.Entries[i].Tensor.DType, md.Entries[i].Tensor.Shape, 0)}); err != nil {
			t.Errorf("load %q: %v", md.Entries[i].FQN, err)
		}
	}
	rep := must.Get(ck.Verify(t.Context(), nil))(t)
	var found []string
	for _, p := range rep.Problems {
		found = append(found, p.File)
	}
	if d := cmp.Diff(files, found); d != "" {
		t.Errorf("problems: -want +got\n%s\n%+v", d, rep.Problems)
	}
}

// Tags are metadata under their own names, for all readers of safetensors, apart
// from tags that would change how the file is read.
func TestTagsAreMetadata(t *testing.T) {
	s, st := new(mem.Store), storagetest.Storage("x", 1, 1)
	st.Tags = map[string]string{"license": "mit", "format": "mlx", keySharding: "{}", keySave: "?"}
	must.Do(t, storagetest.Save(t.Context(), at(s, nil), st, letters(t, 1)))
	f := must.Get(readFile(t.Context(), s, "model.safetensors"))(t)
	m := f.header.Metadata
	if _, ok := m[keySharding]; ok || m["license"] != "mit" || m["format"] != "mlx" || len(m) != 3 {
		t.Errorf("metadata = %v; want license, format and %s", m, keySave)
	}
	ck := must.Get(Format{}.Open(t.Context(), s))(t)
	if d := cmp.Diff(st.Tags, ck.Storage().Tags); d != "" {
		t.Errorf("tags: -want +got\n%s", d)
	}
}
