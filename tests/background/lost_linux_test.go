package background

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// logged checks that a line of the savers' log has all of the parts.
func logged(t *testing.T, dir string, parts ...string) {
	t.Helper()
	b := must.Get(os.ReadFile(saverLog(dir)))(t)
	for line := range strings.Lines(string(b)) {
		words := " " + strings.TrimSpace(line) + " "
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(words, " "+p+" ") }) {
			return
		}
	}
	t.Errorf("no line of the log has all of %q:\n%s", parts, b)
}

// TestLostTrainerIsNotALostSaver kills the trainer of rank 1 before its state is staged. The
// save of rank 0 fails because a rank is gone, not because of a saver, and the log has the
// outcome of the save of rank 1.
func TestLostTrainerIsNotALostSaver(t *testing.T) {
	dir := t.TempDir()
	ps := startTrainers(t, dir, trainerBytes/2, 1)
	for _, p := range ps {
		fmt.Fprintln(p.In, "again")
		p.Want(t, "staging")
	}
	ps[1].Want(t, "planned")
	ps[0].Want(t, "staged")
	ps[1].Kill(t)
	ps[0].Want(t, "ended saver=false trainer=true")
	ps[0].Kill(t)
	waitGone(t, dir)
	if got := checkpointOf(t, dir); got != 1 {
		t.Errorf("the checkpoint is of step %d; want 1", got)
	}
	logged(t, dir, `msg="save: failed"`, "rank=1", "step=2", "phase=write")
}

// rankSaver returns options for savers that have the rank as an argument.
func rankSaver(t *testing.T, rank int) *saver.Options {
	t.Helper()
	self := must.Get(os.Executable())(t)
	return &saver.Options{Command: []string{self, fmt.Sprint("saver-of-", rank)}}
}

// saverOf returns the saver of a rank.
func saverOf(t *testing.T, rank int) int {
	t.Helper()
	for _, pid := range jobtest.Savers(t) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // empty if it has ended
		if bytes.Contains(b, []byte(fmt.Sprintf("\x00saver-of-%d\x00", rank))) {
			return pid
		}
	}
	t.Errorf("rank %d has no saver", rank)
	return 0
}

// TestLostSaverIsNotALostTrainer kills the saver of rank 1. On both ranks the error is that
// of a lost saver, not of a lost rank, and the next save succeeds.
func TestLostSaverIsNotALostTrainer(t *testing.T) {
	const lost = 1
	store := jobtest.TempStore(t)
	jobtest.EachRank(t, 2, func(ctx context.Context, g group.Group) error {
		s, err := cairn.NewStager(&cairn.StagerOptions{Ceiling: 1 << 20, Process: rankSaver(t, g.Rank())})
		if err != nil {
			return err
		}
		defer s.Close(ctx)
		save := func() (*cairn.Pending, error) {
			state := cairn.State{fmt.Sprint("w", g.Rank()): jobtest.Numbered(t, 1000, 1)}
			return cairn.SaveAsync(ctx, store, state, &cairn.AsyncOptions{Stager: s, SaveOptions: cairn.SaveOptions{Group: g}})
		}
		p, err := save()
		if err == nil {
			_, err = p.Wait(ctx)
		}
		if err == nil {
			err = g.Barrier(ctx) // the saver of rank 0 has told the other one the outcome
		}
		if err != nil {
			return err
		}
		own := saverOf(t, g.Rank())
		tcptest.Stop(t, own)
		if p, err = save(); err != nil {
			return err
		}
		signal := syscall.SIGCONT
		if g.Rank() == lost {
			signal = syscall.SIGKILL
		} else if err := g.Barrier(ctx); err != nil { // the other saver is killed
			return err
		}
		if err := syscall.Kill(own, signal); err != nil {
			return err
		}
		if g.Rank() == lost {
			if err := g.Barrier(ctx); err != nil {
				return err
			}
		}
		if _, err := p.Wait(ctx); !errors.Is(err, cairn.ErrSaver) || errors.Is(err, group.ErrGone) {
			return fmt.Errorf("Wait = %v; want ErrSaver and not ErrGone", err)
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		if p, err = save(); err == nil {
			_, err = p.Wait(ctx)
		}
		return err
	})
}

// TestSaverKilledBetweenSaves kills an idle saver. The log has a warning,
// and the next save succeeds.
func TestSaverKilledBetweenSaves(t *testing.T) {
	var w watcher
	store := jobtest.TempStore(t)
	s := jobtest.Stager(t, jobtest.Modes["process"](1<<20))
	save := func() error {
		t.Helper()
		p, err := cairn.SaveAsync(t.Context(), store, cairn.State{"w": jobtest.Numbered(t, 1000, 1)}, &cairn.AsyncOptions{
			Stager: s, SaveOptions: cairn.SaveOptions{Logger: w.logger()},
		})
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Wait(t.Context())
		return err
	}
	must.Do(t, save())
	if log := w.log.String(); strings.Contains(log, "WARN") {
		t.Errorf("the first save has warned: %s", log)
	}
	jobtest.SignalSavers(t, syscall.SIGKILL)
	err := save()
	for errors.Is(err, cairn.ErrSaver) { // it began before the end of the saver was noticed
		err = save()
	}
	if err != nil {
		t.Fatal(err)
	}
	log := w.log.String()
	if strings.Count(log, `"level":"WARN"`) != 1 || !strings.Contains(log, cairn.ErrSaver.Error()+": ") || !strings.Contains(log, "a new one is started") {
		t.Errorf("the log has no single warning that a saver has ended: %s", log)
	}
}

// TestSaverLogCannotBeOpened gives the savers a log in a folder that does not exist.
func TestSaverLogCannotBeOpened(t *testing.T) {
	s := jobtest.Stager(t, &cairn.StagerOptions{Ceiling: 1 << 20, Process: &saver.Options{Log: saverLog(t.TempDir() + "/missing")}})
	_, err := cairn.SaveAsync(t.Context(), jobtest.TempStore(t), cairn.State{"w": jobtest.Numbered(t, 10, 1)}, &cairn.AsyncOptions{Stager: s})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("SaveAsync = %v; want ErrNotExist", err)
	}
}
