package torchdcp_test

import (
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Ranks that cut another way read the chunks that they need parts of, each once, because
// a chunk has one checksum. They read no other chunks.
func TestReadsAreExact(t *testing.T) {
	const ranks, rows, columns = 4, 256, 16 << 10
	x := storagetest.Filled(t, tensor.Float32, []int64{rows, columns}, 3)
	inner := new(mem.Store)
	states := make([]plan.State, ranks)
	for r := range states {
		states[r] = plan.State{"x": storagetest.Cut(t, storagetest.Along(0, ranks), x, r), "step": int64(1)}
	}
	must.Do(t, storagetest.Save(t.Context(), plain.At(inner), storagetest.Storage("a", 1, ranks), states...))
	for name, c := range map[string]struct {
		box    tensor.Box
		chunks int64
	}{
		"rows over two chunks": {tensor.Box{Offsets: []int64{50, 0}, Sizes: []int64{40, columns}}, 2},
		"half of the columns":  {tensor.Box{Offsets: []int64{0, columns / 2}, Sizes: []int64{rows, columns / 2}}, ranks},
		"one row":              {tensor.Box{Offsets: []int64{99, 0}, Sizes: []int64{1, columns}}, 1},
	} {
		m, box := fault.New(inner), c.box
		part := must.Get(shard.Empty(shard.Boxes(map[int]tensor.Box{0: box}), tensor.Float32, x.Shape(), 0))(t)
		must.Do(t, storagetest.Load(t.Context(), plain.At(m), plan.State{"x": part}))
		want := must.Get(x.Narrow(box))(t)
		if !tensor.Equal(part.Local(), want) {
			t.Errorf("%s: other elements than were saved", name)
		}
		needed, got := c.chunks*rows/ranks*columns*4, m.Ops().Bytes(fault.Read)-metadataBytes(t, inner)
		if describing := int64(ranks * 8 << 10); got > needed+needed/50+describing {
			t.Errorf("%s: %d bytes were read; want the %d of %d chunks and some that describe them", name, got, needed, c.chunks)
		}
	}
}

func metadataBytes(t testing.TB, s blob.Store) int64 {
	t.Helper()
	info := must.Get(s.Stat(t.Context(), ".metadata"))(t)
	return info.Size
}
