package native

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// saveTwo saves the state of small with seed from two ranks, the second of which holds a part
// of it.
func saveTwo(t testing.TB, s blob.Store, id string, seed byte, o *options) error {
	t.Helper()
	state := small(t, seed)
	return storagetest.Save(context.Background(), at(s, o, storage.ReadOptions{}), storagetest.Storage(id, 1, 2),
		plan.State{"big": state["big"], "step": state["step"]}, plan.State{"w": state["w"]})
}

// stores make the stores that crash tests run on.
var stores = map[string]func(t testing.TB) blob.Store{
	"mem": func(testing.TB) blob.Store { return new(mem.Store) },
	"file": func(t testing.TB) blob.Store {
		s := must.Get(file.Open(t.TempDir(), &file.Options{NoSync: true}))(t)
		return s
	},
}

// checkOneOf fails unless s holds exactly one complete checkpoint, with one of the
// seeds, or no checkpoint if zero is a seed.
func checkOneOf(t testing.TB, s blob.Store, seeds ...byte) {
	t.Helper()
	got, err := seedOf(t, s)
	if errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrIncomplete) {
		if !slices.Contains(seeds, 0) {
			t.Errorf("the checkpoint is gone: %v", err)
		}
		return
	}
	if err != nil || !slices.Contains(seeds, got) {
		t.Errorf("loaded %d, %v; want one of %d", got, err, seeds)
	}
	checkWhole(t, s)
}

func TestFaultAtEveryStepOfALoad(t *testing.T) {
	inner := new(mem.Store)
	saveOdd(t, inner, "odd", &options{WriteOptions: storage.WriteOptions{FilesPerRank: 2}})
	for _, parallel := range []int{1, 4} {
		for n := range deep.Steps[int64]() {
			s := fault.New(inner, fault.Rule{Nth: n, Do: fault.Fail(syscall.EIO)})
			err := loadOdd(t, at(s, nil, storage.ReadOptions{Parallel: parallel}))
			if int64(len(s.Ops())) < n {
				if err != nil {
					t.Errorf("a load without a fault = %v", err)
				}
				break
			}
			if !errors.Is(err, syscall.EIO) || errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("operation %d of a load fails, and the load = %v; want %v", n, err, syscall.EIO)
			}
			must.Do(t, goleak.Find())
		}
	}
}

// loadOdd loads the state of saveOdd on one rank and compares it.
func loadOdd(t testing.TB, p storagetest.Place) error {
	t.Helper()
	want := wholeOdd(t)
	got := plan.State{}
	for name, v := range want {
		got[name] = nil
		if x, ok := v.(*tensor.Tensor); ok {
			got[name] = storagetest.Filled(t, x.DType(), x.Shape(), 77)
		}
	}
	l := storagetest.NewLoading(p, 1)
	l.Planners[0] = &plan.DefaultLoad{NoFlatten: true, RejectUnexpected: true}
	if err := l.Plan(context.Background(), []plan.State{got}); err != nil {
		return err
	}
	if err := l.Read(context.Background()); err != nil {
		return err
	}
	for name, v := range want {
		switch v := v.(type) {
		case *tensor.Tensor:
			if !tensor.Equal(v, got[name].(*tensor.Tensor)) {
				t.Errorf("%q: other elements than were saved", name)
			}
		case []byte:
			if !slices.Equal(v, got[name].([]byte)) {
				t.Errorf("%q: other bytes than were saved", name)
			}
		default:
			if v != got[name] {
				t.Errorf("%q = %v; want %v", name, got[name], v)
			}
		}
	}
	return nil
}

// wholeOdd is oddState of both ranks together, by name.
func wholeOdd(t testing.TB) plan.State {
	x := storagetest.Filled(t, tensor.Float32, []int64{9, 7}, 1)
	s := oddState(t, 1)
	list := s["nested"].(map[string]any)[`a"<b>☃`].([]any)
	return plan.State{
		"flat": x, "rows": x, "complex": storagetest.Filled(t, tensor.Complex64, []int64{4, 2}, 2),
		"__cairn__/0": s["__cairn__/0"], "__metadata__": s["__metadata__"], "__cairn__/": s["__cairn__/"],
		`nested.a"<b>☃.0`: list[0], `nested.a"<b>☃.1.k`: "v", "big": s["big"], "small": s["small"],
	}
}
