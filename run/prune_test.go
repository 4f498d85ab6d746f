package run

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// outcomes returns the outcomes of Prune, in short.
func outcomes(all []Pruned) string {
	var out []string
	for _, x := range all {
		out = append(out, fmt.Sprintf("%d %s", *x.Step, x.Outcome))
	}
	return strings.Join(out, ", ")
}

func keep(t testing.TB, text string) Policy {
	t.Helper()
	return must.Get(ParsePolicy(text))(t)
}

func TestPrune(t *testing.T) {
	dir := t.TempDir()
	for step := range int64(5) {
		save(t, dir, step)
	}
	r := openRun(t, dir, "")
	must.Do(t, r.Note(t.Context(), FolderName(1), func(n *Notes) error { n.Tag("release"); return nil }))
	must.Do(t, os.WriteFile(filepath.Join(dir, FolderName(2), "notes.txt"), nil, 0o666))
	before := must.Get(r.Checkpoints(t.Context()))(t)
	opts := &PruneOptions{Keep: keep(t, "last 1, tagged"), DryRun: true}
	rep := must.Get(r.Prune(t.Context(), opts))(t)
	const dry = "0 would remove, 1 kept, 2 would remove, 3 would remove, 4 kept"
	if got := outcomes(rep.Local); got != dry || rep.Count != 3 || rep.Bytes != before[0].Bytes+before[2].Bytes+before[3].Bytes {
		t.Errorf("a dry run: %s, %d with %d bytes; want %s", got, rep.Count, rep.Bytes, dry)
	}
	if plan := must.Get(r.Plan(before, &PruneOptions{Keep: opts.Keep}))(t); outcomes(plan.Local) != dry {
		t.Errorf("Plan: %s; want %s", outcomes(plan.Local), dry)
	}
	if after := list(t, r); len(after) != 5 {
		t.Fatalf("a dry run leaves %q", after)
	}
	var told []string
	opts.DryRun, opts.Removed = false, func(p *Pruned) { told = append(told, p.Name) }
	rep = must.Get(r.Prune(t.Context(), opts))(t)
	if got, want := outcomes(rep.Local), strings.ReplaceAll(dry, "would remove", "removed"); got != want || rep.Count != 3 || len(told) != 3 {
		t.Errorf("Prune: %s, and it told of %q; want %s", got, told, want)
	}
	if got, want := list(t, r), []string{FolderName(1) + " local", FolderName(4) + " local"}; !slices.Equal(got, want) {
		t.Errorf("there are %q; want %q", got, want)
	}
	left := must.Get(os.ReadDir(dir))(t)
	if len(left) != 3 || left[1].Name() != FolderName(2) { // it has a file of the user
		t.Errorf("the folders are %v", left)
	}
	rep = must.Get(r.Prune(t.Context(), opts))(t)
	if rep.Count != 0 {
		t.Errorf("a second Prune removes %d", rep.Count)
	}
}

func TestPruneRefusesBadPolicies(t *testing.T) {
	r := openRun(t, t.TempDir(), "")
	if _, err := r.Prune(t.Context(), &PruneOptions{Keep: Policy{Rules: []Rule{Last(0)}}}); !errors.Is(err, ErrPolicy) {
		t.Errorf("Prune = %v; want ErrPolicy", err)
	}
	save(t, r.Local.Address(), 1)
	_, err := r.Prune(t.Context(), &PruneOptions{Keep: keep(t, "best 2 by los, last 1")})
	if !errors.Is(err, ErrPolicy) || !strings.Contains(err.Error(), "no checkpoint has the metric los") {
		t.Errorf("Prune with an unknown metric = %v; want ErrPolicy", err)
	}
}

