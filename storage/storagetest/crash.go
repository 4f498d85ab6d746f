package storagetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// Crash is one way to save, for tests in which a save fails or its process dies.
type Crash struct {
	Setup
	// Options describe the limits of the format.
	Options Options
	// OneRank means that one rank saves everything. Otherwise two ranks save.
	OneRank bool
	// Unlisted are files that belong in the folder of a checkpoint and that
	// Checkpoint.Files does not list.
	Unlisted []string
	// Sweep removes the files of dead saves. Nil: only the next save does.
	Sweep func(ctx context.Context, s blob.Store) error
	// Stage, if not nil, is for RunKills: it calls save with a store of its own and
	// then makes the checkpoint appear in dir. It calls step before each of its steps.
	Stage func(dir string, step func(), save func(blob.Store) error) error
}

// small returns a small state, another one for each seed.
func (c *Crash) small(t testing.TB, seed byte) plan.State {
	o := c.Options.withDefaults()
	return o.small(t, seed)
}

// Save saves a small state, another one for each seed.
func (c *Crash) Save(ctx context.Context, t testing.TB, s blob.Store, id string, seed byte) error {
	return c.save(ctx, t, s, id, seed)
}

// save saves the state of a seed.
func (c *Crash) save(ctx context.Context, t testing.TB, s blob.Store, id string, seed byte) error {
	state := c.small(t, seed)
	states := []plan.State{state}
	if !c.OneRank {
		states = []plan.State{{"w": state["w"]}, without(state, "w")}
	}
	return Save(ctx, c.At(s), Storage(id, 1, len(states)), states...)
}

// saveIn saves the state of a seed in a directory. It calls step before each operation
// of the store and each step of Stage.
func (c *Crash) saveIn(ctx context.Context, t testing.TB, dir, id string, seed byte, step func()) error {
	save := func(s blob.Store) error {
		counted := fault.Rule{Match: func(string) bool { step(); return false }}
		return c.save(ctx, t, fault.New(s, counted), id, seed)
	}
	if c.Stage != nil {
		return c.Stage(dir, step, save)
	}
	return save(openDir(t, dir))
}

// checkOnly fails unless s holds only a checkpoint, or is empty. names are the names of all
// files.
func (c *Crash) checkOnly(t testing.TB, s blob.Store, names []string) {
	t.Helper()
	var want []string
	ck, err := c.Format.Open(t.Context(), s)
	if err == nil {
		defer ck.Close()
		for _, f := range ck.Files() {
			want = append(want, f.Name)
		}
		want = append(want, c.Unlisted...)
		slices.Sort(want)
	} else if !errors.Is(err, storage.ErrNotFound) {
		t.Error(err)
	}

	if !slices.Equal(names, want) {
		t.Errorf("there are %q; want the files of the checkpoint only, %q", names, want)
	}
}

// faults are the ways in which the n-th operation of a save goes wrong.
var faults = map[string]func(n int64) fault.Rule{
	"crash in place of an operation": fault.CrashAt,
	"crash after an operation":       fault.CrashLateAt,
	"an operation fails":             func(n int64) fault.Rule { return fault.Rule{Nth: n, Do: fault.Fail(syscall.EIO)} },
	"an operation fails late":        func(n int64) fault.Rule { return fault.Rule{Nth: n, Do: fault.FailLate(syscall.EIO)} },
}

// RunFaults runs the saves of to. It kills a save at each operation on the store, and fails
// each operation in turn. Then the checkpoint that from saved before, or the new one, is
// complete; the result of the save is true; a save that failed leaves no files; and the next
// save succeeds and removes all others. If from is nil, there is no checkpoint before.
func RunFaults(t *testing.T, to, from *Crash) {
	inMemory := func() blob.Store { return new(mem.Store) }
	for name, rule := range faults {
		t.Run(name, func(t *testing.T) { faultEach(t, to, from, rule, inMemory) })
	}
	t.Run("crash, in files", func(t *testing.T) {
		faultEach(t, to, from, fault.CrashAt, func() blob.Store { return openDir(t, t.TempDir()) })
	})
}

// faultEach lets one operation after the other go wrong.
func faultEach(t *testing.T, to, from *Crash, rule func(n int64) fault.Rule, open func() blob.Store) {
	for n := range deep.Steps[int64]() {
		f := faultOnce(t, to, from, open(), rule(n))
		if t.Failed() {
			t.Fatalf("operation %d:\n%v", n, f.Ops())
		}

		if !f.Crashed() && int64(len(f.Ops())) < n {
			if n < 4 {
				t.Errorf("a save has %d operations; the test saw too little", n-1)
			}
			return
		}
	}
}

