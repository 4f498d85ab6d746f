package torchfile_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
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
		opensOrRefuses(t, torchfile.Format{File: name}, s)
	})
}

func opensOrRefuses(t *testing.T, f storage.Format, s *mem.Store) {
	t.Helper()
	ck, err := f.Open(t.Context(), s)
	if err != nil {
		for _, want := range []error{storage.ErrCorrupt, storage.ErrVersion, storage.ErrNotFound, storage.ErrIncomplete} {
			if errors.Is(err, want) {
				return
			}
		}
		t.Fatalf("Open = %v; want a named error", err)
	}
	if err := must.Get(ck.Metadata(t.Context()))(t).Validate(); err != nil {
		t.Errorf("the metadata: %v", err)
	}
	if _, err := ck.Verify(t.Context(), nil); err != nil {
		t.Errorf("Verify of what was opened = %v", err)
	}
}

// Any metadata.pkl beside files of torch_checkpointing opens or is refused by name.
func FuzzRankedMetadata(f *testing.F) {
	files := storagetest.CopyFixture(f, "torch_checkpointing/safetensors-4")
	f.Add(must.Get(blob.ReadAll(f.Context(), files, "metadata.pkl", 1<<20))(f))
	f.Add(metadataOf(f, d{"model": item(ranks(nil), d{`["w"]`: l{listed(0, ints(3), l{ints(0)}, l{ints(0)}, l{ints(3)})}})}, 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := storagetest.CopyOf(t, files)
		storagetest.Put(t, s, "metadata.pkl", data)
		opensOrRefuses(t, torchfile.Ranked{}, s)
	})
}

// Any file of torch.save with DTensors opens or is refused by name. The bytes replace
// bytes of the pickle, which has no checksum that is compared here.
func FuzzRankedDTensor(f *testing.F) {
	const name = "fsdp_model_1.pt"
	files := storagetest.CopyFixture(f, "torch_checkpointing/torch-sync-twice-2-2")
	whole := must.Get(blob.ReadAll(f.Context(), files, name, 1<<20))(f)
	f.Add(uint16(200), []byte("Shard"))
	f.Add(uint16(900), []byte{'K', 255})
	f.Fuzz(func(t *testing.T, at uint16, data []byte) {
		b := slices.Clone(whole)
		copy(b[int(at)%len(b):], data)
		s := storagetest.CopyOf(t, files)
		storagetest.Put(t, s, name, b)
		opensOrRefuses(t, torchfile.Ranked{}, s)
	})
}

// Any files with the names of the ranks of FSDP open or are refused by name. The bytes replace
// bytes of a pickle, which has no checksum that is compared here.
func FuzzFSDP(f *testing.F) {
	fixtures := []*mem.Store{
		storagetest.CopyFixture(f, "fsdp/fsdp1-flat-2"), storagetest.CopyFixture(f, "fsdp/lora-2"), storagetest.CopyFixture(f, "fsdp/accelerate-fsdp1-2"),
	}
	f.Add(uint8(0), uint8(1), uint16(200), []byte("Shard"), "model_world_size_2_rank_2.pt")
	f.Add(uint8(1), uint8(3), uint16(900), []byte{'K', 255}, "fsdp_config.json")
	f.Add(uint8(2), uint8(2), uint16(400), []byte("shard_sizes"), "pytorch_model_fsdp_rank0.bin")
	f.Fuzz(func(t *testing.T, fixture, file uint8, at uint16, data []byte, beside string) {
		s := storagetest.CopyOf(t, fixtures[int(fixture)%len(fixtures)])
		names := storagetest.Names(t, s)
		name := names[int(file)%len(names)]
		b := must.Get(blob.ReadAll(t.Context(), s, name, 1<<20))(t)
		copy(b[int(at)%len(b):], data)
		storagetest.Put(t, s, name, b)
		if _, holds := torchfile.RecognizeFSDP(beside); holds || beside == "fsdp_config.json" {
			storagetest.Put(t, s, beside, data)
		}
		opensOrRefuses(t, torchfile.FSDP{}, s)
	})
}