// A local checkpoint is not removed before the remote place has it.
func TestPruneTwoPlaces(t *testing.T) {
	for name, c := range map[string]struct {
		keep, keepRemote string
		force            bool
		local, remote    string
	}{
		"local only":           {keep: "last 1", local: "0 removed, 1 removed, 2 not uploaded, 3 not uploaded, 4 kept", remote: "0 kept, 1 kept"},
		"forced":               {keep: "last 1", force: true, local: "0 removed, 1 removed, 2 removed, 3 removed, 4 kept", remote: "0 kept, 1 kept"},
		"remote only":          {keepRemote: "last 1", local: "0 kept, 1 kept, 2 kept, 3 kept, 4 kept", remote: "0 removed, 1 kept"},
		"what nobody wants":    {keep: "last 1", keepRemote: "every 3 steps", local: "0 removed, 1 removed, 2 removed, 3 not uploaded, 4 kept", remote: "0 kept, 1 kept"},
		"both keep everything": {local: "0 kept, 1 kept, 2 kept, 3 kept, 4 kept", remote: "0 kept, 1 kept"},
	} {
		t.Run(name, func(t *testing.T) {
			local, remote := t.TempDir(), t.TempDir()
			for step := range int64(5) {
				save(t, local, step)
				if step < 2 {
					copyFolder(t, filepath.Join(local, FolderName(step)), filepath.Join(remote, FolderName(step)))
				}
			}
			r := openRun(t, local, remote)
			rep := must.Get(r.Prune(t.Context(), &PruneOptions{Keep: keep(t, c.keep), KeepRemote: keep(t, c.keepRemote), Force: c.force}))(t)
			if got := outcomes(rep.Local); got != c.local {
				t.Errorf("local: %s; want %s", got, c.local)
			}
			if got := outcomes(rep.Remote); got != c.remote {
				t.Errorf("remote: %s; want %s", got, c.remote)
			}
		})
	}
}

