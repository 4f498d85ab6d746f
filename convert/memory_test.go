package convert

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Each tensor takes little memory while the data is written and while the metadata is
// written.
func TestMemoryForEachTensor(t *testing.T) {
	const tensors = 10_000
	dir := t.TempDir()
	source := store(t, dir+"/source")
	saveMany(t, source, tensors)
	to := store(t, dir+"/target")
	before := liveBytes()
	w := &watched{}
	_, err := Run(t.Context(), planned(t, source, Options{Progress: func(int64) {}}), &Target{
		Format: "torchdcp", Staging: to,
		NewWriter: func(n int64) (storage.Writer, error) {
			var err error
			w.Writer, err = torchdcp.Format{}.NewWriter(to, storage.WriteOptions{BufferBytes: n})
			return w, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ live, most int64 }{
		"write the data":     {w.writing, 900},
		"write the metadata": {w.finishing, 650},
	} {
		n := (c.live - before) / tensors
		t.Logf("to %s: %d bytes for each tensor", what, n)
		if n > c.most {
			t.Errorf("to %s: %d bytes are in use for each tensor; want at most %d", what, n, c.most)
		}
	}
}

func store(t *testing.T, dir string) *file.Store {
	t.Helper()
	s := must.Get(file.Open(dir, nil))(t)
	return s
}

// saveMany saves n small tensors.
func saveMany(t *testing.T, s *file.Store, n int) {
	t.Helper()
	state := plan.State{}
	for i := range n {
		state[fmt.Sprintf("model.layers.%d.block.%d.weight", i/100, i%100)] = storagetest.Filled(t, tensor.Float32, []int64{4}, byte(i))
	}
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(native.Format{}, s, storage.WriteOptions{}) }}
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage("20260314t150926-00000001", 1, 1), state))
}

// watched is a writer that records the memory in use when it is called.
type watched struct {
	storage.Writer
	writing, finishing int64
}

func (w *watched) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	w.writing = liveBytes()
	return w.Writer.WriteData(ctx, p, data)
}

func (w *watched) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	w.finishing = liveBytes()
	return w.Writer.Finish(ctx, md, results)
}

// liveBytes returns the bytes of the heap that are in use, without the free buffers of
// pools.
func liveBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u := work.Stats()
	return int64(m.HeapAlloc) - u.Kept - u.Lent
}
