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
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
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

// The checkpoint of NeMo 2 is the folder weights below the folder that has its name. Without
// its .metadata, the error names that file.
func TestLocateNeMo(t *testing.T) {
	s := new(mem.Store)
	must.Do(t, newSaving(t, must.Get(blob.NewSub(s, "weights"))(t), formats.TorchDCP, "s").Run(t.Context(), []plan.State{stateOf(t, 1)}))
	storagetest.Put(t, s, "weights/"+torchdcp.ConfigName, []byte("{}"))
	storagetest.Put(t, s, "context/io.json", []byte("{}"))
	at, format, err := formats.Locate(t.Context(), s)
	if err != nil || format != formats.TorchDCP || !strings.HasSuffix(at.String(), "/weights") {
		t.Errorf("Locate = %v, %q, %v; want the folder weights", at, format, err)
	}

	must.Do(t, s.Remove(t.Context(), "weights/.metadata"))
	if _, _, err := formats.OpenLocated(t.Context(), s, nil); !errors.Is(err, storage.ErrIncomplete) || !strings.Contains(err.Error(), ".metadata") {
		t.Errorf("OpenLocated = %v; want %v that names .metadata", err, storage.ErrIncomplete)
	}
}

// DeepSpeed's pointers name the folder of a tag, whatever libraries keep beside it.
func TestLocateTags(t *testing.T) {
	const optim, model = "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt=", "mp_rank_00_model_states.pt="
	for claim, c := range map[string]struct {
		files  []string // name=content
		folder string   // empty: the root
		format string   // empty: ErrNotFound
		text   string   // of the error
	}{
		"ZeRO":                      {[]string{"latest=global_step5\n", "zero_to_fp32.py=", "global_step5/" + optim, "global_step5/" + model}, "global_step5", formats.DeepSpeed, ""},
		"one of two tags":           {[]string{"latest=b", "a/" + optim, "a/" + model, "b/" + optim, "b/" + model}, "b", formats.DeepSpeed, ""},
		"a tag of several folders":  {[]string{"latest=a/b", "a/b/" + optim, "a/b/" + model}, "a/b", formats.DeepSpeed, ""},
		"universal":                 {[]string{"latest_universal=u", "u/" + model, "u/zero/w/fp32.pt="}, "u", formats.DeepSpeed, ""},
		"universal, beside ZeRO":    {[]string{"latest=g", "latest_universal=u", "g/" + optim, "g/" + model, "u/" + model, "u/zero/w/fp32.pt="}, "g", formats.DeepSpeed, ""},
		"beside one file":           {[]string{"latest=g", "scheduler.bin=PK\x03\x04", "random_states_0.pkl=", "g/" + optim, "g/" + model}, "g", formats.DeepSpeed, ""},
		"beside files of a trainer": {[]string{"latest=g", "scheduler.pt=", "rng_state_0.pth=", "rng_state_1.pth=", "training_args.bin=", "g/" + optim, "g/" + model}, "g", formats.DeepSpeed, ""},
		"beside a model":            {[]string{"latest=g", "model.safetensors=", "g/" + optim, "g/" + model}, "", formats.HF, ""},
		"beside a model of torch":   {[]string{"latest=g", "pytorch_model.bin=PK\x03\x04", "scheduler.pt=", "g/" + optim, "g/" + model}, "", formats.Torch, ""},
		"another format":            {[]string{"latest=step-5", "step-5/model.safetensors="}, "step-5", formats.HF, ""},
		"a file of a library":       {[]string{"scheduler.bin=PK\x03\x04", "notes="}, "", formats.Torch, ""},
		"a folder of that name":     {[]string{"latest/model.safetensors=", "notes="}, "", "", "no file of a known format"},
		"a missing folder":          {[]string{"latest=global_step9", "global_step5/" + optim, "global_step5/" + model}, "", "", "global_step9"},
		"an empty file":             {[]string{"latest=", "g/" + optim, "g/" + model}, "", "", "latest"},
		"a path that leads out":     {[]string{"latest=../g", "g/" + optim, "g/" + model}, "", "", "names no folder"},
		"a file that is too large":  {[]string{"latest=" + strings.Repeat("x", 1<<20), "g/" + optim}, "", "", "latest"},
	} {
		for where, open := range otherStores {
			s := open(t)
			for _, f := range c.files {
				name, content, _ := strings.Cut(f, "=")
				storagetest.Put(t, s, name, []byte(content))
			}
			at, format, err := formats.Locate(t.Context(), s)
			if c.format == "" {
				if !errors.Is(err, storage.ErrNotFound) || !strings.Contains(err.Error(), c.text) {
					t.Errorf("%s in %s: Locate = %v, %q, %v; want %v that says %q", claim, where, at, format, err, storage.ErrNotFound, c.text)
				}
			} else if err != nil || format != c.format || c.folder == "" && at != s || !strings.HasSuffix(at.String(), c.folder) {
				t.Errorf("%s in %s: Locate = %v, %q, %v; want %s in %q", claim, where, at, format, err, c.format, c.folder)
			}
		}
	}
}

