package hf

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// without returns the folder of a fixture without one tensor, or with all of them if it is "".
func without(t testing.TB, fixture, lost string) *mem.Store {
	t.Helper()
	from := testdata(t, "quant/"+fixture+"/input")
	out := new(mem.Store)
	putBytes(t, out, configName, string(must.Get(blob.ReadAll(t.Context(), from, configName, maxConfig))(t)))
	all := loadAll(t, from, Format{})
	var rest []made
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if name != lost {
			rest = append(rest, made{name, all[name].(*tensor.Tensor)})
		}
	}
	put(t, out, "model.safetensors", nil, rest...)
	return out
}

// decode loads all weights as numbers.
func decode(t testing.TB, s blob.Store) (map[string]*tensor.Tensor, error) {
	t.Helper()
	c, err := (Format{Dequantize: true}).Open(t.Context(), s)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	out := map[string]*tensor.Tensor{}
	for name, v := range storagetest.LoadAll(t, c) {
		out[name] = v.(*tensor.Tensor)
	}
	return out, nil
}

// Without one of its tensors, a quantised weight is refused by name, or it is the same: the tensor
// was of another use.
func TestLostTensorOfScheme(t *testing.T) {
	for _, fixture := range schemeFixtures(t) {
		t.Run(fixture, func(t *testing.T) {
			want := loadAll(t, must.Get(file.Open("testdata/quant/"+fixture+"/expected", nil))(t), Format{})
			refused := 0
			for lost := range loadAll(t, testdata(t, "quant/"+fixture+"/input"), Format{}) {
				got, err := decode(t, without(t, fixture, lost))
				if errors.Is(err, ErrQuantized) {
					refused++
					if module := lost[:strings.LastIndexByte(strings.TrimSuffix(lost, ".weight"), '.')]; !strings.Contains(err.Error(), module[:min(len(module), len("model.layers.0"))]) {
						t.Errorf("without %s: %v; want its name", lost, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("without %s: %v; want ErrQuantized", lost, err)
					continue
				}
				for name, x := range got {
					if w, ok := want[name].(*tensor.Tensor); !ok || !tensor.Equal(x, w) {
						t.Errorf("without %s: %s is %v; want %v", lost, name, x, w)
					}
				}
			}
			if refused == 0 {
				t.Error("no tensor was missed")
			}
		})
	}
}

// Tensors of other shapes or types than their weight needs are refused by name.
func TestMisshapenTensorOfScheme(t *testing.T) {
	for _, fixture := range schemeFixtures(t) {
		t.Run(fixture, func(t *testing.T) {
			from := testdata(t, "quant/"+fixture+"/input")
			all := loadAll(t, from, Format{})
			want := loadAll(t, must.Get(file.Open("testdata/quant/"+fixture+"/expected", nil))(t), Format{})
			for changed := range all {
				if _, plain := want[changed]; plain && all[changed].(*tensor.Tensor).DType().IsFloat() && all[changed].(*tensor.Tensor).DType().Size() > 1 {
					continue // not quantised
				}
				for what, x := range map[string]*tensor.Tensor{
					"of another shape": storagetest.Filled(t, all[changed].(*tensor.Tensor).DType(), []int64{3, 5}, 1),
					"of another type":  storagetest.Filled(t, tensor.Complex64, all[changed].(*tensor.Tensor).Shape(), 1),
				} {
					s := new(mem.Store)
					putBytes(t, s, configName, string(must.Get(blob.ReadAll(t.Context(), from, configName, maxConfig))(t)))
					var made1 []made
					for _, name := range slices.Sorted(maps.Keys(all)) {
						y := all[name].(*tensor.Tensor)
						if name == changed {
							y = x
						}
						made1 = append(made1, made{name, y})
					}
					put(t, s, "model.safetensors", nil, made1...)
					got, err := decode(t, s)
					if _, weight := want[changed]; err == nil && weight && fixture == "ct_fp8_tensor" && what == "of another shape" {
						continue // one factor fits all shapes
					}
					if err == nil {
						for name, w := range want {
							if g := got[name]; g == nil || !tensor.Equal(g, w.(*tensor.Tensor)) {
								t.Errorf("%s %s: %s is %v, and no error", changed, what, name, g)
							}
						}
					} else if !errors.Is(err, ErrQuantized) {
						t.Errorf("%s %s: %v; want ErrQuantized", changed, what, err)
					}
				}
			}
		})
	}
}

// A file that has lost its end is refused.
func TestTruncatedScheme(t *testing.T) {
	for _, fixture := range schemeFixtures(t) {
		s := without(t, fixture, "")
		text := must.Get(blob.ReadAll(t.Context(), s, "model.safetensors", 1<<20))(t)
		for _, n := range []int{0, 7, 100, len(text) / 2, len(text) - 1} {
			putBytes(t, s, "model.safetensors", string(text[:n]))
			if _, err := decode(t, s); !errors.Is(err, storage.ErrCorrupt) && !errors.Is(err, storage.ErrIncomplete) {
				t.Errorf("%s: %d of %d bytes: %v; want ErrCorrupt", fixture, n, len(text), err)
			}
		}
	}
}

// An index of groups that names a group that is not there is damaged.
func TestGroupOutOfRange(t *testing.T) {
	const fixture = "byhand_gptq_4bit_act_order"
	all := loadAll(t, testdata(t, "quant/"+fixture+"/input"), Format{})
	for name, v := range all {
		if !strings.HasSuffix(name, ".g_idx") {
			continue
		}
		x := v.(*tensor.Tensor)
		s := without(t, fixture, name)
		var rest []made
		for n, v := range all {
			if n != name {
				rest = append(rest, made{n, v.(*tensor.Tensor)})
			}
		}
		bad := must.Get(tensor.Full(x.DType(), x.Shape(), int32(1000)))(t)
		put(t, s, "model.safetensors", nil, append(rest, made{name, bad})...)
		c := must.Get((Format{Dequantize: true}).Open(t.Context(), s))(t)
		module := strings.TrimSuffix(name, ".g_idx") + ".weight"
		e, ok := must.Get(c.Metadata(t.Context()))(t).Find(module)
		if !ok {
			t.Fatalf("no %s", module)
		}
		to := must.Get(tensor.New(e.Tensor.DType, e.Tensor.Shape))(t)
		p := storagetest.Place{Reader: func() storage.Reader { return storage.ReaderOf(c, storage.ReadOptions{}) }}
		if err := storagetest.Load(t.Context(), p, map[string]any{module: to}); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("Load(%s) = %v; want ErrCorrupt", module, err)
		}
		return
	}
	t.Fatal("the fixture has no index")
}

func FuzzQuantState(f *testing.F) {
	for _, fixture := range schemeFixtures(f) {
		if !strings.HasPrefix(fixture, "bnb_") {
			continue
		}
		for name, v := range loadAll(f, testdata(f, "quant/"+fixture+"/input"), Format{}) {
			if strings.Contains(name, stateEnd) {
				f.Add(v.(*tensor.Tensor).Contents(), strings.Contains(fixture, "nested"))
			}
		}
	}
	for _, s := range []string{`{}`, `null`, ``, `{"dtype":"float32","shape":[-1],"blocksize":64}`, `{"dtype":"bfloat16","shape":[9223372036854775807,2],"blocksize":1}`} {
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, nested bool) {
		s, err := decodeState(b, nested)
		if err != nil {
			return
		}
		n, err := tensor.NumElements(s.Shape)
		if err != nil || n != s.elements || s.Block <= 0 || nested && s.NestedBlock <= 0 || len(s.Shape) == 0 {
			t.Errorf("decodeState(%q, %v) = %+v", b, nested, s)
		}
	})
}

func FuzzQuantConfig(f *testing.F) {
	for _, fixture := range schemeFixtures(f) {
		f.Add(must.Get(os.ReadFile("testdata/quant/" + fixture + "/input/" + configName))(f))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeConfig(b)
		if err != nil {
			return
		}
		if _, ok := schemes[c.Method]; !ok || len(c.Block) != 2 || c.Block[0] <= 0 || c.Block[1] <= 0 {
			t.Errorf("decodeConfig(%q) = %+v", b, c)
		}
		if c.Method == "compressed-tensors" {
			c.groupOf("model.layers.0.mlp.down_proj")
		}
	})
}
