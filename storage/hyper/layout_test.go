package hyper_test

import (
	"errors"
	"io/fs"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/tensor"
)

// cut is the layout of a parameter on a 2 × 2 mesh, as hyper_parallel writes it.
var cut = hyper.Param{
	Device: []int{2, 2}, TensorMap: [][]int{{1}, {0}}, Names: []string{"dp", "mp"}, Ranks: []int{0, 1, 2, 3},
	DType: tensor.BFloat16, Shape: []int64{16, 24},
}

func TestDecodeLayoutOfBothVersions(t *testing.T) {
	for name, text := range map[string]string{
		"newer": `{"1": {"w": {"tensor_map": [1, 0], "interleaved_parallel": false, "alias_name": ["dp", "mp"],
			"rank_list": [0, 1, 2, 3], "device_matrix": [2, 2], "type": "torch.bfloat16", "full_shape": [16, 24]}}}`,
		"older": `{"1": {"w": {"mesh_shape": [2, 2], "tensor_map": [[1], 0], "interleaved_parallel": false,
			"alias_name": ["dp", "mp"], "rank_list": [0, 1, 2, 3], "type": "BFloat16", "full_shape": [16, 24]}}}`,
	} {
		got, err := hyper.DecodeLayout([]byte(text))
		if d := cmp.Diff(hyper.Layouts{1: {"w": cut}}, got); d != "" || err != nil {
			t.Errorf("%s: DecodeLayout, %v: -want +got\n%s", name, err, d)
		}
	}
}

func TestEncodeLayout(t *testing.T) {
	l := hyper.Layouts{3: {"w": cut, "ünï": {DType: tensor.Float32, Shape: []int64{}}}}
	l[3]["both"] = hyper.Param{
		Device: []int{2, 2}, TensorMap: [][]int{{1, 0}, {-1}}, Names: []string{"a", "b"}, DType: tensor.Int8, Shape: []int64{8, 3},
	}
	b, err := hyper.EncodeLayout(l)
	want := `{"3":{"both":{"device_matrix":[2,2],"tensor_map":[[1,0],-1],"interleaved_parallel":false,"alias_name":["a","b"],` +
		`"type":"torch.int8","full_shape":[8,3]},` +
		`"w":{"device_matrix":[2,2],"tensor_map":[1,0],"interleaved_parallel":false,"alias_name":["dp","mp"],"rank_list":[0,1,2,3],` +
		`"type":"torch.bfloat16","full_shape":[16,24]},` +
		`"ünï":{"type":"torch.float32","full_shape":[]}}}`
	if string(b) != want || err != nil {
		t.Errorf("EncodeLayout = %s, %v; want %s", b, err, want)
	}
}

func TestInvalidLayoutsAreRefused(t *testing.T) {
	param := func(s string) string { return `{"0":{"w":{"type":"torch.int8",` + s + `}}}` }
	for name, text := range map[string]string{
		"nothing": "", "no JSON": "{", "a list": "[]", "more than one": "{}{}", "not UTF-8": "{\"0\":{\"\xff\":{}}}",
		"a rank in words": `{"zero":{}}`, "a negative rank": `{"-1":{}}`, "a rank with zeros": `{"00":{}}`,
		"no type":           `{"0":{"w":{"full_shape":[1]}}}`,
		"an unknown type":   `{"0":{"w":{"type":"torch.float3","full_shape":[1]}}}`,
		"an empty name":     `{"0":{"":{"type":"torch.int8","full_shape":[1]}}}`,
		"no shape":          param(`"x":1`),
		"a negative shape":  param(`"full_shape":[-1]`),
		"a shape too large": param(`"full_shape":[9223372036854775807,9]`),
		"both meshes":       param(`"full_shape":[4],"device_matrix":[2],"mesh_shape":[2],"tensor_map":[0]`),
		"too few axes":      param(`"full_shape":[4,4],"device_matrix":[2],"tensor_map":[0]`),
		"an unknown axis":   param(`"full_shape":[4],"device_matrix":[2],"tensor_map":[1]`),
		"an axis twice":     param(`"full_shape":[4,4],"device_matrix":[2],"tensor_map":[0,0]`),
		"an empty mesh":     param(`"full_shape":[4],"device_matrix":[0],"tensor_map":[0]`),
		"an endless mesh":   param(`"full_shape":[4],"device_matrix":[4294967296,4294967296],"tensor_map":[0]`),
		"too few ranks":     param(`"full_shape":[4],"device_matrix":[4],"rank_list":[0,1],"tensor_map":[0]`),
		"an axis in words":  param(`"full_shape":[4],"device_matrix":[2],"tensor_map":["dp"]`),
	} {
		if l, err := hyper.DecodeLayout([]byte(text)); !errors.Is(err, hyper.ErrLayout) {
			t.Errorf("%s: DecodeLayout(%s) = %v, %v; want %v", name, text, l, err, hyper.ErrLayout)
		}
	}
	bad := cut
	bad.TensorMap = [][]int{{7}, {0}}
	for name, l := range map[string]hyper.Layouts{
		"a negative rank": {-1: {}}, "an unknown axis": {0: {"w": bad}}, "an empty name": {0: {"": cut}}, "no type": {0: {"w": {Shape: []int64{1}}}},
	} {
		if b, err := hyper.EncodeLayout(l); !errors.Is(err, hyper.ErrLayout) {
			t.Errorf("%s: EncodeLayout = %s, %v; want %v", name, b, err, hyper.ErrLayout)
		}
	}
}