// faultOnce saves while one operation fails, and then checks the store.
func faultOnce(t *testing.T, to, from *Crash, inner blob.Store, rule fault.Rule) *fault.Store {
	t.Helper()
	var old plan.State
	next := *to
	if from != nil {
		next = *from
		old = from.small(t, 1)
		must.Do(t, from.save(t.Context(), t, inner, "old", 1))
	}

	before := Names(t, inner)
	f := fault.New(inner, rule)
	err := to.save(context.Background(), t, f, "new", 2)
	young := to.small(t, 2)
	switch {
	case err == nil:
		checkHolds(t, to.At(inner), young, "after a save that succeeded")
	case f.Crashed() || errors.Is(err, storage.ErrUncertain):
		checkEither(t, to.At(inner), old, young)
	case !errors.Is(err, syscall.EIO):
		t.Errorf("Save = %v; want %v", err, syscall.EIO)
	default:
		checkOld(t, to.At(inner), old)
		if now := Names(t, inner); !slices.Equal(now, before) {
			t.Errorf("after a save that failed there are %q; want %q", now, before)
		}
	}

	next.Write.SweepAfter = 1
	if err := next.save(t.Context(), t, inner, "later", 9); err != nil {
		t.Errorf("the next save = %v", err)
		return f
	}

	checkHolds(t, next.At(inner), next.small(t, 9), "after the next save")
	next.checkOnly(t, inner, Names(t, inner))
	return f
}

func openDir(t testing.TB, dir string) blob.Store {
	t.Helper()
	s, err := file.Open(dir, &file.Options{NoSync: true})
	must.Do(t, err)
	return s
}

// The environment of a process that saves: the directory, the name of the way to
// save, and the number of the step before which it is killed.
const (
	childEnv  = "CAIRN_TEST_SAVE"
	howEnv    = "CAIRN_TEST_SAVE_HOW"
	killAtEnv = "CAIRN_TEST_KILL_AT"
)

// RunAsChild is for the beginning of TestMain. In a process that RunKills has
// started it saves, is killed meanwhile, and does not return. saves are the ways to
// save, by name.
func RunAsChild(saves map[string]*Crash) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		return
	}

	n, _ := strconv.ParseInt(os.Getenv(killAtEnv), 10, 64)
	var steps atomic.Int64
	kill := func() {
		if steps.Add(1) == n {
			me, _ := os.FindProcess(os.Getpid())
			_ = me.Kill()
			select {}
		}
	}
	if err := saves[os.Getenv(howEnv)].saveIn(context.Background(), new(testing.T), dir, "child", 2, kill); err != nil {
		panic(err)
	}

	os.Exit(0)
}

// RunKills kills the process of a save before each of its steps in turn: the old checkpoint
// or the new one is complete, and a sweep or the next save removes all other files at once.
// saves are the saves of RunAsChild, to and from are names of them. If from is "", there is
// no checkpoint before.
func RunKills(t *testing.T, saves map[string]*Crash, to, from string) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems cannot tell whether the process of a save is dead")
	}
	for n := range deep.Steps[int]() {
		killed := killOnce(t, saves[from], saves[to], to, n)
		if t.Failed() {
			t.Fatalf("killed before step %d", n)
		}
		if !killed {
			return
		}
	}
}

func killOnce(t *testing.T, from, to *Crash, how string, n int) bool {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "c")
	alive := func() {}
	var old plan.State
	if from != nil {
		old = from.small(t, 1)
		must.Do(t, from.saveIn(t.Context(), t, dir, "old", 1, alive))
	}

	killed := runKilled(t, dir, how, n)
	s := openDir(t, dir)
	checkEither(t, to.At(s), old, to.small(t, 2))
	if _, err := os.Stat(dir); err == nil && to.Sweep != nil {
		swept := filepath.Join(t.TempDir(), "c")
		must.Do(t, os.CopyFS(swept, os.DirFS(dir)))
		s := openDir(t, swept)
		must.Do(t, to.Sweep(t.Context(), s))
		checkEither(t, to.At(s), old, to.small(t, 2))
		to.checkOnly(t, s, onDisk(t, swept))
	}

	must.Do(t, to.saveIn(t.Context(), t, dir, "next", 3, alive))
	checkHolds(t, to.At(s), to.small(t, 3), "after the next save")
	to.checkOnly(t, s, onDisk(t, dir))
	if beside := onDisk(t, filepath.Dir(dir)); len(beside) != 1 {
		t.Errorf("next to the checkpoint there are %q", beside)
	}
	return killed
}

