package saves

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// underWay makes a save that is under way in a folder. end ends it without a checkpoint.
func underWay(t *testing.T, dir string) (end func()) {
	t.Helper()
	lock, err := commit.LockSave(t.Context(), jobtest.OpenStore(t, dir), "native", "20261115t101500-00c0ffee")
	if err != nil || lock == nil {
		t.Skipf("no locks here: %v", err)
	}
	release := func() {
		if err := lock.Release(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(release)
	return release
}

func TestLatestReturnsTheHighestCompleteStep(t *testing.T) {
	run := t.TempDir()
	at := func(name string) string { return filepath.Join(run, name) }
	jobtest.SaveStep(t, at("slot-99"), 2, native.Format{}) // the recorded step counts
	jobtest.SaveStep(t, at("step-10"), 10, native.Format{})
	want := jobtest.SaveStep(t, at("step-30"), -1, torchdcp.Format{})
	jobtest.SaveStep(t, at("best"), -1, torchdcp.Format{})
	noRecord := jobtest.SaveStep(t, at("step-40"), 40, native.Format{})
	jobtest.RemoveFiles(t, noRecord, "cairn.json")
	noData := jobtest.SaveStep(t, at("step-50"), 50, native.Format{})
	jobtest.RemoveFiles(t, noData, "*.safetensors")
	must.Do(t, os.MkdirAll(at("logs"), 0o777))
	must.Do(t, os.WriteFile(at("logs/60.txt"), []byte("hello\n"), 0o666))

	f, err := cairn.Latest(t.Context(), run, nil)
	if err != nil {
		t.Fatal(err)
	}
	if f.Path != want || f.Step == nil || *f.Step != 30 {
		t.Errorf("Latest = %+v; want step 30 in %s", f, want)
	}
	var skipped []string
	for _, s := range f.Skipped {
		skipped = append(skipped, s.Path)
		if s.Problem == "" || s.UnderWay {
			t.Errorf("skipped: %+v", s)
		}
	}
	if !slices.Equal(skipped, []string{noRecord, noData}) {
		t.Errorf("skipped = %q; want %q and %q", skipped, noRecord, noData)
	}

	jobtest.SaveStep(t, run, 31, native.Format{})
	if f, err = cairn.Latest(t.Context(), run, nil); err != nil || f.Path != run || *f.Step != 31 {
		t.Errorf("Latest = %+v, %v; want the one in %s itself", f, err, run)
	}
}

func TestLatestOfEqualStepsIsTheLastSave(t *testing.T) {
	run := t.TempDir()
	jobtest.SaveStep(t, filepath.Join(run, "b"), 5, nil)
	want := jobtest.SaveStep(t, filepath.Join(run, "a"), 5, nil)
	if f, err := cairn.Latest(t.Context(), run, nil); err != nil || f.Path != want {
		t.Errorf("Latest = %+v, %v; want %s", f, err, want)
	}
}

func TestLatestWithoutACompleteCheckpoint(t *testing.T) {
	for claim, c := range map[string]struct {
		make func(t *testing.T, run string)
		want error
	}{
		"no folder":       {func(t *testing.T, run string) { os.Remove(run) }, cairn.ErrNotFound},
		"an empty folder": {func(*testing.T, string) {}, cairn.ErrNotFound},
		"a part of a save": {func(t *testing.T, run string) {
			jobtest.RemoveFiles(t, jobtest.SaveStep(t, run+"/s-1", 1, nil), "cairn.json")
		}, cairn.ErrNotFound},
		"a damaged one": {func(t *testing.T, run string) {
			jobtest.RemoveFiles(t, jobtest.SaveStep(t, run+"/s-1", 1, nil), "*.safetensors")
		}, cairn.ErrCorrupt},
		"a save is under way":  {func(t *testing.T, run string) { underWay(t, run+"/s-1") }, cairn.ErrUnderWay},
		"the run is no folder": {func(t *testing.T, run string) { os.Remove(run); os.WriteFile(run, nil, 0o666) }, os.ErrInvalid},
	} {
		t.Run(claim, func(t *testing.T) {
			run := t.TempDir()
			c.make(t, run)
			_, err := cairn.Latest(t.Context(), run, nil)
			if e, ok := errors.AsType[*cairn.Error](err); !ok || e.Op != "latest" || e.Where != run {
				t.Errorf("Latest = %v; want a *cairn.Error", err)
			}
			if c.want == os.ErrInvalid { // another error on each system
				if errors.Is(err, cairn.ErrNotFound) {
					t.Errorf("Latest = %v; want no %v", err, cairn.ErrNotFound)
				}
			} else if !errors.Is(err, c.want) {
				t.Errorf("Latest = %v; want %v", err, c.want)
			}
			if c.want != cairn.ErrNotFound && errors.Is(err, cairn.ErrNotFound) {
				t.Errorf("Latest = %v, with which a job would start from the beginning", err)
			}
		})
	}
}

func TestLatestDoesNotWaitUnlessAsked(t *testing.T) {
	run := t.TempDir()
	want, busy := jobtest.SaveStep(t, filepath.Join(run, "step-1"), 1, nil), filepath.Join(run, "step-2")
	underWay(t, busy)
	f, err := cairn.Latest(t.Context(), run, nil)
	if err != nil || f.Path != want || len(f.Skipped) != 1 || f.Skipped[0].Path != busy || !f.Skipped[0].UnderWay {
		t.Errorf("Latest = %+v, %v; want step 1, and step 2 is skipped", f, err)
	}
}

func TestLatestWaitsForASaveUnderWay(t *testing.T) {
	run := t.TempDir()
	jobtest.SaveStep(t, filepath.Join(run, "step-1"), 1, nil)
	busy := filepath.Join(run, "step-2")
	end := underWay(t, busy)
	synctest.Test(t, func(t *testing.T) {
		go func() {
			time.Sleep(time.Hour)
			jobtest.SaveStep(t, busy, 2, nil)
			end()
		}()
		said := 0
		f, err := cairn.Latest(t.Context(), run, &cairn.LatestOptions{Wait: true, Waiting: func(err error) {
			if said++; !errors.Is(err, cairn.ErrUnderWay) || !strings.Contains(err.Error(), "step-2") {
				t.Errorf("Waiting receives %v; want the save to step 2", err)
			}
		}})
		if err != nil || f.Path != busy {
			t.Errorf("Latest = %+v, %v; want step 2", f, err)
		}
		if said < 100 || said > 400 {
			t.Errorf("Waiting was called %d times in an hour", said)
		}
	})
}

func TestLatestGivesUpWhenItsContextEnds(t *testing.T) {
	run := t.TempDir()
	jobtest.SaveStep(t, filepath.Join(run, "step-1"), 1, nil)
	underWay(t, filepath.Join(run, "step-2"))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := cairn.Latest(ctx, run, &cairn.LatestOptions{Wait: true})
		if !errors.Is(err, cairn.ErrUnderWay) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Latest = %v; want %v and %v", err, cairn.ErrUnderWay, context.DeadlineExceeded)
		}
	})
}

