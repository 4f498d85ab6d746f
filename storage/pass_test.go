package storage_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
)

func newWriter(t testing.TB, f storage.Format, s blob.Store) storage.Writer {
	t.Helper()
	w := must.Get(f.NewWriter(s, storage.WriteOptions{}))(t)
	return w
}

// A writer and a reader that pass everything on fulfil the contracts of those inside.
func TestPassedOnFormat(t *testing.T) {
	storagetest.Run(t, func(*testing.T) storagetest.Place {
		s := new(mem.Store)
		return storagetest.Place{
			Writer: func() storage.Writer { return storage.PassWriter{Writer: newWriter(t, native.Format{}, s)} },
			Reader: func() storage.Reader {
				return storage.PassReader{Reader: storage.NewReader(native.Format{}.Open, s, storage.ReadOptions{})}
			},
		}
	}, nil)
}

// The capabilities of a writer pass through, and are harmless if it lacks them.
func TestPassWriterCapabilities(t *testing.T) {
	md := &meta.Metadata{PlannerData: []byte("1")}
	it := &plan.WriteItem{Info: &plan.Info{FQN: "v", Codec: "json"}, Kind: plan.KindBytes}
	w := storage.PassWriter{Writer: newWriter(t, hf.Format{}, new(mem.Store))}
	if err := w.CheckMetadata(md); !errors.Is(err, storage.ErrNotRepresentable) {
		t.Errorf("CheckMetadata = %v; want the ErrNotRepresentable of hf", err)
	}
	w = storage.PassWriter{Writer: newWriter(t, torchdcp.Format{}, new(mem.Store))}
	if err := w.CheckValue(it, []byte("no JSON")); err == nil {
		t.Error("CheckValue = nil; want the error of torchdcp")
	}
	var none storage.PassWriter
	if err := errors.Join(none.CheckMetadata(md), none.CheckValue(it, nil)); err != nil || none.Published() != nil {
		t.Errorf("a PassWriter without a writer refuses: %v", err)
	}

	s := new(mem.Store)
	p := storagetest.Place{Writer: func() storage.Writer {
		w = storage.PassWriter{Writer: newWriter(t, native.Format{}, s)}
		return w
	}}
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage("id", 1, 1), plan.State{"v": 1}))
	if names := w.Published(); len(names) == 0 || names[len(names)-1] != "cairn.json" {
		t.Errorf("Published = %q; want the files of native", names)
	}
}

// A writer inside is part of the identity of reusable plans.
func TestPassWriterPlanOptions(t *testing.T) {
	s := new(mem.Store)
	a := storage.PassWriter{Writer: newWriter(t, native.Format{}, s)}
	b := storage.PassWriter{Writer: newWriter(t, hf.Format{}, s)}
	seen := map[string]bool{}
	for _, w := range []storage.PassWriter{{}, a, b, {Writer: a}, {Writer: b}} {
		seen[w.PlanOptions()] = true
	}
	if len(seen) != 5 {
		t.Errorf("PlanOptions are %v; want five", seen)
	}
}

// Without a writer or reader inside, set-up and planning have no effect, and the other
// methods have to be implemented.
func TestPassThroughOfNothing(t *testing.T) {
	ctx := t.Context()
	var w storage.PassWriter
	sp := &plan.SavePlan{}
	if err := errors.Join(w.SetUp(ctx, storage.Session{}), w.Abort(ctx)); err != nil {
		t.Error(err)
	}
	if p, err := w.PrepareLocalPlan(ctx, sp); p != sp || err != nil {
		t.Errorf("PrepareLocalPlan = %v, %v; want the plan", p, err)
	}
	if ps, err := w.PrepareGlobalPlan(ctx, []*plan.SavePlan{sp}); !slices.Equal(ps, []*plan.SavePlan{sp}) || err != nil {
		t.Errorf("PrepareGlobalPlan = %v, %v; want the plans", ps, err)
	}
	var r storage.PassReader
	lp := &plan.LoadPlan{}
	if err := r.SetUp(ctx, nil, storage.Session{}); err != nil {
		t.Error(err)
	}
	if p, err := r.PrepareLocalPlan(ctx, lp); p != lp || err != nil {
		t.Errorf("PrepareLocalPlan = %v, %v; want the plan", p, err)
	}
	if ps, err := r.PrepareGlobalPlan(ctx, []*plan.LoadPlan{lp}); !slices.Equal(ps, []*plan.LoadPlan{lp}) || err != nil {
		t.Errorf("PrepareGlobalPlan = %v, %v; want the plans", ps, err)
	}
	_, err1 := w.WriteData(ctx, sp, nil)
	_, err2 := r.ReadMetadata(ctx)
	_, err3 := r.ReadData(ctx, lp, nil)
	for method, err := range map[string]error{"WriteData": err1, "Finish": w.Finish(ctx, nil, nil), "ReadMetadata": err2, "ReadData": err3} {
		if !errors.Is(err, plan.ErrProtocol) || !strings.Contains(err.Error(), method) {
			t.Errorf("%s = %v; want ErrProtocol that names it", method, err)
		}
	}
}
