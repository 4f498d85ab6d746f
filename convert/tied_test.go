package convert_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Tensors with several names stay tied through the formats that can express it, also if
// they are resharded and renamed. Other formats store them once for each name.
func TestConversionKeepsTies(t *testing.T) {
	x := floats(t, 1, 2, 3, 4, 5, 6)
	ties := map[string]string{"head": "embed"}
	for claim, c := range map[string]struct {
		opts    *convert.Options
		formats []string
		want    map[string]string
	}{
		"native":                     {nil, []string{"native"}, ties},
		"native, replicated":         {&convert.Options{WorldSize: 3, Placements: []string{"*=R"}}, []string{"native"}, ties},
		"native, sharded":            {&convert.Options{WorldSize: 3}, []string{"native", "native"}, ties},
		"torch":                      {nil, []string{"torch"}, ties},
		"torch and back":             {nil, []string{"torch", "native"}, ties},
		"renamed":                    {&convert.Options{Rename: []string{"embed=z"}}, []string{"native"}, map[string]string{"z": "head"}},
		"cast alike":                 {&convert.Options{DType: []string{"*=float64"}}, []string{"native"}, ties},
		"cast, one of them":          {&convert.Options{DType: []string{"head=float64"}}, []string{"native"}, nil},
		"one of them":                {&convert.Options{Select: []string{"head"}}, []string{"native"}, nil},
		"safetensors":                {nil, []string{"hf"}, nil},
		"PyTorch's":                  {nil, []string{"torchdcp"}, nil},
		"by way of a format without": {nil, []string{"hf", "native"}, nil},
	} {
		t.Run(claim, func(t *testing.T) {
			src := new(mem.Store)
			if _, err := cairn.Save(t.Context(), src, cairn.State{"embed": x, "head": x, "own": floats(t, 1)}, nil); err != nil {
				t.Fatal(err)
			}
			ck := opened(t, through(t, src, c.opts, c.formats...))
			md := must.Get(ck.Metadata(t.Context()))(t)
			if rep, err := ck.Verify(t.Context(), nil); err != nil {
				t.Errorf("Verify = %+v, %v", rep, err)
			}
			if d := cmp.Diff(c.want, md.Ties()); d != "" {
				t.Errorf("ties (-want +got):\n%s", d)
			}
			got := must.Get(ck.ReadTensor(t.Context(), "head"))(t)
			if want := x; got.DType() == want.DType() && !tensor.Equal(got, want) {
				t.Error("head differs from what was saved")
			}
		})
	}
}