func TestCombineLayouts(t *testing.T) {
	s := new(mem.Store)
	ctx := t.Context()
	want := hyper.Layouts{0: {"w": cut}, 1: {"w": cut}, 12: {}}
	must.Do(t, hyper.SaveLayouts(ctx, s, want))
	for _, other := range []string{"rank0.layout.old", "sub/rank0.layout"} {
		must.Get(blob.WriteAll(ctx, s, other, []byte("no layout"), nil))(t)
	}
	got, err := hyper.CombineLayouts(ctx, s)
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("CombineLayouts, %v: -want +got\n%s", err, d)
	}
	one, err := hyper.LoadLayout(ctx, s, "rank12.layout")
	if d := cmp.Diff(hyper.Layouts{12: {}}, one); d != "" || err != nil {
		t.Errorf("LoadLayout, %v: -want +got\n%s", err, d)
	}
	if _, err := hyper.LoadLayout(ctx, s, "rank2.layout"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("LoadLayout of no file = %v; want %v", err, fs.ErrNotExist)
	}
	must.Do(t, hyper.SaveLayout(ctx, s, "copy.layout", one))
	if _, err := hyper.CombineLayouts(ctx, s); !errors.Is(err, hyper.ErrDuplicateRank) {
		t.Errorf("CombineLayouts of a rank twice = %v; want %v", err, hyper.ErrDuplicateRank)
	}
}

func TestParamLayout(t *testing.T) {
	m, ok := cut.Layout(shard.Divisible)
	if !ok {
		t.Fatal("no layout")
	}
	parts, err := m.Parts(cut.Shape, 2)
	want := []shard.Part{{Box: tensor.Box{Offsets: []int64{8, 0}, Sizes: []int64{8, 12}}, Local: []int64{0, 0}}}
	if d := cmp.Diff(want, parts); d != "" || err != nil {
		t.Errorf("rank 2 holds, %v: -want +got\n%s", err, d)
	}
	if got := hyper.ParamOf(m, cut.DType, cut.Shape); !reflect.DeepEqual(got, cut) {
		t.Errorf("ParamOf = %+v; want %+v", got, cut)
	}
	if _, ok := (&hyper.Param{DType: tensor.Int8}).Layout(shard.Divisible); ok {
		t.Error("a parameter without a device matrix has a layout")
	}
}

func TestLayoutRoundTripProperty(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		dims := rapid.IntRange(0, 3).Draw(t, "dims")
		p := hyper.Param{DType: rapid.SampledFrom(tensor.DTypes()).Draw(t, "dtype"), Shape: []int64{}}
		for range dims {
			p.Shape = append(p.Shape, rapid.Int64Range(0, 9).Draw(t, "size"))
		}
		if rapid.Bool().Draw(t, "cut") {
			axes := rapid.IntRange(1, 3).Draw(t, "axes")
			free := rapid.Permutation([]int{0, 1, 2}[:axes]).Draw(t, "order")
			for range axes {
				p.Device = append(p.Device, rapid.IntRange(1, 3).Draw(t, "length"))
			}
			for range dims {
				n := rapid.IntRange(1, max(1, min(2, len(free)))).Draw(t, "cuts")
				if len(free) < n {
					p.TensorMap = append(p.TensorMap, []int{-1})
					continue
				}
				p.TensorMap = append(p.TensorMap, free[:n:n])
				free = free[n:]
			}
		}
		want := hyper.Layouts{rapid.IntRange(0, 30).Draw(t, "rank"): {"p": p}}
		b := must.Get(hyper.EncodeLayout(want))(t)
		got, err := hyper.DecodeLayout(b)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Fatalf("DecodeLayout(%s), %v: -want +got\n%s", b, err, d)
		}
	})
}

func FuzzDecodeLayout(f *testing.F) {
	b := must.Get(hyper.EncodeLayout(hyper.Layouts{0: {"w": cut}, 1: {"b": {DType: tensor.Float32, Shape: []int64{3}}}}))(f)
	f.Add(b)
	f.Add([]byte(`{"0":{"w":{"mesh_shape":[2,2,2],"tensor_map":[[2,1],-1],"alias_name":["dp","cp","interleaved_parallel"],"interleaved_parallel":true,"type":"Float16","full_shape":[8,8]}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := hyper.DecodeLayout(b)
		if err != nil {
			if !errors.Is(err, hyper.ErrLayout) {
				t.Fatalf("DecodeLayout = %v; want %v", err, hyper.ErrLayout)
			}
			return
		}
		again, err := hyper.EncodeLayout(l)
		if err != nil {
			t.Fatalf("EncodeLayout of what was decoded: %v", err)
		}
		if m, err := hyper.DecodeLayout(again); err != nil || !reflect.DeepEqual(l, m) {
			t.Fatalf("decoded again, %v: %v; want %v", err, m, l)
		}
	})
}
