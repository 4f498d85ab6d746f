package host_test

import (
	"context"
	"errors"
	"math/big"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

func newStager(t *testing.T) platform.Stager {
	t.Helper()
	s, err := host.New(nil).NewStager(1 << 20)
	must.Do(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func TestExecutorsOfTheSystem(t *testing.T) {
	want := []platform.Executor{platform.Goroutine}
	if runtime.GOOS == "linux" {
		want = append(want, platform.Process)
	}
	if got := host.New(nil).Executors(); !slices.Equal(got, want) {
		t.Errorf("Executors = %v; want %v", got, want)
	}
}

func TestStagerNeedsMemory(t *testing.T) {
	if _, err := host.New(nil).NewStager(1); !errors.Is(err, stage.ErrArena) {
		t.Errorf("NewStager(1) = %v; want ErrArena", err)
	}
}

func TestStagerKeepsShardedTensors(t *testing.T) {
	s := newStager(t)
	w, err := shard.Zeros[uint8](shard.Rows(2), []int64{4, 8}, 1)
	must.Do(t, err)
	staged, release, err := s.Stage(t.Context(), []any{w, plan.Whole(w.Local())})
	must.Do(t, err)
	defer release()
	got := staged.([]any)[0].(plan.Checkpointable)
	if !slices.Equal(got.GlobalShape(), w.GlobalShape()) || !reflect.DeepEqual(got.Boxes(), w.Boxes()) || got.DType() != tensor.Uint8 {
		t.Errorf("staged %v of %v", got.Boxes(), got.GlobalShape())
	}
	part, err := got.Part(0)
	if err != nil || !tensor.Equal(part, w.Local()) {
		t.Fatalf("Part(0) = %v, %v; want the local part", part, err)
	}
	part.Memory()[0] = 9
	whole, err := staged.([]any)[1].(plan.Checkpointable).Part(0)
	if err != nil || whole.Memory()[0] != 9 || w.Local().Memory()[0] != 0 {
		t.Errorf("Part(0) = %v, %v; want the memory of the other copy, and not the memory of the tensor", whole, err)
	}
	if _, err := got.Part(1); err == nil {
		t.Error("Part(1) of one part = nil; want an error")
	}
}

func TestStagerCopiesValues(t *testing.T) {
	s := newStager(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var none *tensor.Tensor
	tree := []any{
		big.NewInt(7), rand.NewPCG(1, 2), at, value.Ref{FQN: "w"}, value.Tuple{1, "a"}, &value.Set{Items: []any{2}}, [2][]int{{1}, nil},
		map[string]any{"a": []any{nil, []byte{1}}}, map[string]int(nil), []string(nil), none, (*shard.Tensor)(nil), nil, 1 + 2i, true,
	}
	staged, release, err := s.Stage(t.Context(), tree)
	must.Do(t, err)
	defer release()
	if got := staged.([]any); !reflect.DeepEqual(got, tree) {
		t.Errorf("staged %#v; want %#v", got, tree)
	}
	tree[0].(*big.Int).SetInt64(8)
	tree[1].(*rand.PCG).Uint64()
	tree[5].(*value.Set).Items[0] = 3
	tree[6].([2][]int)[0][0] = 4
	tree[7].(map[string]any)["a"].([]any)[1].([]byte)[0] = 5
	got := staged.([]any)
	if got[0].(*big.Int).Int64() != 7 || *got[1].(*rand.PCG) != *rand.NewPCG(1, 2) || got[5].(*value.Set).Items[0] != 2 ||
		got[6].([2][]int)[0][0] != 1 || got[7].(map[string]any)["a"].([]any)[1].([]byte)[0] != 1 {
		t.Errorf("staged values have changed with the tree: %#v", got)
	}
}

func TestStagerRefusesWhatItCannotCopy(t *testing.T) {
	s := newStager(t)
	for claim, v := range map[string]any{
		"a channel": make(chan int), "a function": func() {}, "a pointer to a number": new(int), "a struct": struct{ n int }{1},
		"a pointer in a list": []*int{new(int)}, "a pointer in a map": map[string]*int{"x": new(int)},
	} {
		_, _, err := s.Stage(t.Context(), map[string]any{"a": []any{v}})
		if !errors.Is(err, value.ErrValue) || !strings.Contains(err.Error(), `"a.0"`) {
			t.Errorf("%s: Stage = %v; want ErrValue at a.0", claim, err)
		}
	}
}

func TestStagerIsSafeForConcurrentUse(t *testing.T) {
	s := newStager(t)
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			x, err := tensor.Full(tensor.Uint8, []int64{5000}, float64(n))
			if err != nil {
				t.Error(err)
				return
			}
			for range 20 {
				staged, release, err := s.Stage(context.Background(), x)
				if err != nil || !tensor.Equal(staged.(*tensor.Tensor), x) {
					t.Errorf("Stage = %v, %v; want the tensor of this goroutine", staged, err)
					return
				}
				release()
			}
		})
	}
	wg.Wait()
}
