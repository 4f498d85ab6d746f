package formats_test

import (
	"context"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// withoutChecksums are the files of other programs that have no checksums, by patterns of
// their names. A flipped bit in them can stay unnoticed: no reader can know.
var withoutChecksums = map[string]string{
	"*.safetensors":   "safetensors has no checksums",
	"*.metadata":      "a pickle without a checksum, of PyTorch's Distributed Checkpoint and of hyper_parallel",
	"*.bytes":         "values of hyper_parallel",
	"tokenizer_*.bin": rawBytes,
	"train_*.json":    "JSON, of torch_checkpointing",
	"__0_0.distcp":    "the fixture torchdcp/legacy, with streams of PyTorch before 1.6; the archives in other files have checksums",
	"*_legacy.pt":     "a stream of PyTorch before 1.6",
}

// notListed are files of fixtures that no reader can miss: without them, the folder is a
// whole checkpoint of another format.
var notListed = []storagetest.Damage{
	{File: "torch_checkpointing/torch-sync-twice-2-1/fsdp_model_0.pt", At: storagetest.Removed},
	{File: "torch_checkpointing/torch-sync-twice-2-1/step_0.pt", At: storagetest.Removed},
	{File: "torch_checkpointing/safetensors-1/metadata.pkl", At: storagetest.Removed},
}

const rawBytes = "bytes as they are, of torch_checkpointing, also without a length"

// unsummed returns the pattern of a file without checksums. Records of zip archives have
// checksums in every file.
func unsummed(f storagetest.Damage) (pattern string, ok bool) {
	for p, why := range withoutChecksums {
		if ok, _ := path.Match(p, path.Base(f.File)); ok && f.Record == "" && (f.At >= 0 || f.At == storagetest.CutInHalf && why == rawBytes) {
			return p, true
		}
	}
	return "", false
}

// One flipped bit in any record of a checkpoint of another program, or a file that is missing or
// cut in half, is an error, or does not change the loaded state. Files without checksums are
// listed by name. If tests are deep, a bit is flipped in every record of every fixture.
func TestDamageIsNoticed(t *testing.T) {
	most := deep.Rounds(20, 100_000)
	var mu sync.Mutex
	seen := map[string]bool{} // patterns of withoutChecksums
	t.Run("all", func(t *testing.T) {
		for name, dir := range foreignFixtures(t) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := storagetest.CopyOf(t, must.Get(file.Open(dir, nil))(t))
				n, bad := storagetest.RunDamage(t, s, most, func(ctx context.Context) (storage.Checkpoint, error) { return formats.Open(ctx, blob.Store(s), nil) })
				t.Logf("%d times damaged", n)
				for _, f := range bad {
					p, ok := unsummed(f)
					if !ok && !slices.Contains(notListed, storagetest.Damage{File: name + "/" + f.File, At: f.At}) {
						t.Errorf("%+v changes the state without an error", f)
					}
					mu.Lock()
					seen[p] = true
					mu.Unlock()
				}
			})
		}
	})
	if !t.Failed() && deep.On() {
		for p, why := range withoutChecksums {
			if !seen[p] {
				t.Errorf("%s, %s: every flipped bit was noticed, so it has no place in the list", p, why)
			}
		}
	}
}

// foreignFixtures returns the folders of fixtures of all formats but cairn's own and slime's,
// by name. Files that are a checkpoint get a folder of their own.
func foreignFixtures(t *testing.T) map[string]string {
	out := map[string]string{"quantised": "../hf/testdata/quantised"}
	for _, f := range storagetest.Fixtures(t, "*/*") {
		if older := strings.HasPrefix(f.Name, "torch-2.6/") || strings.HasPrefix(f.Name, "torch-2.11/"); !older || deep.On() {
			out[f.Name] = f.Dir // the older releases write the same files as 2.14
		}
	}
	for _, dir := range must.Get(filepath.Glob("../torchdcp/testdata/*/ckpt"))(t) {
		if name := filepath.Base(filepath.Dir(dir)); name != "rot13-zstd" { // it needs a transformation of its own
			out["torchdcp/"+name] = dir
		}
	}
	for _, name := range must.Get(filepath.Glob("../torchfile/testdata/*.pt"))(t) {
		dir := t.TempDir()
		must.Do(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), must.Get(os.ReadFile(name))(t), 0o644))
		out["torchfile/"+filepath.Base(name)] = dir
	}
	if len(out) < 40 {
		t.Fatalf("%d fixtures: %q", len(out), slices.Sorted(maps.Keys(out)))
	}
	return out
}
