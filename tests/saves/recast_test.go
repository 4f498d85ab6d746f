package saves

import (
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// halving is a planner that saves under other names and float32 as bfloat16.
func halving() *plan.DefaultSave {
	return &plan.DefaultSave{
		Rename: func(fqn string) string { return "student." + fqn },
		DType: func(_ string, d tensor.DType) tensor.DType {
			if d == tensor.Float32 {
				return tensor.BFloat16
			}
			return d
		},
	}
}

// checkHalved fails unless c has the elements of x as bfloat16 under each of the names.
func checkHalved(t *testing.T, c *cairn.Checkpoint, x *tensor.Tensor, names ...string) {
	t.Helper()
	defer c.Close()
	want := must.Get(tensor.Cast(x, tensor.BFloat16))(t)
	for _, name := range names {
		got := must.Get(c.ReadTensor(t.Context(), name))(t)
		if !tensor.Equal(got, want) {
			t.Errorf("%s is %v; want the elements of %v as bfloat16", name, got, x)
		}
	}
}

func TestSaveRenamedAndCastInEveryFormat(t *testing.T) {
	for _, f := range []storage.Format{native.Format{}, torchdcp.Format{}, hf.Format{}, hyper.Format{}, torchfile.Format{File: "state.pt"}} {
		t.Run(f.Name(), func(t *testing.T) {
			store := new(mem.Store)
			x := jobtest.Whole(t, []int64{300, 7}, 0.1)
			state := cairn.State{"w": x, "tied": x, "model": cairn.State{"w": x.Clone()}}
			must.Get(cairn.Save(t.Context(), store, state, &cairn.SaveOptions{Planner: halving(), Format: f}))(t)
			c := must.Get(cairn.Open(t.Context(), store))(t)
			checkHalved(t, c, x, "student.w", "student.tied", "student.model.w")
		})
	}
}

func TestSaveAsyncRenamedAndCast(t *testing.T) {
	for mode, options := range jobtest.Modes {
		t.Run(mode, func(t *testing.T) {
			store, s := jobtest.TempStore(t), jobtest.Stager(t, options(64<<10))
			x := jobtest.Whole(t, []int64{300, 7}, 0.1)
			want := x.Clone()
			p := must.Get(cairn.SaveAsync(t.Context(), store, cairn.State{"w": x}, &cairn.AsyncOptions{
				Stager: s, SaveOptions: cairn.SaveOptions{Planner: halving()},
			}))(t)
			jobtest.Overwrite(x)
			must.Get(p.Wait(t.Context()))(t)
			c := must.Get(cairn.Open(t.Context(), store))(t)
			checkHalved(t, c, want, "student.w")
		})
	}
}
