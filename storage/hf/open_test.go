package hf

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// An index that names one tensor in one file.
func indexTo(pairs ...string) string {
	var b strings.Builder
	b.WriteString(`{"metadata":{},"weight_map":{`)
	for i := 0; i < len(pairs); i += 2 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + pairs[i] + `":"` + pairs[i+1] + `"`)
	}
	return b.String() + "}}"
}

// Which files of a folder are the checkpoint.
func TestOpenFindsTheCheckpoint(t *testing.T) {
	for name, c := range map[string]struct {
		folder  map[string][]string // file → names of its tensors
		text    map[string]string
		options Format
		want    []string // names of tensors
		files   []string
		err     error
	}{
		"one file": {
			folder: map[string][]string{"model.safetensors": {"a", "b"}}, want: []string{"a", "b"}, files: []string{"model.safetensors"},
		},
		"one file of any name": {
			folder: map[string][]string{"whatever.safetensors": {"a"}}, text: map[string]string{"README.md": "x", "sub/model.safetensors": "x"},
			want: []string{"a"}, files: []string{"whatever.safetensors"},
		},
		"the usual name before others": {
			folder: map[string][]string{"model.safetensors": {"a"}, "adapter_model.safetensors": {"x"}}, want: []string{"a"}, files: []string{"model.safetensors"},
		},
		"an index and strays": {
			folder: map[string][]string{"model-00001-of-00002.safetensors": {"a", "b"}, "model-00002-of-00002.safetensors": {"c"}, "stray.safetensors": {"x"}},
			text:   map[string]string{"model.safetensors.index.json": indexTo("a", "model-00001-of-00002.safetensors", "c", "model-00002-of-00002.safetensors")},
			want:   []string{"a", "c"}, files: []string{"model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
		},
		"diffusers": {
			folder: map[string][]string{"diffusion_pytorch_model-00001-of-00001.safetensors": {"a"}, "other.safetensors": {"x"}},
			text:   map[string]string{"diffusion_pytorch_model.safetensors.index.json": indexTo("a", "diffusion_pytorch_model-00001-of-00001.safetensors")},
			want:   []string{"a"}, files: []string{"diffusion_pytorch_model.safetensors.index.json", "diffusion_pytorch_model-00001-of-00001.safetensors"},
		},
		"an index of any name": {
			folder: map[string][]string{"x1.safetensors": {"a"}}, text: map[string]string{"x.safetensors.index.json": indexTo("a", "x1.safetensors")},
			want: []string{"a"}, files: []string{"x.safetensors.index.json", "x1.safetensors"},
		},
		"an index without tensors": {
			text: map[string]string{"model.safetensors.index.json": indexTo()}, files: []string{"model.safetensors.index.json"},
		},
		"several indexes": {
			text: map[string]string{"x.safetensors.index.json": indexTo(), "y.safetensors.index.json": indexTo()}, err: ErrAmbiguous,
		},
		"several indexes, one asked for": {
			text:    map[string]string{"x.safetensors.index.json": indexTo(), "y.safetensors.index.json": indexTo()},
			options: Format{File: "y.safetensors.index.json"}, files: []string{"y.safetensors.index.json"},
		},
		"several files": {
			folder: map[string][]string{"x.safetensors": {"a"}, "y.safetensors": {"b"}}, err: ErrAmbiguous,
		},
		"several files, one asked for": {
			folder:  map[string][]string{"x.safetensors": {"a"}, "y.safetensors": {"b"}},
			options: Format{File: "y.safetensors"}, want: []string{"b"}, files: []string{"y.safetensors"},
		},
		"a file that is not there, asked for": {
			folder: map[string][]string{"x.safetensors": {"a"}}, options: Format{File: "y.safetensors"}, err: storage.ErrNotFound,
		},
		"the first of one": {
			folder: map[string][]string{"model-00001-of-00001.safetensors": {"a"}}, want: []string{"a"}, files: []string{"model-00001-of-00001.safetensors"},
		},
		"the first of one, twice": {
			folder: map[string][]string{"model-00001-of-00001.safetensors": {"a"}, "adapter-00001-of-00001.safetensors": {"b"}}, err: ErrAmbiguous,
		},
		"shards with a lost index": {
			folder: map[string][]string{"model-00001-of-00002.safetensors": {"a"}}, err: storage.ErrIncomplete,
		},
		"nothing":        {err: storage.ErrNotFound},
		"something else": {text: map[string]string{"a.bin": "x"}, err: storage.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			s := new(mem.Store)
			for file, names := range c.folder {
				var tensors []made
				for _, n := range names {
					tensors = append(tensors, made{n, storagetest.Filled(t, tensor.Float32, []int64{2}, 1)})
				}
				put(t, s, file, nil, tensors...)
			}
			for file, text := range c.text {
				putBytes(t, s, file, text)
			}
			ck, err := c.options.Open(t.Context(), s)
			if c.err != nil || err != nil {
				if !errors.Is(err, c.err) {
					t.Errorf("Open = %v; want %v", err, c.err)
				}
				return
			}
			md := must.Get(ck.Metadata(t.Context()))(t)
			if err := md.Validate(); err != nil {
				t.Error(err)
			}
			if d := cmp.Diff(c.want, md.Names()); d != "" && len(c.want)+len(md.Entries) > 0 {
				t.Errorf("names: -want +got\n%s", d)
			}
			var files []string
			for _, f := range ck.Files() {
				files = append(files, f.Name)
			}
			if d := cmp.Diff(c.files, files); d != "" {
				t.Errorf("files: -want +got\n%s", d)
			}
		})
	}
}

