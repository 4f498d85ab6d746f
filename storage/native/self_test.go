package native

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestPathsOfDescriptionsRoundTrip(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		var want meta.Path
		for range rapid.IntRange(1, 5).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				want = append(want, meta.Pos(rapid.IntRange(0, 1<<40).Draw(t, "pos")))
			case 1:
				want = append(want, meta.IntKey(rapid.Int64().Draw(t, "int")))
			case 2:
				want = append(want, meta.Key(rapid.String().Draw(t, "key")))
			}
		}
		b := must.Get(json.Marshal(pathJSON(want)))(t)
		var got pathJSON
		if err := json.Unmarshal(b, &got); err != nil || !meta.Path(got).Equal(want) {
			t.Errorf("%s became %v, %v; want %v", b, got, err, want)
		}
	})
}

func TestBadPathsAreRefused(t *testing.T) {
	for _, text := range []string{`[null]`, `[1.5]`, `[-1]`, `[true]`, `[["a"]]`, `[{}]`, `{"a":1}`, `"a"`, `[99999999999999999999]`, `[1e3]`,
		`[{"int":1}]`, `[{"int":"a"}]`, `[{"int":"01"}]`, `[{"int":""}]`, `[{"int":"1","b":1}]`, `[{"Int":"1"}]`,
	} {
		var p pathJSON
		if err := json.Unmarshal([]byte(text), &p); err == nil {
			t.Errorf("Unmarshal(%s) = %v; want a refusal", text, p)
		}
	}
}

func TestDecodeSelfNamesItsErrors(t *testing.T) {
	for text, want := range map[string]error{
		"":                                    storage.ErrCorrupt,
		"null":                                storage.ErrVersion, // without a version
		`{"version":"1"}`:                     storage.ErrCorrupt,
		`{"version":3,"rank":{}}`:             storage.ErrVersion, // a newer one may mean anything by it
		`{"version":1,"rank":{}}`:             storage.ErrCorrupt,
		`{"version":1,"values":[{"fqn":""}]}`: storage.ErrCorrupt,
		`{"version":1,"items":{"a":{"path":[null]}}}`:       storage.ErrCorrupt,
		`{"version":1,"time":"yesterday"}`:                  storage.ErrCorrupt,
		`{"version":1,"items":{"a":{"chunk":99999999999}}}`: storage.ErrCorrupt,
	} {
		if s, err := decodeSelf(text); !errors.Is(err, want) {
			t.Errorf("decodeSelf(%s) = %+v, %v; want %v", text, s, err, want)
		}
	}
}

// sampleSelf is a description with every field.
func sampleSelf() *selfDescription {
	return &selfDescription{
		Version: 1, SaveID: "s", Step: new(int64(-3)), Time: time.Date(2026, 3, 14, 15, 9, 26, 5, time.UTC), WorldSize: 2, Ranks: 1,
		Rank: 0, Files: 1, Number: 0, Writer: "w", Tags: map[string]string{"k": "v"},
		Items: map[string]selfItem{
			"x": {
				Path: pathJSON{meta.Key("x")}, DType: "float32", Shape: []int64{2, 2}, Chunk: 1, Offsets: []int64{0, 0},
				RequiresGrad: true, MemoryFormat: "channels_last", Layout: "strided", PinMemory: true,
			},
			keyPrefix + "0.0.1": {FQN: "v", Path: pathJSON{meta.Key("l"), meta.Pos(0)}, Codec: "raw"},
		},
		Values: []selfValue{{FQN: "n", Path: pathJSON{meta.Key("n")}, Codec: "json", Data: []byte("1")}},
	}
}

