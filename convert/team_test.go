package convert_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/tensor"
)

// asJob converts as a job of several ranks, each with a source and a target of its own, and
// returns the results by rank.
func asJob(t testing.TB, ranks int, src func(rank int) blob.Store, o convert.Options, to func(rank int) *convert.Target) ([]*convert.Report, []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reps, errs := make([]*convert.Report, ranks), make([]error, ranks)
	var opened []storage.Checkpoint
	for r := range ranks {
		opened = append(opened, open(t, src(r)))
	}
	_ = inproc.Run(ctx, ranks, func(ctx context.Context, g group.Group) error { // returns the errors of the ranks
		mine := o
		mine.Group = g
		reps[g.Rank()], errs[g.Rank()] = run(ctx, opened[g.Rank()], &mine, to(g.Rank()))
		return errs[g.Rank()]
	})
	return reps, errs
}

// same returns a function that returns s for every rank.
func same[T any](v T) func(int) T { return func(int) T { return v } }

// creates counts how often a file was created by all ranks.
func creates(stores []*fault.Store) map[string]int {
	out := map[string]int{}
	for _, s := range stores {
		for _, e := range s.Ops() {
			if e.Op == fault.Create && isData(e.Name) {
				out[e.Name]++
			}
		}
	}
	return out
}

// inShards is a target of files of at most a hundred bytes, or of one file.
func inShards(format string, s blob.Store, staged bool) *convert.Target {
	t := &convert.Target{Format: format, NewWriter: func(n int64) (storage.Writer, error) {
		f, err := formats.ByName(format, &formats.Options{File: "model.pt", MaxFileBytes: 100})
		if err != nil {
			return nil, err
		}
		return f.NewWriter(s, storage.WriteOptions{BufferBytes: n})
	}}
	if staged {
		t.Staging = s
	}
	return t
}

// A conversion by several ranks has the same result as a conversion by one, in each
// format. Every rank writes a part, and no file is written twice.
func TestRanksConvertTogether(t *testing.T) {
	const ranks = 3
	src := saved(t, 3)
	for _, format := range formats.Alone() {
		for _, staged := range []bool{true, false} {
			for claim, o := range map[string]convert.Options{"as it is": {}, "merged": {Merge: true}, "resharded": {Mesh: []int{2, 2}}} {
				if formats.WholeTensors(format) && format == formats.Torch && claim != "merged" {
					continue
				}
				o.SkipObjects = true
				t.Run(fmt.Sprintf("%s, %s, staged %v", format, claim, staged), func(t *testing.T) {
					one, many := new(mem.Store), new(mem.Store)
					want := must.Get(run(t.Context(), open(t, src), &o, inShards(format, one, staged)))(t)
					stores := make([]*fault.Store, ranks)
					for r := range stores {
						stores[r] = fault.New(many)
					}
					reps, errs := asJob(t, ranks, same[blob.Store](src), o, func(r int) *convert.Target { return inShards(format, stores[r], staged) })
					if err := errors.Join(errs...); err != nil {
						t.Fatal(err)
					}
					if d := cmp.Diff(digests(t, one), digests(t, many)); d != "" {
						t.Errorf("the content differs: -one +many\n%s", d)
					}
					verify(t, many)
					want.SaveID = reps[0].SaveID
					for r, rep := range reps {
						if d := cmp.Diff(want, rep); d != "" && (format != formats.Native || rep.Files != want.Files) { // headers have the id of the save
							t.Errorf("rank %d: the report differs: -one +many\n%s", r, d)
						}
					}
					writers := 0
					for _, s := range stores {
						writers += min(1, len(creates([]*fault.Store{s})))
					}
					for name, n := range creates(stores) {
						if n != 1 {
							t.Errorf("%s was written %d times", name, n)
						}
					}
					if format != formats.Torch && writers < 2 { // one file is larger than a third of all
						t.Errorf("%d ranks have written %v; want all, or two", writers, creates(stores))
					}
					if got, want := len(storagetest.Names(t, many)), len(storagetest.Names(t, one)); got != want {
						t.Errorf("%d files, %v; want %d", got, storagetest.Names(t, many), want)
					}
				})
			}
		}
	}
}

