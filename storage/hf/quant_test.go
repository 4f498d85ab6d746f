package hf

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

func testdata(t testing.TB, dir string) blob.Store {
	t.Helper()
	s := must.Get(file.Open("testdata/"+dir, nil))(t)
	return s
}

// Dequantised weights equal PyTorch's, bit by bit.
func TestDequantizeEqualsPyTorch(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		want := loadAll(t, testdata(t, "dequantised"), Format{File: d.String() + ".safetensors"})
		got := loadAll(t, testdata(t, "quantised"), Format{Dequantize: true, DType: d})
		if len(got) != len(want) {
			t.Errorf("%v: %d tensors; want %d: the scales are none", d, len(got), len(want))
		}
		for name := range want {
			if !tensor.Equal(got[name].(*tensor.Tensor), want[name].(*tensor.Tensor)) {
				t.Errorf("%v: %q = %v; want %v, or other numbers", d, name, got[name], want[name])
			}
		}
	}
}

func TestOpenWithoutDequantize(t *testing.T) {
	got := loadAll(t, testdata(t, "quantised"), Format{})
	if x, ok := got["a.weight"].(*tensor.Tensor); len(got) != 5 || !ok || x.DType() != tensor.Float8E4M3FN {
		t.Errorf("%d tensors, a.weight = %v; want 5 as they are stored", len(got), got["a.weight"])
	}
}

// A slice of a quantised weight equals the slice of the whole weight.
func TestDequantisedSlices(t *testing.T) {
	s := testdata(t, "quantised")
	p := storagetest.Place{Reader: func() storage.Reader {
		return storage.NewReader(Format{Dequantize: true}.Open, s, storage.ReadOptions{BufferBytes: 1})
	}}
	all := loadAll(t, s, Format{Dequantize: true})
	deep.Check(t, func(rt *rapid.T) {
		name := rapid.SampledFrom([]string{"a.weight", "m.x_blocks"}).Draw(rt, "name")
		x := all[name].(*tensor.Tensor)
		box := tensor.Box{}
		for _, n := range x.Shape() {
			o := rapid.Int64Range(0, n).Draw(rt, "offset")
			box.Offsets = append(box.Offsets, o)
			box.Sizes = append(box.Sizes, rapid.Int64Range(0, n-o).Draw(rt, "size"))
		}
		part := must.Get(shard.Empty(shard.Boxes(map[int]tensor.Box{0: box}), tensor.Float32, x.Shape(), 0))(rt)
		must.Do(rt, storagetest.Load(t.Context(), p, plan.State{name: part}))
		want := must.Get(x.Narrow(box))(rt)
		if !tensor.Equal(part.Local(), want) {
			rt.Fatalf("%s %v: other numbers than in the whole", name, box)
		}
	})
}

