package demo_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/demo"
)

// dirVariable is set in processes of this test binary that are a rank of a demo
// in that directory.
const dirVariable = "CAIRN_DEMO_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(dirVariable); dir != "" {
		if err := runRank(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func runRank(dir string) error {
	s, err := file.Open(dir, &file.Options{NoSync: true})
	if err != nil {
		return err
	}
	return demo.RunRank(context.Background(), s, os.Args[len(os.Args)-1], os.Stdout)
}

// procs returns the configuration of a demo whose ranks are processes of this
// test binary.
func procs(t *testing.T, ranks, load int) (demo.Config, blob.Store) {
	t.Helper()
	dir := t.TempDir()
	s, err := file.Open(dir, &file.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return demo.Config{
		Store: s, Bytes: demo.MinBytes, Ranks: ranks, LoadRanks: load,
		Command: []string{exe}, Env: []string{dirVariable + "=" + dir, "GORACE=atexit_sleep_ms=0"},
	}, s
}

func TestDemoProcesses(t *testing.T) {
	for name, c := range map[string]struct{ ranks, load int }{"4 to 3": {4, 3}, "2 to 1": {2, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, store := procs(t, c.ranks, c.load)
			var n notes
			cfg.Watch = &n
			rep, err := demo.RunProcs(t.Context(), cfg)
			if err != nil || !rep.OK || !rep.Procs {
				t.Fatalf("RunProcs = %+v, %v; want OK", rep, err)
			}
			if got := strings.Join(n.steps, " "); got != "save verify kill kill kill overwrite load" {
				t.Errorf("steps: %s", got)
			}
			if rep.Load.Compared < rep.State.NumBytes-8<<10 || rep.Load.Ranks != c.load || rep.Save.Ranks != c.ranks {
				t.Errorf("load = %+v, save = %+v of %d bytes", rep.Load, rep.Save, rep.State.NumBytes)
			}
			checkKills(t, rep, c.ranks)
			checkCheckpoint(t, store, rep)
		})
	}
}

func checkKills(t *testing.T, rep *demo.Report, ranks int) {
	t.Helper()
	for i, want := range []struct {
		rank     int
		survivor string
	}{{ranks - 1, "old"}, {0, "old"}, {0, "new"}} {
		k := rep.Kills[i]
		if k.Rank != want.rank || k.Survivor != want.survivor || k.Survivors != ranks-1 || k.Operation == "" || k.Known <= 0 {
			t.Errorf("kill %d = %+v; want rank %d and the %s checkpoint", i, k, want.rank, want.survivor)
		}
		if (k.SaveID == rep.Save.SaveID) != (want.survivor == "old") {
			t.Errorf("kill %d: the checkpoint is %s, the first one was %s", i, k.SaveID, rep.Save.SaveID)
		}
		for _, e := range k.Errors {
			if !strings.Contains(e, fmt.Sprintf("rank %d: ", want.rank)) {
				t.Errorf("kill %d: an error does not name rank %d: %s", i, want.rank, e)
			}
		}
	}
}

func TestDemoDetectsMissingProcesses(t *testing.T) {
	for claim, env := range map[string]string{
		"a program that prints nothing":         dirVariable + "=",
		"a program that cannot read the folder": dirVariable + "=/dev/null/x",
	} {
		c, _ := procs(t, 2, 1)
		c.Command, c.Env = append(c.Command, "-test.run=^$"), []string{env}
		if rep, err := demo.RunProcs(t.Context(), c); err == nil || rep.OK {
			t.Errorf("%s: RunProcs = %+v, %v; want an error", claim, rep, err)
		}
	}
}

func TestDemoProcessesStopWithContext(t *testing.T) {
	for _, at := range []string{"save", "after kill", "load"} {
		ctx, cancel := context.WithCancel(t.Context())
		cfg, store := procs(t, 2, 1)
		cfg.Watch = &stopper{at: at, stop: cancel}
		_, err := demo.RunProcs(ctx, cfg)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("stopped at %s: RunProcs = %v; want Canceled", at, err)
		}
		if at == "save" {
			continue
		}
		c, err := cairn.Open(t.Context(), store)
		if err != nil {
			t.Errorf("stopped at %s: %v", at, err)
			continue
		}
		c.Close()
	}
}

func TestDemoProcessesRefuseInvalidNumbers(t *testing.T) {
	for _, n := range []struct{ ranks, load int }{{1, 1}, {2, demo.MaxProcs + 1}, {2, -1}} {
		cfg, _ := procs(t, n.ranks, n.load)
		if rep, err := demo.RunProcs(t.Context(), cfg); err == nil {
			t.Errorf("RunProcs of %+v = %+v, nil; want an error", n, rep)
		}
	}
}

func TestRunRankRefusesInvalidTasks(t *testing.T) {
	if err := demo.RunRank(t.Context(), nil, "{", os.Stdout); err == nil {
		t.Error("RunRank of no task = nil; want an error")
	}
}