// The report of a conversion through a recipe has the proofs of all ranks.
func TestRanksProveTogether(t *testing.T) {
	src := saved(t, 3)
	r := must.Get(recipe.Parse("same", []byte("sides = ['a', 'b']\n[[rule]]\na = '{rest*}'\nb = '{rest*}'\n")))(t)
	viewed := func() storage.Checkpoint {
		c := open(t, src)
		b := must.Get(recipe.Bind(r, "a", must.Get(c.Metadata(t.Context()))(t), recipe.Options{}))(t)
		return must.Get(view.Open(t.Context(), c, b))(t)
	}
	o := convert.Options{SkipObjects: true}
	want := must.Get(run(t.Context(), viewed(), &o, inShards(formats.HF, new(mem.Store), true)))(t)
	to := new(mem.Store)
	var got *convert.Report
	must.Do(t, inproc.Run(t.Context(), 3, func(ctx context.Context, g group.Group) error {
		mine := o
		mine.Group = g
		rep, err := run(ctx, viewed(), &mine, inShards(formats.HF, to, true))
		if g.Rank() == 0 {
			got = rep
		}
		return err
	}))
	if want.Compared == 0 || got.Compared < want.Compared || len(got.Digests) != len(want.Digests) {
		t.Errorf("compared %d elements, %d digests; want at least %d, and %d", got.Compared, len(got.Digests), want.Compared, len(want.Digests))
	}
}

// For any state, options and number of ranks, the result of many ranks is the result of
// one.
func TestRanksConvertTogetherProperty(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		src := &mem.Store{Name: "source"}
		save(t, src, drawStates(rt, t, drawTensors(rt, t))...)
		o := drawOptions(rt)
		one, _ := converted(t, src, o)
		many := &mem.Store{Name: "target"}
		_, errs := asJob(t, rapid.IntRange(2, 5).Draw(rt, "processes"), same[blob.Store](src), *o, func(int) *convert.Target { return inShards(formats.Native, many, true) })
		if err := errors.Join(errs...); err != nil {
			rt.Fatal(err)
		}
		if d := cmp.Diff(digests(t, one), digests(t, many)); d != "" {
			rt.Errorf("%+v: the content differs: -one +many\n%s", o, d)
		}
	})
}

// If a rank fails, all ranks return an error that names it, and the same conversion by
// another number of ranks continues with the files that all of them have finished.
func TestJobContinuesAfterAFailure(t *testing.T) {
	src, inner := saved(t, 3), &mem.Store{Name: "target"}
	broken := errors.New("disk full")
	stores := []*fault.Store{
		fault.New(inner), fault.New(inner),
		fault.New(inner, fault.Rule{On: fault.Create, Match: isData, Nth: 2, Times: -1, Do: fault.Fail(broken)}),
	}
	o := convert.Options{Parallel: 1}
	_, errs := asJob(t, 3, same[blob.Store](src), o, func(r int) *convert.Target { return inShards(formats.Native, stores[r], true) })
	for r, err := range errs {
		if err == nil || !slices.Equal(group.Ranks(err), []int{2}) || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("rank %d: %v; want the failure of rank 2", r, err)
		}
	}
	finished := noted(t, inner)
	if len(finished) == 0 {
		t.Fatal("nothing is finished, not even the first file of rank 2")
	}
	for _, ranks := range []int{4, 1} { // the second has no files to continue with, but works
		again := make([]*fault.Store, ranks)
		for r := range again {
			again[r] = fault.New(inner)
		}
		reps, errs := asJob(t, ranks, same[blob.Store](src), o, func(r int) *convert.Target { return inShards(formats.Native, again[r], true) })
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for _, name := range finished {
			if ranks == 4 && creates(again)[name] > 0 {
				t.Errorf("%s was finished, and written again", name)
			}
		}
		if ranks == 4 && (reps[0].KeptFiles != len(finished) || reps[3].KeptFiles != len(finished)) {
			t.Errorf("%d files were kept; want %d", reps[0].KeptFiles, len(finished))
		}
	}
	if d := cmp.Diff(digests(t, src), digests(t, inner)); d != "" {
		t.Errorf("the content differs: -source +target\n%s", d)
	}
}

