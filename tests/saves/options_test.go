package saves

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

func TestFailIfExistsFailsOnAllRanks(t *testing.T) {
	store := new(mem.Store)
	state := func(g group.Group) cairn.State { return cairn.State{"x": jobtest.Whole(t, []int64{3}, 1), "r": 1} }
	for i, want := range []error{nil, cairn.ErrExists} {
		for r, err := range bubble(t, 3, func(ctx context.Context, g group.Group) error {
			_, err := cairn.Save(ctx, store, state(g), &cairn.SaveOptions{Group: g, FailIfExists: true})
			return err
		}) {
			if !errors.Is(err, want) {
				t.Errorf("save %d: rank %d returned %v; want %v", i, r, err, want)
			}
			if ce, ok := errors.AsType[*cairn.Error](err); want != nil && (!ok || ce.Op != "save" || ce.Where != store.String()) {
				t.Errorf("save %d: rank %d returned %#v; want a *cairn.Error", i, r, err)
			}
		}
	}
}

func TestLoadOptions(t *testing.T) {
	store := new(mem.Store)
	mustSave(t, store, cairn.State{"old": jobtest.Whole(t, []int64{3}, 1), "extra": 1})
	load := func(s cairn.State, o cairn.LoadOptions) (*cairn.LoadReport, error) {
		return cairn.Load(t.Context(), store, s, &o)
	}
	blank := func() *tensor.Tensor { return jobtest.Whole(t, []int64{3}, 0) }

	if _, err := load(cairn.State{"old": blank()}, cairn.LoadOptions{RejectUnexpected: true}); !errors.Is(err, cairn.ErrUnexpected) || !errors.Is(err, cairn.ErrMismatch) {
		t.Errorf("RejectUnexpected: %v; want %v", err, cairn.ErrUnexpected)
	}
	if _, err := load(cairn.State{"new": blank()}, cairn.LoadOptions{}); !errors.Is(err, cairn.ErrMissing) {
		t.Errorf("a missing name: %v; want %v", err, cairn.ErrMissing)
	}
	rep, err := load(cairn.State{"new": blank(), "old": blank()}, cairn.LoadOptions{AllowMissing: true})
	if err != nil || !slices.Equal(rep.Missing, []string{"new"}) {
		t.Errorf("AllowMissing: %+v, %v; want the name in the report", rep, err)
	}
	only := func(fqn string) bool { return fqn == "new" }
	if _, err := load(cairn.State{"new": blank(), "other": 1}, cairn.LoadOptions{AllowMissingFunc: only}); !errors.Is(err, cairn.ErrMissing) {
		t.Errorf("AllowMissingFunc: %v; want %v for the other name", err, cairn.ErrMissing)
	}
	x := blank()
	rename := func(string) string { return "old" }
	if _, err := load(cairn.State{"new": x}, cairn.LoadOptions{Rename: rename}); err != nil || !tensor.Equal(x, jobtest.Whole(t, []int64{3}, 1)) {
		t.Errorf("Rename: %v, or other elements", err)
	}
	half := must.Get(tensor.New(tensor.Float16, []int64{3}))(t)
	if _, err := load(cairn.State{"old": half}, cairn.LoadOptions{Cast: tensor.CastWiden}); !errors.Is(err, tensor.ErrCast) {
		t.Errorf("Cast: %v; want %v", err, tensor.ErrCast)
	}
	if _, err := load(cairn.State{"old": jobtest.Whole(t, []int64{4}, 0)}, cairn.LoadOptions{}); !errors.Is(err, cairn.ErrMismatch) {
		t.Errorf("another shape: %v; want %v", err, cairn.ErrMismatch)
	}
}

