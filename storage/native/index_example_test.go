package native

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// exampleEntries are the entries of the example in docs/format/native.md.
func exampleEntries() []meta.Entry {
	t := &meta.Tensor{Properties: meta.Properties{DType: tensor.Float32}, Shape: []int64{4, 2}}
	for r, sum := range []uint32{0xaabbccdd, 0x11223344} {
		t.Chunks = append(t.Chunks, tensor.Box{Offsets: []int64{2 * int64(r), 0}, Sizes: []int64{2, 2}})
		t.Locs = append(t.Locs, meta.Location{File: DataFileName("s", r, 0), Offset: 4096, Length: 16, Sums: []uint32{sum}})
	}
	return []meta.Entry{
		{FQN: "opt.step", Path: meta.Path{meta.Key("opt"), meta.Key("step")}, Bytes: &meta.Bytes{Codec: "json", Size: 2, Inline: []byte("42")}},
		{FQN: "opt.w", Path: meta.Path{meta.Key("opt.w")}, Tensor: t},
	}
}

// Authors of other readers rely on the example in the page.
func TestFormatPageExample(t *testing.T) {
	page := must.Get(os.ReadFile(filepath.Join("..", "..", "docs", "format", "native.md")))(t)
	_, text, ok := strings.Cut(string(page), "```hex\n")
	if !ok {
		t.Fatal("the page has no block marked hex")
	}
	text, _, _ = strings.Cut(text, "```")
	var digits strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(line), ""))
	}
	want := must.Get(EncodeIndex(exampleEntries()))(t)
	got := must.Get(hex.DecodeString(digits.String()))(t)
	if diff := cmp.Diff(string(hexLines(want)), string(hexLines(got))); diff != "" {
		t.Errorf("the example (-written +documented):\n%s", diff)
	}
}
