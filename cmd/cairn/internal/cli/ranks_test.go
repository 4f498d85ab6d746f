package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// If ranks that save without a group are missing, errors name them, with a hint.
func TestMissingRanksAreNamed(t *testing.T) {
	for _, format := range []string{formats.TorchDCP, formats.Hyper} {
		dir := t.TempDir()
		store, err := file.Open(dir, nil)
		must.Do(t, err)
		f, err := formats.ByName(format, nil)
		must.Do(t, err)
		_, err = cairn.Save(t.Context(), store, cairn.State{"n": 1}, &cairn.SaveOptions{
			Format: f, RankLocal: &cairn.RankLocal{Rank: 1, Size: 2, SaveID: "x"},
		})
		must.Do(t, err)
		for _, cmd := range []string{"inspect", "verify"} {
			var out, errOut bytes.Buffer
			code := Main(t.Context(), []string{cmd, dir}, &out, &errOut)
			all := out.String() + errOut.String()
			if code != 4 || !strings.Contains(all, "1 of 2 ranks, but not of rank 0") || !strings.Contains(all, "every rank has saved") || strings.Contains(all, "another copy") {
				t.Errorf("%s of %s ended with %d:\n%s", cmd, format, code, all)
			}
		}
	}
}
