package dcpfiles_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

func TestFixturesRoundTrip(t *testing.T) {
	for _, c := range withDocuments(t) {
		t.Run(c.Name, func(t *testing.T) { checkRoundTrip(t, decodeAll(t, c.Dir)) })
	}
}

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func checkRoundTrip(t failer, want *dcpfiles.Document) {
	t.Helper()
	b, err := dcpfiles.Encode(want)
	if err != nil {
		t.Fatalf("Encode: %v", err)
	}
	got, err := dcpfiles.Decode(context.Background(), b)
	if err != nil {
		t.Fatalf("Decode: %v", err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	if again, err := dcpfiles.Encode(got); err != nil || !bytes.Equal(b, again) {
		t.Fatalf("the same document has other bytes (%v)", err)
	}
}

// document draws a document of some entries.
func document(t *rapid.T) *dcpfiles.Document {
	n := func(name string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(t, name) }
	d := &dcpfiles.Document{Meta: new(meta.Metadata), Dialect: dcpfiles.Dialect(n("dialect", 0, 2)), Version: "1.0"}
	codec := dcpfiles.CodecPickle
	if d.Dialect == dcpfiles.Torch {
		codec = dcpfiles.CodecTorch
		d.Meta.Storage.SaveID = "save"
	}
	for i := range n("entries", 0, 5) {
		e := meta.Entry{FQN: fmt.Sprintf("model.%d.ü", i), Path: meta.Path{meta.Key("model"), meta.Pos(i), meta.Key("ü")}}
		if rapid.Bool().Draw(t, "value") {
			e.Bytes = &meta.Bytes{Codec: codec, Size: 9, Loc: meta.Location{File: "f", Offset: int64(n("offset", 0, 1<<50)), Length: 9}}
		} else {
			e.Tensor = drawTensor(t, d.Dialect, n)
		}
		d.Meta.Entries = append(d.Meta.Entries, e)
	}
	return d
}

func drawTensor(t *rapid.T, dialect dcpfiles.Dialect, n func(string, int, int) int) *meta.Tensor {
	dims := n("dims", 0, 5)
	out := &meta.Tensor{Properties: meta.Properties{DType: rapid.SampledFrom(tensor.DTypes()).Draw(t, "dtype")}}
	chunk := make([]int64, dims)
	for i := range chunk {
		chunk[i] = int64(n("size", 1, 300))
	}
	chunks := 1
	if dims > 0 {
		chunks = n("chunks", 1, 4)
	}
	for i := range chunks {
		at := make([]int64, dims)
		if dims > 0 {
			at[0] = int64(i) * chunk[0]
		}
		bytes, _ := tensor.NumBytes(out.DType, chunk)
		loc := meta.Location{File: fmt.Sprintf("_rank%d_", n("file", 0, 2)), Length: bytes}
		if dialect == dcpfiles.Torch {
			loc.Offset = int64(n("offset", 0, 1<<50))
		} else if dialect == dcpfiles.Hyper && rapid.Bool().Draw(t, "key") {
			loc.Detail = &meta.Detail{Key: fmt.Sprintf("key %d", i)}
		}
		out.Chunks = append(out.Chunks, tensor.Box{Offsets: at, Sizes: chunk})
		out.Locs = append(out.Locs, loc)
	}
	out.Shape = append([]int64{}, chunk...)
	if dims > 0 {
		out.Shape[0] *= int64(chunks)
	}
	return out
}

// property: an encoded document decodes to the same document
func TestRoundTrip(t *testing.T) {
	deep.Check(t, func(t *rapid.T) { checkRoundTrip(t, document(t)) })
}

// More than a thousand items are written in several parts.
func TestLargeDocumentsRoundTrip(t *testing.T) {
	checkRoundTrip(t, large(3, 1500))
	checkRoundTrip(t, large(2000, 1))
}

func TestEncodeRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*dcpfiles.Document, *meta.Location)
	}{
		{"a chunk without a place", func(d *dcpfiles.Document, l *meta.Location) { l.File = "" }},
		{"no places", func(d *dcpfiles.Document, l *meta.Location) { d.Meta.Entries[0].Tensor.Locs = nil }},
		{"metadata that is not valid", func(d *dcpfiles.Document, l *meta.Location) { l.Length = -1 }},
		{"an unknown dialect", func(d *dcpfiles.Document, l *meta.Location) { d.Dialect = 9 }},
		{"an unknown memory format", func(d *dcpfiles.Document, l *meta.Location) { d.Meta.Entries[0].Tensor.MemoryFormat = "upside_down" }},
		{"an unknown layout", func(d *dcpfiles.Document, l *meta.Location) { d.Meta.Entries[0].Tensor.Layout = "hub" }},
		{"a key for PyTorch", func(d *dcpfiles.Document, l *meta.Location) { l.Detail = &meta.Detail{Key: "k"} }},
		{"a key for the old hyper_parallel", func(d *dcpfiles.Document, l *meta.Location) {
			d.Dialect, l.Detail = dcpfiles.HyperOld, &meta.Detail{Key: "k"}
		}},
		{"a transformation for hyper_parallel", func(d *dcpfiles.Document, l *meta.Location) {
			d.Dialect, l.Detail = dcpfiles.Hyper, &meta.Detail{Transforms: []string{"stream.zstd/1"}}
		}},
		{"planner data that is no value", func(d *dcpfiles.Document, l *meta.Location) { d.Meta.PlannerData = []byte(`{"$nothing":1}`) }},
	} {
		d := rows("f", 0, 4)
		c.change(d, &d.Meta.Entries[0].Tensor.Locs[0])
		if _, err := dcpfiles.Encode(d); !errors.Is(err, dcpfiles.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", c.name, err)
		}
	}
}

