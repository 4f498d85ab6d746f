package inspect_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestColumns(t *testing.T) {
	long := `"` + strings.Repeat("x", 100) + `"`
	loc := meta.Location{File: "f", Length: 24}
	tied := tensorOf(tensor.Float32, 2, 3)
	tied.Locs = []meta.Location{{File: "f", Length: 24, Detail: &meta.Detail{Key: "a"}}}
	first := tensorOf(tensor.Float32, 2, 3)
	first.Locs = []meta.Location{loc}
	entries := []*meta.Entry{
		{FQN: "a", Tensor: first},
		{FQN: "b", Tensor: tied},
		{FQN: "c", Tensor: tensorOf(tensor.BFloat16)},
		{FQN: "d", Tensor: tensorOf(tensor.BFloat16, 3, 2)},
		{FQN: "e", Bytes: &meta.Bytes{Codec: "json", Inline: []byte(long), Size: 102}},
		{FQN: "f", Bytes: &meta.Bytes{Codec: "json", Inline: []byte("7"), Size: 1}},
		{FQN: "g", Bytes: &meta.Bytes{Codec: "json", Size: 5, Loc: loc}},
		{FQN: "h", Bytes: &meta.Bytes{Codec: "unknown", Inline: []byte{1}, Size: 1}},
	}
	want := &inspect.Columns{
		Names:  []string{"a", "b", "c", "d", "e", "f", "g", "h"},
		DTypes: []string{"float32", "bfloat16"}, DType: []int32{0, 0, 1, 1, -1, -1, -1, -1},
		Shapes: [][]int64{{2, 3}, {}, {3, 2}}, Shape: []int32{0, 0, 1, 2, -1, -1, -1, -1},
		Bytes: []int64{24, 24, 2, 12, 102, 1, 5, 1}, Chunks: []int32{1, 1, 1, 1, 1, 1, 1, 1},
		Roles: []inspect.Role{0, 0, 0, 0, 2, 2, 2, 2},
		Tied:  map[int]string{1: "a"}, Values: map[int]string{4: "'" + strings.Repeat("x", 79) + "…", 5: "7"},
	}
	got := inspect.NewColumns(entries)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	const text = `{"names":[],"dtypes":[],"dtype":[],"shapes":[],"shape":[],"bytes":[],"chunks":[],"role":[],"tied":{},"values":{}}`
	if got := string(inspect.NewColumns(nil).AppendJSON([]byte("x"))); got != "x"+text {
		t.Errorf("no names: %s; want %s", got, text)
	}
}

// columnsAs is Columns without its methods, as encoding/json writes it.
type columnsAs inspect.Columns

// AppendJSON writes what encoding/json would write, and escapes the same characters.
func TestColumnsAsJSON(t *testing.T) {
	hostile := []string{
		"", "</script><script>alert(1)</script>", "<!--", "a\x00b\x1f\n\r\t\b\f\x7f", `"\`, "\u2028\u2029", "\xff\xfe", "ü\xc3", "\xed\xa0\x80", "😀", "&amp;", "'",
	}
	deep.Check(t, func(rt *rapid.T) {
		name := rapid.OneOf(rapid.SampledFrom(hostile), rapid.String(), rapid.Custom(func(rt *rapid.T) string { return string(rapid.SliceOf(rapid.Byte()).Draw(rt, "bytes")) }))
		names := rapid.SliceOf(name).Draw(rt, "names")
		c := &inspect.Columns{Names: names, DTypes: []string{}, DType: []int32{}, Shapes: [][]int64{}, Shape: []int32{}, Bytes: []int64{-1 << 63}, Chunks: []int32{-1}, Roles: []inspect.Role{1}}
		c.Tied, c.Values = map[int]string{}, map[int]string{}
		for i, n := range names {
			c.Tied[i], c.Values[len(names)-i] = n, n
		}
		got, want := c.AppendJSON(nil), must.Get(json.Marshal((*columnsAs)(c)))(t)
		var x, y columnsAs
		must.Do(t, json.Unmarshal(got, &x))
		must.Do(t, json.Unmarshal(want, &y))
		if d := cmp.Diff(y, x); d != "" {
			rt.Errorf("%q: -want +got\n%s", names, d)
		}
		for _, raw := range []string{"<", ">", "&", "\u2028", "\u2029", "\x00", "\n", "\xff"} {
			if strings.Contains(string(got), raw) {
				rt.Errorf("%q: %q is not escaped in %s", names, raw, got)
			}
		}
		if again := must.Get(json.Marshal(c))(t); string(again) != string(got) {
			rt.Errorf("%q: json.Marshal = %s; want %s", names, again, got)
		}
	})
}

// manyNames are the entries of a large model.
func manyNames(n int) []*meta.Entry {
	out := make([]*meta.Entry, n)
	for i := range out {
		t := tensorOf(tensor.BFloat16, int64(1+i%50), 4096)
		t.Locs = []meta.Location{{File: fmt.Sprintf("f%d", i%100), Offset: int64(i), Length: 8192}}
		out[i] = &meta.Entry{FQN: fmt.Sprintf("model.layers.%06d.mlp.experts.%d.down_proj.weight", i/64, i%64), Tensor: t}
	}
	return out
}

func BenchmarkColumns(b *testing.B) {
	entries := manyNames(200_000)
	var buf []byte
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			inspect.NewColumns(entries)
		}
	})
	c := inspect.NewColumns(entries)
	b.Run("json", func(b *testing.B) {
		for b.Loop() {
			buf = c.AppendJSON(buf[:0])
		}
		b.SetBytes(int64(len(buf)))
	})
}
