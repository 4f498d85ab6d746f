package formats_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	"github.com/cairn-ckpt/cairn/storage/adapter"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// loadFrom returns all tensors of the checkpoint in a folder.
func loadFrom(t testing.TB, dir string, o *formats.Options) plan.State {
	t.Helper()
	store := must.Get(blob.OpenAddress(t.Context(), dir))(t)
	c := must.Get(formats.Open(t.Context(), store, o))(t)
	defer c.Close()
	return storagetest.LoadAll(t, c)
}

// sameStates compares all names and tensors.
func sameStates(t testing.TB, got, want plan.State) {
	t.Helper()
	if a, b := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(a, b) {
		t.Fatalf("names %v; want %v", a, b)
	}
	for name, w := range want {
		if g, w := got[name].(*tensor.Tensor), w.(*tensor.Tensor); !tensor.Equal(g, w) {
			t.Errorf("%q = %v; want %v, or other numbers", name, g, w)
		}
	}
}

const peft = "../adapter/testdata/plain_bf16/"

// With a base, an adapter opens as the merged model, and without one as its own tensors. Other
// checkpoints do not use the base.
func TestOpenWithBase(t *testing.T) {
	with := &formats.Options{Base: peft + "input/base"}
	sameStates(t, loadFrom(t, peft+"input/adapter", with), loadFrom(t, peft+"expected", nil))
	sameStates(t, loadFrom(t, peft+"input/base", with), loadFrom(t, peft+"input/base", nil))
	for name := range loadFrom(t, peft+"input/adapter", nil) {
		if !strings.HasPrefix(name, "base_model.model.") {
			t.Errorf("without a base it has %q", name)
		}
	}
}

// An adapter opens beside files that its trainer has left.
func TestOpenAdapterBesideOtherFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"adapter_config.json", "adapter_model.safetensors"} {
		copyTo(t, filepath.Join(peft, "input/adapter", name), filepath.Join(dir, name))
	}
	copyTo(t, peft+"input/base/model.safetensors", filepath.Join(dir, "model.safetensors"))
	sameStates(t, loadFrom(t, dir, &formats.Options{Base: peft + "input/base"}), loadFrom(t, peft+"expected", nil))
}

// An adapter of a base that is quantised is merged into the numbers of the base.
func TestOpenWithQuantisedBase(t *testing.T) {
	base := "../hf/testdata/quant/ct_int8_channel/input"
	dir := t.TempDir()
	name := "model.layers.0.mlp.down_proj"
	writeAdapter(t, dir, 2, map[string]*tensor.Tensor{
		"base_model.model." + name + ".lora_A.weight": must.Get(tensor.Full(tensor.Float32, []int64{2, 96}, float32(0.5)))(t),
		"base_model.model." + name + ".lora_B.weight": must.Get(tensor.Full(tensor.Float32, []int64{24, 2}, float32(0)))(t),
	})
	store := must.Get(file.Open(dir, nil))(t)
	if _, err := formats.Open(t.Context(), store, &formats.Options{Base: base}); !errors.Is(err, adapter.ErrAdapter) || !strings.Contains(err.Error(), "int8") {
		t.Errorf("Open = %v; want ErrAdapter with int8", err)
	}
	got := loadFrom(t, dir, &formats.Options{Base: base, Dequantize: true})
	sameStates(t, got, loadFrom(t, "../hf/testdata/quant/ct_int8_channel/expected", nil))
}

// The ranked files of an adapter give the same model as the adapter's own files.
func TestOpenRankedAdapterWithBase(t *testing.T) {
	const ranked = "../../testdata/fixtures/fsdp/lora-2/ckpt"
	base, own := t.TempDir(), t.TempDir()
	tensors, factors := map[string]*tensor.Tensor{}, map[string]*tensor.Tensor{}
	for name, v := range loadFrom(t, ranked, nil) {
		rest, ok := strings.CutPrefix(name, "model.base_model.model.")
		x, isTensor := v.(*tensor.Tensor)
		if !ok || !isTensor {
			continue
		}
		factors["base_model.model."+strings.Replace(rest, ".default.", ".", 1)] = x
		module, _, _ := strings.Cut(rest, ".lora_")
		w := tensors[module+".weight"]
		shape := []int64{1, 1}
		if w != nil {
			shape = w.Shape()
		}
		if strings.Contains(rest, "lora_A") {
			shape = []int64{shape[0], x.Shape()[1]}
		} else {
			shape = []int64{x.Shape()[0], shape[1]}
		}
		tensors[module+".weight"] = storagetest.Filled(t, tensor.Float32, shape, 7)
	}
	if len(tensors) == 0 {
		t.Fatalf("%s has no factors", ranked)
	}
	writeTensors(t, filepath.Join(base, "model.safetensors"), tensors)
	var rank int64
	for name, x := range factors {
		if strings.Contains(name, "lora_A") {
			rank = x.Shape()[0]
		}
	}
	writeAdapter(t, own, rank, factors)

	with := &formats.Options{Base: base}
	got := loadFrom(t, ranked, with)
	sameStates(t, got, loadFrom(t, own, with))
	for name, w := range tensors {
		if tensor.Equal(got[name].(*tensor.Tensor), w) {
			t.Errorf("%q is what it was in the base", name)
		}
	}
}

func TestOpenWithBaseThatIsNone(t *testing.T) {
	store := must.Get(file.Open(peft+"input/adapter", nil))(t)
	if _, err := formats.Open(t.Context(), store, &formats.Options{Base: t.TempDir()}); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Open = %v; want ErrNotFound", err)
	}
}

// copyTo copies a file.
func copyTo(t testing.TB, from, to string) {
	t.Helper()
	must.Do(t, os.WriteFile(to, must.Get(os.ReadFile(from))(t), 0o666))
}

// writeTensors writes float32 tensors into a file of safetensors.
func writeTensors(t testing.TB, name string, tensors map[string]*tensor.Tensor) {
	t.Helper()
	type entry struct {
		DType   string   `json:"dtype"`
		Shape   []int64  `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	header, data := map[string]entry{}, []byte{}
	for _, n := range slices.Sorted(maps.Keys(tensors)) {
		at := int64(len(data))
		data = append(data, tensors[n].Contents()...)
		header[n] = entry{"F32", tensors[n].Shape(), [2]int64{at, int64(len(data))}}
	}
	text := must.Get(json.Marshal(header))(t)
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	must.Do(t, os.WriteFile(name, slices.Concat(b, text, data), 0o666))
}

// writeAdapter writes an adapter with an alpha of twice its rank.
func writeAdapter(t testing.TB, dir string, rank int64, tensors map[string]*tensor.Tensor) {
	t.Helper()
	writeTensors(t, filepath.Join(dir, "adapter_model.safetensors"), tensors)
	text := fmt.Sprintf(`{"peft_type":"LORA","r":%d,"lora_alpha":%d}`, rank, 2*rank)
	must.Do(t, os.WriteFile(filepath.Join(dir, adapter.ConfigName), []byte(text), 0o666))
}
