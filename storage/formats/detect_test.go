package formats_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

func TestDetect(t *testing.T) {
	const ranked = "\x80\x04}X\x08\x00\x00\x00metadata}X\x17\x00\x00\x00nested_path_to_metadata"
	const header = "\x02\x00\x00\x00\x00\x00\x00\x00{}"
	tests := []struct {
		name  string
		files []string // name=content
		want  string   // a format, or empty: ErrNotFound
	}{
		{"nothing", nil, ""},
		{"native", []string{"cairn.json={}"}, formats.Native},
		{"native before others", []string{"cairn.json={}", ".metadata=torch", "m.safetensors="}, formats.Native},
		{"native, no record", []string{"20261115t101500-00c0ffee-r00000-0.safetensors="}, formats.Native},
		{"native, index alone", []string{"20261115t101500-00c0ffee-index.cairn="}, formats.Native},
		{"torchdcp", []string{".metadata=\x80\x04torch.distributed.checkpoint.metadata"}, formats.TorchDCP},
		{"torchdcp, a rank's", []string{"__0.metadata=", "__1.metadata="}, formats.TorchDCP},
		{"torchdcp, no metadata", []string{"__0_0.distcp="}, formats.TorchDCP},
		{"hyper", []string{".metadata=\x80\x04hyper_parallel.core.checkpoint.metadata"}, formats.Hyper},
		{"hyper, a rank's", []string{".rank0_metadata="}, formats.Hyper},
		{"hyper, a rank's, newer", []string{"0.metadata="}, formats.Hyper},
		{"hyper, no metadata", []string{"_rank0_.safetensors="}, formats.Hyper},
		{"hf, one file", []string{"model.safetensors=", "config.json={}"}, formats.HF},
		{"hf, index", []string{"model.safetensors.index.json={}"}, formats.HF},
		{"hf, a full version", []string{`model.safetensors.index.json={"metadata":{"total_size":3},"weight_map":{"delta_encoding":"m"}}`, "model-00001-of-00001.safetensors="}, formats.HF},
		{"slime", []string{`model.safetensors.index.json={"metadata":{"delta_encoding":"xor"},"weight_map":{}}`}, formats.Slime},
		{"slime, damaged", []string{`model.safetensors.index.json={"metadata":{"base_version":"000001"},"weight_map":{}}`}, formats.Slime},
		{"slime, metadata last", []string{`model.safetensors.index.json={"weight_map":{"a":"b"},"metadata":{"delta_encoding":"xor"}}`, "model-00000-of-00001.safetensors="}, formats.Slime},
		{"slime, no index", []string{"model-00000-of-00002.safetensors=", "model-00001-of-00002.safetensors="}, formats.Slime},
		{"slime, no index, of cairn", []string{"delta-20261115t101500-00c0ffee-00001-of-00002.safetensors="}, formats.Slime},
		{"slime beside hf", []string{"model.safetensors=", `model.safetensors.index.json={"metadata":{"delta_encoding":"xor"},"weight_map":{}}`}, formats.Slime},
		{"hf and torch", []string{"model.safetensors=", "pytorch_model.bin="}, formats.HF},
		{"torch", []string{"model.pt=", "notes.txt="}, formats.Torch},
		{"torch, sharded", []string{"pytorch_model.bin.index.json={}", "pytorch_model-00001-of-00002.bin="}, formats.Torch},
		{"two of torch", []string{"a.pt=", "b.pt="}, ""},
		{"torch_checkpointing", []string{"metadata.pkl=" + ranked, "model_0.pt=", "model_1.pt="}, formats.TorchRanked},
		{"torch_checkpointing, own names", []string{"metadata.pkl=" + ranked, "model_rank_0.safetensors=", "train_0.json={}"}, formats.TorchRanked},
		{"torch_checkpointing, no metadata", []string{"model_0.pt=", "model_1.pt=", "step_0.pt=", "step_1.pt=", "config_0.json={}"}, formats.TorchRanked},
		{"torch_checkpointing, one rank", []string{"model_0.pt=", "step_0.pt="}, formats.TorchRanked},
		{"one item of several numbers", []string{"model_0.pt=", "model_1.pt="}, ""},
		{"steps", []string{"g_100.pt=", "d_100.pt=", "g_200.pt=", "d_200.pt="}, ""},
		{"another file of torch", []string{"model_0.pt=", "step_0.pt=", "best.pt="}, ""},
		{"hf beside the files of Accelerate", []string{"model.safetensors=", "optimizer_0.pt=", "scheduler_0.pt="}, formats.HF},
		{"files of Accelerate", []string{"optimizer_0.pt=", "scheduler_0.pt="}, ""},
		{"hf beside another metadata.pkl", []string{"metadata.pkl=\x80\x04}.", "model.safetensors="}, formats.HF},
		{"torch beside another metadata.pkl", []string{"metadata.pkl=\x80\x04}.", "model.pt="}, formats.Torch},
		{"torchdcp before torch_checkpointing", []string{".metadata=torch", "metadata.pkl=" + ranked}, formats.TorchDCP},
		{"a zip by itself", []string{"weights=PK\x03\x04"}, formats.Torch},
		{"a pickle by itself", []string{"weights=\x80\x02\x8a"}, formats.Torch},
		{"safetensors by itself", []string{"weights=" + header}, formats.HF},
		{"an executable", []string{"model.pt=\x7fELF\x02\x01\x01"}, ""},
		{"a pointer in the place of a file", []string{"model.safetensors=version https://git-lfs.github.com/spec/v1"}, ""},
		{"a text in the place of a file", []string{"model.safetensors=gr\u00fc\u00dfe, this is a text\n"}, ""},
		{"JSON in the place of a file", []string{"model.safetensors={\"a\": 1}"}, ""},
		{"a length that is damaged", []string{"model.safetensors=\xff\xff\xff\x7f\x00\x00\x00\x00{}"}, formats.HF},
		{"hf, distributed, all files lost", []string{"cairn-save.json={}"}, formats.HF},
		{"a text by itself", []string{"notes.txt=hello"}, ""},
		{"an empty file by itself", []string{"x="}, ""},
		{"deepspeed", []string{"zero_pp_rank_0_mp_rank_00_optim_states.pt=", "mp_rank_00_model_states.pt="}, formats.DeepSpeed},
		{"deepspeed, from above", []string{"latest=global_step5", "zero_to_fp32.py=", "global_step5/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt="}, ""},
		{"deepspeed, universal", []string{"mp_rank_00_model_states.pt=", "zero/optimizer_state.pt=", "zero/w/fp32.pt="}, formats.DeepSpeed},
		{"deepspeed, pipeline parallel", []string{"layer_00-model_00-model_states.pt=", "mp_rank_00_model_states.pt="}, formats.DeepSpeed},
		{"hf before deepspeed", []string{"model.safetensors=", "latest=global_step5", "global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt="}, formats.HF},
		{"one file of deepspeed", []string{"mp_rank_00_model_states.pt=PK\x03\x04"}, formats.Torch},
		{"deepspeed, many tags and no latest", []string{"global_step5/mp_rank_00_model_states.pt=", "global_step6/mp_rank_00_model_states.pt="}, ""},
		{"orbax, a step", []string{"_CHECKPOINT_METADATA={}", "default/manifest.ocdbt=", "default/d/ab="}, formats.Orbax},
		{"orbax, an item", []string{"manifest.ocdbt=", "_METADATA={}"}, formats.Orbax},
		{"orbax, an old step", []string{"params/_METADATA={}", "params/manifest.ocdbt=", "extra/metadata={}"}, formats.Orbax},
		{"orbax, not merged", []string{"ocdbt.process_0/manifest.ocdbt=", "ocdbt.process_0/d/ab=", "_sharding={}"}, formats.Orbax},
		{"orbax, arrays in files", []string{"params.w/.zarray={}", "params.w/0.0=", "_sharding={}"}, formats.Orbax},
		{"orbax, many steps", []string{"5/_METADATA={}", "5/checkpoint=", "10/_METADATA={}", "10/checkpoint="}, ""},
		{"orbax, a run", []string{"5/_CHECKPOINT_METADATA={}", "5/state/_METADATA={}"}, ""},
		{"fsdp", []string{"model_world_size_2_rank_0.pt=", "model_world_size_2_rank_1.pt=", "optim_world_size_2_rank_0.pt=", "fsdp_config.json={}"}, formats.FSDP},
		{"fsdp of one rank, only weights", []string{"model_world_size_1_rank_0.pt=PK\x03\x04"}, formats.FSDP},
		{"fsdp beside weights that were merged", []string{"model_world_size_1_rank_0.pt=", "huggingface/model.safetensors="}, formats.FSDP},
		{"fsdp of accelerate", []string{"pytorch_model_fsdp_0_rank0.bin=", "optimizer_0_rank0.bin=", "scheduler.bin=", "random_states_0.pkl="}, formats.FSDP},
		{"local state of accelerate", []string{"pytorch_model_fsdp_rank0.bin=", "pytorch_model_fsdp_rank1.bin="}, formats.FSDP},
		{"the whole state of accelerate", []string{"pytorch_model_fsdp.bin=", "optimizer.bin="}, formats.Torch},
		{"hf before fsdp", []string{"model.safetensors=", "optimizer_0_rank0.bin="}, formats.HF},
		{"fsdp, from above", []string{"actor/model_world_size_1_rank_0.pt=", "huggingface/config.json={}"}, ""},
		{"checkpoints below", []string{"step-1/cairn.json={}", "step-2/model.safetensors="}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := new(mem.Store)
			for _, f := range tt.files {
				name, content, _ := strings.Cut(f, "=")
				must.Get(blob.WriteAll(t.Context(), s, name, []byte(content), nil))(t)
			}
			got, err := formats.Detect(t.Context(), s)
			if got != tt.want || (err == nil) != (tt.want != "") || err != nil && !errors.Is(err, storage.ErrNotFound) {
				t.Errorf("Detect = %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestDetectOneFileOfMany(t *testing.T) {
	s := new(mem.Store)
	for _, n := range []string{"a.pt", "b.pt"} {
		must.Get(blob.WriteAll(t.Context(), s, n, []byte("PK\x03\x04"), nil))(t)
	}
	must.Get(blob.WriteAll(t.Context(), s, "model_world_size_1_rank_0.pt", []byte("PK\x03\x04"), nil))(t)
	if got, err := formats.Detect(t.Context(), blob.NewSingle(s, "model_world_size_1_rank_0.pt")); got != formats.Torch || err != nil {
		t.Errorf("Detect of a file of fsdp = %q, %v; want torch", got, err)
	}
	if got, err := formats.Detect(t.Context(), blob.NewSingle(s, "b.pt")); got != formats.Torch || err != nil {
		t.Errorf("Detect = %q, %v; want torch", got, err)
	}
}

func TestByNameListsTheKnownFormats(t *testing.T) {
	_, err := formats.ByName("onnx", nil)
	if !errors.Is(err, formats.ErrUnknown) {
		t.Fatalf("got %v; want ErrUnknown", err)
	}
	for _, n := range formats.Names() {
		if !strings.Contains(err.Error(), n) {
			t.Errorf("%q does not name %s", err, n)
		}
	}
}

func TestDetectNamesUnsupportedFormats(t *testing.T) {
	for claim, c := range map[string]struct {
		files  []string
		format string // of the error; empty: none
	}{
		"Flax":                       {[]string{"checkpoint=\x82\xa6params", "notes="}, "Flax"},
		"another file of that name":  {[]string{"checkpoint=model_checkpoint_path", "model.pt="}, ""},
		"Megatron in zarr":           {[]string{`metadata.json={"sharded_backend": "zarr"}`, "common.pt=", "w/.zarray={}"}, "zarr"},
		"Megatron in torch_dist":     {[]string{`metadata.json={"sharded_backend": "torch_dist"}`, "common.pt=", ".metadata=torch"}, ""},
		"zarr arrays of other tools": {[]string{"model.pt=", "w/.zarray={}"}, ""},
	} {
		s := new(mem.Store)
		for _, f := range c.files {
			name, content, _ := strings.Cut(f, "=")
			must.Get(blob.WriteAll(t.Context(), s, name, []byte(content), nil))(t)
		}
		name, err := formats.Detect(t.Context(), s)
		e, ok := errors.AsType[*formats.UnsupportedError](err)
		switch {
		case c.format == "" && (err != nil || name == ""):
			t.Errorf("%s: Detect = %q, %v; want a format", claim, name, err)
		case c.format != "" && (!ok || !errors.Is(err, storage.ErrNotFound) || !strings.Contains(e.Format, c.format) || e.Hint == ""):
			t.Errorf("%s: Detect = %q, %v; want an UnsupportedError of %s", claim, name, err, c.format)
		}
	}
}