// Metadata that all files have in common becomes the tags of the checkpoint.
func TestTags(t *testing.T) {
	s := new(mem.Store)
	x := made{"a", storagetest.Filled(t, tensor.Float32, []int64{2}, 1)}
	put(t, s, "1.safetensors", map[string]string{"format": "pt", "license": "mit", "part": "1"}, x)
	put(t, s, "2.safetensors", map[string]string{"format": "pt", "license": "mit", "part": "2"}, made{"b", x.x})
	putBytes(t, s, "model.safetensors.index.json", indexTo("a", "1.safetensors", "b", "2.safetensors"))
	ck := must.Get(Format{}.Open(t.Context(), s))(t)
	st := ck.Storage()
	if st.Step != nil {
		t.Errorf("step = %d; want none", *st.Step)
	}
	if d := cmp.Diff(map[string]string{"license": "mit"}, st.Tags); d != "" || st.Version != Version || st.ID != s.String() {
		t.Errorf("storage = %+v; tags: -want +got\n%s", st, d)
	}
}

const ok4 = `{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`

// fileOf returns a file of the given header and data.
func fileOf(header, data string) string {
	n := len(header)
	return string([]byte{byte(n), byte(n >> 8), byte(n >> 16), 0, 0, 0, 0, 0}) + header + data
}

