package safetensors

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// The files were written by PyTorch 2.14 with safetensors 0.8: saved whole,
// saved by one of three ranks, and consolidated from those ranks.
func TestDecodeLibraryFiles(t *testing.T) {
	for name, sharded := range map[string]bool{
		"torch-2.14-whole.safetensors":        false,
		"torch-2.14-sharded.safetensors":      true,
		"torch-2.14-consolidated.safetensors": false,
	} {
		t.Run(name, func(t *testing.T) {
			file := must.Get(os.ReadFile(filepath.Join("testdata", "torch", name)))(t)
			h, err := decodeFile(file)
			if err != nil {
				t.Fatalf("Decode = %v; want nil", err)
			}
			if _, ok := h.Metadata["DCP_SHARDING_INFO"]; ok != sharded || len(h.Entries) == 0 {
				t.Errorf("Decode = %d entries, metadata %v; want entries, sharding info: %v", len(h.Entries), h.Metadata, sharded)
			}
			checkDecode(t, file)
		})
	}
}
