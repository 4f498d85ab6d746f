package convert_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestChunksOfTheTarget(t *testing.T) {
	src := &mem.Store{Name: "source"}
	var states []plan.State
	for r := range 2 {
		states = append(states, plan.State{
			"w":      storagetest.Cut(t, storagetest.Along(1, 2), storagetest.Filled(t, tensor.Float32, []int64{7, 4}, 1), r),
			"bias":   storagetest.Filled(t, tensor.Float32, []int64{3}, 2),
			"scalar": storagetest.Filled(t, tensor.Float32, nil, 2),
		})
	}
	save(t, src, states...)
	for _, c := range []struct {
		claim string
		o     convert.Options
		want  map[string]string
	}{
		{"as in the source", convert.Options{}, map[string]string{
			"w": "[[0 0]+[7 2] [0 2]+[7 2]]", "bias": "[[0]+[3]]", "scalar": "[[]+[]]",
		}},
		{"whole", convert.Options{Merge: true}, map[string]string{
			"w": "[[0 0]+[7 4]]", "bias": "[[0]+[3]]", "scalar": "[[]+[]]",
		}},
		{"by rows, uneven as PyTorch's", convert.Options{WorldSize: 4}, map[string]string{
			"w": "[[0 0]+[2 4] [2 0]+[2 4] [4 0]+[2 4] [6 0]+[1 4]]", "bias": "[[0]+[1] [1]+[1] [2]+[1]]", "scalar": "[[]+[]]",
		}},
		{"by rows and columns; a vector has no columns", convert.Options{Mesh: []int{2, 2}}, map[string]string{
			"w": "[[0 0]+[4 2] [0 2]+[4 2] [4 0]+[3 2] [4 2]+[3 2]]", "bias": "[[0]+[3]]", "scalar": "[[]+[]]",
		}},
		{"by the last rule that applies", convert.Options{Mesh: []int{2, 2}, Placements: []string{"R,R", "b*=S(0),R"}}, map[string]string{
			"w": "[[0 0]+[7 4]]", "bias": "[[0]+[2] [2]+[1]]", "scalar": "[[]+[]]",
		}},
	} {
		t.Run(c.claim, func(t *testing.T) {
			dst, _ := converted(t, src, &c.o)
			if d := cmp.Diff(c.want, chunks(t, dst)); d != "" {
				t.Errorf("chunks: -want +got\n%s", d)
			}
		})
	}
}

func TestWholeTensorsAreBalanced(t *testing.T) {
	src := &mem.Store{Name: "source"}
	state := plan.State{}
	for i := range 40 {
		state[fmt.Sprintf("t%02d", i)] = storagetest.Filled(t, tensor.Uint8, []int64{int64(100 + 37*i%90)}, byte(i))
	}
	save(t, src, state)
	job := must.Get(convert.Plan(t.Context(), open(t, src), &convert.Options{WorldSize: 3, Placements: []string{"*=S(5)"}}))(t)
	sum := job.Summary()
	for r, n := range sum.RankBytes {
		if mean := sum.Bytes / 3; n < mean-100 || n > mean+100 {
			t.Errorf("rank %d has %d bytes; want about %d", r, n, mean)
		}
	}
	if sum.Sharded != 0 || sum.Ranks != 3 || sum.Tensors != 40 {
		t.Errorf("summary %+v; want 40 whole tensors on 3 ranks", sum)
	}
}

func TestSummary(t *testing.T) {
	job, err := convert.Plan(t.Context(), open(t, saved(t, 2)), &convert.Options{
		Select: []string{"model.layers.0.*", "step"}, Rename: []string{"model.*=*"}, DType: []string{"*.m=float32"}, WorldSize: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &convert.Summary{
		Tensors: 2, Objects: 1, Bytes: 6*9*4 + 10*12*4 + 1, SourceBytes: 6*9*2 + 10*12*4 + 1, LeftOut: 11, Renamed: 2, Cast: 1,
		Ranks: 2, Sharded: 2, Chunks: 4, RankBytes: []int64{349, 348},
		Items: []convert.Item{
			{Name: "layers.0.m", From: "model.layers.0.m", Kind: "tensor", DType: "float32", FromDType: "bfloat16", Shape: []int64{6, 9}, Bytes: 216, Chunks: 2},
			{Name: "layers.0.w", From: "model.layers.0.w", Kind: "tensor", DType: "float32", Shape: []int64{10, 12}, Bytes: 480, Chunks: 2},
			{Name: "step", Kind: "object", Bytes: 1},
		},
	}
	if d := cmp.Diff(want, job.Summary()); d != "" {
		t.Errorf("Summary: -want +got\n%s", d)
	}
	if ranks, n := job.Size(); ranks != want.Ranks || n != want.Bytes {
		t.Errorf("Size = %d, %d; want %d, %d", ranks, n, want.Ranks, want.Bytes)
	}
}