// A run of verl or SkyRL, and a step of it, lead to the folder of the model that is trained.
func TestLocateRoles(t *testing.T) {
	const model = "model_world_size_1_rank_0.pt=PK\x03\x04"
	for claim, c := range map[string]struct {
		files  []string // name=content
		folder string   // empty: ErrNotFound
		format string
		text   string // of the error
	}{
		"a run of verl":               {[]string{"latest_checkpointed_iteration.txt=4", "global_step_2/actor/" + model, "global_step_4/actor/" + model, "global_step_4/critic/" + model, "global_step_4/data.pt=PK\x03\x04"}, "global_step_4/actor", formats.FSDP, ""},
		"a run of SkyRL":              {[]string{"latest_ckpt_global_step.txt=4\n", "global_step_4/policy/" + model, "global_step_4/critic/" + model, "global_step_4/data.pt=", "global_step_4/trainer_state.pt="}, "global_step_4/policy", formats.FSDP, ""},
		"a step":                      {[]string{"actor/" + model, "critic/" + model, "data.pt=PK\x03\x04"}, "actor", formats.FSDP, ""},
		"a step without a data file":  {[]string{"actor/" + model, "actor/huggingface/config.json={}"}, "actor", formats.FSDP, ""},
		"a step of a critic":          {[]string{"critic/" + model, "data.pt=PK\x03\x04"}, "critic", formats.FSDP, ""},
		"a step of several models":    {[]string{"critic/" + model, "reward/" + model, "data.pt=PK\x03\x04"}, "", "", "critic, reward"},
		"a run of Megatron":           {[]string{"latest_checkpointed_iteration.txt=4", "iter_0000004/.metadata=torch", "global_step_4/actor/" + model}, "iter_0000004", formats.TorchDCP, ""},
		"a missing step":              {[]string{"latest_checkpointed_iteration.txt=5", "global_step_4/actor/" + model}, "", "", "iter_0000005"},
		"a step without a model":      {[]string{"latest_checkpointed_iteration.txt=4", "global_step_4/notes="}, "", "", "global_step_4"},
		"a data file by itself":       {[]string{"data.pt=PK\x03\x04", "notes="}, "/", formats.Torch, ""},
		"a model beside the folders":  {[]string{"actor/" + model, "model.pt=PK\x03\x04"}, "/", formats.Torch, ""},
		"a checkpoint of another one": {[]string{"latest_checkpointed_iteration.txt=4", "global_step_4/model.safetensors="}, "global_step_4", formats.HF, ""},
	} {
		for where, open := range otherStores {
			s := open(t)
			for _, f := range c.files {
				name, content, _ := strings.Cut(f, "=")
				storagetest.Put(t, s, name, []byte(content))
			}
			at, format, err := formats.Locate(t.Context(), s)
			if c.folder == "" {
				if !errors.Is(err, storage.ErrNotFound) || !strings.Contains(err.Error(), c.text) {
					t.Errorf("%s in %s: Locate = %v, %q, %v; want %v that says %q", claim, where, at, format, err, storage.ErrNotFound, c.text)
				}
			} else if err != nil || format != c.format || c.folder == "/" && at != s || c.folder != "/" && !strings.HasSuffix(at.String(), c.folder) {
				t.Errorf("%s in %s: Locate = %v, %q, %v; want %s in %q", claim, where, at, format, err, c.format, c.folder)
			}
		}
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
