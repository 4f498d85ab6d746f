package hyper_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// states are the states of two ranks, the first of which holds several chunks of x.
func states(t testing.TB) []plan.State {
	x := storagetest.Filled(t, tensor.Float32, []int64{7, 5}, 1)
	return []plan.State{
		{"x": storagetest.Cut(t, shard.FlatEven(2), x, 0), "x.__dcp_chunk_0": x, "step": int64(3)},
		{"x": storagetest.Cut(t, shard.FlatEven(2), x, 1), "name": "run", "lr": 0.5},
	}
}

func document(t testing.TB, s blob.Store) *dcpfiles.Document {
	t.Helper()
	b := must.Get(blob.ReadAll(t.Context(), s, ".metadata", 1<<20))(t)
	doc := must.Get(dcpfiles.Decode(t.Context(), b))(t)
	return doc
}

// keys returns the names of the tensors of a file.
func keys(t testing.TB, s blob.Store, name string) []string {
	t.Helper()
	b := must.Get(blob.ReadAll(t.Context(), s, name, 1<<20))(t)
	h := must.Get(safetensors.Decode(func(p []byte, off int64) error { copy(p, b[off:]); return nil }, int64(len(b))))(t)
	var out []string
	for _, e := range h.Entries {
		out = append(out, e.Name)
	}
	slices.Sort(out)
	return out
}

func TestDialects(t *testing.T) {
	for name, c := range map[string]struct {
		opts    storagetest.Setup
		dialect dcpfiles.Dialect
		files   []string
		keys    []string // of the first rank's first file
	}{
		"newer": {
			plain, dcpfiles.Hyper,
			[]string{".metadata", "_rank0_id.bytes", "_rank0_id.safetensors", "_rank1_id.bytes", "_rank1_id.safetensors"},
			[]string{"x.__dcp_chunk_0", "x.__dcp_chunk_0_", "x.__dcp_chunk_1"},
		},
		"older": {
			storagetest.Setup{Format: hyper.Format{Old: true}}, dcpfiles.HyperOld,
			[]string{
				".metadata", "_rank0_id.1.safetensors", "_rank0_id.bytes", "_rank0_id.safetensors",
				"_rank1_id.1.bytes", "_rank1_id.1.safetensors", "_rank1_id.bytes", "_rank1_id.safetensors",
			},
			[]string{"x", "x.__dcp_chunk_0"},
		},
	} {
		s := new(mem.Store)
		must.Do(t, c.opts.Save(t, s, "id", states(t)...))
		if got := storagetest.Names(t, s); !slices.Equal(got, c.files) {
			t.Errorf("%s: files %q; want %q", name, got, c.files)
		}
		if doc := document(t, s); doc.Dialect != c.dialect || doc.Version != "1.0" {
			t.Errorf("%s: metadata is of %v %s; want %v 1.0", name, doc.Dialect, doc.Version, c.dialect)
		}
		if got := keys(t, s, "_rank0_id.safetensors"); !slices.Equal(got, c.keys) {
			t.Errorf("%s: keys %q; want %q", name, got, c.keys)
		}
	}
}

func TestWriterRefusesUnsupportedItems(t *testing.T) {
	odd := &value.Object{Module: "mylib", Name: "Schedule", Call: true, New: true}
	for name, c := range map[string]struct {
		opts  storagetest.Setup
		state plan.State
		words []string
	}{
		"types": {plain, plan.State{
			"c": storagetest.Filled(t, tensor.Complex128, []int64{2}, 0), "e": storagetest.Filled(t, tensor.Complex128, []int64{1}, 0),
		}, []string{`"c"`, "complex128", `"e"`}},
		"classes": {plain, plan.State{"s": odd, "t": value.Tuple{odd}}, []string{`"s"`, `"t"`, "mylib.Schedule"}},
		"names":   {storagetest.Setup{Format: hyper.Format{Old: true}}, plan.State{"__metadata__": storagetest.Filled(t, tensor.Int8, []int64{1}, 0)}, []string{"__metadata__"}},
	} {
		s := new(mem.Store)
		err := c.opts.Save(t, s, "id", c.state)
		for _, word := range c.words {
			if !errors.Is(err, storage.ErrNotRepresentable) || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: Save = %v; want %v that names %s", name, err, storage.ErrNotRepresentable, word)
			}
		}
		if got := storagetest.Names(t, s); len(got) != 0 {
			t.Errorf("%s: %q were written", name, got)
		}
	}
	w := plain.At(new(mem.Store)).Writer().(storage.ValueChecker)
	codec, data, err := value.Encode(odd)
	if err != nil {
		t.Fatal(err)
	}
	it := &plan.WriteItem{Info: &plan.Info{FQN: "v", Codec: codec}, Kind: plan.KindBytes, Size: int64(len(data))}
	if err := w.CheckValue(it, data); !errors.Is(err, storage.ErrNotRepresentable) {
		t.Errorf("CheckValue = %v; want %v", err, storage.ErrNotRepresentable)
	}
}

// A save replaces a checkpoint of hyper_parallel like one of our own, including rank-local
// metadata and files of single values.
func TestSaveReplacesHyperParallelCheckpoint(t *testing.T) {
	for _, name := range []string{"hyper_parallel/collective-4", "hyper_parallel/ranklocal-4"} {
		s := storagetest.CopyFixture(t, name)
		storagetest.Put(t, s, "notes.bytes", []byte("mine"))
		must.Do(t, plain.Save(t, s, "new", states(t)...))
		want := []string{
			".metadata", "_rank0_new.bytes", "_rank0_new.safetensors", "_rank1_new.bytes", "_rank1_new.safetensors", "notes.bytes",
		}
		if got := storagetest.Names(t, s); !slices.Equal(got, want) {
			t.Errorf("%s: files %q; want %q", name, got, want)
		}
		if err := (storagetest.Setup{Format: hyper.Format{}, Write: storage.WriteOptions{FailIfExists: true}}).Save(t, s, "again", states(t)...); !errors.Is(err, storage.ErrExists) {
			t.Errorf("%s: Save with FailIfExists = %v; want %v", name, err, storage.ErrExists)
		}
	}
}

func TestSaveKeepsCheckpointOfOtherFormat(t *testing.T) {
	s := storagetest.CopyFixture(t, "torch-2.14/shard0-3")
	before := storagetest.Names(t, s)
	if err := plain.Save(t, s, "new", states(t)...); !errors.Is(err, storage.ErrVersion) {
		t.Errorf("Save = %v; want %v", err, storage.ErrVersion)
	}
	if got := storagetest.Names(t, s); !slices.Equal(got, before) {
		t.Errorf("files %q; want %q", got, before)
	}
}

func TestSpreadOverFiles(t *testing.T) {
	state := plan.State{}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		state[name] = storagetest.Filled(t, tensor.Uint8, []int64{1000}, name[0])
	}
	for name, c := range map[string]struct {
		opts storagetest.Setup
		want int
	}{
		"one": {plain, 1}, "two at a time": {storagetest.Setup{Format: hyper.Format{}, Write: storage.WriteOptions{FilesPerRank: 2}}, 2},
		"a bound of two": {storagetest.Setup{Format: hyper.Format{MaxFileBytes: 2000}}, 3}, "a bound below each": {storagetest.Setup{Format: hyper.Format{MaxFileBytes: 10}}, 5},
	} {
		s := new(mem.Store)
		must.Do(t, c.opts.Save(t, s, "id", state))
		if got := storagetest.Names(t, s)[1:]; len(got) != c.want {
			t.Errorf("%s: files %q; want %d", name, got, c.want)
		}
	}
}