func TestObserver(t *testing.T) {
	store := new(mem.Store)
	var mu sync.Mutex
	var planned, moved int64
	var warned []error
	o := &cairn.Observer{
		Planned: func(n int64) { planned += n },
		Moved:   func(n int64) { mu.Lock(); defer mu.Unlock(); moved += n },
		Warned:  func(err error) { warned = append(warned, err) },
	}
	state := cairn.State{"x": jobtest.Whole(t, []int64{300, 300}, 1), "big": make([]byte, 50_000), "small": 1}
	must.Get(cairn.Save(t.Context(), store, state, &cairn.SaveOptions{Observer: o}))(t)
	if planned < 300*300*4+50_000 || moved != planned {
		t.Errorf("save: planned %d bytes, moved %d", planned, moved)
	}
	planned, moved = 0, 0
	rep := must.Get(cairn.Load(t.Context(), store, state, &cairn.LoadOptions{Observer: o}))(t)
	if moved != planned || moved != rep.Local.Needed || moved != 300*300*4+50_000 {
		t.Errorf("load: planned %d bytes, moved %d, needed %d", planned, moved, rep.Local.Needed)
	}
	f := fault.New(store, fault.Rule{On: fault.Remove, Do: fault.Fail(errors.New("stays"))})
	if _, err := cairn.Save(t.Context(), f, state, &cairn.SaveOptions{Observer: o}); err != nil || len(warned) != 1 {
		t.Errorf("a file that cannot be removed: %v, warned of %v; want one warning", err, warned)
	}
}

// A repeated save with a cache does not plan again, and saves the current values.
func TestCacheReusesThePlan(t *testing.T) {
	store := new(mem.Store)
	caches := [2]plan.Cache{}
	for i := range 3 {
		for r, err := range bubble(t, 2, func(ctx context.Context, g group.Group) error {
			x := jobtest.Whole(t, []int64{4, 4}, float32(i))
			state := cairn.State{"x": jobtest.Cut(t, jobtest.Rows(2), x, g.Rank()), "step": i}
			rep, err := cairn.Save(ctx, store, state, &cairn.SaveOptions{Group: g, Cache: &caches[g.Rank()], Step: new(int64(i))})
			if err == nil && rep.PlanReused != (i > 0) {
				err = fmt.Errorf("PlanReused = %v in save %d", rep.PlanReused, i)
			}
			return err
		}) {
			if err != nil {
				t.Fatalf("save %d: rank %d: %v", i, r, err)
			}
		}
		got, rep, err := cairn.LoadNew(t.Context(), store, nil)
		if err != nil || *rep.Step != int64(i) || got["step"] != int64(i) || !tensor.Equal(got["x"].(*tensor.Tensor), jobtest.Whole(t, []int64{4, 4}, float32(i))) {
			t.Errorf("save %d: loaded %v, %+v, %v", i, got, rep, err)
		}
	}
}

// An option that cannot take effect is an error that names it and the option
// that excludes it, on every rank, and the store is not touched.
func TestContradictoryOptionsAreRefused(t *testing.T) {
	store := new(mem.Store)
	mustSave(t, store, cairn.State{"n": 1})
	writer := must.Get(native.Format{}.NewWriter(store, storage.WriteOptions{}))(t)
	reader := storage.NewReader(nil, nil, storage.ReadOptions{})
	planner := new(plan.DefaultLoad)
	all := func(string) bool { return true }
	same := func(fqn string) string { return fqn }
	for name, o := range map[string]any{
		"SaveOptions.Format":           cairn.SaveOptions{Writer: writer, Format: native.Format{}},
		"SaveOptions.FilesPerRank":     cairn.SaveOptions{Writer: writer, FilesPerRank: 2},
		"SaveOptions.BufferBytes":      cairn.SaveOptions{Writer: writer, BufferBytes: 1},
		"SaveOptions.FailIfExists":     cairn.SaveOptions{Writer: writer, FailIfExists: true},
		"SaveOptions.SweepAfter":       cairn.SaveOptions{Writer: writer, SweepAfter: 1},
		"LoadOptions.AllowMissing":     cairn.LoadOptions{Planner: planner, AllowMissing: true},
		"LoadOptions.AllowMissingFunc": cairn.LoadOptions{Planner: planner, AllowMissingFunc: all},
		"LoadOptions.RejectUnexpected": cairn.LoadOptions{Planner: planner, RejectUnexpected: true},
		"LoadOptions.Cast":             cairn.LoadOptions{Planner: planner, Cast: tensor.CastWiden},
		"LoadOptions.Rename":           cairn.LoadOptions{Planner: planner, Rename: same},
		"LoadOptions.Format":           cairn.LoadOptions{Reader: reader, Format: native.Format{}},
		"LoadOptions.BufferBytes":      cairn.LoadOptions{Reader: reader, BufferBytes: 1},
		"LoadOptions.Parallel":         cairn.LoadOptions{Reader: reader, Parallel: 1},
	} {
		with := "LoadOptions.Planner"
		switch o := o.(type) {
		case cairn.SaveOptions:
			with = "SaveOptions.Writer"
		case cairn.LoadOptions:
			if o.Reader != nil {
				with = "LoadOptions.Reader"
			}
		}
		f := fault.New(store)
		for r, err := range bubble(t, 2, func(ctx context.Context, g group.Group) error {
			switch o := o.(type) {
			case cairn.SaveOptions:
				if g.Rank() == 0 {
					o = cairn.SaveOptions{}
				}
				o.Group = g
				_, err := cairn.Save(ctx, f, cairn.State{"n": 2}, &o)
				return err
			case cairn.LoadOptions:
				if g.Rank() == 0 {
					o = cairn.LoadOptions{}
				}
				o.Group = g
				_, err := cairn.Load(ctx, f, cairn.State{"n": 0}, &o)
				return err
			}
			return nil
		}) {
			if !errors.Is(err, cairn.ErrOptions) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), with) {
				t.Errorf("rank %d: %v; want %v that names %s and %s", r, err, cairn.ErrOptions, name, with)
			}
		}
		if log := f.Ops(); len(log) > 0 {
			t.Errorf("%s: the store was touched: %v", name, log)
		}
	}
}

