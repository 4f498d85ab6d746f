package convert_test

import (
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// keeps returns the properties that a format can hold.
func keeps(format string, p meta.Properties) meta.Properties {
	switch format {
	case formats.Native, formats.TorchDCP:
		return p
	case formats.Hyper:
		return meta.Properties{DType: p.DType, RequiresGrad: p.RequiresGrad, MemoryFormat: p.MemoryFormat}
	case formats.Torch:
		return meta.Properties{DType: p.DType, RequiresGrad: p.RequiresGrad}
	}
	return meta.Properties{DType: p.DType}
}

// The properties of a tensor in a state are stored in the checkpoint and converted to
// every other format.
func TestConvertKeepsProperties(t *testing.T) {
	all := meta.Properties{DType: tensor.Float16, RequiresGrad: true, MemoryFormat: "channels_last", PinMemory: true}
	x := storagetest.Filled(t, tensor.Float16, []int64{1, 2, 2, 2}, 0)
	state := cairn.State{"m": map[string]any{
		"x": plan.WithProperties(plan.Whole(x), all),
		"s": plan.WithProperties(storagetest.Cut(t, storagetest.Along(1, 1), x, 0), all),
	}}
	for _, from := range []string{formats.Native, formats.TorchDCP, formats.Hyper} {
		src := new(mem.Store)
		f := must.Get(formats.ByName(from, nil))(t)
		if _, err := cairn.Save(t.Context(), src, state, &cairn.SaveOptions{Format: f}); err != nil {
			t.Fatalf("%s: %v", from, err)
		}
		checkProperties(t, from, src, keeps(from, all))
		for _, to := range formats.Alone() {
			c := open(t, src)
			dst := new(mem.Store)
			o := &convert.Options{Merge: formats.WholeTensors(to)}
			if _, err := run(t.Context(), c, o, toFormat(to, dst)); err != nil {
				t.Fatalf("%s to %s: %v", from, to, err)
			}
			checkProperties(t, from+" to "+to, dst, keeps(to, keeps(from, all)))
		}
	}
}

func checkProperties(t *testing.T, what string, s *mem.Store, want meta.Properties) {
	t.Helper()
	c := open(t, s)
	md := must.Get(c.Metadata(t.Context()))(t)
	for _, name := range []string{"m.s", "m.x"} {
		if e, ok := md.Find(name); !ok || e.Tensor.Properties != want {
			t.Errorf("%s: %q has %+v; want %+v", what, name, e.Tensor.Properties, want)
		}
	}
}