// RunRaces tests saves that race for one place: they leave the files of one
// checkpoint. A save fails only if another one has committed since it began.
func RunRaces(t *testing.T, c *Crash) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems cannot tell whether the process of a save is dead")
	}

	dir := t.TempDir()
	var wg sync.WaitGroup
	var committed atomic.Int64
	for saver := range 3 {
		s := openDir(t, dir)
		wg.Go(func() {
			for i := range deep.Rounds(3, 20) {
				err := c.save(t.Context(), t, s, fmt.Sprintf("s%d-%d", saver, i), byte(saver+1))
				switch {
				case err == nil:
					committed.Add(1)
				case !errors.Is(err, storage.ErrChanged):
					t.Errorf("saver %d, save %d: %v", saver, i, err)
				}
			}
		})
	}

	wg.Wait()
	if committed.Load() == 0 {
		t.Error("no save has committed")
	}
	s := openDir(t, dir)
	c.checkOnly(t, s, onDisk(t, dir))

	got := blankState(t, c.small(t, 0))
	must.Do(t, Load(t.Context(), c.At(s), got))
	for seed := range byte(3) {
		if cmp.Equal(c.small(t, seed+1), got, sameTensor) {
			return
		}
	}

	t.Errorf("the checkpoint is not of one save: %v", got)
}

// RunOneWins tests saves that commit at the same time, in a store with versions: exactly one
// succeeds, the other one returns storage.ErrExists or storage.ErrChanged, and leaves no
// file. In half of the rounds there is a checkpoint before.
func RunOneWins(t *testing.T, c *Crash, rounds int) {
	for round := range rounds {
		s := new(mem.Store)
		if round%2 == 1 {
			must.Do(t, c.save(t.Context(), t, s, "old", 9))
		}

		var both [2]*Saving
		for i := range both {
			state := c.small(t, byte(i+1))
			states := []plan.State{state}
			if !c.OneRank {
				states = []plan.State{{"w": state["w"]}, without(state, "w")}
			}
			both[i] = NewSaving(c.At(s), Storage(fmt.Sprint("s", i), 1, len(states)), len(states))
			must.Do(t, errors.Join(both[i].Plan(t.Context(), states), both[i].Write(t.Context())))
		}

		var errs [2]error
		var wg sync.WaitGroup
		for i := range both {
			wg.Go(func() {
				if errs[i] = both[i].Finish(t.Context()); errs[i] != nil {
					if err := both[i].Abort(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}

		wg.Wait()
		won := 0
		if errs[0] != nil {
			won = 1
		}

		lost := errs[1-won]
		if errs[won] != nil || !errors.Is(lost, storage.ErrExists) && !errors.Is(lost, storage.ErrChanged) {
			t.Fatalf("round %d: saves = %v; want one to succeed and the other to be refused", round, errs)
		}

		checkHolds(t, c.At(s), c.small(t, byte(won+1)), "after the save that won")
		c.checkOnly(t, s, Names(t, s))
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
}

// runKilled saves in dir in another process, which is killed before step n. It reports
// whether the process was killed. If not, it had fewer steps.
func runKilled(t testing.TB, dir, how string, n int) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir, howEnv+"="+how, fmt.Sprintf("%s=%d", killAtEnv, n), "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	ee, ok := errors.AsType[*exec.ExitError](err)
	if err != nil && (!ok || ee.ExitCode() != -1) {
		t.Fatalf("the child = %v:\n%s", err, out)
	}
	return err != nil
}

// onDisk returns the names of all files in dir, including files that are not objects.
func onDisk(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.Do(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// checkOld fails unless p holds old, or no checkpoint if old is nil.
func checkOld(t *testing.T, p Place, old plan.State) {
	t.Helper()
	if old == nil {
		checkNone(t, p, "after a save that did not succeed")
		return
	}
	checkHolds(t, p, old, "after a save that did not succeed")
}

// checkEither fails unless p holds young, or old, or no checkpoint if old is nil.
func checkEither(t *testing.T, p Place, old, young plan.State) {
	t.Helper()
	got := blankState(t, young)
	if err := Load(t.Context(), p, got); err == nil && cmp.Equal(young, got, sameTensor) {
		checkHolds(t, p, young, "after a save whose end is not known")
		return
	}
	checkOld(t, p, old)
}

// without returns a copy of a state that lacks a name.
func without(s plan.State, name string) plan.State {
	out := maps.Clone(s)
	delete(out, name)
	return out
}