// A format refuses each of its options that cannot take effect, and options that
// contradict each other, by name.
func TestFormatOptionsThatContradict(t *testing.T) {
	store := new(mem.Store)
	undo := map[string]torchdcp.Transform{"x": nil}
	for _, tt := range []struct {
		f     storage.Format
		files int
		names []string
	}{
		{hf.Format{File: "m.safetensors"}, 0, []string{"File"}},
		{hf.Format{Dequantize: true}, 0, []string{"Dequantize"}},
		{hf.Format{DType: tensor.Float16}, 0, []string{"DType"}},
		{hf.Format{Shards: 2}, 3, []string{"FilesPerRank", "Shards"}},
		{hf.Format{Shards: 2, MaxShardBytes: 4}, 0, []string{"Shards", "MaxShardBytes"}},
		{hf.Format{Shards: -1}, 0, []string{"Shards"}},
		{hf.Format{MaxShardBytes: -1}, 0, []string{"MaxShardBytes"}},
		{torchdcp.Format{Transforms: undo}, 0, []string{"Transforms"}},
		{torchdcp.Format{FilePerTensor: true, MaxFileBytes: 1}, 0, []string{"FilePerTensor", "MaxFileBytes"}},
		{torchdcp.Format{MaxFileBytes: -1}, 0, []string{"MaxFileBytes"}},
		{hyper.Format{MaxFileBytes: -1}, 0, []string{"MaxFileBytes"}},
		{native.Format{FileBytes: -1}, 0, []string{"FileBytes"}},
		{native.Format{}, 5000, []string{"FilesPerRank"}},
	} {
		_, err := cairn.Save(t.Context(), store, cairn.State{"x": jobtest.Whole(t, []int64{3}, 1)}, &cairn.SaveOptions{Format: tt.f, FilesPerRank: tt.files})
		if !errors.Is(err, cairn.ErrOptions) {
			t.Errorf("Save with %+v and %d files = %v; want %v", tt.f, tt.files, err, cairn.ErrOptions)
			continue
		}
		for _, name := range tt.names {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("Save with %+v and %d files = %v; want the name %s", tt.f, tt.files, err, name)
			}
		}
	}
	if names := storagetest.Names(t, store); len(names) > 0 {
		t.Errorf("the saves left %v", names)
	}
	for _, f := range []storage.Format{native.Format{}, torchdcp.Format{}, hyper.Format{}, hf.Format{}} {
		if _, err := f.NewWriter(store, storage.WriteOptions{FilesPerRank: storage.MaxFilesPerRank + 1}); !errors.Is(err, cairn.ErrOptions) {
			t.Errorf("%s: %d files: %v; want %v", f.Name(), storage.MaxFilesPerRank+1, err, cairn.ErrOptions)
		}
	}
	must.Get(cairn.Save(t.Context(), store, cairn.State{"x": jobtest.Whole(t, []int64{3}, 1)}, &cairn.SaveOptions{Format: hf.Format{}}))(t)
	_, _, err := cairn.LoadNew(t.Context(), store, &cairn.LoadOptions{Format: hf.Format{DType: tensor.Float16}})
	if !errors.Is(err, cairn.ErrOptions) || !strings.Contains(err.Error(), "DType") || !strings.Contains(err.Error(), "Dequantize") {
		t.Errorf("a load with DType alone: %v; want %v", err, cairn.ErrOptions)
	}
}

