package inspect_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

var (
	_ inspect.Source  = (*cairn.Checkpoint)(nil)
	_ inspect.Content = (*cairn.Checkpoint)(nil)
)

// counting returns a tensor of the float32 values 1, 2, 3 and so on.
func counting(t testing.TB, shape ...int64) *tensor.Tensor {
	t.Helper()
	n := must.Get(tensor.NumElements(shape))(t)
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i + 1)
	}
	x := must.Get(tensor.Of(shape, v))(t)
	return x
}

// part returns a rank's part of x.
func part(l shard.Layout, x *tensor.Tensor, rank int) (*shard.Tensor, error) {
	s, err := shard.Empty(l, x.DType(), x.Shape(), rank)
	if err != nil {
		return nil, err
	}
	for i, b := range s.Boxes() {
		dst, err := s.Part(i)
		if err != nil {
			return nil, err
		}
		src, err := x.Narrow(b)
		if err != nil {
			return nil, err
		}
		if err := tensor.Copy(dst, src); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// save saves a small state with w cut over the ranks, and returns the store.
func save(t testing.TB, l shard.Layout, ranks int, w *tensor.Tensor) blob.Store {
	t.Helper()
	store := new(mem.Store)
	long := make([]byte, 100_000)
	err := inproc.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) error {
		p, err := part(l, w, g.Rank())
		if err != nil {
			return err
		}
		_, err = cairn.Save(ctx, store, cairn.State{
			"model": map[string]any{"w": p, "b": counting(t, 5), "scale": counting(t)},
			"step":  12, "note": "it's", "long": long,
		}, &cairn.SaveOptions{Group: g, Step: new(int64(12)), Tags: map[string]string{"run": "a"}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func rows(n int) shard.Layout {
	return shard.Placed{Mesh: shard.Mesh{Shape: []int{n}}, Placements: []shard.Placement{shard.Shard(0)}}
}

func columns(n int) shard.Layout {
	return shard.Placed{Mesh: shard.Mesh{Shape: []int{n}}, Placements: []shard.Placement{shard.Shard(1)}}
}

// open opens the checkpoint in a store until the test ends.
func open(t testing.TB, s blob.Store) (*cairn.Checkpoint, *meta.Metadata) {
	t.Helper()
	c := must.Get(cairn.Open(t.Context(), s))(t)
	t.Cleanup(func() { c.Close() })
	md := must.Get(c.Metadata(t.Context()))(t)
	return c, md
}

func TestItems(t *testing.T) {
	_, md := open(t, save(t, rows(3), 3, counting(t, 6, 4)))
	want := []*inspect.Item{
		{FQN: "long", Kind: "object", Codec: "raw", Chunks: 1, Files: 1, NumBytes: 100_000},
		{FQN: "model.b", Kind: "tensor", DType: "float32", Shape: []int64{5}, Chunks: 1, Files: 1, NumBytes: 20},
		{FQN: "model.scale", Kind: "tensor", DType: "float32", Shape: []int64{}, Chunks: 1, Files: 1, NumBytes: 4},
		{FQN: "model.w", Kind: "tensor", DType: "float32", Shape: []int64{6, 4}, Chunks: 3, Files: 3, NumBytes: 96},
		{FQN: "note", Kind: "object", Type: "str", Repr: `"it's"`, Codec: "json", Chunks: 1, NumBytes: 6},
		{FQN: "step", Kind: "object", Type: "int", Repr: "12", Codec: "json", Chunks: 1, NumBytes: 2},
	}
	if d := cmp.Diff(want, inspect.Items(inspect.Select(md))); d != "" {
		t.Errorf("Items: -want +got\n%s", d)
	}
}

func TestSelectStopsAtDots(t *testing.T) {
	md := &meta.Metadata{}
	for _, n := range []string{"a.b", "a.b.c", "a.bc", "ab", "b"} {
		md.Entries = append(md.Entries, meta.Entry{FQN: n})
	}
	for _, c := range []struct {
		prefixes []string
		want     []string
	}{
		{nil, []string{"a.b", "a.b.c", "a.bc", "ab", "b"}},
		{[]string{""}, []string{"a.b", "a.b.c", "a.bc", "ab", "b"}},
		{[]string{"a"}, []string{"a.b", "a.b.c", "a.bc"}},
		{[]string{"a."}, []string{"a.b", "a.b.c", "a.bc"}},
		{[]string{"a.b"}, []string{"a.b", "a.b.c"}},
		{[]string{"b", "ab"}, []string{"ab", "b"}},
		{[]string{"c"}, nil},
	} {
		var got []string
		for _, e := range inspect.Select(md, c.prefixes...) {
			got = append(got, e.FQN)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("Select(%q): -want +got\n%s", c.prefixes, d)
		}
	}
}

func TestSummary(t *testing.T) {
	c, md := open(t, save(t, rows(3), 3, counting(t, 6, 4)))
	s := inspect.Summarize(c, md)
	want := inspect.Totals{Tensors: 3, Objects: 3, Chunks: 5, Elements: 30, NumBytes: 120 + 100_000 + 8}
	if d := cmp.Diff(want, s.Totals); d != "" {
		t.Errorf("Totals: -want +got\n%s", d)
	}
	if d := cmp.Diff([]inspect.DTypeTotals{{DType: "float32", Tensors: 3, Elements: 30, NumBytes: 120}}, s.DTypes); d != "" {
		t.Errorf("DTypes: -want +got\n%s", d)
	}
	if *s.Step != 12 || s.WorldSize != 3 || s.Tags["run"] != "a" || s.SaveID == "" || s.Format != "cairn 1" || s.FileBytes != c.TotalBytes() {
		t.Errorf("Summarize = %+v; want step 12, world size 3, run a", s)
	}
	var chunks int64
	for _, f := range s.Files {
		chunks += f.Chunks
	}
	if len(s.Files) != len(c.Files()) || chunks != 6 {
		t.Errorf("%d files with %d chunks; want %d with 6: five of tensors and the long object", len(s.Files), chunks, len(c.Files()))
	}
}

func TestChunks(t *testing.T) {
	_, md := open(t, save(t, columns(2), 2, counting(t, 6, 4)))
	collect := func(fqn string) []inspect.Chunk {
		e, ok := md.Find(fqn)
		if !ok {
			t.Fatalf("no %s", fqn)
		}
		var out []inspect.Chunk
		for c := range inspect.Chunks(e) {
			if (c.File == "") != c.Inline {
				t.Errorf("%s: chunk %d in file %q, inline %v", fqn, c.Chunk, c.File, c.Inline)
			}
			c.File, c.Offset = "", 0
			out = append(out, c)
		}
		return out
	}
	for fqn, want := range map[string][]inspect.Chunk{
		"model.w": {
			{Chunk: 0, Offsets: []int64{0, 0}, Sizes: []int64{6, 2}, NumBytes: 48, Length: 48, Checksums: 1, Rank: new(0)},
			{Chunk: 1, Offsets: []int64{0, 2}, Sizes: []int64{6, 2}, NumBytes: 48, Length: 48, Checksums: 1, Rank: new(1)},
		},
		"model.scale": {{Offsets: []int64{}, Sizes: []int64{}, NumBytes: 4, Length: 4, Checksums: 1, Rank: new(1)}},
		"step":        {{Inline: true, NumBytes: 2, Length: 2}},
		"long":        {{NumBytes: 100_000, Length: 100_000, Checksums: 1, Rank: new(0)}},
	} {
		got := collect(fqn)
		for i := range got {
			got[i].Key = "" // the format's own business
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("Chunks(%s): -want +got\n%s", fqn, d)
		}
	}
	e, _ := md.Find("model.w")
	for range inspect.Chunks(e) {
		break // stopping early must not be a panic
	}
}
