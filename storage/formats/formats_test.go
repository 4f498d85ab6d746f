package formats_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

func TestForConversion(t *testing.T) {
	const large = 2 << 30
	for _, tt := range []struct {
		name     string
		o        formats.Options
		w        storage.WriteOptions
		format   string
		ranks    int
		bytes    int64
		max      int64
		parallel bool
	}{
		{"files of 5 GB", formats.Options{}, storage.WriteOptions{}, formats.Native, 4, large, 5e9, false},
		{"several at a time on one rank", formats.Options{}, storage.WriteOptions{}, formats.TorchDCP, 1, large, 5e9, true},
		{"but not small ones", formats.Options{}, storage.WriteOptions{}, formats.TorchDCP, 1, 1, 5e9, false},
		{"always of hf", formats.Options{}, storage.WriteOptions{}, formats.HF, 4, 1, 5e9, true},
		{"a size that was asked for", formats.Options{MaxFileBytes: 7}, storage.WriteOptions{}, formats.HF, 1, large, 7, true},
		{"a number that was asked for", formats.Options{Shards: 3}, storage.WriteOptions{FilesPerRank: 3}, formats.HF, 1, large, 0, false},
		{"one file", formats.Options{File: "m.pt"}, storage.WriteOptions{}, formats.Torch, 1, large, 0, false},
		{"one file of hf", formats.Options{File: "m.safetensors"}, storage.WriteOptions{}, formats.HF, 1, large, 0, false},
	} {
		o, w := formats.ForConversion(tt.format, tt.o, tt.w, tt.ranks, tt.bytes)
		if o.MaxFileBytes != tt.max || (w.FilesPerRank > tt.w.FilesPerRank) != tt.parallel {
			t.Errorf("%s: %+v, %+v; want %d bytes a file, several at a time %v", tt.name, o, w, tt.max, tt.parallel)
		}
	}
}

func TestWholeTensors(t *testing.T) {
	for _, n := range formats.Names() {
		if got, want := formats.WholeTensors(n), n == formats.HF || n == formats.Torch || n == formats.Slime; got != want {
			t.Errorf("WholeTensors(%s) = %v", n, got)
		}
	}
	if formats.WholeTensors("onnx") {
		t.Error("an unknown format holds whole tensors")
	}
}

func TestFormatsHaveTheirNames(t *testing.T) {
	for _, n := range formats.Names() {
		f, err := formats.ByName(n, &formats.Options{File: "m.pt"})
		if err != nil || f.Name() != n {
			t.Errorf("ByName(%s) = %v, %v; want the format of that name", n, f, err)
			continue
		}
		_, err = f.NewWriter(new(mem.Store), storage.WriteOptions{})
		if written := slices.Contains(formats.Writable(), n); written && err != nil || !written && !errors.Is(err, storage.ErrOptions) {
			t.Errorf("NewWriter of %s, which is written: %v, = %v", n, written, err)
		}
		if _, err := f.Open(t.Context(), new(mem.Store)); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("Open of %s at an empty place = %v; want %v", n, err, storage.ErrNotFound)
		}
	}
}

// A file of torch.save is one file: it needs a name and cannot be several.
func TestOptionsThatAFormatRefuses(t *testing.T) {
	for file, w := range map[string]storage.WriteOptions{"": {}, "m.pt": {FilesPerRank: 2}} {
		f := must.Get(formats.ByName(formats.Torch, &formats.Options{File: file}))(t)
		if _, err := f.NewWriter(new(mem.Store), w); !errors.Is(err, storage.ErrOptions) {
			t.Errorf("NewWriter of %q with %+v = %v; want %v", file, w, err, storage.ErrOptions)
		}
	}
}