// Open returns ErrCorrupt for headers that package safetensors refuses.
func TestOpenRefusesHostileFiles(t *testing.T) {
	for name, content := range map[string]string{
		"no header":              "abc",
		"a header over 100 MB":   "\xff\xff\xff\xff\x00\x00\x00\x00{}",
		"a header past the end":  "\xff\x00\x00\x00\x00\x00\x00\x00{}",
		"no JSON":                fileOf(`{`, ""),
		"a pointer of Git LFS":   "version https://git-lfs.github.com/spec/v1",
		"a name twice":           fileOf(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}`, "abcd"),
		"tensors that overlap":   fileOf(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}`, "abcdef"),
		"a hole":                 fileOf(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}`, "abcd"),
		"data beyond the tensor": fileOf(ok4, "abcdef"),
		"data cut short":         fileOf(ok4, "abc"),
		"a shape of other bytes": fileOf(`{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,4]}}`, "abcd"),
		"a shape that overflows": fileOf(`{"a":{"dtype":"U8","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,4]}}`, "abcd"),
		"a negative shape":       fileOf(`{"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}}`, "abcd"),
		"an unknown type":        fileOf(`{"a":{"dtype":"X8","shape":[4],"data_offsets":[0,4]}}`, "abcd"),
		"a name that is no text": fileOf("{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "abcd"),
	} {
		t.Run(name, func(t *testing.T) {
			for _, with := range []string{"", indexTo("a", "model.safetensors")} {
				s := new(mem.Store)
				in := "model.safetensors"
				if with != "" {
					in = "m.safetensors"
					putBytes(t, s, "model.safetensors.index.json", indexTo("a", in))
				}
				putBytes(t, s, in, content)
				_, err := Format{}.Open(t.Context(), s)
				if !errors.Is(err, storage.ErrCorrupt) || !errors.Is(err, safetensors.ErrHeader) || !strings.Contains(err.Error(), in) {
					t.Errorf("Open = %v; want ErrCorrupt and ErrHeader with the file", err)
				}
			}
		})
	}
}

// Names that are invalid in cairn are refused. Unusual names are not.
func TestOpenUnusualNames(t *testing.T) {
	s := new(mem.Store)
	putBytes(t, s, "model.safetensors", fileOf(`{"":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, "abcd"))
	if _, err := (Format{}).Open(t.Context(), s); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("Open of a tensor without a name = %v; want ErrCorrupt", err)
	}
	putBytes(t, s, "model.safetensors", fileOf(`{"näme/../\u0000":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, "abcd"))
	if got := loadAll(t, s, Format{}); len(got) != 1 {
		t.Errorf("%d tensors; want one", len(got))
	}
}

func TestOpenRefusesHostileIndexes(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":                       `{`,
		"an array":                      `[]`,
		"no weight map":                 `{"metadata":{}}`,
		"a weight map of null":          `{"weight_map":null}`,
		"a weight map that is a list":   `{"weight_map":["a"]}`,
		"a file that is a number":       `{"weight_map":{"a":1}}`,
		"a file that is a map":          `{"weight_map":{"a":{}}}`,
		"a name twice":                  `{"weight_map":{"a":"1.safetensors","a":"2.safetensors"}}`,
		"a name twice, once escaped":    `{"weight_map":{"a":"1.safetensors","\u0061":"2.safetensors"}}`,
		"two weight maps":               `{"weight_map":{"a":"1.safetensors"},"weight_map":{"b":"1.safetensors"}}`,
		"a file above the folder":       indexTo("a", "../1.safetensors"),
		"a file by its absolute path":   indexTo("a", "/1.safetensors"),
		"a file below the folder":       indexTo("a", "sub/1.safetensors"),
		"no file":                       indexTo("a", ""),
		"bytes that are no text":        "{\"weight_map\":{\"a\":\"1.safetensors\",\"\xff\":\"1.safetensors\"}}",
		"a file that is not there":      indexTo("a", "3.safetensors"),
		"tensors that are not there":    indexTo("y", "1.safetensors", "z", "2.safetensors"),
		"a tensor in the wrong file":    indexTo("a", "2.safetensors"),
		"a tensor in a second file too": indexTo("a", "1.safetensors", "b", "1.safetensors", "c", "2.safetensors"),
	} {
		t.Run(name, func(t *testing.T) {
			s := new(mem.Store)
			x := storagetest.Filled(t, tensor.Float32, []int64{2}, 1)
			put(t, s, "1.safetensors", nil, made{"a", x}, made{"b", x})
			put(t, s, "2.safetensors", nil, made{"b", x}, made{"c", x})
			putBytes(t, s, "model.safetensors.index.json", text)
			if _, err := (Format{}).Open(t.Context(), s); !errors.Is(err, storage.ErrCorrupt) || !errors.Is(err, ErrIndex) {
				t.Errorf("Open = %v; want ErrCorrupt and ErrIndex", err)
			}
		})
	}
}

// rows is a file of the distributed form that holds rows of a tensor.
func rows(at string, d tensor.DType, shape ...int64) func(t *testing.T, s *mem.Store, name string) {
	return func(t *testing.T, s *mem.Store, name string) {
		put(t, s, name, map[string]string{"DCP_SHARDING_INFO": `{"a":{"saved_offsets":` + at + `}}`}, made{"a", storagetest.Filled(t, d, shape, 1)})
	}
}

func TestOpenRefusesContradictingShards(t *testing.T) {
	const f32, none = tensor.Float32, "shard-00001-model-00001-of-00001.safetensors"
	for name, files := range map[string][]func(*testing.T, *mem.Store, string){
		"a hole":                   {rows("[0,0]", f32, 2, 3), rows("[3,0]", f32, 2, 3)},
		"a part only":              {rows("[2,0]", f32, 2, 3)},
		"another type":             {rows("[0,0]", f32, 2, 3), rows("[2,0]", tensor.Int32, 2, 3)},
		"another dimension":        {rows("[0,0]", f32, 2, 3), rows("[2]", f32, 2)},
		"a negative offset":        {rows("[-1,0]", f32, 2, 3)},
		"an offset that overflows": {rows("[9223372036854775807,0]", f32, 2, 3)},
		"offsets of many elements": {rows("[4611686018427387904,4611686018427387904]", f32, 2, 3)},
		"too few offsets":          {rows("[0]", f32, 2, 3)},
		"no offsets":               {rows("null", f32, 2, 3)},
		"offsets that are text":    {rows(`"0"`, f32, 2, 3)},
		"offsets of another name": {func(t *testing.T, s *mem.Store, name string) {
			put(t, s, name, map[string]string{"DCP_SHARDING_INFO": `{"b":{"saved_offsets":[0]}}`}, made{"a", storagetest.Filled(t, f32, []int64{2}, 1)})
		}},
		"sharding that is null": {func(t *testing.T, s *mem.Store, name string) {
			put(t, s, name, map[string]string{"DCP_SHARDING_INFO": `null`}, made{"a", storagetest.Filled(t, f32, []int64{2}, 1)})
		}},
		"files with and without sharding": {rows("[0,0]", f32, 2, 3), func(t *testing.T, s *mem.Store, name string) {
			put(t, s, name, nil, made{"a", storagetest.Filled(t, f32, []int64{2, 3}, 1)})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := new(mem.Store)
			for i, write := range files {
				write(t, s, strings.Replace(none, "shard-00001", "shard-0000"+string(rune('1'+i)), 1))
			}
			if _, err := (Format{}).Open(t.Context(), s); !errors.Is(err, storage.ErrCorrupt) || !errors.Is(err, ErrSharding) {
				t.Errorf("Open = %v; want ErrCorrupt and ErrSharding", err)
			}
		})
	}
}

// PyTorch's HuggingFaceStorageWriter leaves the files of an earlier save with more ranks, or with
// another number of files for each rank.
func TestOpenRefusesSeveralSavesOfPyTorch(t *testing.T) {
	part := func(at string, n int64) func(*testing.T, *mem.Store, string) { return rows(at, tensor.Float32, n, 3) }
	for name, files := range map[string]map[string]func(*testing.T, *mem.Store, string){
		"more ranks before": {
			"shard-00001-model-00001-of-00001.safetensors": part("[0,0]", 4),
			"shard-00002-model-00001-of-00001.safetensors": part("[2,0]", 2),
		},
		"the same again, in other files": {
			"shard-00001-model-00001-of-00001.safetensors": part("[0,0]", 4),
			"shard-00001-model-00002-of-00002.safetensors": part("[0,0]", 4),
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := new(mem.Store)
			for file, write := range files {
				write(t, s, file)
			}
			_, err := (Format{}).Open(t.Context(), s)
			if !errors.Is(err, ErrAmbiguous) || errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), "a folder of its own") {
				t.Errorf("Open = %v; want %v and what to do", err, ErrAmbiguous)
			}
			for file := range files { // each file can be read alone
				if _, err := (Format{File: file}).Open(t.Context(), s); err != nil {
					t.Errorf("Open of %s = %v", file, err)
				}
			}
		})
	}
	// Files of other names are not PyTorch's.
	s := new(mem.Store)
	part("[0,0]", 4)(t, s, "shard-00001-x-model-00001-of-00001.safetensors")
	part("[2,0]", 2)(t, s, "shard-00002-x-model-00001-of-00001.safetensors")
	if _, err := (Format{}).Open(t.Context(), s); !errors.Is(err, storage.ErrCorrupt) || !errors.Is(err, ErrSharding) {
		t.Errorf("Open = %v; want ErrCorrupt and ErrSharding", err)
	}
}

