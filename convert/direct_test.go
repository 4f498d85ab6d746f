package convert_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// bucket is a store like an object storage service, which conversions write to directly.
type bucket struct{ *mem.Store }

func (bucket) ReadGap() int64 { return 1 }

func newBucket() bucket { return bucket{&mem.Store{Name: "target"}} }

// into is a target of files of at most a hundred bytes in a store that other programs use
// too.
func into(format string, s blob.Store, overwrite bool) *convert.Target {
	t := &convert.Target{Format: format, Direct: s}
	t.NewWriter = func(n int64) (storage.Writer, error) {
		f, err := formats.ByName(format, &formats.Options{MaxFileBytes: 100})
		if err != nil {
			return nil, err
		}
		return f.NewWriter(s, storage.WriteOptions{BufferBytes: n, FailIfExists: !overwrite, Others: formats.CheckOthers})
	}
	t.Leftovers = func(ctx context.Context, id string) ([]string, error) {
		left, err := formats.Leftovers(ctx, s)
		var out []string
		for _, l := range left {
			if l.SaveID == id {
				out = append(out, l.Name)
			}
		}
		return out, err
	}
	return t
}

// fillDisk makes the third data file fail.
func fillDisk() fault.Rule {
	return fault.Rule{On: fault.Create, Match: isData, Nth: 3, Times: -1, Do: fault.Fail(errors.New("quota exceeded"))}
}

// filesIn returns the names in s with stars in place of the id of the save.
func filesIn(t *testing.T, s blob.Store, id string) []string {
	t.Helper()
	var out []string
	for _, name := range storagetest.Names(t, s) {
		out = append(out, strings.ReplaceAll(name, id, "*"))
	}
	return out
}

// A conversion in a bucket that is stopped at any operation goes on when it is started again:
// finished files are not written again, the result is the same, and neither the journal nor
// any other file is left. Until the commit, readers see the earlier checkpoint.
func TestDirectConversionContinues(t *testing.T) {
	src := &mem.Store{Name: "source"}
	save(t, src, plan.State{
		"a": storagetest.Filled(t, tensor.Float32, []int64{5, 4}, 1), "b": storagetest.Filled(t, tensor.Float32, []int64{5, 4}, 2),
		"c": storagetest.Filled(t, tensor.Float32, []int64{5, 4}, 3),
	})
	content := without(digests(t, src), nil)
	for claim, rule := range map[string]func(int64) fault.Rule{"before it": fault.CrashAt, "after it": fault.CrashLateAt} {
		for _, format := range []string{formats.Native, formats.TorchDCP, formats.Hyper, formats.HF} {
			for _, over := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, over another %v", format, claim, over), func(t *testing.T) {
					old := newBucket()
					if over {
						must.Get(run(t.Context(), open(t, saved(t, 1)), &convert.Options{SkipObjects: true, Select: []string{"*.w"}}, into(format, old, false)))(t)
					}
					begin := func() bucket {
						b := newBucket()
						for _, name := range storagetest.Names(t, old) {
							must.Get(blob.WriteAll(t.Context(), b, name, must.Get(blob.ReadAll(t.Context(), old, name, 1<<20))(t), nil))(t)
						}
						return b
					}
					whole := begin()
					rep := must.Get(run(t.Context(), open(t, src), nil, into(format, whole, over)))(t)
					want := filesIn(t, whole, rep.SaveID)
					n := int64(1)
					for ; goesOnDirectly(t, src, format, begin(), rule(n), over, want, content) && !t.Failed(); n++ {
					}
					if n < 10 {
						t.Errorf("there were only %d operations", n)
					}
				})
			}
		}
	}
}

