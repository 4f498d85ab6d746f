package native

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// oddState is a state that needs every way of storing: two ranks, several chunks of a name on
// one rank, types and names that safetensors has no place for, values inside and outside of
// the index.
func oddState(t testing.TB, rank int) plan.State {
	x := storagetest.Filled(t, tensor.Float32, []int64{9, 7}, 1)
	s := plan.State{
		"flat":        storagetest.Cut(t, shard.FlatEven(2), x, rank),
		"rows":        storagetest.Cut(t, storagetest.Along(0, 2), x, rank),
		"complex":     storagetest.Cut(t, storagetest.Along(0, 2), storagetest.Filled(t, tensor.Complex64, []int64{4, 2}, 2), rank),
		"__cairn__/0": storagetest.Filled(t, tensor.Int32, []int64{3}, 3),
	}
	if rank == 1 {
		s["__metadata__"] = storagetest.Filled(t, tensor.Float8E5M2FNUZ, nil, 4)
		s["__cairn__/"] = storagetest.Filled(t, tensor.Bool, []int64{0, 2}, 4)
		s["nested"] = map[string]any{`a"<b>☃`: []any{storagetest.Filled(t, tensor.BFloat16, []int64{2}, 5), map[string]any{"k": "v"}}}
		s["big"] = slices.Repeat([]byte{1, 2, 3}, 10_000)
		s["small"] = int64(12)
	}
	return s
}

func saveOdd(t testing.TB, s blob.Store, id string, o *options) {
	t.Helper()
	must.Do(t, storagetest.Save(context.Background(), at(s, o, storage.ReadOptions{}), storagetest.Storage(id, 7, 2), oddState(t, 0), oddState(t, 1)))
}

func header(t testing.TB, s blob.Store, name string) *safetensors.Header {
	t.Helper()
	b := must.Get(blob.ReadAll(context.Background(), s, name, 1<<30))(t)
	h, err := safetensors.Decode(func(p []byte, off int64) error { copy(p, b[off:]); return nil }, int64(len(b)))
	if err != nil {
		t.Fatalf("%s is no safetensors file: %v", name, err)
	}
	return h
}

func TestDataFilesAreSafetensorsThatPyTorchPlaces(t *testing.T) {
	s := new(mem.Store)
	saveOdd(t, s, "odd", &options{WriteOptions: storage.WriteOptions{FilesPerRank: 2}})
	md := must.Get(storage.NewReader(Format{}.Open, s, storage.ReadOptions{}).ReadMetadata(t.Context()))(t)
	found := map[string]int{}
	owners := map[string]string{}
	for _, name := range storagetest.Names(t, s) {
		if !strings.HasSuffix(name, dataSuffix) {
			continue
		}
		h := header(t, s, name)
		if h.Size%headerAlign != 0 || h.Metadata["format"] != "pt" || h.Metadata["DCP_VERSION"] != "1.0" {
			t.Errorf("%s: a header of %d bytes with metadata %q", name, h.Size, h.Metadata)
		}
		var sharding map[string]struct {
			Offsets []int64 `json:"saved_offsets"`
		}
		if err := json.Unmarshal([]byte(h.Metadata["DCP_SHARDING_INFO"]), &sharding); err != nil {
			t.Fatalf("%s: sharding info: %v", name, err)
		}
		if len(sharding) != len(h.Entries) {
			t.Errorf("%s: %d keys have offsets; want %d", name, len(sharding), len(h.Entries))
		}
		for _, e := range h.Entries {
			info, ok := sharding[e.Name]
			if !ok || info.Offsets == nil || len(info.Offsets) != len(e.Shape) {
				t.Errorf("%s: %q of shape %v has the offsets %v", name, e.Name, e.Shape, info.Offsets)
			}
			if strings.HasPrefix(e.Name, keyPrefix) {
				if other, twice := owners[e.Name]; twice {
					t.Errorf("%s and %s both have the key %q", name, other, e.Name)
				}
				owners[e.Name] = name
				continue
			}
			if d, _ := safetensors.TensorDType(e.DType); e.Begin%int64(d.Size()) != 0 {
				t.Errorf("%s: %q of %s begins at %d", name, e.Name, e.DType, e.Begin)
			}
			checkPlaced(t, md, e, info.Offsets)
			found[e.Name]++
		}
	}
	want := map[string]int{"flat": 4, "rows": 2, `nested.a"<b>☃.0`: 1}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("chunks by key (-want +got):\n%s", diff)
	}
	if len(owners) != 6 { // two of complex, three reserved names, one value
		t.Errorf("keys of our own = %v; want six", slices.Sorted(maps.Keys(owners)))
	}
}

