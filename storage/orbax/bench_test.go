package orbax_test

import (
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/orbax"
	"github.com/cairn-ckpt/cairn/tensor"
)

// BenchmarkSlices reads a compressed tensor of 10 MiB in slices of 640 KiB, as a conversion does. BenchmarkZstd decompresses the same
// bytes, which is the least that a reader has to do.
func BenchmarkSlices(b *testing.B) {
	w := newWritten(b, []int64{1024, 2560}, []int64{512, 2560}, nil, true, false)
	s := new(mem.Store)
	writeOCDBT(b, s, w.values)
	b.SetBytes(int64(len(w.data)))
	for b.Loop() {
		ck := must.Get(orbax.Format{}.Open(b.Context(), s))(b)
		for row := int64(0); row < 1024; row += 64 {
			readPart(b, ck, "w", tensor.Box{Offsets: []int64{row, 0}, Sizes: []int64{64, 2560}})
		}
		must.Do(b, ck.Close())
	}
}

func BenchmarkZstd(b *testing.B) {
	w := newWritten(b, []int64{1024, 2560}, []int64{512, 2560}, nil, true, false)
	d := must.Get(zstd.NewReader(nil, zstd.WithDecoderConcurrency(1)))(b)
	defer d.Close()
	b.SetBytes(int64(len(w.data)))
	for b.Loop() {
		for _, key := range []string{"w/0.0", "w/1.0"} {
			must.Get(d.DecodeAll(w.values[key], nil))(b)
		}
	}
}