func FuzzDecodeSelf(f *testing.F) {
	b := must.Get(json.Marshal(sampleSelf()))(f)
	f.Add(string(b))
	f.Add(`{"version":1,"items":{"a":{"path":["b",3],"shape":[]}}}`)
	f.Add(`{"version":1,"items":{"a":{"path":["b",{"int":"-3"}],"shape":[]}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := decodeSelf(text)
		if err != nil {
			if !isNamed(err) {
				t.Errorf("decodeSelf = %v; want a named error", err)
			}
			return
		}
		b, err := json.Marshal(got)
		if err != nil {
			return // a time that JSON cannot write
		}
		again, err := decodeSelf(string(b))
		if err != nil {
			t.Fatalf("decodeSelf of what was encoded = %v", err)
		}
		c, err := json.Marshal(again)
		if err != nil || string(b) != string(c) {
			t.Errorf("encoded again: %v (-first +second):\n%s", err, cmp.Diff(string(b), string(c)))
		}
	})
}

// sampleFile returns a data file of a save "s" with one rank, without padding.
func sampleFile(tb testing.TB) []byte {
	self := &selfDescription{Version: 1, SaveID: "s", Ranks: 1, Files: 1, WorldSize: 1}
	self.Values = sampleSelf().Values
	info := &plan.Info{FQN: "x", Shape: []int64{2, 2}}
	info.DType = tensor.Float32
	items := []*plan.WriteItem{
		{Info: info, Kind: plan.KindTensor, Box: tensor.Whole(info.Shape)},
		{Info: &plan.Info{FQN: "v", Codec: "raw"}, Kind: plan.KindBytes, Size: 3},
	}
	f := must.Get(lay("s", items, nil, self))(tb)
	h := must.Get(safetensors.Decode(func(p []byte, off int64) error { copy(p, f.header[off:]); return nil }, f.size))(tb)
	b := must.Get(safetensors.Encode(h, 1))(tb)
	return append(b, make([]byte, f.size-int64(len(f.header)))...)
}

// For any description of a data file, Repair returns an error or makes a checkpoint that
// loads.
func FuzzRepair(f *testing.F) {
	f.Add(sampleFile(f))
	f.Add([]byte("\x08\x00\x00\x00\x00\x00\x00\x00{}      "))
	f.Fuzz(func(t *testing.T, file []byte) {
		s := new(mem.Store)
		must.Get(blob.WriteAll(t.Context(), s, DataFileName("s", 0, 0), file, nil))(t)
		if _, err := Repair(t.Context(), s, nil); err != nil {
			if !errors.Is(err, storage.ErrIncomplete) && !errors.Is(err, meta.ErrInvalid) {
				t.Errorf("Repair = %v; want a named error", err)
			}
			return
		}
		if _, err := storage.NewReader(Format{}.Open, s, storage.ReadOptions{}).ReadMetadata(t.Context()); err != nil {
			t.Errorf("ReadMetadata of what was repaired = %v", err)
		}
		checkWhole(t, s)
	})
}

// The description of items has the bytes that encoding/json writes.
func TestDescriptionsEqualEncodingJSON(t *testing.T) {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("ab\"\\\x01<>&\u2603\u2028\ufffd\x7f")), 1, 6, -1)
	deep.Check(t, func(t *rapid.T) {
		var items []*plan.WriteItem
		for i := range rapid.IntRange(0, 6).Draw(t, "items") {
			in := &plan.Info{FQN: text.Draw(t, "fqn"), Shape: rapid.SampledFrom([][]int64{nil, {}, {6}, {4, 2}}).Draw(t, "shape")}
			in.Properties = meta.Properties{
				DType:        rapid.SampledFrom([]tensor.DType{tensor.Float32, tensor.Complex128}).Draw(t, "dtype"),
				RequiresGrad: rapid.Bool().Draw(t, "grad"), PinMemory: rapid.Bool().Draw(t, "pin"),
				MemoryFormat: rapid.SampledFrom([]string{"", "channels_last"}).Draw(t, "format"),
			}
			in.Path = rapid.SampledFrom([]meta.Path{nil, {meta.Key(in.FQN)}, {meta.Pos(3), meta.IntKey(-5)}}).Draw(t, "path")
			it := &plan.WriteItem{Info: in, Kind: plan.KindShard, Hint: int32(i), Box: tensor.Whole(in.Shape)}
			if rapid.Bool().Draw(t, "value") {
				*it = plan.WriteItem{Info: &plan.Info{FQN: in.FQN, Path: in.Path, Codec: text.Draw(t, "codec")}, Kind: plan.KindBytes, Size: 3}
			}
			items = append(items, it)
		}
		self := sampleSelf()
		self.Tags = map[string]string{"items": `{}`, `"items":{}`: text.Draw(t, "tag")}
		f := must.Get(lay("f", items, nil, self))(t)
		h := must.Get(safetensors.Decode(func(p []byte, off int64) error { copy(p, f.header[off:]); return nil }, f.size))(t)
		sharding := map[string]any{}
		self.Items = map[string]selfItem{}
		for i, p := range f.items {
			self.Items[p.key] = describeItem(&p)
			told := map[string]any{"saved_offsets": append([]int64{}, p.item.Box.Offsets...)}
			if h.Entries[i].DType == "U8" { // safetensors has no type for it
				told["saved_offsets"] = []int64{0}
			} else if p.key != p.item.FQN() {
				told["logical_fqn"] = p.item.FQN()
			}
			sharding[p.key] = told
		}
		want, err := json.Marshal(self)
		if d := cmp.Diff(string(want), h.Metadata[metaSelf]); d != "" || err != nil {
			t.Errorf("description, %v (-want +got):\n%s", err, d)
		}
		var got map[string]any
		must.Do(t, json.Unmarshal([]byte(h.Metadata[metaSharding]), &got))
		wantText, err := json.Marshal(sharding)
		gotText, err2 := json.Marshal(got)
		if d := cmp.Diff(string(wantText), string(gotText)); d != "" || err != nil || err2 != nil {
			t.Errorf("sharding, %v, %v (-want +got):\n%s", err, err2, d)
		}
	})
}
