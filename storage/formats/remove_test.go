package formats_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// removable is a checkpoint that tests remove.
type removable struct {
	// make makes it in a folder that does not exist yet.
	make func(t testing.TB, dir string)
	// beside are files that do not belong to it.
	beside []string
}

// removables are checkpoints in all formats and forms, by name.
func removables() map[string]removable {
	out := map[string]removable{}
	for name, c := range crashes {
		if name == "torch, in a subfolder" { // opened by its name only
			continue
		}
		out[name] = removable{make: func(t testing.TB, dir string) {
			t.Helper()
			must.Do(t, saveCrash(t, c, dir, "a", 1))
		}}
	}
	for name, from := range map[string]string{
		"torchdcp of PyTorch":              "torch-2.14/shard0-3",
		"torchdcp, metadata of each rank":  "torch-2.14/ranklocal-2",
		"hf of PyTorch, without a record":  "torch-2.14/hf-3",
		"torch.save of PyTorch":            "torch-2.14/torchsave",
		"hyper, metadata of each rank":     "hyper_parallel/ranklocal-4",
		"deepspeed, ZeRO 1":                "deepspeed-0.19/zero1-bf16-2/ckpt/global_step3",
		"deepspeed, ZeRO 3":                "deepspeed-0.19/zero3-bf16-2/ckpt/global_step3",
		"deepspeed, universal":             "deepspeed-0.19/universal1-bf16-2/ckpt/global_step3_universal",
		"fsdp of verl":                     "fsdp/fsdp1-flat-2",
		"fsdp of accelerate":               "fsdp/accelerate-fsdp2-2",
		"torch_checkpointing":              "torch_checkpointing/torch-sync-4",
		"torch_checkpointing, safetensors": "torch_checkpointing/safetensors-4",
		"torch_checkpointing, no record":   "torch_checkpointing/torch-sync-twice-2-2",
	} {
		out[name] = removable{make: func(t testing.TB, dir string) { copyFixture(t, from, dir) }}
	}
	out["hf of a Trainer"] = removable{beside: []string{"config.json", "trainer_state.json"}, make: func(t testing.TB, dir string) {
		out["hf, an index"].make(t, dir)
		s := must.Get(file.Open(dir, nil))(t)
		pt := must.Get(os.ReadFile("../torchfile/testdata/linear.pt"))(t)
		for _, name := range []string{"optimizer.pt", "scheduler.pt", "training_args.bin"} {
			storagetest.Put(t, s, name, pt)
		}
		for _, name := range []string{"config.json", "trainer_state.json"} {
			storagetest.Put(t, s, name, []byte("{}"))
		}
	}}
	for name, key := range map[string]string{"native of cairn.megatron": "cairn.megatron.common", "native, with files of Megatron": "other"} {
		r := removable{make: func(t testing.TB, dir string) {
			s := must.Get(file.Open(dir, &file.Options{NoSync: true}))(t)
			state := plan.State{"w": storagetest.Filled(t, tensor.Float32, []int64{4}, 1), key: []any{"args"}}
			must.Do(t, storagetest.Save(t.Context(), (&storagetest.Setup{Format: native.Format{}}).At(s), storagetest.Storage("a", 1, 1), state))
			for _, name := range []string{"common.pt", "integrity.json", "metadata.json", "notes.txt"} {
				storagetest.Put(t, s, name, []byte("{}"))
			}
		}, beside: []string{"common.pt", "integrity.json", "metadata.json", "notes.txt"}}
		if key != "other" {
			r.beside = []string{"notes.txt"}
		}
		out[name] = r
	}
	out["hf, an index of files without numbers"] = removable{make: func(t testing.TB, dir string) {
		copyFixture(t, "torch-2.14/safetensors", dir)
		index := filepath.Join(dir, "model.safetensors.index.json")
		text := string(must.Get(os.ReadFile(index))(t))
		for i, name := range onDisk(t, dir) {
			if name == filepath.Base(index) {
				continue
			}
			to := string(rune('a'+i)) + ".safetensors"
			must.Do(t, os.Rename(filepath.Join(dir, name), filepath.Join(dir, to)))
			text = strings.ReplaceAll(text, name, to)
		}
		must.Do(t, os.WriteFile(index, []byte(text), 0o666))
	}}
	return out
}

func copyFixture(t testing.TB, name, dir string) {
	t.Helper()
	from := filepath.Join("../../testdata/fixtures", filepath.FromSlash(name))
	if !strings.Contains(name, "/ckpt") {
		from = filepath.Join(from, "ckpt")
	}
	storagetest.CopyFolder(t, from, dir)
}

// saveCrash saves a small state of a seed to a folder.
func saveCrash(t testing.TB, c *storagetest.Crash, dir, id string, seed byte) error {
	t.Helper()
	return c.Save(t.Context(), t, must.Get(file.Open(dir, &file.Options{NoSync: true}))(t), id, seed)
}

// onDisk returns the paths of all files below dir.
func onDisk(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			out = append(out, filepath.ToSlash(rel))
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	must.Do(t, err)
	return out
}

func TestRemove(t *testing.T) {
	for name, c := range removables() {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "c")
			c.make(t, dir)
			s := must.Get(file.Open(dir, nil))(t)
			must.Do(t, checkOpens(t, s))
			before := onDisk(t, dir)
			got, err := formats.Remove(t.Context(), s, nil)
			if err != nil || got.Files != len(before)-len(c.beside) || got.Bytes <= 0 {
				t.Errorf("Remove = %+v, %v; want %d files", got, err, len(before)-len(c.beside))
			}
			if after := onDisk(t, dir); !slices.Equal(after, c.beside) {
				t.Errorf("there are %q now; want %q", after, c.beside)
			}
			if _, err := os.Stat(dir); (err == nil) != (len(c.beside) > 0) {
				t.Errorf("the folder: %v", err)
			}
			if err := checkOpens(t, s); !errors.Is(err, storage.ErrNotFound) {
				t.Errorf("Open = %v; want ErrNotFound", err)
			}
			if _, err := formats.Remove(t.Context(), s, nil); !errors.Is(err, storage.ErrNotFound) {
				t.Errorf("Remove again = %v; want ErrNotFound", err)
			}
		})
	}
}

// checkOpens opens the checkpoint of s and checks that its files are there.
func checkOpens(t testing.TB, s blob.Store) error {
	t.Helper()
	c, err := formats.Open(t.Context(), s, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	md, err := c.Metadata(t.Context())
	if err == nil && len(md.Missing) > 0 {
		err = md.Missing[0].Err
	}
	return errors.Join(err, c.CheckFiles(t.Context()))
}
