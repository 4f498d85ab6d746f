package hyper_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// matrices are ways to cut a tensor of 8 × 6 over four ranks.
var matrices = map[string]shard.Matrix{
	"rows":        {Device: []int{4}, TensorMap: [][]int{{0}, {-1}}},
	"both":        {Device: []int{2, 2}, TensorMap: [][]int{{1}, {0}}},
	"twice":       {Device: []int{2, 2}, TensorMap: [][]int{{0, 1}, {-1}}},
	"replicated":  {Device: []int{2, 2}, TensorMap: [][]int{{-1}, {-1}}},
	"some ranks":  {Device: []int{2}, TensorMap: [][]int{{-1}, {0}}, Ranks: []int{3, 1}},
	"balanced":    {Device: []int{4}, TensorMap: [][]int{{-1}, {0}}, Rule: shard.Balanced},
	"ceil":        {Device: []int{4}, TensorMap: [][]int{{-1}, {0}}, Rule: shard.Ceil},
	"interleaved": {Device: []int{2, 2, 2}, TensorMap: [][]int{{2, 0}, {1}}, Names: []string{"a", "b", shard.InterleavedAxis}, Interleaved: shard.InterleavedAxis, Ranks: []int{0, 1, 2, 3}},
}

// layoutFolder writes each rank's share of x by each matrix, and of a parameter
// without a layout, as safetensors files called by name.
func layoutFolder(t *testing.T, x *tensor.Tensor, name func(rank int) string) *mem.Store {
	t.Helper()
	s := new(mem.Store)
	layouts := hyper.Layouts{}
	for rank := range 4 {
		layouts[rank] = map[string]hyper.Param{"plain": {DType: x.DType(), Shape: x.Shape()}}
		keys, shares := []string{"plain"}, []*tensor.Tensor{x}
		for key, m := range matrices {
			share := storagetest.Cut(t, m, x, rank)
			if len(share.Boxes()) == 0 {
				continue
			}
			layouts[rank][key] = hyper.ParamOf(m, x.DType(), x.Shape())
			keys, shares = append(keys, key), append(shares, share.Local())
		}
		storagetest.Put(t, s, name(rank), tensorFile(t, keys, shares...))
	}
	must.Do(t, hyper.SaveLayouts(t.Context(), s, layouts))
	return s
}

func TestOpenLayoutFiles(t *testing.T) {
	x := storagetest.Filled(t, tensor.Float32, []int64{8, 6}, 1)
	for name, call := range map[string]func(rank int) string{
		"hyper_parallel's names": func(rank int) string { return fmt.Sprintf("_rank%d_.safetensors", rank) },
		"names of the layouts":   func(rank int) string { return fmt.Sprintf("rank%d.safetensors", rank) },
	} {
		ck := must.Get(hyper.Format{}.Open(t.Context(), layoutFolder(t, x, call)))(t)
		got := storagetest.LoadAll(t, ck)
		for key := range matrices {
			if y, ok := got[key].(*tensor.Tensor); !ok || !tensor.Equal(x, y) {
				t.Errorf("%s: %s: other elements than were cut", name, key)
			}
		}
		if !tensor.Equal(x, got["plain"].(*tensor.Tensor)) {
			t.Errorf("%s: plain: other elements", name)
		}
		rep, err := ck.Verify(t.Context(), nil)
		if err != nil || len(rep.Problems) > 0 || rep.Files != 8 {
			t.Errorf("%s: Verify = %+v, %v; want eight files without problems", name, rep, err)
		}
	}
}

func TestOpenRefusesInconsistentLayouts(t *testing.T) {
	x := storagetest.Filled(t, tensor.Float32, []int64{8, 6}, 1)
	row := hyper.ParamOf(shard.Matrix{Device: []int{2}, TensorMap: [][]int{{0}, {-1}}}, tensor.Float32, []int64{8, 6})
	half := storagetest.Filled(t, tensor.Float32, []int64{4, 6}, 1)
	for name, c := range map[string]struct {
		params [2]hyper.Param
		shares [2]*tensor.Tensor
	}{
		"another shape":       {[2]hyper.Param{row, row}, [2]*tensor.Tensor{half, x}},
		"another type":        {[2]hyper.Param{row, row}, [2]*tensor.Tensor{half, storagetest.Filled(t, tensor.Int32, []int64{4, 6}, 1)}},
		"ranks that disagree": {[2]hyper.Param{row, {DType: tensor.Float32, Shape: []int64{4, 6}}}, [2]*tensor.Tensor{half, half}},
		"a part as the whole": {[2]hyper.Param{{DType: tensor.Float32, Shape: []int64{8, 6}}, row}, [2]*tensor.Tensor{half, half}},
	} {
		s := new(mem.Store)
		for rank := range 2 {
			storagetest.Put(t, s, fmt.Sprintf("rank%d.safetensors", rank), tensorFile(t, []string{"w"}, c.shares[rank]))
		}
		must.Do(t, hyper.SaveLayouts(t.Context(), s, hyper.Layouts{0: {"w": c.params[0]}, 1: {"w": c.params[1]}}))
		if _, err := (hyper.Format{}).Open(t.Context(), s); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("%s: Open = %v; want %v", name, err, storage.ErrCorrupt)
		}
	}
}