// A file of an index must hold whole tensors, not shards.
func TestIndexedShards(t *testing.T) {
	s := new(mem.Store)
	rows("[0,0]", tensor.Float32, 2, 3)(t, s, "1.safetensors")
	putBytes(t, s, "model.safetensors.index.json", indexTo("a", "1.safetensors"))
	if got := loadAll(t, s, Format{}); len(got) != 1 {
		t.Errorf("%d tensors; want one: PyTorch also writes the offsets of whole tensors", len(got))
	}
	rows("[2,0]", tensor.Float32, 2, 3)(t, s, "1.safetensors")
	if _, err := (Format{}).Open(t.Context(), s); !errors.Is(err, ErrSharding) {
		t.Errorf("Open = %v; want ErrSharding", err)
	}
}

// Ranks without a part of a tensor write empty chunks, several at the same offset.
func TestEmptyShards(t *testing.T) {
	s := new(mem.Store)
	rows("[0,0]", tensor.Float32, 2, 3)(t, s, "shard-00001-model-00001-of-00001.safetensors")
	rows("[2,0]", tensor.Float32, 0, 3)(t, s, "shard-00002-model-00001-of-00001.safetensors")
	rows("[2,0]", tensor.Float32, 0, 3)(t, s, "shard-00003-model-00001-of-00001.safetensors")
	x := loadAll(t, s, Format{})["a"].(*tensor.Tensor)
	if !tensor.Equal(x, storagetest.Filled(t, tensor.Float32, []int64{2, 3}, 1)) {
		t.Errorf("a = %v; want its two rows", x)
	}
	ck := must.Get(Format{}.Open(t.Context(), s))(t)
	if n := ck.Storage().Notes; len(n) != 1 || n[0] != noteNoList {
		t.Errorf("notes = %q; want that no list of the files exists", n)
	}
}