// A remote copy that is shorter, or of another save, does not allow the removal of the local
// one.
func TestPruneLooksAtRemoteCopies(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	for step := range int64(3) {
		save(t, local, step)
	}
	copyFolder(t, local, remote)
	data := must.Get(filepath.Glob(filepath.Join(remote, FolderName(0), "*.safetensors")))(t)
	must.Do(t, os.Truncate(data[0], 100))
	must.Do(t, os.RemoveAll(filepath.Join(remote, FolderName(1))))
	saveIn(t, openDir(t, remote, FolderName(1)), native.Format{}, "another", 1)
	rep := must.Get(openRun(t, local, remote).Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 1")}))(t)
	if got, want := outcomes(rep.Local), "0 not uploaded, 1 not uploaded, 2 kept"; got != want {
		t.Errorf("Prune: %s; want %s", got, want)
	}
	if !strings.HasSuffix(rep.Local[0].Problem, "lacks it") || !strings.Contains(rep.Local[1].Problem, "another save") {
		t.Errorf("the problems are %q and %q", rep.Local[0].Problem, rep.Local[1].Problem)
	}
}

// Sync uploads checkpoints that the remote place lacks and its policy keeps, and
// Prune can then remove them.
func TestSyncThenPrune(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	for step := range int64(4) {
		save(t, local, step)
	}
	r := openRun(t, local, remote)
	must.Do(t, r.Note(t.Context(), FolderName(1), func(n *Notes) error { n.SetMetric("loss", 1); return nil }))
	copyFolder(t, filepath.Join(local, FolderName(1)), filepath.Join(remote, FolderName(1)))
	must.Do(t, os.Remove(filepath.Join(remote, FolderName(1), NotesFile)))
	opts := &SyncOptions{KeepRemote: keep(t, "last 2"), Skip: func(name string) bool { return name == FolderName(2) }}
	if got := r.Lacking(must.Get(r.Checkpoints(t.Context()))(t), opts.KeepRemote, time.Now()); len(got) != 2 {
		t.Errorf("the remote place lacks %+v", got)
	}
	done := must.Get(r.Sync(t.Context(), opts))(t)
	if len(done) != 1 || done[0].Folder != FolderName(3) {
		t.Errorf("Sync = %+v", done)
	}
	want := []string{FolderName(0) + " local", FolderName(1) + " both", FolderName(2) + " local", FolderName(3) + " both"}
	if got := list(t, r); !slices.Equal(got, want) {
		t.Errorf("there are %q; want %q", got, want)
	}
	if c := must.Get(openRun(t, remote, "").Find(t.Context(), FolderName(1)))(t); c.Metrics["loss"] != 1 {
		t.Errorf("the notes were not carried along: %+v", c)
	}
	rep := must.Get(r.Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 1"), KeepRemote: opts.KeepRemote}))(t)
	if got, want := outcomes(rep.Local), "0 removed, 1 removed, 2 not uploaded, 3 kept"; got != want {
		t.Errorf("local: %s; want %s", got, want)
	}
	if _, err := openRun(t, local, "").Sync(t.Context(), nil); err == nil {
		t.Error("Sync of a run without a remote place has no error")
	}
}

// A checkpoint that a process reads, or to which a process saves, stays.
func TestPruneLeavesWhatIsInUse(t *testing.T) {
	dir := t.TempDir()
	for step := range int64(4) {
		save(t, dir, step)
	}
	release := must.Get(commit.Reading(t.Context(), openDir(t, dir, FolderName(1))))(t)
	lock := must.Get(commit.LockSave(t.Context(), openDir(t, dir, FolderName(2)), "native", "another"))(t)
	if lock == nil {
		t.Skip("no locks here")
	}
	r, opts := openRun(t, dir, ""), &PruneOptions{Keep: keep(t, "last 1")}
	rep := must.Get(r.Prune(t.Context(), opts))(t)
	if got, want := outcomes(rep.Local), "0 removed, 1 in use, 2 in use, 3 kept"; got != want || rep.Count != 1 {
		t.Errorf("Prune: %s; want %s", got, want)
	}
	release()
	must.Do(t, lock.Release())
	rep = must.Get(r.Prune(t.Context(), opts))(t)
	if got, want := outcomes(rep.Local), "1 removed, 2 removed, 3 kept"; got != want {
		t.Errorf("Prune: %s; want %s", got, want)
	}
}

// A checkpoint to which a new one refers, and a local one that has lost its remote copy,
// stay, even if Prune finds out only right before it removes them.
func TestPruneLooksAgain(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	for step := range int64(3) {
		save(t, local, step)
	}
	copyFolder(t, local, remote)
	r := openRun(t, local, remote)
	all := must.Get(r.Checkpoints(t.Context()))(t)
	save(t, local, 9) // meanwhile
	must.Do(t, os.Remove(filepath.Join(remote, FolderName(1), "cairn.json")))
	p := &pruning{run: r, opts: &PruneOptions{Now: day}, all: all, wanted: map[string]bool{FolderName(1): true}, rep: new(Report)}
	p.describe = func(ctx context.Context, dir *folder) (*found, error) {
		if dir.name != FolderName(9) {
			t.Errorf("%s is looked at again", dir.name)
		}
		return &found{bases: []string{FolderName(0)}}, nil
	}
	var got []Pruned
	if err := p.prunePlace(t.Context(), r.Local, keep(t, "last 1"), &got); err != nil {
		t.Error(err)
	}
	if got, want := outcomes(got), "0 kept, 1 not uploaded, 2 kept"; got != want {
		t.Errorf("Prune: %s; want %s", got, want)
	}
	saveIn(t, openDir(t, remote, FolderName(1)), native.Format{}, "other", 1)
	err := p.checkAgain(t.Context(), r.Local, &Pruned{Name: FolderName(1), saveID: "save-" + FolderName(1)})
	if !errors.Is(err, errNotUploaded) || !strings.Contains(err.Error(), "holds another save") {
		t.Errorf("check of a checkpoint that was replaced: %v", err)
	}
}

// A checkpoint that gets a tag or a metric while Prune is under way stays, and so does one whose notes
// are damaged meanwhile. A metric that is NaN equals itself.
func TestPruneSeesNewNotes(t *testing.T) {
	dir := t.TempDir()
	for step := range int64(5) {
		save(t, dir, step)
	}
	r := openRun(t, dir, "")
	nan := func(n *Notes) error { n.SetMetric("loss", math.NaN()); return nil }
	must.Do(t, r.Note(t.Context(), FolderName(2), nan))
	must.Do(t, r.Note(t.Context(), FolderName(3), nan))
	meanwhile := sync.OnceFunc(func() {
		must.Do(t, r.Note(t.Context(), FolderName(1), func(n *Notes) error { n.Tag("release"); return nil }))
		must.Do(t, os.WriteFile(filepath.Join(dir, FolderName(3), NotesFile), []byte("{"), 0o600))
	})
	opts := &PruneOptions{Keep: keep(t, "last 1"), Turn: func(context.Context) (func(), error) { meanwhile(); return func() {}, nil }}
	rep, err := r.Prune(t.Context(), opts)
	if got, want := outcomes(rep.Local), "0 removed, 1 in use, 2 removed, 3 in use, 4 kept"; got != want || err != nil {
		t.Errorf("Prune: %s, %v; want %s", got, err, want)
	}
	if !strings.Contains(rep.Local[1].Problem, "its notes are new") || !strings.Contains(rep.Local[3].Problem, "could be read a moment ago") {
		t.Errorf("the problems are %q and %q", rep.Local[1].Problem, rep.Local[3].Problem)
	}
}

// Removals wait for their turn, and no turn is left open.
func TestPruneTakesTurns(t *testing.T) {
	dir := t.TempDir()
	for step := range int64(4) {
		save(t, dir, step)
	}
	r, turns, open := openRun(t, dir, ""), 0, 0
	opts := &PruneOptions{Keep: keep(t, "last 1"), Turn: func(context.Context) (func(), error) {
		if turns++; turns == 3 {
			return nil, context.DeadlineExceeded
		}
		open++
		return func() { open-- }, nil
	}}
	rep, err := r.Prune(t.Context(), opts)
	if got, want := outcomes(rep.Local), "0 removed, 1 removed, 2 failed, 3 kept"; got != want || open != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Prune: %s, %v, and %d turns are open; want %s", got, err, open, want)
	}
}

// Two pruners at the same time remove the same checkpoints as one, and both succeed.
func TestTwoPruners(t *testing.T) {
	stores := map[string]func(t *testing.T) blob.Store{
		"folder": func(t *testing.T) blob.Store {
			return must.Get(file.Open(t.TempDir(), &file.Options{NoSync: true}))(t)
		},
		"memory": func(t *testing.T) blob.Store { return new(mem.Store) },
	}
	for name, open := range stores {
		for round := range 5 {
			t.Run(fmt.Sprint(name, round), func(t *testing.T) {
				s := open(t)
				for step := range int64(6) {
					at := must.Get(blob.NewSub(s, FolderName(step)))(t)
					saveIn(t, at, native.Format{}, fmt.Sprint("save", step), step)
				}
				removed := make([]int, 2)
				var wg sync.WaitGroup
				for i := range removed {
					wg.Go(func() {
						r := &Run{Local: &Place{Store: s, address: "test"}}
						rep, err := r.Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 2")})
						if err != nil {
							t.Errorf("Prune: %s, %v", outcomes(rep.Local), err)
							return
						}
						removed[i] = rep.Count
					})
				}
				wg.Wait()
				r := &Run{Local: &Place{Store: s, address: "test"}}
				// This removes checkpoints that each pruner left to the other.
				must.Get(r.Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 2")}))(t)
				if got := list(t, r); !slices.Equal(got, []string{FolderName(4) + " local", FolderName(5) + " local"}) {
					t.Errorf("there are %q", got)
				}
			})
		}
	}
}

// The environment of a process that prunes and kills itself.
const (
	killDirEnv  = "CAIRN_TEST_PRUNE"
	killStepEnv = "CAIRN_TEST_PRUNE_STEP"
)

// pruneAndDie prunes a folder, and kills this process at a step that changes it.
func pruneAndDie(dir string, step int) {
	s, err := file.Open(dir, nil)
	if err != nil {
		panic(err)
	}
	n := 0
	var mu sync.Mutex
	die := fault.Rule{On: fault.Mutating, Match: func(string) bool {
		mu.Lock()
		defer mu.Unlock()
		if n++; n == step {
			me, _ := os.FindProcess(os.Getpid())
			_ = me.Kill()
			select {}
		}
		return false
	}}
	r := &Run{Local: &Place{Store: fault.New(s, die), address: dir}}
	p, err := ParsePolicy("last 2")
	if err == nil {
		_, err = r.Prune(context.Background(), &PruneOptions{Keep: p})
	}
	if err != nil {
		panic(err)
	}
	os.Exit(0)
}

// Whenever a pruner is killed, each checkpoint is complete or gone, the ones that the policy
// keeps are complete, and another pruner completes the work.
func TestKillAtEveryStepOfPrune(t *testing.T) {
	for step := range deep.Steps[int]() {
		dir := t.TempDir()
		for i := range int64(4) {
			save(t, dir, i)
		}
		must.Do(t, openRun(t, dir, "").Note(t.Context(), FolderName(0), func(n *Notes) error { n.Tag("x"); return nil }))
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), killDirEnv+"="+dir, killStepEnv+"="+strconv.Itoa(step))
		out, err := cmd.CombinedOutput()
		over := err == nil
		if !over && cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("step %d: the child = %v:\n%s", step, err, out)
		}
		r := openRun(t, dir, "")
		for _, c := range must.Get(r.Checkpoints(t.Context()))(t) {
			if !c.Complete() && *c.Step >= 2 {
				t.Errorf("step %d: %s is %+v", step, c.Name, c.Local)
			}
		}
		rep, err := r.Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 2")})
		if err != nil {
			t.Errorf("step %d: %s, %v", step, outcomes(rep.Local), err)
		}
		entries := must.Get(os.ReadDir(dir))(t)
		if len(entries) != 2 || entries[0].Name() != FolderName(2) || entries[1].Name() != FolderName(3) {
			t.Errorf("step %d: the folder has %v", step, entries)
		}
		if got := list(t, r); !slices.Equal(got, []string{FolderName(2) + " local", FolderName(3) + " local"}) {
			t.Errorf("step %d: there are %q", step, got)
		}
		if over {
			if step < 6 {
				t.Errorf("only %d steps", step-1)
			}
			return
		}
	}
}

