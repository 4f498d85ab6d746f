package cairn_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sameTensor lets cmp compare tensors.
var sameTensor = cmp.Comparer(func(a, b *tensor.Tensor) bool {
	if a == nil || b == nil {
		return a == b
	}
	return tensor.Equal(a, b)
})

// model is an object that gives its state and takes it back.
type model struct {
	w     *tensor.Tensor
	steps int
	// calls is told of every call, in order.
	calls *[]string
	name  string
	err   error
}

func (m *model) State() (cairn.State, error) {
	*m.calls = append(*m.calls, "state "+m.name)
	return cairn.State{"w": m.w, "steps": m.steps}, m.err
}

func (m *model) LoadState(s cairn.State) error {
	*m.calls = append(*m.calls, "load "+m.name)
	m.steps = s["steps"].(int)
	return m.err
}

func TestStatefulGivesAndTakes(t *testing.T) {
	store := new(mem.Store)
	var calls []string
	a := &model{w: whole(t, []int64{3}, 1), steps: 7, calls: &calls, name: "a"}
	z := &model{w: whole(t, []int64{2}, 5), steps: 9, calls: &calls, name: "z"}
	state := cairn.State{"z": z, "a": a, "n": 1}
	if _, err := cairn.Save(t.Context(), store, state, nil); err != nil {
		t.Fatal(err)
	}
	if state["a"] != a || state["z"] != z {
		t.Error("Save changed the state that it was given")
	}
	a2 := &model{w: whole(t, []int64{3}, 0), calls: &calls, name: "a"}
	z2 := &model{w: whole(t, []int64{2}, 0), calls: &calls, name: "z"}
	into := cairn.State{"z": z2, "a": a2, "n": 0}
	if _, err := cairn.Load(t.Context(), store, into, nil); err != nil {
		t.Fatal(err)
	}
	if !tensor.Equal(a2.w, a.w) || a2.steps != 7 || !tensor.Equal(z2.w, z.w) || z2.steps != 9 || into["n"] != 1 || into["a"] != a2 {
		t.Errorf("loaded a %v %d, z %v %d, n %v", a2.w, a2.steps, z2.w, z2.steps, into["n"])
	}
	want := []string{"state a", "state z", "state a", "state z", "load a", "load z"}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	md := mustOpen(t, store)
	if _, err := md.Entry(t.Context(), "a.w"); err != nil {
		t.Errorf("the names do not tell of the object: %v", err)
	}
}

// What an object's own methods do wrong reaches all ranks, and no rank waits.
func TestStatefulFailureReachesAllRanks(t *testing.T) {
	store := new(mem.Store)
	broken := fmt.Errorf("model is on fire: %w", cairn.ErrState)
	save := func(ctx context.Context, g group.Group, err error) error {
		var calls []string
		state := cairn.State{"m": &model{w: whole(t, []int64{3}, 1), calls: &calls, err: err}}
		_, err = cairn.Save(ctx, store, state, &cairn.SaveOptions{Group: g})
		return err
	}
	load := func(ctx context.Context, g group.Group, err error) error {
		var calls []string
		m := &model{w: whole(t, []int64{3}, 1), calls: &calls, err: err}
		_, err = cairn.Load(ctx, store, cairn.State{"m": m}, &cairn.LoadOptions{Group: g})
		return err
	}
	if err := errors.Join(bubble(t, 3, func(ctx context.Context, g group.Group) error { return save(ctx, g, nil) })...); err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func(context.Context, group.Group, error) error{"save": save, "load": load} {
		errs := bubble(t, 3, func(ctx context.Context, g group.Group) error {
			if g.Rank() == 1 {
				return do(ctx, g, broken)
			}
			return do(ctx, g, nil)
		})
		for r, err := range errs {
			se, ok := errors.AsType[*group.StepError](err)
			if !ok || se.Step != "state" || !slices.Equal(se.Ranks(), []int{1}) || !errors.Is(err, cairn.ErrState) || err.Error() != errs[0].Error() {
				t.Errorf("%s: rank %d returned %v; want the error of rank 1", name, r, err)
			}
		}
	}
}