func TestLatestIsTheSameOnAllRanks(t *testing.T) {
	run := t.TempDir()
	want := jobtest.SaveStep(t, filepath.Join(run, "step-1"), 1, nil)
	empty := t.TempDir()
	busy := t.TempDir()
	underWay(t, busy)
	must.Do(t, inproc.Run(t.Context(), 3, func(ctx context.Context, g group.Group) error {
		place := func(dir string) string { // only rank 0 looks
			if g.Rank() != 0 {
				return "elsewhere"
			}
			return dir
		}
		o := &cairn.LatestOptions{Group: g}
		if f, err := cairn.Latest(ctx, place(run), o); err != nil || f.Path != want || *f.Step != 1 {
			t.Errorf("rank %d: Latest = %+v, %v; want %s", g.Rank(), f, err, want)
		}
		if _, err := cairn.Latest(ctx, place(empty), o); !errors.Is(err, cairn.ErrNotFound) {
			t.Errorf("rank %d: Latest = %v; want %v", g.Rank(), err, cairn.ErrNotFound)
		}
		if _, err := cairn.Latest(ctx, place(busy), o); !errors.Is(err, cairn.ErrUnderWay) {
			t.Errorf("rank %d: Latest = %v; want %v", g.Rank(), err, cairn.ErrUnderWay)
		}
		return nil
	}))
}

// While a save is under way, opening its folder returns ErrUnderWay, in any format. An
// older checkpoint in the same folder can be opened.
func TestOpenWhileASaveIsUnderWay(t *testing.T) {
	dir := t.TempDir()
	end := underWay(t, dir)
	check := func(call string, err error) {
		t.Helper()
		if !errors.Is(err, cairn.ErrUnderWay) || !errors.Is(err, cairn.ErrIncomplete) || errors.Is(err, cairn.ErrNotFound) {
			t.Errorf("%s = %v; want %v", call, err, cairn.ErrUnderWay)
		}
	}
	_, err := cairn.OpenPath(t.Context(), dir)
	check("OpenPath", err)
	_, err = cairn.Load(t.Context(), jobtest.OpenStore(t, dir), cairn.State{"step": 1}, nil)
	check("Load", err)
	_, err = cairn.Load(t.Context(), jobtest.OpenStore(t, dir), cairn.State{"step": 1}, &cairn.LoadOptions{Format: torchdcp.Format{}})
	check("Load of a given format", err)

	jobtest.RemoveFiles(t, jobtest.SaveStep(t, dir, 1, nil), "cairn.json") // data files without a record
	_, err = cairn.OpenPath(t.Context(), dir)
	check("OpenPath with data files", err)
	jobtest.SaveStep(t, dir, 1, nil)
	c := must.Get(cairn.OpenPath(t.Context(), dir))(t)
	c.Close()
	end()
}