// LoadNew makes the state from the checkpoint, so it refuses options that fit a state to a
// checkpoint, and a planner that leaves names out.
func TestLoadNewRefusesOptionsOfAState(t *testing.T) {
	store := new(mem.Store)
	mustSave(t, store, cairn.State{"x": jobtest.Whole(t, []int64{3}, 1), "n": 1})
	none := func(string) string { return "none" }
	for name, o := range map[string]cairn.LoadOptions{
		"AllowMissing":     {AllowMissing: true},
		"AllowMissingFunc": {AllowMissingFunc: func(string) bool { return true }},
		"RejectUnexpected": {RejectUnexpected: true},
		"Cast":             {Cast: tensor.CastWiden},
		"Rename":           {Rename: none},
	} {
		if s, _, err := cairn.LoadNew(t.Context(), store, &o); !errors.Is(err, cairn.ErrOptions) || !strings.Contains(err.Error(), "LoadOptions."+name) {
			t.Errorf("%s: LoadNew = %v, %v; want %v", name, s, err, cairn.ErrOptions)
		}
	}
	o := cairn.LoadOptions{Planner: &plan.DefaultLoad{AllowMissing: true, Rename: none}}
	if s, _, err := cairn.LoadNew(t.Context(), store, &o); !errors.Is(err, cairn.ErrMissing) {
		t.Errorf("a planner that finds nothing: LoadNew = %v, %v; want %v", s, err, cairn.ErrMissing)
	}
}

// noMetadata is a planner with metadata that is nil or has no entries.
type noMetadata struct {
	plan.DefaultSave
	md *meta.Metadata
}

func (p *noMetadata) GlobalPlan(all []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	return all, p.md, nil
}

// Only a tensor that is not whole makes a save mention the missing group.
func TestSaveWithoutGroupExplainsMissingParts(t *testing.T) {
	const text = "SaveOptions.Group is not set"
	x := jobtest.Whole(t, []int64{4, 4}, 1)
	_, err := cairn.Save(t.Context(), new(mem.Store), cairn.State{"x": jobtest.Cut(t, jobtest.Rows(2), x, 0)}, nil)
	if !errors.Is(err, cairn.ErrState) || !strings.Contains(err.Error(), text) {
		t.Errorf("half of a tensor: %v; want %v with %q", err, cairn.ErrState, text)
	}
	for _, md := range []*meta.Metadata{nil, {}} {
		_, err = cairn.Save(t.Context(), new(mem.Store), cairn.State{"x": x}, &cairn.SaveOptions{Planner: &noMetadata{md: md}})
		if known := errors.Is(err, cairn.ErrState) || errors.Is(err, cairn.ErrProtocol); !known || strings.Contains(err.Error(), text) {
			t.Errorf("a planner that returns the metadata %v: %v; want an error without %q", md, err, text)
		}
	}
}

