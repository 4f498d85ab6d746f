package platform_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/tensor"
)

// grid returns a tensor of rows and columns with the elements 0, 1, 2 and so on.
func grid(t *testing.T, rows, cols int64) *tensor.Tensor {
	t.Helper()
	flat, err := tensor.Arange(0, rows*cols, 1)
	must.Do(t, err)
	g, err := tensor.FromBytes(tensor.Int64, []int64{rows, cols}, flat.Contents())
	must.Do(t, err)
	return g
}

func TestMicroBatch(t *testing.T) {
	x, mask := grid(t, 4, 3), grid(t, 3, 4)
	in := platform.Batch{
		Args:  []any{x, mask, map[string]any{"ids": x}, "train"},
		Named: map[string]any{"bias": mask, "y": x},
	}
	dims := platform.BatchDims{Args: []int{0, 1, 0, 0}, Named: map[string]int{"bias": platform.Whole}}
	got, err := platform.MicroBatch(2, in, dims)
	if err != nil || len(got) != 2 {
		t.Fatalf("MicroBatch = %v, %v; want two", got, err)
	}
	for i, b := range got {
		rows, _ := x.Slice(0, int64(2*i), int64(2*i+2), 1)
		cols, _ := mask.Slice(1, int64(2*i), int64(2*i+2), 1)
		for what, pair := range map[string][2]*tensor.Tensor{
			"rows":    {b.Args[0].(*tensor.Tensor), rows},
			"columns": {b.Args[1].(*tensor.Tensor), cols},
			"nested":  {b.Args[2].(map[string]any)["ids"].(*tensor.Tensor), rows},
			"by name": {b.Named["y"].(*tensor.Tensor), rows},
		} {
			if !tensor.Equal(pair[0], pair[1]) {
				t.Errorf("micro-batch %d: %s = %v; want %v", i, what, pair[0], pair[1])
			}
		}
		if b.Named["bias"] != any(mask) || b.Args[3] != "train" {
			t.Errorf("micro-batch %d: bias = %v, mode = %v; want them as they were", i, b.Named["bias"], b.Args[3])
		}
	}
	whole, _ := tensor.Values[int64](x)
	part, _ := tensor.Values[int64](got[1].Args[0].(*tensor.Tensor))
	if whole[6] = 99; part[0] != 99 {
		t.Errorf("first element of the second half = %d; want the caller's memory", part[0])
	}
}

func TestMicroBatchCutsTheFirstDimension(t *testing.T) {
	got, err := platform.MicroBatch(4, platform.Batch{Args: []any{grid(t, 4, 3)}}, platform.BatchDims{})
	if err != nil || len(got) != 4 || got[0].Named != nil {
		t.Fatalf("MicroBatch = %v, %v", got, err)
	}
	if s := got[3].Args[0].(*tensor.Tensor).Shape(); !slices.Equal(s, []int64{1, 3}) {
		t.Errorf("shape = %v; want [1 3]", s)
	}
}

func TestMicroBatchRefuses(t *testing.T) {
	x := grid(t, 4, 3)
	for claim, c := range map[string]struct {
		n    int
		in   platform.Batch
		dims platform.BatchDims
		says string
	}{
		"no parts":                {0, platform.Batch{Args: []any{x}}, platform.BatchDims{}, "0 parts"},
		"indivisible":             {3, platform.Batch{Args: []any{"a", x}}, platform.BatchDims{}, "argument 1"},
		"indivisible, by name":    {3, platform.Batch{Named: map[string]any{"y": x}}, platform.BatchDims{}, `argument "y"`},
		"a smaller last part":     {3, platform.Batch{Args: []any{grid(t, 5, 3)}}, platform.BatchDims{}, "not divisible by 3 in dimension 0"},
		"in another dimension":    {3, platform.Batch{Args: []any{grid(t, 3, 5)}}, platform.BatchDims{Args: []int{1}}, "not divisible by 3 in dimension 1"},
		"no such dimension":       {2, platform.Batch{Args: []any{x}}, platform.BatchDims{Args: []int{2}}, "argument 0"},
		"a negative one":          {2, platform.Batch{Args: []any{x}}, platform.BatchDims{Args: []int{-2}}, "argument 0"},
		"too few dimensions":      {2, platform.Batch{Args: []any{x, x}}, platform.BatchDims{Args: []int{0}}, "1 dimensions for 2"},
		"a name that isn't there": {2, platform.Batch{Args: []any{x}}, platform.BatchDims{Named: map[string]int{"z": 0}}, `"z"`},
	} {
		got, err := platform.MicroBatch(c.n, c.in, c.dims)
		if !errors.Is(err, tensor.ErrShape) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: MicroBatch = %v, %v; want ErrShape and %s", claim, got, err, c.says)
		}
	}
}
