package inspect_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestNames(t *testing.T) {
	long := `"` + strings.Repeat("x", 100) + `"`
	loc := meta.Location{File: "f", Length: 24}
	entries := []*meta.Entry{
		{FQN: "a", Tensor: tensorOf(tensor.Float32, 2, 3)},
		{FQN: "c", Tensor: tensorOf(tensor.BFloat16)},
		{FQN: "d", Tensor: tensorOf(tensor.BFloat16, 3, 2)},
		{FQN: "e", Bytes: &meta.Bytes{Codec: "json", Inline: []byte(long), Size: 102}},
		{FQN: "f", Bytes: &meta.Bytes{Codec: "json", Inline: []byte("7"), Size: 1}},
		{FQN: "g", Bytes: &meta.Bytes{Codec: "json", Size: 5, Loc: loc}},
		{FQN: "h", Bytes: &meta.Bytes{Codec: "unknown", Inline: []byte{1}, Size: 1}},
		{FQN: "m.10", Tensor: tensorOf(tensor.Float32, 2, 3)},
		{FQN: "m.2", Tensor: tensorOf(tensor.BFloat16, 3, 2)},
	}
	got := inspect.NewNames(entries, map[string]string{"m.10": "a"})
	want := &inspect.Names{
		Labels: []string{"a", "c", "d", "e", "f", "g", "h", "m", "2", "10"},
		Label:  []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, Below: []int32{0, 0, 0, 0, 0, 0, 0, 2, 0, 0},
		Forms: []inspect.NameForm{
			{"float32", []int64{2, 3}, 24, 1}, {"bfloat16", []int64{}, 2, 1}, {"bfloat16", []int64{3, 2}, 12, 1}, {Bytes: 102, Chunks: 1}, {Bytes: 1, Chunks: 1}, {Bytes: 5, Chunks: 1},
		},
		Form: []int32{0, 1, 2, 3, 4, 5, 4, 2, 0},
		Tied: map[int]string{8: "a"}, Values: map[int]string{3: "'" + strings.Repeat("x", 79) + "…", 4: "7"},
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(inspect.Names{}, "Entries")); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	if names := fqns(got.Entries); names != "a c d e f g h m.2 m.10" {
		t.Errorf("the rows are %s", names)
	}
	const text = `{"labels":[],"label":[],"below":[],"forms":[],"form":[],"tied":{},"values":{}}`
	if got := string(inspect.NewNames(nil, nil).AppendJSON([]byte("x"))); got != "x"+text {
		t.Errorf("no names: %s; want %s", got, text)
	}
}

func fqns(entries []*meta.Entry) string {
	var out []string
	for _, e := range entries {
		out = append(out, e.FQN)
	}
	return strings.Join(out, " ")
}

// The first of the names that are there has the bytes of a tensor with several names.
func TestNamesOfTiedTensors(t *testing.T) {
	ties := map[string]string{"b": "a", "c": "a"}
	for names, want := range map[string]map[int]string{"a b c d": {1: "a", 2: "a"}, "b c": {1: "b"}, "c": {}, "a d": {}} {
		var entries []*meta.Entry
		for name := range strings.FieldsSeq(names) {
			entries = append(entries, &meta.Entry{FQN: name, Tensor: tensorOf(tensor.Float32, 2)})
		}
		if got := inspect.NewNames(entries, ties).Tied; !maps.Equal(got, want) {
			t.Errorf("of %s, tied are %v; want %v", names, got, want)
		}
	}
}