// The names of a lost file of an index are missing. All others can be read.
func TestLostFilesOfAnIndex(t *testing.T) {
	s := new(mem.Store)
	x := storagetest.Filled(t, tensor.Float32, []int64{2}, 1)
	var pairs []string
	for i, name := range []string{"a", "b", "c", "d"} {
		file := string(rune('1'+i)) + ".safetensors"
		put(t, s, file, nil, made{name, x})
		pairs = append(pairs, name, file)
	}
	putBytes(t, s, "model.safetensors.index.json", indexTo(append(pairs, "z", "1.safetensors")...))
	putBytes(t, s, "2.safetensors", fileOf(ok4, "abc"))
	putBytes(t, s, "3.safetensors", "")
	storagetest.Remove(t, s, "4.safetensors")
	ck, err := Format{}.Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	checkMissing(t, s, ck, 5, []string{"b", "c", "d", "z"}, []string{"1.safetensors", "2.safetensors", "3.safetensors", "4.safetensors"})
	if _, err := (Format{Dequantize: true}).Open(t.Context(), s); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("Open to dequantise = %v; want ErrCorrupt: scales may be missing", err)
	}
	storagetest.Remove(t, s, "1.safetensors")
	_, err = Format{}.Open(t.Context(), s)
	for i := range 4 {
		if file := string(rune('1'+i)) + ".safetensors"; !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), file) {
			t.Errorf("Open = %v; want ErrCorrupt and %s", err, file)
		}
	}
}

// A single shard can be opened as a file of tensors, with a note.
func TestOpenOneShardAddsANote(t *testing.T) {
	s := new(mem.Store)
	const distributed, numbered = "shard-00002-model-00001-of-00001.safetensors", "model-00002-of-00005.safetensors"
	rows("[2,0]", tensor.Float32, 2, 3)(t, s, distributed)
	put(t, s, numbered, nil, made{"a", storagetest.Filled(t, tensor.Float32, []int64{2, 3}, 1)})
	put(t, s, "weights", nil, made{"a", storagetest.Filled(t, tensor.Float32, []int64{2, 3}, 1)})
	for name, notes := range map[string]int{distributed: 1, numbered: 1, "weights": 0} {
		ck, err := Format{}.Open(t.Context(), blob.NewSingle(s, name))
		if err != nil {
			t.Errorf("Open of %s = %v", name, err)
			continue
		}
		e, ok, err := ck.Find(t.Context(), "a")
		if err != nil || !ok || !slices.Equal(e.Tensor.Shape, []int64{2, 3}) || len(ck.Storage().Notes) != notes {
			t.Errorf("%s: %v, %v, notes %q; want the tensor and %d notes", name, e, err, ck.Storage().Notes, notes)
		}
		if rep, err := ck.Verify(t.Context(), nil); err != nil || len(rep.Problems) > 0 || len(rep.Notes) != notes {
			t.Errorf("%s: Verify = %+v, %v; want no problems", name, rep, err)
		}
	}
}
