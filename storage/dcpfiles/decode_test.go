package dcpfiles_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// wantTree is the document of newTree.
func wantTree(d dcpfiles.Dialect) *dcpfiles.Document {
	codec, format := dcpfiles.CodecTorch, "channels_last"
	if d != dcpfiles.Torch {
		codec, format = dcpfiles.CodecPickle, ""
	}
	return &dcpfiles.Document{Dialect: d, Meta: &meta.Metadata{Entries: []meta.Entry{
		{FQN: "v", Path: meta.Path{meta.Key("v")}, Bytes: &meta.Bytes{Codec: codec, Size: 7,
			Loc: meta.Location{File: "__0_0.distcp", Offset: 100, Length: 7}}},
		{FQN: "w", Path: meta.Path{meta.Key("model"), meta.Pos(0), meta.Key("w")}, Tensor: &meta.Tensor{
			Properties: meta.Properties{DType: tensor.Float32, RequiresGrad: true, MemoryFormat: format},
			Shape:      []int64{4, 3},
			Chunks: []tensor.Box{{Offsets: []int64{0, 0}, Sizes: []int64{2, 3}},
				{Offsets: []int64{2, 0}, Sizes: []int64{2, 3}}},
			Locs: []meta.Location{{File: "__0_0.distcp", Length: 100}, {File: "__1_0.distcp", Offset: 50, Length: 100}},
		}},
	}}}
}

func TestDecodeAllVersionsAndProtocols(t *testing.T) {
	for _, c := range []struct {
		name  string
		names names
		want  dcpfiles.Dialect
	}{
		{"torch.distributed.checkpoint", torchNames, dcpfiles.Torch},
		{"torch.distributed._shard.checkpoint", torchOldNames, dcpfiles.Torch},
		{"hyper_parallel.core.distributed_checkpoint", hyperNames, dcpfiles.Hyper},
	} {
		for p := 2; p <= 5; p++ {
			got, err := dcpfiles.Decode(t.Context(), newTree(c.names).bytes(t, p))
			if err != nil {
				t.Fatalf("%s in protocol %d: %v", c.name, p, err)
			}
			if diff := cmp.Diff(wantTree(c.want), got); diff != "" {
				t.Errorf("%s in protocol %d (-want +got):\n%s", c.name, p, diff)
			}
		}
	}
}