var hostileNames = []string{
	"", "</script><script>alert(1)</script>", "<!--", "a\x00b\x1f\n\r\t\b\f\x7f", `"\`, "\u2028\u2029", "\xff\xfe", "ü\xc3", "\xed\xa0\x80", "😀", "&amp;", "'", ".", "a..b", strings.Repeat("x.", 100),
}

// drawNames returns different names in order, which share beginnings.
func drawNames(rt *rapid.T) []string {
	part := rapid.OneOf(rapid.SampledFrom([]string{"a", "b", "a-b", "2", "10", "layers", ""}), rapid.SampledFrom(hostileNames), rapid.String())
	name := rapid.Custom(func(rt *rapid.T) string { return strings.Join(rapid.SliceOfN(part, 1, 5).Draw(rt, "parts"), ".") })
	names := rapid.SliceOfDistinct(name, func(s string) string { return s }).Draw(rt, "names")
	slices.Sort(names)
	return names
}

// Each name is there once, below the groups that are its beginnings, and each group is there once.
func TestNamesAreATree(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		var entries []*meta.Entry
		for _, name := range drawNames(rt) {
			entries = append(entries, &meta.Entry{FQN: name, Tensor: tensorOf(tensor.Float32, 2)})
		}
		n := inspect.NewNames(entries, nil)
		groups, row := map[string]bool{}, 0
		var walk func(from, to int, above string)
		walk = func(from, to int, above string) {
			before := -1
			for i := from; i < to; i += 1 + int(n.Below[i]) {
				text := n.Labels[n.Label[i]]
				if before >= 0 && inspect.Natural(n.Labels[n.Label[before]], text) > 0 {
					rt.Errorf("below %q, %q is after %q", above, text, n.Labels[n.Label[before]])
				}
				before = i
				if n.Below[i] == 0 {
					if got := n.Entries[row].FQN; got != above+text {
						rt.Errorf("row %d is %q; want %q", row, got, above+text)
					}
					row++
					continue
				}
				if groups[above+text] {
					rt.Errorf("the group %q is there twice", above+text)
				}
				groups[above+text] = true
				walk(i+1, i+1+int(n.Below[i]), above+text+".")
			}
		}
		walk(0, len(n.Label), "")
		if row != len(entries) || len(n.Form) != row {
			rt.Errorf("%d rows and %d forms; want %d", row, len(n.Form), len(entries))
		}
	})
}

// namesAs is Names without its methods, as encoding/json writes it.
type namesAs inspect.Names

// AppendJSON writes the same text as encoding/json, and escapes the same characters.
func TestNamesAsJSON(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		texts := rapid.SliceOf(rapid.OneOf(rapid.SampledFrom(hostileNames), rapid.String(), rapid.Custom(func(rt *rapid.T) string { return string(rapid.SliceOf(rapid.Byte()).Draw(rt, "bytes")) }))).Draw(rt, "texts")
		n := &inspect.Names{Labels: texts, Label: []int32{3}, Below: []int32{-1}, Forms: []inspect.NameForm{{Bytes: -1 << 63}, {"float32", []int64{}, 1, 2}}, Form: []int32{}}
		n.Tied, n.Values = map[int]string{}, map[int]string{}
		for i, text := range texts {
			n.Tied[i], n.Values[len(texts)-i] = text, text
		}
		got, want := n.AppendJSON(nil), must.Get(json.Marshal((*namesAs)(n)))(t)
		var x, y namesAs
		must.Do(t, json.Unmarshal(got, &x))
		must.Do(t, json.Unmarshal(want, &y))
		if d := cmp.Diff(y, x); d != "" {
			rt.Errorf("%q: -want +got\n%s", texts, d)
		}
		for _, raw := range []string{"<", ">", "&", "\u2028", "\u2029", "\x00", "\n", "\xff"} {
			if strings.Contains(string(got), raw) {
				rt.Errorf("%q: %q is not escaped in %s", texts, raw, got)
			}
		}
		if again := must.Get(json.Marshal(n))(t); string(again) != string(got) {
			rt.Errorf("%q: json.Marshal = %s; want %s", texts, again, got)
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

func BenchmarkNames(b *testing.B) {
	entries := manyNames(200_000)
	var buf []byte
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			inspect.NewNames(entries, nil)
		}
	})
	n := inspect.NewNames(entries, nil)
	b.Run("json", func(b *testing.B) {
		for b.Loop() {
			buf = n.AppendJSON(buf[:0])
		}
		b.SetBytes(int64(len(buf)))
	})
}
