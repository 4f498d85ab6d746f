package convert_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// isData reports whether a name is of a data file of a rank.
func isData(name string) bool {
	return !strings.HasPrefix(name, ".cairn-convert/") && (strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".distcp"))
}

// noted returns the data files that the journal in s lists.
func noted(t *testing.T, s blob.Store) []string {
	var out []string
	for _, n := range storagetest.Names(t, s) {
		if rest, ok := strings.CutPrefix(n, ".cairn-convert/"+"finished/"); ok {
			out = append(out, rest)
		}
	}
	return out
}

// If a conversion is stopped at any operation and started again, its result is the same,
// and finished files are not written again.
func TestInterruptedConversionContinues(t *testing.T) {
	src := &mem.Store{Name: "source"}
	var states []plan.State
	for r := range 2 {
		states = append(states, plan.State{
			"w": storagetest.Cut(t, storagetest.Along(0, 2), storagetest.Filled(t, tensor.Float32, []int64{6, 2}, 1), r), "step": 7,
		})
	}
	save(t, src, states...)
	want := without(digests(t, src), nil)
	for claim, rule := range map[string]func(int64) fault.Rule{"before it": fault.CrashAt, "after it": fault.CrashLateAt} {
		for _, format := range []string{formats.Native, formats.TorchDCP, formats.Hyper} {
			t.Run(format+" "+claim, func(t *testing.T) {
				for n := int64(1); goesOn(t, src, format, rule(n), want); n++ {
				}
			})
		}
	}
}

// goesOn converts until a crash, and again. It reports whether there was a crash.
func goesOn(t *testing.T, src blob.Store, format string, rule fault.Rule, want map[string]inspect.Digest) bool {
	t.Helper()
	inner := &mem.Store{Name: "target"}
	first := fault.New(inner, rule)
	o := &convert.Options{Parallel: 1}
	_, err := run(context.Background(), open(t, src), o, toFormat(format, first))
	if err == nil && !first.Crashed() {
		return false
	}
	if err == nil {
		t.Fatal("a crash was not noticed")
	}
	finished := noted(t, inner)
	job := must.Get(convert.Plan(t.Context(), open(t, src), o))(t)
	n, begun, err := convert.Begun(t.Context(), job, toFormat(format, inner))
	if err != nil || n != len(finished) || n > 0 && !begun {
		t.Errorf("Begun = %d, %v, %v; want %d files", n, begun, err, len(finished))
	}
	second := fault.New(inner)
	if _, err := run(context.Background(), open(t, src), o, toFormat(format, second)); err != nil {
		t.Fatalf("the second run: %v", err)
	}
	for _, e := range second.Ops() {
		if e.Op == fault.Create && slices.Contains(finished, e.Name) {
			t.Errorf("%s was finished, and written again", e.Name)
		}
	}
	if d := cmp.Diff(want, without(digests(t, inner), nil)); d != "" {
		t.Errorf("the content differs: -source +target\n%s", d)
	}
	for _, name := range storagetest.Names(t, inner) {
		if strings.HasPrefix(name, ".cairn-convert/") {
			t.Errorf("%s is left of the journal", name)
		}
	}
	return true
}

// The names of the files are the same in each run, so a continued conversion has the
// same files as one that was never interrupted.
func TestConvertLeavesNoOtherFiles(t *testing.T) {
	src := saved(t, 3)
	whole, _ := converted(t, src, nil)
	inner := &mem.Store{Name: "target"}
	stop := fault.New(inner, fault.Rule{On: fault.Create, Match: isData, Nth: 3, Do: fault.Fail(errors.New("disk full"))})
	if _, err := run(context.Background(), open(t, src), &convert.Options{Parallel: 1}, toNative(stop, true)); err == nil {
		t.Fatal("a full disk was not noticed")
	}
	if got := len(noted(t, inner)); got != 2 {
		t.Fatalf("%d files are noted; want 2", got)
	}
	rep, err := run(context.Background(), open(t, src), &convert.Options{Parallel: 1}, toNative(inner, true))
	if err != nil || rep.KeptFiles != 2 {
		t.Fatalf("Run = %+v, %v; want 2 kept files", rep, err)
	}
	if got, want := len(storagetest.Names(t, inner)), len(storagetest.Names(t, whole)); got != want {
		t.Errorf("%d files: %v; want %d", got, storagetest.Names(t, inner), want)
	}
}

func TestOtherOptionsRestartConversion(t *testing.T) {
	src := saved(t, 3)
	begin := func() *mem.Store {
		inner := &mem.Store{Name: "target"}
		stop := fault.New(inner, fault.Rule{On: fault.Create, Match: isData, Nth: 3, Do: fault.Fail(errors.New("disk full"))})
		if _, err := run(context.Background(), open(t, src), &convert.Options{Parallel: 1}, toNative(stop, true)); err == nil {
			t.Fatal("a full disk was not noticed")
		}
		return inner
	}
	other := &mem.Store{Name: "other"}
	save(t, other, sample(t, 0, 1))
	for claim, c := range map[string]struct {
		src blob.Store
		o   *convert.Options
	}{
		"other options": {src, &convert.Options{Parallel: 1, DType: []string{"float64"}}},
		"other source":  {other, &convert.Options{Parallel: 1}},
	} {
		t.Run(claim, func(t *testing.T) {
			dst := begin()
			var warned []error
			c.o.Warn = func(err error) { warned = append(warned, err) }
			rep, err := run(context.Background(), open(t, c.src), c.o, toNative(dst, true))
			if err != nil || rep.KeptFiles != 0 {
				t.Fatalf("Run = %+v, %v; want no kept files", rep, err)
			}
			if len(warned) != 1 || !strings.Contains(warned[0].Error(), "from the beginning") {
				t.Errorf("warnings %v; want one", warned)
			}
			if got := len(storagetest.Names(t, dst)); got != rep.Files+2 {
				t.Errorf("%v are there; want %d files, the index and the record", storagetest.Names(t, dst), rep.Files)
			}
			verify(t, dst)
		})
	}
}

func TestConvertDetectsChangedSource(t *testing.T) {
	src := saved(t, 2)
	c := open(t, src)
	job := must.Get(convert.Plan(t.Context(), c, &convert.Options{Source: src}))(t)
	for _, n := range storagetest.Names(t, src) {
		if isData(n) {
			must.Do(t, fault.Damage(t.Context(), src, n, func(b []byte) []byte { return b }))
		}
	}
	dst := &mem.Store{Name: "target"}
	if _, err := convert.Run(t.Context(), job, toNative(dst, false)); !errors.Is(err, storage.ErrChanged) {
		t.Errorf("Run = %v; want %v", err, storage.ErrChanged)
	}
	if left := storagetest.Names(t, dst); len(left) > 0 {
		t.Errorf("%v are left of a conversion without a journal", left)
	}
}

func TestConvertReturnsCancellation(t *testing.T) {
	src := saved(t, 3)
	job := must.Get(convert.Plan(t.Context(), open(t, src), nil))(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if _, err := convert.Run(ctx, job, toNative(&mem.Store{}, true)); !errors.Is(err, why) {
		t.Errorf("Run = %v; want %v", err, why)
	}
}