func TestUnknownFieldsInMetadata(t *testing.T) {
	tr := newTree(torchNames)
	field(tr.root)["version"] = "1.0.0"
	field(tr.root)["something_newer"] = []any{int64(1)}
	field(tr.root)["storage_meta"] = object(torch+".metadata.StorageMeta", state{
		"checkpoint_id": called("pathlib.PosixPath", "/", "data", "step1"), "save_id": "s", "load_id": nil, "modules": []any{"m"}})
	field(tr.place)["transform_descriptors"] = []any{"stream.zstd/1", "other/2"}
	got := must.Get(dcpfiles.Decode(t.Context(), tr.bytes(t, 4)))(t)
	want := wantTree(dcpfiles.Torch)
	want.Version, want.Modules = "1.0.0", []string{"m"}
	want.Meta.Storage = meta.Storage{ID: "/data/step1", SaveID: "s"}
	want.Meta.Entries[1].Tensor.Locs[0].Detail = &meta.Detail{Transforms: []string{"stream.zstd/1", "other/2"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// PyTorch 2.15 added the strides to a state that is a tuple.
func TestUnknownTensorProperties(t *testing.T) {
	known := value.Tuple{&value.Object{Module: "torch", Name: "float32"}, &value.Object{Module: "torch", Name: "strided"}, true, nil, false}
	for n, more := range []value.Tuple{nil, {nil}, {tuple(3, 1)}, {tuple(1, 4), "and more"}} {
		tr := newTree(torchNames)
		field(tr.tensor)["properties"].(*value.Object).State = append(slices.Clone(known), more...)
		got, err := dcpfiles.Decode(t.Context(), tr.bytes(t, 4))
		if err != nil {
			t.Fatalf("%d values more: %v", n, err)
		}
		want := meta.Properties{DType: tensor.Float32, RequiresGrad: true}
		if p := got.Meta.Entries[1].Tensor.Properties; p != want {
			t.Errorf("%d values more: %+v; want %+v", n, p, want)
		}
	}
}

func TestChunksInContainersHaveKeysAndLengths(t *testing.T) {
	tr := newTree(hyperNames)
	field(tr.place)["length"] = int64(-1)
	field(tr.place)["tensor_key"] = "w.__dcp_chunk_0"
	field(tr.index)["offset"] = tuple(0, 0)
	got := must.Get(dcpfiles.Decode(t.Context(), tr.bytes(t, 5)))(t)
	want := meta.Location{File: "__0_0.distcp", Length: 24, Detail: &meta.Detail{Key: "w.__dcp_chunk_0"}}
	if diff := cmp.Diff(want, got.Meta.Entries[1].Tensor.Locs[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOtherPlannerDataIsKept(t *testing.T) {
	tr := newTree(torchNames)
	field(tr.root)["planner_data"] = []any{"rank", int64(3), nil}
	d := must.Get(dcpfiles.Decode(t.Context(), tr.bytes(t, 4)))(t)
	if got := string(d.Meta.PlannerData); got != `["rank",3,null]` || d.Meta.Entries[0].Path != nil {
		t.Errorf("planner data = %s and paths %v; want the list and none", got, d.Meta.Entries[0].Path)
	}
	b := must.Get(dcpfiles.Encode(d))(t)
	again := must.Get(dcpfiles.Decode(t.Context(), b))(t)
	if diff := cmp.Diff(d, again); diff != "" {
		t.Errorf("encoded (-want +got):\n%s", diff)
	}
}

func TestDecodeDropsRedundantChunks(t *testing.T) {
	tr := newTree(torchNames)
	chunks := field(tr.tensor)["chunks"].([]any)
	twin := object(torch+".metadata.ChunkStorageMetadata", state{"offsets": size(0, 0), "sizes": size(2, 3)})
	empty := object(torch+".metadata.ChunkStorageMetadata", state{"offsets": size(4, 0), "sizes": size(0, 3)})
	field(tr.tensor)["chunks"] = append(chunks, twin, empty)
	got := must.Get(dcpfiles.Decode(t.Context(), tr.bytes(t, 4)))(t)
	if diff := cmp.Diff(wantTree(dcpfiles.Torch), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDecodeRefusesInvalidDocuments(t *testing.T) {
	foreign := called("os.system", "id")
	for _, c := range []struct {
		name string
		make func(*tree)
		want string
	}{
		{"no Metadata", func(t *tree) { t.root = foreign }, "os.system"},
		{"a dict instead of Metadata", func(t *tree) { t.root.Call, t.root.State = false, nil }, "Metadata"},
		{"no entries", func(t *tree) { delete(field(t.root), "state_dict_metadata") }, "state_dict_metadata"},
		{"a foreign entry", func(t *tree) { field(t.root)["state_dict_metadata"].(state)["w"] = foreign }, "os.system"},
		{"a name that is not a string", func(t *tree) {
			field(t.root)["state_dict_metadata"] = &value.Dict{Pairs: []value.Pair{{Key: int64(1), Value: t.tensor}}}
		}, "a name is an int"},
		{"foreign properties", func(t *tree) { field(t.tensor)["properties"] = foreign }, "os.system"},
		{"a foreign dtype", func(t *tree) {
			field(t.tensor)["properties"].(*value.Object).State.(value.Tuple)[0] = foreign
		}, "os.system"},
		{"an unknown dtype", func(t *tree) {
			field(t.tensor)["properties"].(*value.Object).State.(value.Tuple)[0] = &value.Object{Module: "torch", Name: "qint8"}
		}, "qint8"},
		{"a foreign layout", func(t *tree) {
			field(t.tensor)["properties"].(*value.Object).State.(value.Tuple)[1] = foreign
		}, "os.system"},
		{"a foreign memory format", func(t *tree) {
			field(t.tensor)["properties"].(*value.Object).State.(value.Tuple)[3] = foreign
		}, "os.system"},
		{"properties that are too few", func(t *tree) {
			field(t.tensor)["properties"].(*value.Object).State = value.Tuple{nil}
		}, "TensorProperties"},
		{"a flag that is not a boolean", func(t *tree) {
			field(t.tensor)["properties"].(*value.Object).State.(value.Tuple)[2] = "yes"
		}, "requires_grad"},
		{"a size of strings", func(t *tree) { field(t.tensor)["size"] = value.Tuple{"4"} }, "size"},
		{"a negative size", func(t *tree) { field(t.tensor)["size"] = size(-4, 3) }, "w"},
		{"a size that overflows", func(t *tree) { field(t.tensor)["size"] = size(1<<40, 1<<40) }, "w"},
		{"chunks that are no list", func(t *tree) { field(t.tensor)["chunks"] = foreign }, "os.system"},
		{"a foreign chunk", func(t *tree) { field(t.tensor)["chunks"] = []any{foreign} }, "os.system"},
		{"a chunk of another rank", func(t *tree) { field(t.chunk)["sizes"] = size(2) }, "w"},
		{"a chunk out of bounds", func(t *tree) { field(t.chunk)["sizes"] = size(5, 3) }, "w"},
		{"a chunk with an unknown field", func(t *tree) { field(t.chunk)["stride"] = int64(2) }, "stride"},
		{"a chunk without a place", func(t *tree) { t.places.Pairs = t.places.Pairs[1:] }, "[0 0]"},
		{"a value without a place", func(t *tree) { t.places.Pairs = t.places.Pairs[:2] }, `"v"`},
		{"no places at all", func(t *tree) { field(t.root)["storage_data"] = nil }, "no location"},
		{"places that are no dict", func(t *tree) { field(t.root)["storage_data"] = foreign }, "os.system"},
		{"a foreign index", func(t *tree) { t.places.Pairs[0].Key = "w" }, "a str"},
		{"a foreign place", func(t *tree) { t.places.Pairs[0].Value = foreign }, "os.system"},
		{"a place for an unknown name", func(t *tree) { field(t.index)["fqn"] = "x" }, `"x"`},
		{"a place for an unknown chunk", func(t *tree) { field(t.index)["offset"] = size(1, 0) }, "[1 0]"},
		{"an offset of no chunk", func(t *tree) { field(t.index)["offset"] = nil }, "offset"},
		{"no file", func(t *tree) { field(t.place)["relative_path"] = nil }, "relative_path"},
		{"a file without a name", func(t *tree) { field(t.place)["relative_path"] = "" }, "relative_path"},
		{"a negative offset", func(t *tree) { field(t.place)["offset"] = int64(-1) }, "-1"},
		{"a length of -1", func(t *tree) { field(t.place)["length"] = int64(-1) }, "-1"},
		{"an offset beyond 58 bits", func(t *tree) { field(t.place)["offset"] = int64(1 << 62) }, "offset is a number out of range"},
		{"a length beyond 58 bits", func(t *tree) { field(t.place)["length"] = int64(1 << 62) }, "length is a number out of range"},
		{"no length", func(t *tree) { delete(field(t.place), "length") }, "length"},
		{"an unknown field of a place", func(t *tree) { field(t.place)["encryption"] = "aes" }, "encryption"},
		{"transforms that are no strings", func(t *tree) { field(t.place)["transform_descriptors"] = []any{foreign} }, "os.system"},
		{"a foreign storage_meta", func(t *tree) { field(t.root)["storage_meta"] = foreign }, "os.system"},
		{"a version that is no string", func(t *tree) { field(t.root)["version"] = 1.0 }, "version"},
		{"a class with arguments", func(t *tree) { t.chunk.Args = tuple(1) }, "ChunkStorageMetadata"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for p := 2; p <= 4; p += 2 {
				tr := newTree(torchNames)
				c.make(tr)
				_, err := dcpfiles.Decode(t.Context(), tr.bytes(t, p))
				if !errors.Is(err, dcpfiles.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("protocol %d: Decode = %v; want ErrInvalid with %q", p, err, c.want)
				}
			}
		})
	}
}

// PyTorch saves and loads such names, so the document is valid.
func TestDecodeUnsupportedNames(t *testing.T) {
	for _, name := range []string{"", strings.Repeat("x", meta.MaxFQN+1), "\xed\xa0\x80"} {
		tr := newTree(torchNames)
		entries := field(tr.root)["state_dict_metadata"].(state)
		entries[name] = entries["w"]
		_, err := dcpfiles.Decode(t.Context(), tr.bytes(t, 4))
		if !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, dcpfiles.ErrInvalid) || !strings.Contains(err.Error(), "1 to 4096 bytes") {
			t.Errorf("Decode with the name %.10q = %v; want ErrUnsupported with the lengths", name, err)
		}
	}
}

func TestDecodePeculiarPickles(t *testing.T) {
	chunk := "\x8c\x25torch.distributed.checkpoint.metadata\x8c\x14ChunkStorageMetadata\x93"
	for _, c := range []struct {
		name, pickle string
		want         error
	}{
		{"no pickle", "PK\x03\x04", pickle.ErrMalformed},
		{"nothing", "", pickle.ErrMalformed},
		{"a persistent id", "\x80\x04K\x01Q.", dcpfiles.ErrInvalid},
		{"two objects with one state", "\x80\x04" + chunk + "\x94)\x81}\x94b0h\x00)\x81h\x01b.", pickle.ErrUnsupported},
		{"the state of a chunk as a value", "\x80\x04" + chunk + ")\x81}.", pickle.ErrMalformed},
		{"a chunk that is called", "\x80\x04" + chunk + ")R.", pickle.ErrUnsupported},
		{"a chunk with a list as its state", "\x80\x04" + chunk + ")\x81]b.", pickle.ErrMalformed},
		{"a chunk with the key 1", "\x80\x04" + chunk + ")\x81}K\x01K\x01sb.", pickle.ErrMalformed},
		{"bytes after the end", "\x80\x04N.N", dcpfiles.ErrInvalid},
	} {
		if _, err := dcpfiles.Decode(t.Context(), []byte(c.pickle)); !errors.Is(err, c.want) || !errors.Is(err, dcpfiles.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid and %v", c.name, err, c.want)
		}
	}
}

// every prefix of a document is refused, and none panics
func TestDecodeRefusesTruncatedDocuments(t *testing.T) {
	b := newTree(torchNames).bytes(t, 4)
	for n := range len(b) {
		if _, err := dcpfiles.Decode(t.Context(), b[:n]); !errors.Is(err, dcpfiles.ErrInvalid) {
			t.Fatalf("cut to %d of %d bytes: %v; want ErrInvalid", n, len(b), err)
		}
	}
}

// Parts that are shared in the pickle again and again do not make a document
// larger than its bytes allow.
func TestSharedPartsAreBounded(t *testing.T) {
	const n = 3000
	class := func(name string) string {
		return "ctorch.distributed.checkpoint.metadata\n" + name + "\n)\x81"
	}
	str := func(s string) string { return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s }
	put := func(i int) string { return "r" + string(binary.LittleEndian.AppendUint32(nil, uint32(i))) }
	get := func(i int) string { return "j" + string(binary.LittleEndian.AppendUint32(nil, uint32(i))) }
	names := func(of string) string {
		out := "}("
		for i := range n {
			out += str(fmt.Sprintf("name%d", i)) + of
		}
		return out + "u"
	}
	doc := func(entries, planner string) []byte {
		return []byte("\x80\x02" + class("Metadata") + "}(" + str("state_dict_metadata") + entries + str("planner_data") + planner + str("storage_data") + "}ub.")
	}
	props := class("TensorProperties") + "}(" + str("dtype") + "ctorch\nfloat32\nub"
	chunk := class("ChunkStorageMetadata") + "}(" + str("offsets") + ")" + str("sizes") + ")ub"
	tensor := class("TensorStorageMetadata") + "}(" + str("properties") + props + str("size") + ")" + str("chunks") +
		"](" + chunk + put(2) + strings.Repeat(get(2), 100*n) + "eub" + put(1)
	for name, b := range map[string][]byte{
		"a list of chunks": doc("}("+str("first")+tensor+"u"+names(get(1))[1:], "N"),
		"a path":           doc("}", "}("+str("first")+"("+strings.Repeat("K\x01", 100*n)+"t"+put(1)+"u"+names(get(1))[1:]),
		"a key of paths":   doc("}", "}("+str("first")+str(strings.Repeat("a", 100*n))+put(1)+"\x85u"+names(get(1) + "\x85")[1:]),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := dcpfiles.Decode(t.Context(), b)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, pickle.ErrLimit) {
			t.Errorf("%s: %v; want ErrLimit", name, err)
		}
		if got, most := after.TotalAlloc-before.TotalAlloc, uint64(256<<20+128*len(b)); got > most {
			t.Errorf("%s of %d bytes took %d bytes of memory; want at most %d", name, len(b), got, most)
		}
	}
}
