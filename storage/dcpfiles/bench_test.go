package dcpfiles_test

import (
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/tensor"
)

// large returns a document of some tensors, each with the given number of chunks.
func large(tensors, chunks int) *dcpfiles.Document {
	m := &meta.Metadata{}
	for i := range tensors {
		t := &meta.Tensor{Properties: meta.Properties{DType: tensor.BFloat16}, Shape: []int64{int64(chunks) * 128, 4096}}
		for j := range chunks {
			t.Chunks = append(t.Chunks, tensor.Box{Offsets: []int64{int64(j) * 128, 0}, Sizes: []int64{128, 4096}})
			t.Locs = append(t.Locs, meta.Location{File: fmt.Sprintf("__%d_0.distcp", j), Offset: int64(i) << 20, Length: 1<<20 + 700})
		}
		name := fmt.Sprintf("model.layers.%05d.weight", i)
		m.Entries = append(m.Entries, meta.Entry{FQN: name, Path: meta.Path{meta.Key(name)}, Tensor: t})
	}
	return &dcpfiles.Document{Meta: m, Version: "1.0.0"}
}

func BenchmarkDecode(b *testing.B) {
	data := must.Get(dcpfiles.Encode(large(1000, 1000)))(b)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		must.Get(dcpfiles.Decode(b.Context(), data))(b)
	}
}

func BenchmarkEncode(b *testing.B) {
	d := large(1000, 1000)
	b.ReportAllocs()
	for b.Loop() {
		data := must.Get(dcpfiles.Encode(d))(b)
		b.SetBytes(int64(len(data)))
	}
}