// A lock that a dead process has left does not look like a save that is under way.
func TestOpenAfterASaveHasDied(t *testing.T) {
	dir := t.TempDir()
	end := underWay(t, dir)
	locks, err := filepath.Glob(filepath.Join(dir, ".cairn-tmp-lock-*"))
	if err != nil || len(locks) != 1 {
		t.Fatalf("locks: %v, %v", locks, err)
	}
	text, err := os.ReadFile(locks[0])
	if err != nil {
		t.Skipf("locks cannot be read here: %v", err)
	}
	end()
	must.Do(t, os.WriteFile(locks[0], text, 0o666))
	_, err = cairn.OpenPath(t.Context(), dir)
	if !errors.Is(err, cairn.ErrNotFound) || errors.Is(err, cairn.ErrUnderWay) || !strings.Contains(err.Error(), "'cairn clean") {
		t.Errorf("OpenPath = %v; want %v and what to do", err, cairn.ErrNotFound)
	}
	if runtime.GOOS == "linux" && !strings.Contains(err.Error(), "its process has ended") {
		t.Errorf("OpenPath = %v; want that the process has ended", err)
	}
	if _, err := cairn.Latest(t.Context(), dir, &cairn.LatestOptions{Wait: true}); !errors.Is(err, cairn.ErrNotFound) {
		t.Errorf("Latest = %v; want %v, at once", err, cairn.ErrNotFound)
	}
}

func TestLatestWhileACheckpointIsReplaced(t *testing.T) {
	run := t.TempDir()
	dir := jobtest.SaveStep(t, filepath.Join(run, "last"), 0, native.Format{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for step := range int64(deep.Rounds(30, 300)) {
			x, err := tensor.Of([]int64{1}, []int64{step})
			if err == nil {
				_, err = cairn.Save(t.Context(), jobtest.OpenStore(t, dir), cairn.State{"x": x}, &cairn.SaveOptions{Step: &step})
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		f, err := cairn.Latest(t.Context(), run, nil)
		if err != nil || f.Path != dir || len(f.Skipped) > 0 {
			t.Fatalf("%+v, %v", f, err)
		}
	}
	<-done
}

func TestLatestWithNamesThatAreNotUTF8(t *testing.T) {
	run := t.TempDir()
	want, part := filepath.Join(run, "step-\xff\xfe-7"), filepath.Join(run, "step-\xff-9")
	for _, dir := range []string{want, part} {
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Skipf("no such names here: %v", err)
		}
	}
	jobtest.SaveStep(t, want, 7, native.Format{})
	jobtest.RemoveFiles(t, jobtest.SaveStep(t, part, 9, native.Format{}), "*.safetensors")
	err := inproc.Run(t.Context(), 2, func(ctx context.Context, g group.Group) error {
		f, err := cairn.Latest(ctx, run, &cairn.LatestOptions{Group: g})
		if err != nil {
			return err
		}
		if f.Path != want || len(f.Skipped) != 1 || f.Skipped[0].Path != part {
			t.Errorf("rank %d: %+v", g.Rank(), f)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestLatestFollowsLinks(t *testing.T) {
	run, elsewhere := t.TempDir(), t.TempDir()
	jobtest.SaveStep(t, filepath.Join(run, "step-1"), 1, native.Format{})
	jobtest.SaveStep(t, elsewhere, 2, native.Format{})
	must.Do(t, os.WriteFile(filepath.Join(elsewhere, "file"), nil, 0o666))
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(run, name)); err != nil {
			t.Skipf("no links here: %v", err)
		}
	}
	link(elsewhere, "linked")
	link(filepath.Join(elsewhere, "file"), "file")
	link(filepath.Join(elsewhere, "file", "below"), "below-a-file")
	link(filepath.Join(elsewhere, "none"), "nothing")
	link("loop", "loop")
	f, err := cairn.Latest(t.Context(), run, nil)
	if err != nil || f.Path != filepath.Join(run, "linked") || len(f.Skipped) > 0 {
		t.Fatalf("%+v, %v", f, err)
	}
	link(strings.Repeat("x", 300), "unknown") // the target is too long: the link cannot be followed
	if f, err := cairn.Latest(t.Context(), run, nil); err == nil || errors.Is(err, cairn.ErrNotFound) {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestOpenPathThatCannotBeRead(t *testing.T) {
	_, err := cairn.OpenPath(t.Context(), filepath.Join(t.TempDir(), strings.Repeat("x", 300)))
	if err == nil || errors.Is(err, cairn.ErrNotFound) {
		t.Errorf("there may be a checkpoint, but the error is %v", err)
	}
}
