package hyper_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestOpenErrors(t *testing.T) {
	const all, ranks = "hyper_parallel/collective-4", "hyper_parallel/ranklocal-4"
	with := func(s *mem.Store, name, data string) *mem.Store {
		storagetest.Put(t, s, name, []byte(data))
		return s
	}
	for name, c := range map[string]struct {
		store *mem.Store
		want  error
		word  string
	}{
		"nothing":           {new(mem.Store), storage.ErrNotFound, ".metadata"},
		"data only":         {storagetest.CopyFixture(t, all, ".metadata"), storage.ErrIncomplete, ".metadata"},
		"no pickle":         {with(storagetest.CopyFixture(t, all), ".metadata", "x"), storage.ErrCorrupt, ".metadata"},
		"PyTorch's":         {storagetest.CopyFixture(t, "torch-2.14/shard0-3"), storage.ErrVersion, "PyTorch"},
		"a rank is missing": {storagetest.CopyFixture(t, ranks, ".rank2_metadata"), storage.ErrIncomplete, "rank 2"},
		"a rank twice":      {with(storagetest.CopyFixture(t, ranks), "1.metadata", "x"), storage.ErrCorrupt, "1.metadata"},
		"no layout":         {with(storagetest.CopyFixture(t, all, ".metadata"), "0.layout", "x"), storage.ErrCorrupt, "0.layout"},
		"a layout alone":    {with(new(mem.Store), "0.layout", `{"0":{}}`), storage.ErrIncomplete, "0.safetensors"},
	} {
		_, err := hyper.Format{}.Open(t.Context(), c.store)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: Open = %v; want %v about %s", name, err, c.want, c.word)
		}
		if _, err := storage.NewReader(hyper.Format{}.Open, c.store, storage.ReadOptions{}).ReadMetadata(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("%s: ReadMetadata = %v; want %v", name, err, c.want)
		}
	}
}

// tensorFile returns a safetensors file of tensors under keys.
func tensorFile(t testing.TB, keys []string, tensors ...*tensor.Tensor) []byte {
	t.Helper()
	h := &safetensors.Header{}
	var data []byte
	for i, x := range tensors {
		d, _ := safetensors.DTypeName(x.DType())
		at := int64(len(data))
		data = append(data, x.Contents()...)
		h.Entries = append(h.Entries, safetensors.Entry{Name: keys[i], DType: d, Shape: x.Shape(), Begin: at, End: int64(len(data))})
	}
	b := must.Get(safetensors.Encode(h, 8))(t)
	return append(b, data...)
}

// newer returns a checkpoint as hyper_parallel's newer versions write it: two
// chunks of one tensor in a file, under keys that the metadata tells, and values
// one after the other.
func newer(t testing.TB, change func(md *meta.Metadata)) *mem.Store {
	t.Helper()
	s := new(mem.Store)
	a, b := storagetest.Filled(t, tensor.Float32, []int64{2, 3}, 1), storagetest.Filled(t, tensor.Float32, []int64{1, 3}, 50)
	storagetest.Put(t, s, "_rank0_.safetensors", tensorFile(t, []string{"x.__dcp_chunk_0", "x.__dcp_chunk_1_"}, a, b))
	number := must.Get(pickle.Encode(int64(42), nil))(t)
	storagetest.Put(t, s, "_rank0_.bytes", append(number, "raw bytes"...))
	x := &meta.Tensor{Shape: []int64{3, 3}, Chunks: []tensor.Box{
		{Offsets: []int64{0, 0}, Sizes: []int64{2, 3}}, {Offsets: []int64{2, 0}, Sizes: []int64{1, 3}},
	}}
	x.DType = tensor.Float32
	for _, key := range []string{"x.__dcp_chunk_0", "x.__dcp_chunk_1_"} {
		x.Locs = append(x.Locs, meta.Location{File: "_rank0_.safetensors", Length: 1, Detail: &meta.Detail{Key: key}})
	}
	value := func(at, n int) *meta.Bytes {
		return &meta.Bytes{Codec: "pickle", Size: int64(n), Loc: meta.Location{File: "_rank0_.bytes", Offset: int64(at), Length: int64(n)}}
	}
	md := &meta.Metadata{Entries: []meta.Entry{
		{FQN: "n", Bytes: value(0, len(number))}, {FQN: "raw", Bytes: value(len(number), 9)}, {FQN: "x", Tensor: x},
	}}
	change(md)
	doc := must.Get(dcpfiles.Encode(&dcpfiles.Document{Meta: md, Dialect: dcpfiles.Hyper, Version: "1.0"}))(t)
	storagetest.Put(t, s, ".metadata", doc)
	return s
}

