package transfer

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// asJob copies as a job of several ranks, each with stores of its own.
func asJob(t *testing.T, ranks int, src, dst func(rank int) blob.Store, o Options) ([]*Report, []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reps, errs := make([]*Report, ranks), make([]error, ranks)
	_ = inproc.Run(ctx, ranks, func(ctx context.Context, g group.Group) error { // returns the errors of the ranks
		mine := o
		mine.Group = g
		reps[g.Rank()], errs[g.Rank()] = Copy(ctx, src(g.Rank()), dst(g.Rank()), &mine)
		return errs[g.Rank()]
	})
	return reps, errs
}

func always(s blob.Store) func(int) blob.Store { return func(int) blob.Store { return s } }

// Ranks that copy together have the result of one. No file is copied twice, and a second copy
// finds no work.
func TestRanksCopyTogether(t *testing.T) {
	const ranks = 3
	for _, f := range storagetest.Fixtures(t, "*/*") {
		t.Run(f.Name, func(t *testing.T) {
			src := must.Get(file.OpenPath(f.Dir))(t)
			one, many := new(mem.Store), new(mem.Store)
			want := must.Get(Copy(t.Context(), src, one, &Options{Full: true}))(t)
			stores := make([]*fault.Store, ranks)
			for r := range stores {
				stores[r] = fault.New(many)
			}
			reps, errs := asJob(t, ranks, always(src), func(r int) blob.Store { return stores[r] }, Options{Full: true})
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			for r, rep := range reps {
				if d := cmp.Diff(want, rep); d != "" {
					t.Errorf("rank %d: the report differs: -one +many\n%s", r, d)
				}
			}
			if d := cmp.Diff(storagetest.Names(t, one), storagetest.Names(t, many)); d != "" {
				t.Errorf("the files differ: -one +many\n%s", d)
			}
			times := map[string]int{}
			for _, s := range stores {
				for _, e := range s.Ops() {
					if e.Op == fault.Create {
						times[e.Name]++
					}
				}
			}
			for name, n := range times {
				if n != 1 {
					t.Errorf("%s was copied %d times", name, n)
				}
			}
			again, errs := asJob(t, ranks, always(src), always(many), Options{})
			if err := errors.Join(errs...); err != nil || again[0].KeptFiles != want.Files || again[2].KeptBytes != want.Bytes {
				t.Errorf("a second copy = %+v, %v; want %d files kept", again[0], err, want.Files)
			}
		})
	}
}

// A copy by several ranks replaces a checkpoint as a copy by one does.
func TestRanksReplaceTogether(t *testing.T) {
	for form := range forms {
		t.Run(form, func(t *testing.T) {
			src, dst := new(mem.Store), new(mem.Store)
			save(t, src, form, "save2", 64, 2)
			save(t, dst, form, "save1", 64, 1)
			_, errs := asJob(t, 3, always(src), always(dst), Options{})
			for r, err := range errs {
				if !errors.Is(err, storage.ErrExists) {
					t.Errorf("rank %d: %v; want ErrExists", r, err)
				}
			}
			wantSeed(t, dst, 1)
			if _, errs := asJob(t, 3, always(src), always(dst), Options{Overwrite: true}); errors.Join(errs...) != nil {
				t.Fatal(errors.Join(errs...))
			}
			wantSeed(t, dst, 2)
		})
	}
}

// If a rank fails, every rank names it, there is no checkpoint, and the next copy does not
// copy finished files again.
func TestRanksGoOnAfterAFailure(t *testing.T) {
	src, inner := new(mem.Store), new(mem.Store)
	save(t, src, "hf, shards", "save1", 1<<10, 1)
	broken := errors.New("no space")
	_, errs := asJob(t, 2, always(src), func(r int) blob.Store {
		if r == 1 {
			return fault.New(inner, fault.Rule{On: fault.Commit, Nth: 1, Times: -1, Do: fault.Fail(broken)})
		}
		return inner
	}, Options{Parallel: 1})
	for r, err := range errs {
		if !slices.Equal(group.Ranks(err), []int{1}) {
			t.Errorf("rank %d: %v; want the failure of rank 1", r, err)
		}
	}
	if _, err := formats.Open(t.Context(), inner, nil); err == nil {
		t.Error("a part of a checkpoint can be opened")
	}
	there := storagetest.Names(t, inner)
	store := fault.New(inner)
	if _, errs := asJob(t, 3, always(src), always(store), Options{}); errors.Join(errs...) != nil {
		t.Fatal(errors.Join(errs...))
	}
	for _, e := range store.Ops() {
		if e.Op == fault.Create && slices.Contains(there, e.Name) {
			t.Errorf("%s was there, and copied again", e.Name)
		}
	}
	wantSeed(t, inner, 1)
}

// Ranks that do not see the same source or the same target are named.
func TestRanksSeeTheSame(t *testing.T) {
	defer func(d time.Duration) { visibleTime = d }(visibleTime)
	visibleTime = 10 * time.Millisecond
	src, other := new(mem.Store), new(mem.Store)
	save(t, src, formats.Native, "save1", 64, 1)
	save(t, other, formats.Native, "save2", 64, 1)
	for claim, c := range map[string][2]func(int) blob.Store{
		"source": {func(r int) blob.Store {
			if r == 1 {
				return other
			}
			return src
		}, always(new(mem.Store))},
		"target": {always(src), func() func(int) blob.Store {
			dirs := []string{t.TempDir(), t.TempDir()}
			return func(r int) blob.Store { return must.Get(file.Open(dirs[r%2], nil))(t) }
		}()},
	} {
		_, errs := asJob(t, 3, c[0], c[1], Options{})
		for r, err := range errs {
			if !slices.Equal(group.Ranks(err), []int{1}) || !errors.Is(err, group.ErrDiffers) {
				t.Errorf("%s: rank %d: %v; want ErrDiffers on rank 1", claim, r, err)
			}
		}
	}
}