// goesOnDirectly converts until a crash, and again. It reports whether there was a crash.
func goesOnDirectly(t *testing.T, src blob.Store, format string, b bucket, rule fault.Rule, over bool, want []string, content map[string]inspect.Digest) bool {
	t.Helper()
	before := storagetest.Names(t, b)
	first := fault.New(b, rule)
	o := &convert.Options{Parallel: 1}
	_, err := run(t.Context(), open(t, src), o, into(format, first, over))
	if !first.Crashed() {
		must.Do(t, err)
		return false
	}
	if err == nil { // the checkpoint is complete, and a part of the journal is left
		verify(t, b)
		must.Do(t, convert.DropIn(t.Context(), b))
		if names := storagetest.Names(t, b); !over && len(names) != len(want) { // a crash may keep files of the old checkpoint
			t.Errorf("%q are left; want %q", names, want)
		}
		return true
	}
	finished := noted(t, b)
	c, openErr := formats.Open(t.Context(), b, nil)
	switch {
	case openErr == nil:
		must.Do(t, c.Close())
	case over || !errors.Is(openErr, storage.ErrNotFound) && !errors.Is(openErr, storage.ErrIncomplete):
		t.Errorf("after the crash: %v", openErr)
	}
	second := fault.New(b)
	rep, err := run(t.Context(), open(t, src), o, into(format, second, over))
	if err != nil {
		t.Errorf("the second run: %v", err)
		return true
	}
	for _, e := range second.Ops() {
		if e.Op == fault.Create && slices.Contains(finished, e.Name) && !slices.Contains(before, e.Name) {
			t.Errorf("%s was finished, and written again", e.Name)
		}
	}
	verify(t, b)
	if d := cmp.Diff(content, without(digests(t, b), nil)); d != "" {
		t.Errorf("the content differs: -source +target\n%s", d)
	}
	got := slices.DeleteFunc(filesIn(t, b, rep.SaveID), func(name string) bool { return over && slices.Contains(before, name) })
	if d := cmp.Diff(slices.DeleteFunc(slices.Clone(want), func(name string) bool { return over && slices.Contains(before, name) }), got); d != "" {
		t.Errorf("other files than of one run: -want +got\n%s", d)
	}
	return true
}

// If a rank of a job dies, the same job by other ranks goes on with the files that all ranks
// have finished.
func TestDirectJobContinues(t *testing.T) {
	src, b := saved(t, 3), newBucket()
	stores := []*fault.Store{fault.New(b), fault.New(b), fault.New(b, fault.Rule{On: fault.Create, Match: isData, Nth: 2, Times: -1, Do: fault.Fail(errors.New("killed"))})}
	o := convert.Options{Parallel: 1}
	_, errs := asJob(t, 3, same[blob.Store](src), o, func(r int) *convert.Target { return into(formats.Native, stores[r], false) })
	for r, err := range errs {
		if !slices.Equal(group.Ranks(err), []int{2}) {
			t.Errorf("rank %d: %v; want the failure of rank 2", r, err)
		}
	}
	finished := noted(t, b)
	if len(finished) == 0 {
		t.Fatal("nothing is finished, not even the first file of rank 2")
	}
	again := []*fault.Store{fault.New(b), fault.New(b)}
	reps, errs := asJob(t, 2, same[blob.Store](src), o, func(r int) *convert.Target { return into(formats.Native, again[r], false) })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, name := range finished {
		if creates(again)[name] > 0 {
			t.Errorf("%s was finished, and written again", name)
		}
	}
	if reps[0].KeptFiles != len(finished) {
		t.Errorf("%d files were kept; want %d", reps[0].KeptFiles, len(finished))
	}
	if d := cmp.Diff(digests(t, src), digests(t, b)); d != "" {
		t.Errorf("the content differs: -source +target\n%s", d)
	}
}

// A run that fails before a file is finished leaves no file behind.
func TestDirectConversionWithoutFinishedFilesLeavesNothing(t *testing.T) {
	src := saved(t, 3)
	for claim, rule := range map[string]fault.Rule{
		"a data file fails":           {On: fault.Create, Match: isData, Nth: 1, Times: -1, Do: fault.Fail(errors.New("no such bucket"))},
		"the commit of it fails late": {On: fault.Commit, Match: isData, Nth: 1, Times: -1, Do: fault.FailLate(errors.New("no answer"))},
	} {
		b := newBucket()
		if _, err := run(t.Context(), open(t, src), nil, into(formats.Native, fault.New(b, rule), false)); err == nil {
			t.Fatalf("%s: no error", claim)
		}
		if names := storagetest.Names(t, b); len(names) > 0 {
			t.Errorf("%s: %q are left", claim, names)
		}
	}
}

