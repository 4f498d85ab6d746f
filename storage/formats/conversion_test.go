package formats_test

import (
	"testing"

	"github.com/cairn-ckpt/cairn/storage/formats"
)

func TestForConversion(t *testing.T) {
	const large = 2 << 30
	for _, tt := range []struct {
		name     string
		o        formats.WriterOptions
		format   string
		ranks    int
		bytes    int64
		max      int64
		parallel bool
	}{
		{"files of 5 GB", formats.WriterOptions{}, formats.Native, 4, large, 5e9, false},
		{"several at a time on one rank", formats.WriterOptions{}, formats.TorchDCP, 1, large, 5e9, true},
		{"but not small ones", formats.WriterOptions{}, formats.TorchDCP, 1, 1, 5e9, false},
		{"always of hf", formats.WriterOptions{}, formats.HF, 4, 1, 5e9, true},
		{"a size that was asked for", formats.WriterOptions{MaxFileBytes: 7}, formats.HF, 1, large, 7, true},
		{"a number that was asked for", formats.WriterOptions{Shards: 3, Files: 3}, formats.HF, 1, large, 0, false},
		{"one file", formats.WriterOptions{File: "m.pt"}, formats.Torch, 1, 1, 0, false},
	} {
		got := tt.o.ForConversion(tt.format, tt.ranks, tt.bytes)
		if got.MaxFileBytes != tt.max || (got.Files > tt.o.Files) != tt.parallel {
			t.Errorf("%s: %+v; want %d bytes a file, several at a time %v", tt.name, got, tt.max, tt.parallel)
		}
	}
}

func TestWholeTensors(t *testing.T) {
	for _, n := range formats.Names() {
		if got, want := formats.WholeTensors(n), n == formats.HF || n == formats.Torch; got != want {
			t.Errorf("WholeTensors(%s) = %v", n, got)
		}
	}
	if formats.WholeTensors("onnx") {
		t.Error("an unknown format holds whole tensors")
	}
}
