package cli

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/commit"
)

// While one conversion to DST runs, a second one returns an error. --dry-run still
// works.
func TestSecondConversionIsRefused(t *testing.T) {
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "x")
	header := `{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`
	b := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+"ab"...)
	must.Do(t, os.WriteFile(src, b, 0o666))
	first := &convert.Place{Path: dst}
	must.Do(t, first.Lock())
	var out, errOut bytes.Buffer
	args := []string{"convert", src, dst, "--to", "hf", "--quiet"}
	want := "cairn convert: " + dst + ": another conversion to it is running\nhint: wait for it to end, or give DST another path\n"
	if got := Main(t.Context(), args, &out, &errOut); got != exitError || errOut.String() != want {
		t.Errorf("exit code %d and %q; want %d and %q", got, &errOut, exitError, want)
	}
	if got := Main(t.Context(), append(args, "--dry-run"), &out, &errOut); got != exitOK {
		t.Errorf("--dry-run: exit code %d: %s", got, &errOut)
	}
	must.Do(t, first.Unlock())
	if got := Main(t.Context(), args, &out, &errOut); got != exitOK {
		t.Errorf("afterwards: exit code %d: %s", got, &errOut)
	}
}

// While a save is under way, commands that open its folder say so.
func TestSaveUnderWay(t *testing.T) {
	run := t.TempDir()
	dir := filepath.Join(run, "step-1")
	store := must.Get(file.Open(dir, nil))(t)
	lock, err := commit.LockSave(t.Context(), store, "native", "20261115t101500-00c0ffee")
	if err != nil || lock == nil {
		t.Skipf("no locks here: %v", err)
	}
	defer lock.Release()
	for args, hint := range map[string]string{
		"verify " + dir: "'cairn latest " + dir + " --wait' waits until the save is over",
		"ls " + dir:     "'cairn latest " + dir + " --wait' waits until the save is over",
		"latest " + run: "--wait waits until it is over",
	} {
		var out, errOut bytes.Buffer
		code := Main(t.Context(), strings.Fields(args), &out, &errOut)
		if code != 4 || out.Len() > 0 || !strings.Contains(errOut.String(), "hint: "+hint) {
			t.Errorf("%s: exit code %d, %q, %q; want 4 and %q", args, code, &out, &errOut, hint)
		}
	}
}
