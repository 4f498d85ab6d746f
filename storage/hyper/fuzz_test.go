package hyper_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// Whatever the files hold, opening and verifying end, with an error that names the damage or
// with a report.
func FuzzOpen(f *testing.F) {
	seed := func(s blob.Store, layout string) {
		var parts [3][]byte
		for i, name := range []string{".metadata", "_rank0_.safetensors", "_rank0_.bytes"} {
			b, err := blob.ReadAll(f.Context(), s, name, 1<<20)
			if err == nil {
				parts[i] = b
			}
		}
		f.Add(parts[0], parts[1], parts[2], []byte(layout))
	}
	seed(newer(f, func(*meta.Metadata) {}), "")
	seed(storagetest.CopyFixture(f, "hyper_parallel/collective-4"), "")
	seed(newer(f, func(*meta.Metadata) {}), `{"0":{"x.__dcp_chunk_0":{"device_matrix":[1],"tensor_map":[0,-1],"type":"torch.float32","full_shape":[2,3]}}}`)
	f.Fuzz(func(t *testing.T, md, tensors, values, layout []byte) {
		s := new(mem.Store)
		storagetest.Put(t, s, "_rank0_.safetensors", tensors)
		storagetest.Put(t, s, "_rank0_.bytes", values)
		if len(layout) > 0 {
			storagetest.Put(t, s, "rank0.layout", layout)
		} else {
			storagetest.Put(t, s, ".metadata", md)
		}
		ck, err := hyper.Format{}.Open(t.Context(), s)
		if err != nil {
			if !errors.Is(err, storage.ErrCorrupt) && !errors.Is(err, storage.ErrVersion) && !errors.Is(err, storage.ErrIncomplete) {
				t.Fatalf("Open = %v; want a named error", err)
			}
			return
		}
		if _, err := ck.Verify(t.Context(), nil); err != nil && !errors.Is(err, storage.ErrVersion) {
			t.Fatalf("Verify = %v; want a report", err)
		}
	})
}