// A large weight is decoded in parts, and a slice of it reads about its own bytes.
func TestDequantisedInParts(t *testing.T) {
	store := new(mem.Store)
	const rows, cols = 300, 2000 // more than the smallest budget takes at once
	put(t, store, "model.safetensors", nil,
		made{"w", storagetest.Filled(t, tensor.Float8E5M2, []int64{rows, cols}, 1)},
		made{"w_scale_inv", filledOnes(t, []int64{3, 16})})
	got := must.Get(tensor.New(tensor.Float32, []int64{rows, cols}))(t)
	p := storagetest.Place{Reader: func() storage.Reader {
		return storage.NewReader(Format{Dequantize: true}.Open, store, storage.ReadOptions{BufferBytes: 1})
	}}
	must.Do(t, storagetest.Load(t.Context(), p, plan.State{"w": got}))
	want, err := tensor.New(tensor.Float32, []int64{rows, cols})
	if err == nil {
		err = tensor.Convert(want, storagetest.Filled(t, tensor.Float8E5M2, []int64{rows, cols}, 1), tensor.CastAny)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !sameNumbers(got, want) {
		t.Error("a weight with factors of one is not what it was")
	}
	m := fault.New(store)
	p.Reader = func() storage.Reader {
		return storage.NewReader(Format{Dequantize: true}.Open, m, storage.ReadOptions{})
	}
	l := storagetest.NewLoading(p, 1)
	part := must.Get(shard.Empty(shard.Boxes(map[int]tensor.Box{0: {Offsets: []int64{100, 0}, Sizes: []int64{10, cols}}}), tensor.Float32, want.Shape(), 0))(t)
	must.Do(t, l.Plan(t.Context(), []plan.State{{"w": part}}))
	before := len(m.Ops())
	must.Do(t, l.Read(t.Context()))
	if n := m.Ops()[before:].Bytes(fault.Read); n < 10*cols || n > 10*cols+4*16 || l.Stats[0].Read != n {
		t.Errorf("10 rows read %d bytes, stats %+v; want the bytes of the rows and one row of factors", n, l.Stats[0])
	}
}

// sameNumbers compares bits, but for those inside of a NaN.
func sameNumbers(a, b *tensor.Tensor) bool {
	x, errX := tensor.Values[float32](a)
	y, errY := tensor.Values[float32](b)
	return errX == nil && errY == nil && slices.EqualFunc(x, y, func(p, q float32) bool { return p == q || p != p && q != q })
}

func filledOnes(t testing.TB, shape []int64) *tensor.Tensor {
	t.Helper()
	n := must.Get(tensor.NumElements(shape))(t)
	x := must.Get(tensor.Of(shape, slices.Repeat([]float32{1}, int(n))))(t)
	return x
}

// Weights that are quantised in another way, and weights with scales that do not fit, are
// refused with their names.
func TestDequantizeRefusesOtherKinds(t *testing.T) {
	f8 := storagetest.Filled(t, tensor.Float8E4M3FN, []int64{200, 200}, 1)
	u8 := func(shape ...int64) *tensor.Tensor { return storagetest.Filled(t, tensor.Uint8, shape, 1) }
	for name, c := range map[string]struct {
		config  string
		tensors []made
	}{
		"a kind that is not known":         {`{"quantization_config":{"quant_method":"gptq"}}`, []made{{"w", f8}}},
		"a kind of the inner model":        {`{"text_config":{"quantization_config":{"quant_method":"awq"}}}`, []made{{"w", f8}}},
		"a configuration that is not JSON": {`[`, []made{{"w", f8}}},
		"blocks of three dimensions":       {`{"quantization_config":{"quant_method":"fp8","weight_block_size":[1,2,3]}}`, []made{{"w", f8}}},
		"blocks of size zero":              {`{"quantization_config":{"quant_method":"fp8","weight_block_size":[0,128]}}`, []made{{"w", f8}}},
		"another kind of scale":            {``, []made{{"w", f8}, {"w_scale", filledOnes(t, nil)}}},
		"too few scales":                   {``, []made{{"w", f8}, {"w_scale_inv", filledOnes(t, []int64{2, 1})}}},
		"scales for other blocks":          {`{"quantization_config":{"quant_method":"fp8","weight_block_size":[64,64]}}`, []made{{"w", f8}, {"w_scale_inv", filledOnes(t, []int64{2, 2})}}},
		"blocks in a row":                  {``, []made{{"w", storagetest.Filled(t, tensor.Float8E4M3FN, []int64{9}, 1)}, {"w_scale_inv", filledOnes(t, []int64{1})}}},
		"scales of fewer groups":           {``, []made{{"w_blocks", u8(2, 4, 16)}, {"w_scales", u8(2, 3)}}},
		"scales that are no exponents":     {``, []made{{"w_blocks", u8(2, 4, 16)}, {"w_scales", filledOnes(t, []int64{2, 4})}}},
		"groups without a dimension":       {``, []made{{"w_blocks", u8(7)}, {"w_scales", u8()}}},
	} {
		t.Run(name, func(t *testing.T) {
			store := new(mem.Store)
			put(t, store, "model.safetensors", nil, c.tensors...)
			if c.config != "" {
				putBytes(t, store, "config.json", c.config)
			}
			if _, err := (Format{Dequantize: true}).Open(t.Context(), store); !errors.Is(err, ErrQuantized) {
				t.Errorf("Open = %v; want ErrQuantized", err)
			}
			if _, err := (Format{}).Open(t.Context(), store); err != nil {
				t.Errorf("Open as they are = %v", err)
			}
		})
	}
}

// Tensors with names like quantised weights are not changed.
func TestDequantizeKeepsOtherTensors(t *testing.T) {
	store := new(mem.Store)
	put(t, store, "model.safetensors", nil,
		made{"w", filledOnes(t, []int64{2, 2})}, made{"w_scale_inv", filledOnes(t, []int64{1, 1})},
		made{"b_blocks", filledOnes(t, []int64{2, 2})}, made{"b_scales", filledOnes(t, []int64{2})},
		made{"c_blocks", storagetest.Filled(t, tensor.Uint8, []int64{2, 2}, 1)})
	if got := loadAll(t, store, Format{Dequantize: true}); len(got) != 5 {
		t.Errorf("%d tensors; want all 5", len(got))
	}
}

func TestGroupsWithNamedExponents(t *testing.T) {
	store := new(mem.Store)
	blocks := storagetest.Filled(t, tensor.Uint8, []int64{3, 2, 4}, 5)
	exps := []byte{120, 127, 130, 126, 128, 1}
	for i, d := range []tensor.DType{tensor.Uint8, tensor.Float8E8M0FNU} {
		x := must.Get(tensor.FromBytes(d, []int64{3, 2}, exps))(t)
		put(t, store, []string{"a", "b"}[i]+".safetensors", nil, made{"w_blocks", blocks}, made{"w_scales", x})
	}
	a := loadAll(t, store, Format{Dequantize: true, File: "a.safetensors"})["w_blocks"].(*tensor.Tensor)
	b := loadAll(t, store, Format{Dequantize: true, File: "b.safetensors"})["w_blocks"].(*tensor.Tensor)
	if !tensor.Equal(a, b) || !slices.Equal(a.Shape(), []int64{3, 16}) {
		t.Errorf("%v and %v differ; want 3 by 16", a, b)
	}
}
