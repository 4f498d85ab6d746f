package platformtest

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"

	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/tensor"
)

// newStager returns a stager of rank 0, or nil if the platform cannot stage.
func newStager(e *env, ceiling int64) platform.Stager {
	st, ok := capability[platform.Staging](e)
	if !ok {
		return nil
	}

	if kinds := st.Executors(); !slices.Contains(kinds, platform.Goroutine) {
		e.Errorf("Executors = %v; want a goroutine at least", kinds)
	}

	s, err := st.NewStager(ceiling)
	if err != nil {
		e.Fatal(err)
	}

	e.Cleanup(func() {
		if err := s.Close(); err != nil {
			e.Error(err)
		}
	})
	return s
}

// stagingTree returns a tree with tensors that share memory, and all of its tensors.
func stagingTree() (map[string]any, map[string]*tensor.Tensor) {
	base := grid(30, 70)
	ts := map[string]*tensor.Tensor{
		"base": base, "turned": must(base.Transpose(0, 1)), "rows": must(base.Slice(0, 3, 9, 2)), "column": must(base.Slice(1, 5, 6, 1)),
		"own": grid(300, 50), "narrow": must(grid(100, 100).Slice(1, 0, 1, 1)), "one": ones(tensor.Float16), "none": ones(tensor.Float32, 0, 3),
	}
	tree := map[string]any{
		"layers": []any{map[string]*tensor.Tensor{"base": base, "turned": ts["turned"]}, ts["rows"], ts["column"]},
		"own":    ts["own"], "again": ts["own"], "narrow": ts["narrow"], "one": ts["one"], "none": ts["none"],
		"later": must(tensor.Placeholder(tensor.Float32, []int64{1 << 20, 1 << 20})),
		"step":  int64(7), "lr": 1e-3, "name": "run", "nothing": nil, "betas": []float64{0.9, 0.95}, "rng": []byte{1, 2, 3},
		"words": map[string][]int{"a": {1}},
	}
	return tree, ts
}

// overwrite changes every byte of the tensors, and the values of a tree of stagingTree.
func overwrite(tree map[string]any, ts map[string]*tensor.Tensor) {
	for _, t := range ts {
		mem := t.Memory()
		for i := range mem {
			mem[i]++ // once for each tensor that shares the memory
		}
	}

	tree["betas"].([]float64)[0] = 0
	tree["rng"].([]byte)[0] = 0
	tree["words"].(map[string][]int)["a"][0] = 0
	tree["step"] = int64(8)
}

func testStaging(e *env) {
	s := newStager(e, 1<<20)
	if s == nil {
		return
	}

	tree, ts := stagingTree()
	want, wantTensors := stagingTree()
	for range 3 { // the memory is used again
		staged, release, err := s.Stage(e.Context(), tree)
		if err != nil {
			e.Fatal(err)
		}
		overwrite(tree, ts)
		checkStaged(e, staged.(map[string]any), want, wantTensors)
		release()
		overwrite(want, wantTensors)
	}
}

// checkStaged compares a staged tree of stagingTree with the tree as it was.
func checkStaged(e *env, got, want map[string]any, ts map[string]*tensor.Tensor) {
	layers := got["layers"].([]any)
	first := layers[0].(map[string]*tensor.Tensor)
	copies := map[string]*tensor.Tensor{"base": first["base"], "turned": first["turned"], "rows": layers[1].(*tensor.Tensor), "column": layers[2].(*tensor.Tensor)}
	for _, name := range []string{"own", "narrow", "one", "none"} {
		copies[name] = got[name].(*tensor.Tensor)
	}

	for name, t := range ts {
		if !tensor.Equal(copies[name], t) {
			e.Errorf("%s differs from the tensor that was staged", name)
		}
	}

	if got["again"] != got["own"] {
		e.Error("a tensor that is in the tree twice has two copies")
	}
	if !got["later"].(*tensor.Tensor).IsPlaceholder() {
		e.Error("a placeholder is not a placeholder any more")
	}

	for _, name := range slices.Sorted(maps.Keys(want)) {
		if _, isTensor := want[name].(*tensor.Tensor); !isTensor && name != "layers" && !reflect.DeepEqual(got[name], want[name]) {
			e.Errorf("%s = %v; want %v", name, got[name], want[name])
		}
	}

	// A change of the base appears only in copies that share its memory.
	mem, _ := copies["base"].Bytes()
	for i := range mem {
		mem[i]++
	}

	if !tensor.Equal(must(copies["base"].Transpose(0, 1)), copies["turned"]) || !tensor.Equal(must(copies["base"].Slice(0, 3, 9, 2)), copies["rows"]) ||
		!tensor.Equal(copies["own"], ts["own"]) {
		e.Error("the copies do not share memory as the tensors do")
	}

	for i := range mem {
		mem[i]--
	}
}

func testStagingMemory(e *env) {
	s := newStager(e, 1<<20)
	if s == nil {
		return
	}

	tree := []any{ones(tensor.Uint8, 600<<10)}
	_, release, err := s.Stage(e.Context(), tree)
	if err != nil {
		e.Fatal(err)
	}
	_, _, second := s.Stage(e.Context(), tree)
	release()

	_, release, again := s.Stage(e.Context(), tree)
	if again != nil {
		e.Fatalf("Stage after a release = %v", again)
	}

	release()
	ended, cancel := context.WithCancel(e.Context())
	cancel()

	_, _, cancelled := s.Stage(ended, tree)
	_, _, large := s.Stage(e.Context(), []any{ones(tensor.Uint8, 2<<20)})
	if err := errors.Join(
		wraps("Stage beside a state that is not released", second, platform.ErrCeiling),
		wraps("Stage of a state above the ceiling", large, platform.ErrCeiling),
		wraps("Stage with a context that has ended", cancelled, context.Canceled),
	); err != nil {
		e.Error(err)
	}

	if _, release, err := s.Stage(e.Context(), tree); err != nil {
		e.Errorf("Stage after failures = %v", err)
	} else {
		release()
	}
}