// Without a staging store, a job that fails leaves no files and no checkpoint.
func TestFailedJobRemovesItsFiles(t *testing.T) {
	src, inner := saved(t, 3), &mem.Store{Name: "target"}
	broken := errors.New("no such bucket")
	_, errs := asJob(t, 3, same[blob.Store](src), convert.Options{Parallel: 1}, func(r int) *convert.Target {
		if r == 1 {
			return inShards(formats.Native, fault.New(inner, fault.Rule{On: fault.Commit, Match: isData, Nth: 1, Do: fault.Fail(broken)}), false)
		}
		return inShards(formats.Native, inner, false)
	})
	for r, err := range errs {
		if !slices.Equal(group.Ranks(err), []int{1}) {
			t.Errorf("rank %d: %v; want the failure of rank 1", r, err)
		}
	}
	if names := storagetest.Names(t, inner); len(names) > 0 {
		t.Errorf("%v are left", names)
	}
}

// Ranks that do not see the same source or the same target are named.
func TestRanksSeeTheSame(t *testing.T) {
	defer convert.SetVisibleTime(10 * time.Millisecond)()
	src := saved(t, 2)
	other := &mem.Store{Name: "source"}
	save(t, other, plan.State{"w": storagetest.Filled(t, tensor.Float32, []int64{6, 2}, 1)})
	for claim, c := range map[string]struct {
		src    func(int) blob.Store
		to     func(int) *convert.Target
		rank   int
		staged bool
	}{
		"source": {rank: 2, src: func(r int) blob.Store {
			if r == 2 {
				return other
			}
			return src
		}},
		"options": {rank: 1, to: func(r int) *convert.Target {
			t := inShards(formats.Native, new(mem.Store), true)
			if r == 1 {
				t.Details = "other"
			}
			return t
		}},
		"target": {rank: 1, to: func() func(int) *convert.Target {
			shared := new(mem.Store)
			return func(r int) *convert.Target {
				if r == 1 {
					return inShards(formats.Native, new(mem.Store), true)
				}
				return inShards(formats.Native, shared, true)
			}
		}()},
	} {
		t.Run(claim, func(t *testing.T) {
			if c.src == nil {
				c.src = same[blob.Store](src)
			}
			if c.to == nil {
				c.to = same(inShards(formats.Native, new(mem.Store), true))
			}
			_, errs := asJob(t, 3, c.src, convert.Options{}, c.to)
			for r, err := range errs {
				if !slices.Equal(group.Ranks(err), []int{c.rank}) || !errors.Is(err, group.ErrDiffers) {
					t.Errorf("rank %d: %v; want ErrDiffers on rank %d", r, err, c.rank)
				}
			}
		})
	}
}

// The bytes that each rank reports are a part of the whole, and there are parts for all.
func TestRanksReportTheirOwnProgress(t *testing.T) {
	src := saved(t, 2)
	alone := must.Get(convert.Plan(t.Context(), open(t, src), nil))(t)
	_, size := alone.Size()
	var mu sync.Mutex
	planned, moved := map[int]int64{}, map[int]int64{}
	dst := new(mem.Store)
	err := inproc.Run(t.Context(), 2, func(ctx context.Context, g group.Group) error {
		count := func(to map[int]int64) func(int64) {
			return func(n int64) {
				mu.Lock()
				defer mu.Unlock()
				to[g.Rank()] += n
			}
		}
		_, err := run(ctx, open(t, src), &convert.Options{Group: g, Planned: count(planned), Progress: count(moved)}, inShards(formats.Native, dst, true))
		return err
	})
	must.Do(t, err)
	for r := range 2 {
		if planned[r] <= 0 || planned[r] >= size || moved[r] <= 0 || moved[r] > planned[r]+size/10 {
			t.Errorf("rank %d of 2 planned %d and moved %d of %d bytes", r, planned[r], moved[r], size)
		}
	}
}
