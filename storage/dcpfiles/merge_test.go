package dcpfiles_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/tensor"
)

// rows returns a document with one chunk: n rows of a tensor of eight rows.
func rows(file string, from, n int64) *dcpfiles.Document {
	t := &meta.Tensor{Properties: meta.Properties{DType: tensor.Float32}, Shape: []int64{8, 2},
		Chunks: []tensor.Box{{Offsets: []int64{from, 0}, Sizes: []int64{n, 2}}},
		Locs:   []meta.Location{{File: file, Length: 8 * n}}}
	return &dcpfiles.Document{Meta: &meta.Metadata{Entries: []meta.Entry{{FQN: "w", Tensor: t}}}}
}

func scalar(name, file string) meta.Entry {
	return meta.Entry{FQN: name, Bytes: &meta.Bytes{Codec: dcpfiles.CodecTorch, Size: 3, Loc: meta.Location{File: file, Length: 3}}}
}

func TestMerge(t *testing.T) {
	a, b, c := rows("a", 0, 4), rows("b", 4, 4), rows("c", 0, 4)
	a.Meta.Entries = append(a.Meta.Entries, scalar("x", "a"))
	c.Meta.Entries = append([]meta.Entry{scalar("a", "c")}, append(c.Meta.Entries, scalar("x", "c"))...)
	a.Version = "1.0.0"
	got := must.Get(dcpfiles.Merge([]*dcpfiles.Document{a, b, c}))(t)
	want := rows("a", 0, 4)
	want.Version = "1.0.0"
	w := want.Meta.Entries[0].Tensor
	w.Chunks = append(w.Chunks, b.Meta.Entries[0].Tensor.Chunks...)
	w.Locs = append(w.Locs, b.Meta.Entries[0].Tensor.Locs...)
	want.Meta.Entries = []meta.Entry{scalar("a", "c"), want.Meta.Entries[0], scalar("x", "a")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := len(a.Meta.Entries[0].Tensor.Chunks); n != 1 {
		t.Errorf("the first document has %d chunks now; want its own", n)
	}
}

func TestMergeRefusesConflicts(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*dcpfiles.Document)
	}{
		{"another dialect", func(d *dcpfiles.Document) { d.Dialect = dcpfiles.Hyper }},
		{"another dtype", func(d *dcpfiles.Document) { d.Meta.Entries[0].Tensor.DType = tensor.Int8 }},
		{"another shape", func(d *dcpfiles.Document) { d.Meta.Entries[0].Tensor.Shape = []int64{8, 3} }},
		{"another path", func(d *dcpfiles.Document) { d.Meta.Entries[0].Path = meta.Path{meta.Key("x")} }},
		{"another kind", func(d *dcpfiles.Document) { d.Meta.Entries[0] = scalar("w", "f") }},
	} {
		b := rows("b", 4, 4)
		c.change(b)
		if _, err := dcpfiles.Merge([]*dcpfiles.Document{rows("a", 0, 4), b}); !errors.Is(err, dcpfiles.ErrConflict) {
			t.Errorf("%s: %v; want ErrConflict", c.name, err)
		}
	}
	if _, err := dcpfiles.Merge(nil); !errors.Is(err, dcpfiles.ErrInvalid) {
		t.Errorf("Merge(nil) = %v; want ErrInvalid", err)
	}
}