// Another conversion begins anew. It removes the files of one that has ended with an error,
// and keeps the files of one that may be under way, with a warning.
func TestOtherDirectConversionBeginsAnew(t *testing.T) {
	src := saved(t, 3)
	for claim, rule := range map[string]fault.Rule{
		"ended":  fillDisk(),
		"killed": {On: fault.Create, Match: isData, Nth: 3, Do: fault.Crash()},
	} {
		for _, format := range []string{formats.Native, formats.HF} { // the format of the second run
			t.Run(claim+", then "+format, func(t *testing.T) {
				b := newBucket()
				if _, err := run(t.Context(), open(t, src), &convert.Options{Parallel: 1}, into(formats.Native, fault.New(b, rule), false)); err == nil {
					t.Fatal("the first run succeeded")
				}
				old := noted(t, b)
				if len(old) != 2 {
					t.Fatalf("%q are finished; want two files", old)
				}
				var said []string
				o := &convert.Options{Merge: true, SkipObjects: true, Warn: func(err error) { said = append(said, err.Error()) }}
				again := fault.New(b)
				rep, err := run(t.Context(), open(t, src), o, into(format, again, false))
				if claim == "killed" && format != formats.Native { // the files of the other format may belong to another program
					if _, other := errors.AsType[*storage.OtherFormatError](err); !other {
						t.Errorf("Run = %v; want an OtherFormatError", err)
					}
					return
				}
				if err != nil || rep.KeptFiles != 0 {
					t.Fatalf("Run = %+v, %v; want no kept files", rep, err)
				}
				verify(t, b)
				if !strings.Contains(strings.Join(said, "\n"), "starting from the beginning") {
					t.Errorf("it said %q; want that it starts from the beginning", said)
				}
				stay := slices.Contains(storagetest.Names(t, b), old[0])
				if tells := strings.Contains(strings.Join(said, "\n"), "may be under way"); stay != (claim == "killed") || tells != stay {
					t.Errorf("files of the first run stay: %v; it said %q", stay, said)
				}
				if u := must.Get(convert.UnfinishedIn(t.Context(), b))(t); u != nil {
					t.Errorf("the journal stays: %+v", u)
				}
			})
		}
	}
}

// meddler is a store in which something happens right before the first object of a name is
// created.
type meddler struct {
	bucket
	name string
	then func()
}

func (m *meddler) Create(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
	if name == m.name && m.then != nil {
		then := m.then
		m.then = nil
		then()
	}
	return m.bucket.Create(ctx, name, o)
}

// Two runs of the same conversion at the same time do not damage the result, also if one of
// them fails: both write the same bytes to the same names. Another save is not replaced.
func TestConcurrentDirectConversions(t *testing.T) {
	src := saved(t, 3)
	for claim, c := range map[string]struct {
		before string // it happens before this object is created
		also   func(t *testing.T, b bucket)
		want   error
	}{
		"the second one commits first": {"cairn.json", func(t *testing.T, b bucket) {
			must.Get(run(t.Context(), open(t, src), nil, into(formats.Native, b, false)))(t)
		}, nil},
		"the second one fails": {"cairn.json", func(t *testing.T, b bucket) {
			broken := fault.New(b, fault.Rule{On: fault.Create, Match: fault.Named("cairn.json"), Nth: 1, Times: -1, Do: fault.Fail(errors.New("refused"))})
			if _, err := run(t.Context(), open(t, src), nil, into(formats.Native, broken, false)); err == nil {
				t.Error("a run without a record succeeded")
			}
		}, nil},
		"another save commits first": {"cairn.json", func(t *testing.T, b bucket) {
			save(t, b, plan.State{"n": 1})
		}, storage.ErrExists},
	} {
		t.Run(claim, func(t *testing.T) {
			b := newBucket()
			m := &meddler{bucket: b, name: c.before, then: func() { c.also(t, b) }}
			_, err := run(t.Context(), open(t, src), nil, into(formats.Native, m, false))
			if !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("Run = %v; want %v", err, c.want)
			}
			verify(t, b)
			if d := cmp.Diff(digests(t, src), digests(t, b)); (d == "") != (c.want == nil) {
				t.Errorf("the checkpoint is not the one that was committed: -source +target\n%s", d)
			}
		})
	}
}

// If the work after the commit failed, it is done again, and only then the journal is
// removed.
func TestCommittedIsCalledAgain(t *testing.T) {
	src, b := saved(t, 2), newBucket()
	missing := errors.New("no config.json")
	called := 0
	target := func(err error) *convert.Target {
		to := into(formats.Native, b, false)
		to.Committed = func(context.Context, *convert.Report) error {
			called++
			verify(t, b)
			return err
		}
		return to
	}
	if _, err := run(t.Context(), open(t, src), nil, target(missing)); !errors.Is(err, missing) || !strings.Contains(err.Error(), "the checkpoint is complete") {
		t.Errorf("Run = %v; want the error of Committed", err)
	}
	rep, err := run(t.Context(), open(t, src), nil, target(nil))
	if err != nil || called != 2 || rep.KeptFiles == 0 {
		t.Errorf("Run = %+v, %v, after %d calls of Committed; want two calls, and kept files", rep, err, called)
	}
	if u := must.Get(convert.UnfinishedIn(t.Context(), b))(t); u != nil {
		t.Errorf("the journal stays: %+v", u)
	}
	if _, err := run(t.Context(), open(t, src), nil, target(nil)); !errors.Is(err, storage.ErrExists) {
		t.Errorf("a third run = %v; want %v", err, storage.ErrExists)
	}
}
