package formats_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

const megatronPointer = "latest_checkpointed_iteration.txt"

// megatronRun returns a run with checkpoints in some folders, each with its number as
// seed, and the text of the pointer.
func megatronRun(t *testing.T, text string, folders ...string) *mem.Store {
	t.Helper()
	s := new(mem.Store)
	for i, dir := range folders {
		at := must.Get(blob.NewSub(s, dir))(t)
		must.Do(t, newSaving(t, at, formats.TorchDCP, "s").Run(t.Context(), []plan.State{stateOf(t, byte(i+1))}))
	}
	storagetest.Put(t, s, megatronPointer, []byte(text))
	return s
}

func TestLocate(t *testing.T) {
	for claim, c := range map[string]struct {
		text    string
		folders []string
		want    string // the folder; empty: an error
	}{
		"an iteration":             {"5", []string{"iter_0000005", "iter_0000010"}, "iter_0000005"},
		"with a line feed":         {"10\n", []string{"iter_0000005", "iter_0000010"}, "iter_0000010"},
		"a large number":           {"123456789", []string{"iter_123456789"}, "iter_123456789"},
		"a converted model":        {"release", []string{"release"}, "release"},
		"a folder that is gone":    {"5", []string{"iter_0000004"}, ""},
		"a text of something else": {"../secret", []string{"iter_0000005"}, ""},
		"a negative number":        {"-5", []string{"iter_-000005"}, ""},
		"a text without end":       {strings.Repeat("5", 1<<20), []string{"iter_0000005"}, ""},
		"nothing":                  {"", []string{"iter_0000000"}, ""},
	} {
		s := megatronRun(t, c.text, c.folders...)
		at, format, err := formats.Locate(t.Context(), s)
		if c.want == "" {
			if err == nil || !strings.Contains(err.Error(), megatronPointer) {
				t.Errorf("%s: Locate = %v, %q, %v; want an error that names the file", claim, at, format, err)
			}
			continue
		}
		if err != nil || format != formats.TorchDCP || !strings.HasSuffix(at.String(), "/"+c.want) {
			t.Errorf("%s: Locate = %v, %q, %v; want %s", claim, at, format, err, c.want)
			continue
		}
		for i, dir := range c.folders {
			if dir == c.want {
				checkLoads(t, s, byte(i+1))
			}
		}
	}
	if _, _, err := formats.Locate(t.Context(), new(mem.Store)); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Locate of nothing = %v; want %v", err, storage.ErrNotFound)
	}
}

// A checkpoint beside a pointer is the checkpoint, and a run is no other format for a save.
func TestLocateAtTheRoot(t *testing.T) {
	s := megatronRun(t, "1", "iter_0000001")
	must.Do(t, kinds["native"].save(t, s, "root", 7, storage.WriteOptions{}))
	at, format, err := formats.Locate(t.Context(), s)
	if err != nil || at != blob.Store(s) || format != formats.Native {
		t.Errorf("Locate = %v, %q, %v; want the root", at, format, err)
	}
	checkLoads(t, s, 7)
}
