package adapter

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestFind(t *testing.T) {
	base := &meta.Metadata{}
	for _, name := range []string{"layers.1.w", "model.layers.0.w", "text.norm.w", "vision.norm.w"} {
		base.Entries = append(base.Entries, meta.Entry{FQN: name, Tensor: &meta.Tensor{}})
	}
	for name, c := range map[string]struct{ name, want, err string }{
		"the same name":                           {"model.layers.0.w", "model.layers.0.w", ""},
		"a base without the first part":           {"model.layers.1.w", "layers.1.w", ""},
		"an adapter of a part of the model":       {"layers.0.w", "model.layers.0.w", ""},
		"no such name":                            {"layers.2.w", "", ""},
		"an adapter of one of two parts":          {"norm.w", "", `"text.norm.w" and "vision.norm.w"`},
		"a name that another name only ends with": {"yers.0.w", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := (&merger{base: base}).find(c.name)
			switch {
			case c.err != "":
				if !errors.Is(err, ErrAdapter) || !strings.Contains(err.Error(), c.err) {
					t.Errorf("find = %v, %v; want ErrAdapter with %s", e, err, c.err)
				}
			case err != nil, e == nil != (c.want == ""), e != nil && e.FQN != c.want:
				t.Errorf("find = %v, %v; want %q", e, err, c.want)
			}
		})
	}
}

// An output layer that is not in the base gets a tensor of its own only if the adapter unties it.
func TestUntied(t *testing.T) {
	for name, want := range map[string]bool{
		"tied_embedding_saved_f32": true, "tied_output_saved_bf16": true, "tied_kept_bf16": false, "tied_twice_bf16": false, "plain_f32": false,
	} {
		c := open(t, name)
		_, has := must.Get(c.Metadata(t.Context()))(t).Find(headName)
		if c.Untied() != want || want && !has {
			t.Errorf("%s: Untied = %v, and %s is there: %v; want %v", name, c.Untied(), headName, has, want)
		}
	}
}

// write writes tensors into a file of safetensors.
func write(t testing.TB, s blob.Store, tensors plan.State) {
	t.Helper()
	w := must.Get(hf.Format{}.NewWriter(s, storage.WriteOptions{}))(t)
	p := storagetest.Place{Writer: func() storage.Writer { return w }}
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage("adapter", 1, 1), tensors))
}

// An adapter without one of its tensors is refused, unless the tensor stands alone: then everything
// else is as before.
func TestLostTensor(t *testing.T) {
	for _, fixture := range fixtures(t) {
		t.Run(fixture, func(t *testing.T) {
			at := folder(t, fixture+"/input/adapter")
			conf := config(t, at)
			all := storagetest.LoadAll(t, side(t, at))
			want := storagetest.LoadAll(t, open(t, fixture))
			for _, lost := range slices.Sorted(maps.Keys(all)) {
				rest := maps.Clone(all)
				delete(rest, lost)
				if len(rest) == 0 {
					continue
				}
				s := new(mem.Store)
				write(t, s, rest)
				c, err := Open(t.Context(), side(t, folder(t, fixture+"/input/base")), side(t, s), conf, "")
				alone := !strings.Contains(lost, ".lora_")
				if err != nil {
					if !errors.Is(err, ErrAdapter) {
						t.Errorf("without %s: %v; want ErrAdapter", lost, err)
					}
					continue
				}
				if !alone {
					t.Errorf("without %s: no error", lost)
				}
				changed := 0
				for name, v := range storagetest.LoadAll(t, c) {
					if w, ok := want[name].(*tensor.Tensor); !ok || !tensor.Equal(v.(*tensor.Tensor), w) {
						changed++
					}
				}
				if changed > 2 {
					t.Errorf("without %s: %d tensors changed", lost, changed)
				}
				c.Close()
			}
		})
	}
}

// Without the base's or the adapter's bytes there is an error.
func TestTruncatedAdapter(t *testing.T) {
	for _, dir := range []string{"adapter", "base"} {
		name := map[string]string{"adapter": "adapter_model.safetensors", "base": "model.safetensors"}[dir]
		at := copyFolder(t, folder(t, "plain_f32/input/"+dir))
		text := must.Get(blob.ReadAll(t.Context(), at, name, 1<<20))(t)
		for _, n := range []int{0, 7, 200, len(text) - 1} {
			must.Get(blob.WriteAll(t.Context(), at, name, text[:n], nil))(t)
			if c, err := (hf.Format{}).Open(t.Context(), at); err == nil {
				c.Close()
				t.Errorf("%s: %d of %d bytes: no error", dir, n, len(text))
			}
		}
	}
}

// A change of a byte of the description is an error by name, or another description.
func TestDamagedConfig(t *testing.T) {
	text := must.Get(blob.ReadAll(t.Context(), folder(t, "patterns/input/adapter"), ConfigName, maxConfig))(t)
	for i := range text {
		for _, b := range []byte{0, ' ', '"', '9', text[i] ^ 1, text[i] ^ 128} {
			bad := slices.Clone(text)
			bad[i] = b
			if _, err := DecodeConfig(bad); err != nil && !errors.Is(err, ErrAdapter) {
				t.Fatalf("byte %d is %q: %v; want ErrAdapter", i, b, err)
			}
		}
	}
}