// checkPlaced compares the entry of a chunk in a header with the metadata.
func checkPlaced(t *testing.T, md *meta.Metadata, e safetensors.Entry, offsets []int64) {
	t.Helper()
	entry, ok := md.Find(e.Name)
	if !ok || entry.Tensor == nil {
		t.Errorf("the metadata has no tensor %q", e.Name)
		return
	}
	i, ok := entry.Tensor.FindChunk(offsets, 0)
	if !ok || !slices.Equal(entry.Tensor.Chunks[i].Sizes, e.Shape) {
		t.Errorf("the metadata has no chunk of %q at %v with sizes %v", e.Name, offsets, e.Shape)
	}
	if name, _ := safetensors.StockName(entry.Tensor.DType); name != e.DType {
		t.Errorf("%q is %s in the file, %v in the metadata", e.Name, e.DType, entry.Tensor.DType)
	}
}

func item(fqn string, size int64) *plan.WriteItem {
	return &plan.WriteItem{Info: &plan.Info{FQN: fqn}, Kind: plan.KindBytes, Size: size}
}

func TestSpreadAssignsEachItemOnce(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "files")
		sizes := rapid.SliceOfN(rapid.Int64Range(0, 100), 0, 40).Draw(t, "sizes")
		items := make([]*plan.WriteItem, len(sizes))
		position := map[*plan.WriteItem]int{}
		for i, size := range sizes {
			items[i] = item(fmt.Sprint("n", rapid.IntRange(0, rapid.SampledFrom([]int{1, 20}).Draw(t, "names")).Draw(t, "name")), size)
			position[items[i]] = i
		}
		seen := map[*plan.WriteItem]bool{}
		files := spread(items, n, nil)
		full := len(files) >= max(n, nameFiles) // there were too many of a name
		for _, f := range files {
			inFile, last := map[string]bool{}, -1
			for _, it := range f {
				if seen[it] || inFile[it.FQN()] && !full || position[it] <= last {
					t.Fatalf("%q: twice, beside its namesake, or out of order", it.FQN())
				}
				seen[it], inFile[it.FQN()], last = true, true, position[it]
			}
			if len(f) == 0 {
				t.Error("a file without items")
			}
		}
		if len(seen) != len(items) {
			t.Errorf("%d of %d items have a file", len(seen), len(items))
		}
	})
}

func TestSpreadBalances(t *testing.T) {
	var items []*plan.WriteItem
	for i := range 100 {
		items = append(items, item(fmt.Sprint(i), int64(i)))
	}
	files := spread(items, 4, nil)
	for _, f := range files {
		var bytes int64
		for _, it := range f {
			bytes += it.Size
		}
		if len(files) != 4 || bytes < 1200 || bytes > 1275 {
			t.Errorf("a file of %d bytes among %d; want a fourth of 4950", bytes, len(files))
		}
	}
}

// The length of a header is limited, but the number of items of a save is not.
func TestSpreadAddsFilesForManyItems(t *testing.T) {
	var items []*plan.WriteItem
	long := strings.Repeat("☃", 1000)
	for i := range 1500 {
		items = append(items, item(fmt.Sprint(long, i), 0))
	}
	files := spread(items, 1, nil)
	if len(files) < 2 {
		t.Fatalf("%d files; want several", len(files))
	}
	for _, f := range files {
		df, err := lay("x", f, nil, &selfDescription{})
		if err != nil {
			t.Fatalf("a file of %d items: %v", len(f), err)
		}
		if len(df.header) > headerMax {
			t.Errorf("a header of %d bytes; want at most %d", len(df.header), headerMax)
		}
	}
}

func TestHeaderCostIsAnUpperBound(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.RuneFrom([]rune("a\"\\\x01<>&☃\u2028\u00e9\U0001F600\x7f")), 1, 20, -1)
		in := &plan.Info{FQN: text.Draw(t, "fqn"), Codec: text.Draw(t, "codec")}
		for range rapid.IntRange(0, 3).Draw(t, "steps") {
			in.Path = append(in.Path, meta.Key(text.Draw(t, "key")), meta.Pos(1<<40))
		}
		in.Properties = meta.Properties{DType: tensor.Complex128, MemoryFormat: text.Draw(t, "format"), Layout: "strided"}
		dims := rapid.IntRange(0, 4).Draw(t, "dims")
		it := &plan.WriteItem{Info: in, Kind: plan.KindShard, Hint: 1 << 30}
		for range dims {
			in.Shape = append(in.Shape, 1<<62)
			it.Box.Offsets = append(it.Box.Offsets, 1<<61)
			it.Box.Sizes = append(it.Box.Sizes, 0)
		}
		base := must.Get(lay("x", nil, nil, &selfDescription{}))(t)
		f := must.Get(lay("x", []*plan.WriteItem{it}, nil, &selfDescription{}))(t)
		text2 := func(h []byte) int { return len(strings.TrimRight(string(h), " ")) }
		if got := int64(text2(f.header) - text2(base.header)); got > headerCost(it) {
			t.Errorf("the item takes %d bytes of the header; headerCost = %d", got, headerCost(it))
		}
	})
}
