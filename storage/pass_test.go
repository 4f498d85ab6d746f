package storage_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
)

func newWriter(t testing.TB, f storage.Format, s blob.Store) storage.Writer {
	t.Helper()
	w, err := f.NewWriter(s, storage.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
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

// The capabilities of a writer pass through, and are harmless if it has none.
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
	if err := storagetest.Save(t.Context(), p, storagetest.Storage("id", 1, 1), plan.State{"v": 1}); err != nil {
		t.Fatal(err)
	}
	if names := w.Published(); len(names) == 0 || names[len(names)-1] != "cairn.json" {
		t.Errorf("Published = %q; want the files of native", names)
	}
}

// A writer inside is part of what identifies reusable plans.
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

// Without a writer or reader inside, set-up and planning change nothing, and the rest
// has to be implemented.
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

// labelling is a writer that keeps a label with each item.
type labelling struct{ storage.PassWriter }

func (l *labelling) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	out, err := l.Writer.WriteData(ctx, p, data)
	if err != nil {
		return nil, err
	}
	for i := range out.Items {
		it := &out.Items[i]
		it.Loc.SetStorageData([]byte(label(it.Index)))
	}
	return out, nil
}

func label(i meta.Index) string { return fmt.Sprintf("of %s at %v", i.FQN, i.Offset) }

func numbers(t testing.TB, shape ...int64) *tensor.Tensor {
	t.Helper()
	x, err := tensor.New(tensor.Float32, shape)
	if err != nil {
		t.Fatal(err)
	}
	v, err := tensor.Values[float32](x)
	if err != nil {
		t.Fatal(err)
	}
	for i := range v {
		v[i] = float32(i)
	}
	return x
}

// half is the half of the rows of a tensor that a rank holds.
type half struct {
	*tensor.Tensor
	rank int64
}

func (h half) GlobalShape() []int64 { return h.Shape() }

func (h half) Boxes() []tensor.Box {
	n := h.Shape()[0] / 2
	return []tensor.Box{{Offsets: []int64{h.rank * n, 0}, Sizes: []int64{n, h.Shape()[1]}}}
}

func (h half) Part(int) (*tensor.Tensor, error) { return h.Narrow(h.Boxes()[0]) }

// saveLabelled saves by two ranks over a group: tensors, a value in the index and a
// value in a file.
func saveLabelled(t *testing.T, f storage.Format, s blob.Store) error {
	t.Helper()
	return inproc.Run(t.Context(), 2, func(ctx context.Context, g group.Group) error {
		state := plan.State{"w": half{numbers(t, 4, 3), int64(g.Rank())}}
		if g.Rank() == 1 {
			state["small"] = numbers(t, 2)
		}
		if f.Name() == "native" {
			state["inline"], state["long"] = 7, strings.Repeat("long", 50_000)
		}
		_, err := protocol.Save(ctx, protocol.RankSave{
			Group: g, Planner: new(plan.DefaultSave), Writer: &labelling{storage.PassWriter{Writer: newWriter(t, f, s)}},
			State: state, Storage: storagetest.Storage("id", 1, 2),
		})
		return err
	})
}

// Storage data of a writer reaches the reader: of chunks, of values in the index and of
// values in files, all of which load as before.
func TestStorageDataReachesReader(t *testing.T) {
	s := new(mem.Store)
	if err := saveLabelled(t, native.Format{}, s); err != nil {
		t.Fatal(err)
	}
	r := storage.NewReader(native.Format{}.Open, s, storage.ReadOptions{})
	md, err := r.ReadMetadata(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	check := func(i meta.Index) {
		t.Helper()
		l, ok := md.Location(i)
		if !ok || string(l.StorageData()) != label(i) {
			t.Errorf("the location of %v is %+v; want the storage data %q", i, l, label(i))
		}
		checked++
	}
	for _, e := range md.Entries {
		if e.Bytes != nil {
			check(meta.Index{FQN: e.FQN})
			continue
		}
		for _, c := range e.Tensor.Chunks {
			check(meta.Index{FQN: e.FQN, Offset: c.Offsets})
		}
	}
	if inline, _ := md.Find("inline"); inline.Bytes.Inline == nil || checked != 5 {
		t.Errorf("%d of 5 items checked, inline is %+v", checked, inline.Bytes)
	}
	c, err := native.Format{}.Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if e, ok, err := c.Find(t.Context(), "w"); err != nil || !ok || string(e.Tensor.Locs[1].StorageData()) != "of w at [2 0]" {
		t.Errorf("Find(w) = %+v, %v, %v; want storage data", e, ok, err)
	}
	if report, err := c.Verify(t.Context(), nil); err != nil || len(report.Problems) > 0 {
		t.Errorf("Verify = %+v, %v; want no problem", report, err)
	}
	got := plan.State{"w": numbers(t, 4, 3), "small": numbers(t, 2), "inline": 0, "long": ""}
	mem, _ := got["w"].(*tensor.Tensor).Bytes()
	clear(mem)
	if err := protocol.Read(t.Context(), storage.ReaderOf(c, storage.ReadOptions{}), md, new(plan.DefaultLoad), got); err != nil {
		t.Fatal(err)
	}
	if !tensor.Equal(got["w"].(*tensor.Tensor), numbers(t, 4, 3)) || got["inline"] != 7 || len(got["long"].(string)) != 200_000 {
		t.Errorf("the state is %.200v", got)
	}
}

// Formats without a place for storage data refuse it and leave nothing behind.
func TestStorageDataIsRefused(t *testing.T) {
	for _, f := range []storage.Format{torchdcp.Format{}, hyper.Format{}, hf.Format{}, torchfile.Format{File: "x.pt"}} {
		t.Run(f.Name(), func(t *testing.T) {
			s := new(mem.Store)
			save := func() error { return saveLabelled(t, f, s) }
			if f.Name() == "torch" { // one rank only
				save = func() error {
					return storagetest.Save(t.Context(), storagetest.Place{Writer: func() storage.Writer {
						return &labelling{storage.PassWriter{Writer: newWriter(t, f, s)}}
					}}, storagetest.Storage("id", 1, 1), plan.State{"w": numbers(t, 2)})
				}
			}
			err := save()
			if !errors.Is(err, storage.ErrNotRepresentable) || !strings.Contains(err.Error(), "storage data") || !strings.Contains(err.Error(), `"`) {
				t.Errorf("the save = %v; want ErrNotRepresentable that names an item and storage data", err)
			}
			if names := storagetest.Names(t, s); len(names) > 0 {
				t.Errorf("there are %q; want nothing", names)
			}
		})
	}
}
