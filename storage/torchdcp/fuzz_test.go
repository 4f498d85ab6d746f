package torchdcp_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Whatever the two files hold, opening and verifying end, with an error that names the damage
// or with a report.
func FuzzOpen(f *testing.F) {
	seed := func(s blob.Store, data string) {
		md := must.Get(blob.ReadAll(f.Context(), s, ".metadata", 1<<20))(f)
		b := must.Get(blob.ReadAll(f.Context(), s, data, 1<<20))(f)
		f.Add(md, b)
	}
	x := storagetest.Filled(f, tensor.Float32, []int64{2, 3}, 1)
	seed(forged(f, x, func(*meta.Entry) {}), "__0_0.distcp")
	seed(forged(f, x, func(e *meta.Entry) {
		e.Tensor.Locs[0].Detail = &meta.Detail{Transforms: []string{"stream.zstd/1", "stream.zstd/1.5"}}
	}), "__0_0.distcp")
	seed(storagetest.CopyFixture(f, "torch-2.6/shardedtensor-3"), "__0_0.distcp")
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, md, data []byte) {
		s := new(mem.Store)
		storagetest.Put(t, s, ".metadata", md)
		storagetest.Put(t, s, "__0_0.distcp", data)
		ck, err := torchdcp.Format{}.Open(t.Context(), s)
		if err != nil {
			if !errors.Is(err, storage.ErrCorrupt) && !errors.Is(err, storage.ErrVersion) {
				t.Fatalf("Open = %v; want a named error", err)
			}
			return
		}
		if _, err := ck.Verify(t.Context(), nil); err != nil && !errors.Is(err, storage.ErrVersion) {
			t.Fatalf("Verify = %v; want a report", err)
		}
	})
}
