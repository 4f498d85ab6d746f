package native

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// saveTwo saves what small makes of seed from two ranks, the second of which
// holds a part of it.
func saveTwo(t testing.TB, s blob.Store, id string, seed byte, o *options) error {
	t.Helper()
	state := small(t, seed)
	return storagetest.Save(context.Background(), at(s, o, nil), storagetest.Storage(id, 1, 2),
		plan.State{"big": state["big"], "step": state["step"]}, plan.State{"w": state["w"]})
}

// stores make the stores that crash tests run on.
var stores = map[string]func(t testing.TB) blob.Store{
	"mem": func(testing.TB) blob.Store { return new(mem.Store) },
	"file": func(t testing.TB) blob.Store {
		s, err := file.Open(t.TempDir(), &file.Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	},
}

// checkOneOf fails unless s holds exactly one whole checkpoint, with one of the
// seeds, or none where zero is a seed.
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

// checkSaveAfter fails unless a later save succeeds and leaves nothing but its
// own files.
func checkSaveAfter(t testing.TB, s blob.Store) {
	t.Helper()
	if err := saveTwo(t, s, "later", 9, &options{WriteOptions: storage.WriteOptions{SweepAfter: 1}}); err != nil {
		t.Errorf("the next save = %v", err)
		return
	}
	checkOneOf(t, s, 9)
	for _, name := range storagetest.Names(t, s) {
		if name != recordName && !strings.HasPrefix(name, "later") {
			t.Errorf("%s is left after a sweep", name)
		}
	}
}

func TestCrashAtEveryStepOfASave(t *testing.T) {
	for name, open := range stores {
		for _, old := range []byte{0, 1} {
			for when, rule := range map[string]func(int64) fault.Rule{"in place of": fault.CrashAt, "after": fault.CrashLateAt} {
				n := int64(1)
				for ; ; n++ {
					inner := open(t)
					if old != 0 {
						mustSave(t, inner, "old", old)
					}
					s := fault.New(inner, rule(n))
					err := saveTwo(t, s, "new", 2, nil)
					seeds := []byte{old, 2}
					if err == nil {
						seeds = []byte{2} // what was reported must be true
					}
					checkOneOf(t, inner, seeds...)
					checkSaveAfter(t, inner)
					if t.Failed() {
						t.Fatalf("%s: over %d: crash %s operation %d:\n%v", name, old, when, n, s.Ops())
					}
					if !s.Crashed() {
						break
					}
				}
				if n < 10 {
					t.Errorf("%s: a save has %d mutating operations; the test saw too little", name, n)
				}
			}
		}
	}
}

// A single operation fails, and the process lives on.
func TestFaultAtEveryStepOfASave(t *testing.T) {
	for _, old := range []byte{0, 1} {
		for when, do := range map[string]fault.Action{"fails": fault.Fail(syscall.EIO), "fails late": fault.FailLate(syscall.EIO)} {
			for n := int64(1); ; n++ {
				inner := new(mem.Store)
				if old != 0 {
					mustSave(t, inner, "old", old)
				}
				s := fault.New(inner, fault.Rule{Nth: n, Do: do})
				err := saveTwo(t, s, "new", 2, nil)
				checkFaulted(t, inner, err, old)
				checkSaveAfter(t, inner)
				if t.Failed() {
					t.Fatalf("over %d: operation %d %s: %v\n%v", old, n, when, err, s.Ops())
				}
				if int64(len(s.Ops().Log)) < n {
					if err != nil {
						t.Errorf("a save without a fault = %v", err)
					}
					break
				}
			}
		}
	}
}

func checkFaulted(t testing.TB, s blob.Store, err error, old byte) {
	t.Helper()
	switch {
	case err == nil:
		checkOneOf(t, s, 2)
	case !errors.Is(err, syscall.EIO):
		t.Errorf("save = %v; want %v", err, syscall.EIO)
	case errors.Is(err, storage.ErrUncertain):
		checkOneOf(t, s, old, 2)
	default:
		checkOneOf(t, s, old)
		for _, name := range storagetest.Names(t, s) {
			if strings.HasPrefix(name, "new") {
				t.Errorf("%s is left of a save that failed", name)
			}
		}
	}
}

// The commit took place, and the store said that it failed: nobody may take it
// back, and nobody may claim that it is safe.
func TestUnreportedCommitIsUncertain(t *testing.T) {
	inner := new(mem.Store)
	mustSave(t, inner, "old", 1)
	before := storagetest.Names(t, inner)
	s := fault.New(inner, fault.Rule{On: fault.Commit, Match: fault.Named(recordName), Do: fault.FailLate(syscall.EIO)})
	sv := storagetest.NewSaving(at(s, &options{WriteOptions: storage.WriteOptions{SweepAfter: 1}}, nil), storagetest.Storage("new", 1, 1), 1)
	err := sv.Run(t.Context(), []plan.State{small(t, 2)})
	if !errors.Is(err, storage.ErrUncertain) || !errors.Is(err, syscall.EIO) {
		t.Errorf("save = %v; want %v and %v", err, storage.ErrUncertain, syscall.EIO)
	}
	if err := sv.Abort(t.Context()); err != nil { // by a program that does not look
		t.Error(err)
	}
	checkOneOf(t, inner, 2)
	for _, name := range before {
		if _, err := inner.Stat(t.Context(), name); err != nil {
			t.Errorf("%s of the checkpoint before was removed though the new one may yet vanish", name)
		}
	}
}

// Nobody can tell, since the record cannot be read either.
func TestCommitThatNobodyCanLookAtIsUncertain(t *testing.T) {
	for name, do := range map[string]fault.Action{"failed": fault.Fail(syscall.EIO), "succeeded": fault.FailLate(syscall.EIO)} {
		inner := new(mem.Store)
		s := fault.New(inner,
			fault.Rule{On: fault.Commit, Match: fault.Named(recordName), Do: do},
			fault.Rule{On: fault.Open, Match: fault.Named(recordName), Nth: 3, Times: -1, Do: fault.Fail(syscall.EIO)})
		if err := save(t, s, "new", small(t, 2), nil); !errors.Is(err, storage.ErrUncertain) {
			t.Errorf("save whose commit %s = %v; want %v", name, err, storage.ErrUncertain)
		}
		if _, err := inner.Stat(t.Context(), dataFileName("new", 0, 0)); err != nil {
			t.Errorf("save whose commit %s removed its data: %v", name, err)
		}
	}
}

func TestFullDisk(t *testing.T) {
	for n := int64(1); n <= 3; n++ {
		for _, op := range []fault.Op{fault.Create, fault.Write, fault.Commit} {
			inner := new(mem.Store)
			mustSave(t, inner, "old", 1)
			before := storagetest.Names(t, inner)
			s := fault.New(inner, fault.Rule{On: op, Nth: n, Do: fault.Fail(syscall.ENOSPC)})
			if err := saveTwo(t, s, "new", 2, nil); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("%v %d: save = %v; want %v", op, n, err, syscall.ENOSPC)
			}
			checkOneOf(t, inner, 1)
			if got := storagetest.Names(t, inner); !slices.Equal(got, before) {
				t.Errorf("%v %d: the place holds %q; want %q", op, n, got, before)
			}
		}
	}
}

func TestFaultAtEveryStepOfALoad(t *testing.T) {
	inner := new(mem.Store)
	saveOdd(t, inner, "odd", &options{WriteOptions: storage.WriteOptions{FilesPerRank: 2}})
	for _, parallel := range []int{1, 4} {
		for n := int64(1); ; n++ {
			s := fault.New(inner, fault.Rule{Nth: n, Do: fault.Fail(syscall.EIO)})
			err := loadOdd(t, at(s, nil, &ReaderOptions{Parallel: parallel}))
			if int64(len(s.Ops().Log)) < n {
				if err != nil {
					t.Errorf("a load without a fault = %v", err)
				}
				break
			}
			if !errors.Is(err, syscall.EIO) || errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("operation %d of a load fails, and the load = %v; want %v", n, err, syscall.EIO)
			}
			if err := goleak.Find(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// loadOdd loads what saveOdd saved on one rank and compares it.
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

// wholeOdd is what oddState is on both ranks together, by name.
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