// Python sees the classes that the dialect has, with names for all fields.
func TestEncodedClasses(t *testing.T) {
	for _, c := range []struct {
		dialect dcpfiles.Dialect
		want    [3]string
	}{
		{dcpfiles.Torch, [3]string{torch + ".metadata.Metadata", torch + ".metadata.MetadataIndex", torch + ".filesystem._StorageInfo"}},
		{dcpfiles.HyperOld, [3]string{hyperOld + ".metadata.Metadata", hyperOld + ".metadata.MetadataIndex", hyperOld + ".storage.StorageInfo"}},
		{dcpfiles.Hyper, [3]string{hyper + ".metadata.Metadata", hyper + ".metadata.MetadataIndex", hyper + ".storage.StorageInfo"}},
	} {
		d := rows("f", 4, 4)
		d.Dialect = c.dialect
		b := must.Get(dcpfiles.Encode(d))(t)
		v := must.Get(pickle.Decode(b, nil))(t)
		root := v.(*value.Object)
		pair := field(root)["storage_data"].(*value.Dict).Pairs[0]
		index, place := pair.Key.(*value.Object), pair.Value.(*value.Object)
		got := [3]string{root.QualifiedName(), index.QualifiedName(), place.QualifiedName()}
		if got != c.want {
			t.Errorf("classes = %v; want %v", got, c.want)
		}
		length, offset := int64(-1), any(tuple(4, 0))
		if c.dialect == dcpfiles.Torch {
			length, offset = 32, size(4, 0).(*value.Object)
			offset.(*value.Object).New = false
		}
		if diff := cmp.Diff(state{"fqn": "w", "index": int64(0), "offset": offset}, field(index)); diff != "" {
			t.Errorf("%v: index (-want +got):\n%s", c.dialect, diff)
		}
		if diff := cmp.Diff(state{"relative_path": "f", "offset": int64(0), "length": length}, field(place)); diff != "" {
			t.Errorf("%v: place (-want +got):\n%s", c.dialect, diff)
		}
	}
}

// The number of ranks, the save and a planner's data are attributes that other readers
// ignore.
func TestCairnAttributes(t *testing.T) {
	for _, d := range []dcpfiles.Dialect{dcpfiles.Torch, dcpfiles.Hyper, dcpfiles.HyperOld} {
		codec := dcpfiles.CodecTorch
		if d != dcpfiles.Torch {
			codec = dcpfiles.CodecPickle
		}
		md := &meta.Metadata{PlannerData: []byte(`{"a":[1]}`), Storage: meta.Storage{SaveID: "s-1"}, Entries: []meta.Entry{{
			FQN: "a.b", Path: meta.Path{meta.Key("a"), meta.Key("b")}, Bytes: &meta.Bytes{Codec: codec, Loc: meta.Location{File: "f", Length: 1}},
		}}}
		b := must.Get(dcpfiles.Encode(&dcpfiles.Document{Meta: md, Dialect: d, Version: "1", Ranks: 3}))(t)
		got := must.Get(dcpfiles.Decode(t.Context(), b))(t)
		if got.Ranks != 3 || got.Meta.Storage.SaveID != "s-1" || string(got.Meta.PlannerData) != `{"a":[1]}` || !got.Meta.Entries[0].Path.Equal(md.Entries[0].Path) {
			t.Errorf("%v: %d ranks of %q, planner data %s, path %v; want what was written", d, got.Ranks, got.Meta.Storage.SaveID, got.Meta.PlannerData, got.Meta.Entries[0].Path)
		}
	}
}
