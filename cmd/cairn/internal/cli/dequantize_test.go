package cli

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// Weights of 8-bit floats are multiplied by their scales.
func TestDequantizedWeights(t *testing.T) {
	dir := t.TempDir()
	header := `{"w":{"dtype":"F8_E4M3","shape":[1,2],"data_offsets":[0,2]},` +
		`"w_scale_inv":{"dtype":"F32","shape":[1,1],"data_offsets":[2,6]}}`
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	b = append(b, 0x38, 0x40)                            // 1 and 2
	b = binary.LittleEndian.AppendUint32(b, 0x3f00_0000) // 0.5
	src := filepath.Join(dir, "model.safetensors")
	must.Do(t, os.WriteFile(src, b, 0o666))
	for _, cmd := range []string{"convert", "merge"} {
		dst := filepath.Join(dir, cmd)
		var out, errOut bytes.Buffer
		for _, args := range [][]string{
			{cmd, src, dst, "--to", "native", "--dequantize", "--quiet"}, {"ls", dst}, {"cat", dst, "w"},
		} {
			if got := Main(t.Context(), args, &out, &errOut); got != 0 {
				t.Fatalf("%v: exit code %d: %s", args, got, &errOut)
			}
		}
		if s := out.String(); !strings.Contains(s, "float32  [1, 2]") || strings.Contains(s, "scale_inv") || !strings.Contains(s, "0.5") {
			t.Errorf("%s: printed %s; want 0.5 and 1 in float32, without the scale", cmd, s)
		}
	}
}