// bubble runs fn on n ranks where a rank that is left waiting is a deadlock.
func bubble(t *testing.T, n int, fn func(ctx context.Context, g group.Group) error) []error {
	t.Helper()
	errs := make([]error, n)
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		for r, g := range inproc.New(n) {
			wg.Go(func() { errs[r] = fn(t.Context(), g) })
		}
		wg.Wait()
	})
	return errs
}

// takesNothing is a Stateful whose state the load cannot fill as a map.
type takesNothing struct{ cairn.Stateful }

func (takesNothing) State() (cairn.State, error) { return cairn.State{}, nil }
func (takesNothing) LoadState(cairn.State) error { return errors.New("did not expect anything") }

func TestStatefulRefusalIsTold(t *testing.T) {
	store := new(mem.Store)
	mustSave(t, store, cairn.State{"x": whole(t, []int64{1}, 1)})
	_, err := cairn.Load(t.Context(), store, cairn.State{"m": takesNothing{}}, nil)
	if err == nil || !strings.Contains(err.Error(), `state of "m": did not expect anything`) {
		t.Errorf("Load = %v; want the object's own words", err)
	}
}

func mustSave(t testing.TB, s blob.Store, state cairn.State) {
	t.Helper()
	if _, err := cairn.Save(context.Background(), s, state, nil); err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t testing.TB, s blob.Store) *cairn.Checkpoint {
	t.Helper()
	c, err := cairn.Open(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func nested(t testing.TB) cairn.State {
	return cairn.State{
		"model": map[string]any{
			"w":      whole(t, []int64{2, 3}, 1),
			"layers": []any{map[string]any{"k": int64(1)}, whole(t, []int64{2}, 7), nil, []any{"x", whole(t, []int64{}, 9)}},
		},
		"modeler": "not below model", "opt": map[string]any{"lr": 0.5, "betas": []any{0.9, 0.99}}, "empty": []any{},
	}
}

func TestLoadNewMakesTheState(t *testing.T) {
	store := new(mem.Store)
	want := nested(t)
	mustSave(t, store, want)
	got, rep, err := cairn.LoadNew(t.Context(), store, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, sameTensor); diff != "" {
		t.Errorf("LoadNew (-want +got):\n%s", diff)
	}
	if rep.Missing != nil || rep.SaveID == "" || rep.Total.Needed == 0 {
		t.Errorf("report = %+v", rep)
	}
}

func TestLoadNewByPrefix(t *testing.T) {
	store := new(mem.Store)
	mustSave(t, store, nested(t))
	for _, c := range []struct {
		prefixes []string
		want     cairn.State
	}{
		{[]string{"opt"}, cairn.State{"opt": map[string]any{"lr": 0.5, "betas": []any{0.9, 0.99}}}},
		{[]string{"opt.lr", "modeler"}, cairn.State{"opt": map[string]any{"lr": 0.5}, "modeler": "not below model"}},
		{[]string{"model.w"}, cairn.State{"model": map[string]any{"w": whole(t, []int64{2, 3}, 1)}}},
		{[]string{"model.layers.1"}, cairn.State{"model": map[string]any{"layers": []any{nil, whole(t, []int64{2}, 7)}}}},
		{[]string{"model.layers.3.1"}, cairn.State{"model": map[string]any{"layers": []any{nil, nil, nil, []any{nil, whole(t, []int64{}, 9)}}}}},
		{[]string{"model."}, cairn.State{"model": nested(t)["model"]}},
	} {
		got, _, err := cairn.LoadNew(t.Context(), store, nil, c.prefixes...)
		if err != nil {
			t.Errorf("LoadNew(%q) = %v", c.prefixes, err)
			continue
		}
		if diff := cmp.Diff(c.want, got, sameTensor); diff != "" {
			t.Errorf("LoadNew(%q) (-want +got):\n%s", c.prefixes, diff)
		}
	}
	for _, prefix := range []string{"mod", "nothing"} {
		if got, _, err := cairn.LoadNew(t.Context(), store, nil, "opt", prefix); !errors.Is(err, cairn.ErrMissing) {
			t.Errorf("LoadNew(opt, %s) = %v, %v; want %v", prefix, got, err, cairn.ErrMissing)
		}
	}
}

// One rank cannot read the metadata; the others must not wait for it.
func TestLoadNewFailureReachesAllRanks(t *testing.T) {
	sound, empty := new(mem.Store), new(mem.Store)
	mustSave(t, sound, nested(t))
	errs := bubble(t, 3, func(ctx context.Context, g group.Group) error {
		s := sound
		if g.Rank() == 2 {
			s = empty
		}
		_, _, err := cairn.LoadNew(ctx, s, &cairn.LoadOptions{Group: g})
		return err
	})
	for r, err := range errs {
		if !errors.Is(err, cairn.ErrNotFound) {
			t.Errorf("rank %d returned %v; want %v", r, err, cairn.ErrNotFound)
		}
	}
	for r, err := range bubble(t, 3, func(ctx context.Context, g group.Group) error {
		got, _, err := cairn.LoadNew(ctx, sound, &cairn.LoadOptions{Group: g})
		if err == nil && !cmp.Equal(nested(t), got, sameTensor) {
			err = errors.New("another state than was saved")
		}
		return err
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestCheckpointReadsPartsAndRefusesTheRest(t *testing.T) {
	store := new(mem.Store)
	x := whole(t, []int64{6, 4}, 1)
	mustSave(t, store, cairn.State{"x": x, "v": []any{int64(1), "two"}, "raw": []byte{1, 2, 3}, "none": []byte{}})
	c := mustOpen(t, store)
	ctx := t.Context()

	box := tensor.Box{Offsets: []int64{1, 2}, Sizes: []int64{3, 2}}
	dst, want := must(must(tensor.New(tensor.Float64, []int64{2, 3}))(t).Transpose(0, 1))(t), must(tensor.New(tensor.Float64, []int64{3, 2}))(t)
	if err := tensor.Convert(want, must(x.Narrow(box))(t), tensor.CastAny); err != nil {
		t.Fatal(err)
	}
	if err := c.ReadBox(ctx, "x", box, dst); err != nil || !tensor.Equal(dst, want) {
		t.Errorf("ReadBox = %v, or other elements", err)
	}
	hollow := tensor.Box{Offsets: []int64{6, 0}, Sizes: []int64{0, 4}}
	if err := c.ReadBox(ctx, "x", hollow, must(tensor.New(tensor.Float32, []int64{0, 4}))(t)); err != nil {
		t.Errorf("ReadBox of nothing = %v", err)
	}
	for name, want := range map[string]any{"v": []any{int64(1), "two"}, "raw": []byte{1, 2, 3}, "none": []byte{}} {
		if got, err := c.ReadValue(ctx, name); err != nil || !cmp.Equal(got, want) {
			t.Errorf("ReadValue(%q) = %#v, %v; want %#v", name, got, err, want)
		}
	}
	e, err := c.Entry(ctx, "raw")
	if err != nil {
		t.Fatal(err)
	}
	if codec, data, err := c.ReadBytes(ctx, e); err != nil || codec != "raw" || !slices.Equal(data, []byte{1, 2, 3}) {
		t.Errorf("ReadBytes = %q, %v, %v", codec, data, err)
	}
	for what, c := range map[string]struct{ err, want error }{
		"Entry of an unknown name":       {second(c.Entry(ctx, "y")), cairn.ErrMissing},
		"ReadTensor of an unknown name":  {second(c.ReadTensor(ctx, "y")), cairn.ErrMissing},
		"ReadValue of an unknown name":   {second(c.ReadValue(ctx, "y")), cairn.ErrMissing},
		"ReadTensor of a value":          {second(c.ReadTensor(ctx, "v")), cairn.ErrMismatch},
		"ReadValue of a tensor":          {second(c.ReadValue(ctx, "x")), cairn.ErrMismatch},
		"ReadBox of a value":             {c.ReadBox(ctx, "v", box, dst), cairn.ErrMismatch},
		"ReadBox into another shape":     {c.ReadBox(ctx, "x", box, x), tensor.ErrShape},
		"ReadBox outside of the tensor":  {c.ReadBox(ctx, "x", tensor.Box{Offsets: []int64{5, 2}, Sizes: []int64{3, 2}}, dst), tensor.ErrShape},
		"ReadBox of too many dimensions": {c.ReadBox(ctx, "x", tensor.Box{Offsets: []int64{0}, Sizes: []int64{3, 2}}, dst), tensor.ErrShape},
	} {
		ce, ok := errors.AsType[*cairn.Error](c.err)
		if !errors.Is(c.err, c.want) || !ok || ce.Op != "read" {
			t.Errorf("%s = %v; want a *cairn.Error that wraps %v", what, c.err, c.want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestCheckpointTellsOfItself(t *testing.T) {
	store := new(mem.Store)
	rep, err := cairn.Save(t.Context(), store, nested(t), &cairn.SaveOptions{Step: 12, Tags: map[string]string{"run": "a"}})
	if err != nil {
		t.Fatal(err)
	}
	c := mustOpen(t, store)
	info := c.Info()
	if info.Step != 12 || info.SaveID != rep.SaveID || info.Tags["run"] != "a" || info.WorldSize != 1 || info.Writer != "cairn "+cairn.Version {
		t.Errorf("Info = %+v", info)
	}
	var sizes int64
	for _, f := range c.Files() {
		got, err := store.Stat(t.Context(), f.Name)
		if err != nil || got.Size != f.Size {
			t.Errorf("%s has %d bytes, %v; Files says %d", f.Name, got.Size, err, f.Size)
		}
		sizes += f.Size
	}
	if sizes != c.TotalBytes() {
		t.Errorf("TotalBytes = %d; the files have %d", c.TotalBytes(), sizes)
	}
	md, err := c.Metadata(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"empty", "model.layers.0.k", "model.layers.1", "model.layers.2", "model.layers.3.0", "model.layers.3.1", "model.w", "modeler", "opt.betas", "opt.lr"}
	if diff := cmp.Diff(want, md.Names()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	var told int64
	if v, err := c.Verify(t.Context(), func(n int64) { told += n }); err != nil || v.Bytes != told || told != sizes {
		t.Errorf("Verify = %+v, %v; told of %d bytes; want %d", v, err, told, sizes)
	}
}

func TestVerifyNamesTheFirstProblem(t *testing.T) {
	store := new(mem.Store)
	mustSave(t, store, cairn.State{"x": whole(t, []int64{64}, 1)})
	c := mustOpen(t, store)
	data := c.Files()[1].Name
	err := fault.Damage(t.Context(), store, data, func(b []byte) []byte { b[len(b)-1] ^= 4; return b })
	if err != nil {
		t.Fatal(err)
	}
	rep, err := c.Verify(t.Context(), nil)
	if !errors.Is(err, cairn.ErrCorrupt) || !strings.Contains(err.Error(), data) || len(rep.Problems) != 2 {
		t.Errorf("Verify = %+v, %v; want the file and the tensor named", rep, err)
	}
	if _, err := c.ReadTensor(t.Context(), "x"); !errors.Is(err, cairn.ErrCorrupt) {
		t.Errorf("ReadTensor = %v; want %v", err, cairn.ErrCorrupt)
	}
}

// A tensor that claims more bytes than its files have costs no memory.
func TestReadTensorAsksBeforeItTakesMemory(t *testing.T) {
	store := new(mem.Store)
	const huge, name = int64(1) << 37, "s-r00000-0.safetensors"
	e := meta.Entry{FQN: "x", Tensor: &meta.Tensor{Shape: []int64{huge}, Chunks: []tensor.Box{tensor.Whole([]int64{huge})}}}
	e.Tensor.DType = tensor.Uint8
	e.Tensor.Locs = []meta.Location{{File: name, Length: huge, Sums: make([]uint32, native.Sums([]int64{huge}, 1))}}
	md := &meta.Metadata{Entries: []meta.Entry{e}, Storage: meta.Storage{SaveID: "s"}}
	if err := native.Commit(t.Context(), store, md, []storage.File{{Name: name, Size: huge}}); err != nil {
		t.Fatal(err)
	}
	if _, err := mustOpen(t, store).ReadTensor(t.Context(), "x"); !errors.Is(err, cairn.ErrCorrupt) {
		t.Errorf("ReadTensor = %v; want %v", err, cairn.ErrCorrupt)
	}
	if _, _, err := cairn.LoadNew(t.Context(), store, nil); !errors.Is(err, cairn.ErrCorrupt) {
		t.Errorf("LoadNew = %v; want %v", err, cairn.ErrCorrupt)
	}
}

func TestFailIfExistsIsKnownOnAllRanks(t *testing.T) {
	store := new(mem.Store)
	state := func(g group.Group) cairn.State { return cairn.State{"x": whole(t, []int64{3}, 1), "r": 1} }
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

func TestLoadOptionsAreHeeded(t *testing.T) {
	store := new(mem.Store)
	mustSave(t, store, cairn.State{"old": whole(t, []int64{3}, 1), "extra": 1})
	load := func(s cairn.State, o cairn.LoadOptions) (*cairn.LoadReport, error) {
		return cairn.Load(t.Context(), store, s, &o)
	}
	blank := func() *tensor.Tensor { return whole(t, []int64{3}, 0) }

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
	if _, err := load(cairn.State{"new": x}, cairn.LoadOptions{Rename: rename}); err != nil || !tensor.Equal(x, whole(t, []int64{3}, 1)) {
		t.Errorf("Rename: %v, or other elements", err)
	}
	half := must(tensor.New(tensor.Float16, []int64{3}))(t)
	if _, err := load(cairn.State{"old": half}, cairn.LoadOptions{Cast: tensor.CastWiden}); !errors.Is(err, tensor.ErrCast) {
		t.Errorf("Cast: %v; want %v", err, tensor.ErrCast)
	}
	if _, err := load(cairn.State{"old": whole(t, []int64{4}, 0)}, cairn.LoadOptions{}); !errors.Is(err, cairn.ErrMismatch) {
		t.Errorf("another shape: %v; want %v", err, cairn.ErrMismatch)
	}
}

func TestObserverIsToldOfEverything(t *testing.T) {
	store := new(mem.Store)
	var mu sync.Mutex
	var planned, moved int64
	var warned []error
	o := &cairn.Observer{
		Planned: func(n int64) { planned += n },
		Moved:   func(n int64) { mu.Lock(); defer mu.Unlock(); moved += n },
		Warned:  func(err error) { warned = append(warned, err) },
	}
	state := cairn.State{"x": whole(t, []int64{300, 300}, 1), "big": make([]byte, 50_000), "small": 1}
	if _, err := cairn.Save(t.Context(), store, state, &cairn.SaveOptions{Observer: o}); err != nil {
		t.Fatal(err)
	}
	if planned < 300*300*4+50_000 || moved != planned {
		t.Errorf("save: planned %d bytes, moved %d", planned, moved)
	}
	planned, moved = 0, 0
	rep, err := cairn.Load(t.Context(), store, state, &cairn.LoadOptions{Observer: o})
	if err != nil {
		t.Fatal(err)
	}
	if moved != planned || moved != rep.Local.Needed || moved != 300*300*4+50_000 {
		t.Errorf("load: planned %d bytes, moved %d, needed %d", planned, moved, rep.Local.Needed)
	}
	f := fault.New(store, fault.Rule{On: fault.Remove, Do: fault.Fail(errors.New("stays"))})
	if _, err := cairn.Save(t.Context(), f, state, &cairn.SaveOptions{Observer: o}); err != nil || len(warned) != 1 {
		t.Errorf("a file that cannot be removed: %v, warned of %v; want one warning", err, warned)
	}
}

// A repeated save with a cache plans nothing, and saves what there is now.
func TestCacheReusesThePlan(t *testing.T) {
	store := new(mem.Store)
	caches := [2]plan.Cache{}
	for i := range 3 {
		for r, err := range bubble(t, 2, func(ctx context.Context, g group.Group) error {
			x := whole(t, []int64{4, 4}, float32(i))
			state := cairn.State{"x": cut(t, rows(2), x, g.Rank()), "step": i}
			rep, err := cairn.Save(ctx, store, state, &cairn.SaveOptions{Group: g, Cache: &caches[g.Rank()], Step: int64(i)})
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
		if err != nil || rep.Step != int64(i) || got["step"] != int64(i) || !tensor.Equal(got["x"].(*tensor.Tensor), whole(t, []int64{4, 4}, float32(i))) {
			t.Errorf("save %d: loaded %v, %+v, %v", i, got, rep, err)
		}
	}
}
