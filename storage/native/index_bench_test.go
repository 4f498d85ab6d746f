package native

import (
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// chunkedEntries are matrices cut by rows over a thousand ranks, each of which
// has a file; a chunk has one checksum. A thousand of them are the measure that
// the format is designed for.
func chunkedEntries(tensors int) []meta.Entry {
	const ranks = 1000
	files := make([]string, ranks)
	for r := range files {
		files[r] = DataFileName("20261115t021530-3f9a2c7e", r, 0)
	}
	entries := make([]meta.Entry, tensors)
	for i := range entries {
		t := &meta.Tensor{Properties: meta.Properties{DType: tensor.BFloat16}, Shape: []int64{2 * ranks, 1024}}
		for r := range int64(ranks) {
			b := tensor.Box{Offsets: []int64{2 * r, 0}, Sizes: []int64{2, 1024}}
			t.Chunks = append(t.Chunks, b)
			t.Locs = append(t.Locs, placeChunk(t, b, files[r], 4096+int64(i)*4096))
		}
		fqn := fmt.Sprintf("model.layers.%04d.mlp.weight", i)
		entries[i] = meta.Entry{FQN: fqn, Path: meta.Path{meta.Key("model"), meta.Key(fqn[6:])}, Tensor: t}
	}
	return entries
}

func TestIndexIsSmallAndALookupReadsLittleOfIt(t *testing.T) {
	const tensors = 50
	b := must.Get(EncodeIndex(chunkedEntries(tensors)))(t)
	if perChunk := float64(len(b)) / (tensors * 1000); perChunk > 6 {
		t.Errorf("the index takes %.1f bytes for a chunk; want 6 at most", perChunk)
	}
	r := &indexBytes{b: b}
	x := must.Get(openIndex(t.Context(), r))(t)
	if _, ok, err := x.lookup(t.Context(), "model.layers.0017.mlp.weight"); !ok || err != nil {
		t.Fatalf("lookup = %v, %v; want it", ok, err)
	}
	if n, bytes := r.reads.Load(), r.bytes.Load(); n != 2 || bytes > 256<<10 {
		t.Errorf("one lookup took %d reads of %d bytes; want 2 of 256 KiB at most", n, bytes)
	}
}

func BenchmarkEncodeIndex(b *testing.B) {
	entries := chunkedEntries(1000)
	b.ReportAllocs()
	for b.Loop() {
		out := must.Get(EncodeIndex(entries))(b)
		b.ReportMetric(float64(len(out)), "file-bytes")
	}
}

func BenchmarkDecodeIndex(b *testing.B) {
	out := must.Get(EncodeIndex(chunkedEntries(1000)))(b)
	b.ReportAllocs()
	for b.Loop() {
		must.Get(decodeWholeIndex(b.Context(), out))(b)
	}
}

func BenchmarkLookupIndex(b *testing.B) {
	out := must.Get(EncodeIndex(chunkedEntries(1000)))(b)
	b.ReportAllocs()
	for b.Loop() {
		r := &indexBytes{b: out}
		x := must.Get(openIndex(b.Context(), r))(b)
		if _, ok, err := x.lookup(b.Context(), "model.layers.0617.mlp.weight"); !ok || err != nil {
			b.Fatal(ok, err)
		}
		b.ReportMetric(float64(r.bytes.Load()), "read-bytes")
		b.ReportMetric(float64(r.reads.Load()), "reads")
	}
}
