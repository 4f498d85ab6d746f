package torchfile_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/value"
)

// Any file, and any index of a file that is there, opens or is refused by name.
func FuzzOpen(f *testing.F) {
	file := must.Get(torchsave.Marshal(map[string]any{"a": int64(1), "b": []any{"x", value.Tuple{nil}}, "c": &value.Dict{Ordered: true}}))(f)
	f.Add(file, false)
	f.Add([]byte(`{"metadata": {"total_size": 3}, "weight_map": {"a": "pytorch_model.bin"}}`), true)
	f.Add([]byte(`{"weight_map": {"a": "../x", "a": "pytorch_model.bin", "b": 1}}`), true)
	f.Fuzz(func(t *testing.T, data []byte, index bool) {
		s := new(mem.Store)
		name := "pytorch_model.bin"
		if index {
			storagetest.Put(t, s, name, file)
			name += ".index.json"
		}
		storagetest.Put(t, s, name, data)
		ck, err := torchfile.Format{File: name}.Open(t.Context(), s)
		if err != nil {
			for _, want := range []error{storage.ErrCorrupt, storage.ErrVersion, storage.ErrNotFound, storage.ErrIncomplete} {
				if errors.Is(err, want) {
					return
				}
			}
			t.Fatalf("Open = %v; want a named error", err)
		}
		if _, err := ck.Verify(t.Context(), nil); err != nil {
			t.Errorf("Verify of what was opened = %v", err)
		}
	})
}