// A state without names is saved and loaded in every format, by one rank and by several.
func TestEmptyState(t *testing.T) {
	for _, name := range formats.Alone() {
		f := must.Get(formats.ByName(name, &formats.Options{File: "m.pt"}))(t)
		for _, ranks := range []int{1, 2} {
			store := new(mem.Store)
			err := inproc.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) error {
				if _, err := cairn.Save(ctx, store, cairn.State{"nested": map[string]any{}}, &cairn.SaveOptions{Group: g, Format: f}); err != nil {
					return err
				}
				_, err := cairn.Load(ctx, store, cairn.State{}, &cairn.LoadOptions{Group: g, Format: f, RejectUnexpected: true})
				return err
			})
			if err != nil {
				t.Errorf("%s, %d ranks: %v", name, ranks, err)
			}
		}
	}
}

// The common options reach every format.
func TestFormatsHonourTheCommonOptions(t *testing.T) {
	for _, name := range formats.Alone() {
		f := must.Get(formats.ByName(name, &formats.Options{File: "m.pt"}))(t)
		store, err := file.Open(t.TempDir(), nil)
		if err != nil {
			t.Fatal(err)
		}
		save := func(seed float32, o cairn.SaveOptions) error {
			o.Format = f
			_, err := cairn.Save(t.Context(), store, cairn.State{"x": jobtest.Whole(t, []int64{3}, seed), "y": jobtest.Whole(t, []int64{3}, seed)}, &o)
			return err
		}
		holds := func(seed float32) {
			t.Helper()
			got, _, err := cairn.LoadNew(t.Context(), store, &cairn.LoadOptions{Format: f})
			if err != nil || !tensor.Equal(got["x"].(*tensor.Tensor), jobtest.Whole(t, []int64{3}, seed)) {
				t.Errorf("%s: LoadNew = %v, %v; want the elements of save %v", name, got, err, seed)
			}
		}
		if err := save(1, cairn.SaveOptions{FailIfExists: true}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := save(2, cairn.SaveOptions{FailIfExists: true}); !errors.Is(err, cairn.ErrExists) {
			t.Errorf("%s: FailIfExists over another: %v; want %v", name, err, cairn.ErrExists)
		}
		holds(1)
		if err := save(3, cairn.SaveOptions{BufferBytes: 1}); err != nil {
			t.Errorf("%s: a save over another: %v", name, err)
		}
		holds(3)
		err = save(4, cairn.SaveOptions{FilesPerRank: 2})
		if name == formats.Torch {
			if !errors.Is(err, cairn.ErrOptions) {
				t.Errorf("%s: two files: %v; want %v", name, err, cairn.ErrOptions)
			}
			continue
		}
		holds(4)
		c := must.Get(cairn.Open(t.Context(), store))(t)
		data := 0
		for _, f := range c.Files() {
			if strings.HasSuffix(f.Name, ".safetensors") || strings.HasSuffix(f.Name, ".distcp") {
				data++
			}
		}
		if data != 2 {
			t.Errorf("%s: %d data files; want 2", name, data)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// SweepAfter reaches every format that can have leftovers of its own.
func TestSweepAfterReachesEveryFormat(t *testing.T) {
	for _, name := range []string{formats.Native, formats.TorchDCP, formats.HF, formats.Hyper} {
		f := must.Get(formats.ByName(name, nil))(t)
		for after, want := range map[time.Duration]bool{0: true, -1: true, 1: false} {
			store := new(mem.Store)
			save := func(s blob.Store, o cairn.SaveOptions) error {
				o.Format, o.FilesPerRank = f, 2
				_, err := cairn.Save(t.Context(), s, cairn.State{"x": jobtest.Whole(t, []int64{3}, 1), "y": jobtest.Whole(t, []int64{3}, 1)}, &o)
				return err
			}
			// A crash after the data files leaves them.
			crash := fault.New(store, fault.Rule{On: fault.Commit, Nth: 3, Do: fault.Crash()})
			if err := save(crash, cairn.SaveOptions{}); err == nil {
				t.Fatalf("%s: the save did not crash", name)
			}
			left := storagetest.Names(t, store)
			if len(left) == 0 {
				t.Fatalf("%s: the crash left nothing", name)
			}
			if err := save(store, cairn.SaveOptions{SweepAfter: after}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, n := range left {
				if got := slices.Contains(storagetest.Names(t, store), n); got != want {
					t.Errorf("%s: after SweepAfter %v, %s is there: %v; want %v", name, after, n, got, want)
				}
			}
		}
	}
}