// Errors of the store at any step leave the kept checkpoints alone, and a second Prune
// completes the work.
func TestFaultAtEveryStepOfPrune(t *testing.T) {
	broken := errors.New("broken")
	for step := range deep.Steps[int64]() {
		s := new(mem.Store)
		for i := range int64(4) {
			saveIn(t, must.Get(blob.NewSub(s, FolderName(i)))(t), native.Format{}, fmt.Sprint("save", i), i)
		}
		f := fault.New(s, fault.Rule{Nth: step, Do: fault.Fail(broken)})
		opts := &PruneOptions{Keep: keep(t, "last 2")}
		_, err := (&Run{Local: &Place{Store: f, address: "test"}}).Prune(t.Context(), opts)
		if err != nil && !errors.Is(err, broken) {
			t.Errorf("step %d: %v", step, err)
		}
		r := &Run{Local: &Place{Store: s, address: "test"}}
		must.Get(r.Prune(t.Context(), opts))(t)
		if got := list(t, r); !slices.Contains(got, FolderName(2)+" local") || !slices.Contains(got, FolderName(3)+" local") || slices.ContainsFunc(got, func(c string) bool {
			return strings.HasSuffix(c, "local") && c < FolderName(2)
		}) {
			t.Errorf("step %d: there are %q", step, got)
		}
		if int64(len(f.Ops())) < step {
			return
		}
	}
}