func TestOpenNewerVersions(t *testing.T) {
	ck := must.Get(hyper.Format{}.Open(t.Context(), newer(t, func(*meta.Metadata) {})))(t)
	got := storagetest.LoadAll(t, ck)
	x := got["x"].(*tensor.Tensor)
	delete(got, "x")
	if d := cmp.Diff(plan.State{"n": int64(42), "raw": []byte("raw bytes")}, got); d != "" {
		t.Errorf("values (-want +got):\n%s", d)
	}
	want := append(storagetest.Filled(t, tensor.Float32, []int64{2, 3}, 1).Contents(), storagetest.Filled(t, tensor.Float32, []int64{1, 3}, 50).Contents()...)
	if d := cmp.Diff(want, x.Contents()); d != "" {
		t.Errorf("x (-want +got):\n%s", d)
	}
	e, _, err := ck.Find(t.Context(), "x")
	if err != nil || e.Tensor.Locs[1].Length != 12 || e.Tensor.Locs[1].Offset <= e.Tensor.Locs[0].Offset {
		t.Errorf("places of x = %+v, %v; want those in the file", e.Tensor.Locs, err)
	}
}

func TestFilesMustMatchMetadata(t *testing.T) {
	loc := func(md *meta.Metadata, name string) *meta.Location {
		e, _ := md.Find(name)
		if e.Bytes != nil {
			return &e.Bytes.Loc
		}
		return &e.Tensor.Locs[1]
	}
	for name, change := range map[string]func(md *meta.Metadata){
		"no such key":        func(md *meta.Metadata) { loc(md, "x").Detail = &meta.Detail{Key: "y"} },
		"no key":             func(md *meta.Metadata) { loc(md, "x").Detail = nil },
		"another shape":      func(md *meta.Metadata) { loc(md, "x").Detail = &meta.Detail{Key: "x.__dcp_chunk_0"} },
		"another type":       func(md *meta.Metadata) { md.Entries[2].Tensor.DType = tensor.Int32 },
		"no such file":       func(md *meta.Metadata) { loc(md, "x").File = "_rank7_.safetensors" },
		"no file of tensors": func(md *meta.Metadata) { loc(md, "x").File = "_rank0_.bytes" },
		"above its folder":   func(md *meta.Metadata) { loc(md, "x").File = "../_rank0_.safetensors" },
		"a value outside":    func(md *meta.Metadata) { loc(md, "n").Offset = 1000 },
		"a value too long":   func(md *meta.Metadata) { loc(md, "n").Length = 1 << 40 },
	} {
		s := newer(t, change)
		for _, trust := range []bool{false, true} {
			state := plan.State{"n": nil, "raw": nil, "x": storagetest.Filled(t, tensor.Float32, []int64{3, 3}, 0)}
			if err := storagetest.Load(t.Context(), storagetest.Setup{Format: hyper.Format{}, Read: storage.ReadOptions{TrustSizes: trust}}.At(s), state); !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("%s: Load = %v; want %v", name, err, storage.ErrCorrupt)
			}
		}
	}
}

// hyper_parallel writes bytes as they are: bytes that only begin like a pickle are not a
// pickle.
func TestReadBytesAndPickles(t *testing.T) {
	text := must.Get(pickle.Encode("text", nil))(t)
	for name, c := range map[string]struct {
		data []byte
		want any
	}{
		"a pickle": {text, "text"}, "a pickle and more": {append(text, 0), append(text, 0)}, "half a pickle": {text[:5], text[:5]},
		"a dot": {[]byte("."), []byte(".")}, "old pickles": {[]byte("N."), []byte("N.")}, "nothing": {[]byte{}, []byte{}},
		"zeros": {make([]byte, 9), make([]byte, 9)},
	} {
		s := newer(t, func(md *meta.Metadata) {
			md.Entries[0].Bytes.Loc = meta.Location{File: "v.bytes", Length: int64(len(c.data))}
		})
		storagetest.Put(t, s, "v.bytes", c.data)
		state := plan.State{"n": nil}
		if err := storagetest.Load(t.Context(), plain.At(s), state); err != nil {
			t.Errorf("%s: Load = %v", name, err)
			continue
		}
		if d := cmp.Diff(c.want, state["n"]); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// If a file is gone, only its own tensors are lost.
func TestReadUndamagedFiles(t *testing.T) {
	s := storagetest.CopyFixture(t, "hyper_parallel/collective-4", "_rank2_.safetensors")
	storagetest.Put(t, s, "_rank1_.safetensors", []byte("no header"))
	ck := must.Get(hyper.Format{}.Open(t.Context(), s))(t)
	plain := storagetest.Filled(t, tensor.Float32, []int64{24}, 0)
	l := &storagetest.Loading{Planners: []plan.LoadPlanner{new(plan.DefaultLoad)}, Readers: []storage.Reader{storage.ReaderOf(ck, storage.ReadOptions{})}}
	if err := errors.Join(l.Plan(t.Context(), []plan.State{{"plain": plain}}), l.Read(t.Context())); err != nil {
		t.Errorf("a tensor of a file that is whole: Load = %v", err)
	}
	for _, name := range []string{"emb", "w"} {
		e, _, err := ck.Find(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if err := ck.CheckHeld(t.Context(), e); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("CheckHeld(%s) = %v; want %v", name, err, storage.ErrCorrupt)
		}
	}
	rep, err := ck.Verify(t.Context(), nil)
	if err != nil || len(rep.Problems) < 2 {
		t.Errorf("Verify = %+v, %v; want both files", rep, err)
	}
}
