package deltas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
	"github.com/cairn-ckpt/cairn/transfer"
)

// sparseRun saves n steps in a run of which "every 6 steps" keeps few. Each of these needs
// checkpoints that no policy keeps.
func sparseRun(t *testing.T, s *jobtest.Trained, n int) (dir string, r *run.Run, want []map[string][]byte) {
	dir = t.TempDir()
	want = jobtest.SaveChain(t, dir, s, n, 1)
	return dir, must.Get(run.Open(t.Context(), dir, ""))(t), want
}

var everySix = cairn.Policy{Rules: []run.Rule{run.EverySteps(6)}}

// A checkpoint that a process reads, and one that is damaged, are not made to stand alone.
// The others are, and the checkpoints that they needed go.
func TestPruneFlattens(t *testing.T) {
	s := jobtest.NewTrained(t, 31)
	dir, r, want := sparseRun(t, s, 30)
	plan := must.Get(r.Prune(t.Context(), &run.PruneOptions{Keep: everySix, DryRun: true}))(t)
	rep := must.Get(r.Prune(t.Context(), &run.PruneOptions{Keep: everySix}))(t)
	if len(rep.Flattened) == 0 || !slices.Equal(plan.Flattened, rep.Flattened) || plan.Count != rep.Count {
		t.Errorf("Prune flattened %v and removed %d; the dry run %v and %d", rep.Flattened, rep.Count, plan.Flattened, plan.Count)
	}
	all := must.Get(r.Checkpoints(t.Context()))(t)
	if len(all) > 6+8 {
		t.Errorf("%d checkpoints stay", len(all))
	}
	for _, c := range all {
		checkContents(t, stepAt(t, dir, int(*c.Step)), want[*c.Step], s.State, 1)
		if slices.Contains(rep.Flattened, c.Name) && len(c.Bases) > 0 {
			t.Errorf("%s refers to %v", c.Name, c.Bases)
		}
	}
	if again := must.Get(r.Prune(t.Context(), &run.PruneOptions{Keep: everySix}))(t); again.Count+len(again.Flattened) > 0 {
		t.Errorf("Prune again = %+v; want no change", again)
	}
}

func TestPruneDoesNotFlattenWhatIsInUse(t *testing.T) {
	s := jobtest.NewTrained(t, 32)
	dir, r, want := sparseRun(t, s, 30)
	var names []string // of all that the policy keeps
	for i := 6; i < 30; i += 6 {
		names = append(names, fmt.Sprintf("step-%d", i))
		done := must.Get(commit.Reading(t.Context(), stepAt(t, dir, i)))(t)
		defer done()
	}
	rep := must.Get(r.Prune(t.Context(), &run.PruneOptions{Keep: everySix}))(t)
	said := 0
	for _, x := range rep.Local {
		if strings.Contains(x.Problem, "does not stand alone yet") {
			said++
		}
	}
	if said == 0 || slices.ContainsFunc(rep.Flattened, func(n string) bool { return slices.Contains(names, n) }) {
		t.Errorf("Prune flattened %v, and %d are reported; want none of %v", rep.Flattened, said, names)
	}
	for i := 6; i < 30; i += 6 {
		checkContents(t, stepAt(t, dir, i), want[i], s.State, 1)
	}
}

func TestPruneLeavesDamagedOnes(t *testing.T) {
	s := jobtest.NewTrained(t, 33)
	dir, r, _ := sparseRun(t, s, 30)
	flipByte(t, filepath.Join(dir, "step-0", "*.safetensors")) // to which step 6 refers
	before := must.Get(os.ReadFile(filepath.Join(dir, "step-6", "cairn.json")))(t)
	rep, err := r.Prune(t.Context(), &run.PruneOptions{Keep: everySix})
	if !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), "step-6") {
		t.Errorf("Prune = %v; want %v about step-6", err, storage.ErrCorrupt)
	}
	if after := must.Get(os.ReadFile(filepath.Join(dir, "step-6", "cairn.json")))(t); string(after) != string(before) || slices.Contains(rep.Flattened, "step-6") {
		t.Error("step-6 was changed")
	}
	if left := must.Get(filepath.Glob(filepath.Join(dir, "step-6", "*.safetensors")))(t); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	if _, err := r.Prune(t.Context(), &run.PruneOptions{Keep: everySix}); err != nil {
		t.Errorf("Prune again = %v; want no second attempt", err)
	}
}

// The disk is full before a checkpoint stands alone. The checkpoint is as it was, and the files of
// the attempt go: the next save needs the room.
func TestFlattenOnAFullDisk(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 35)
	want := jobtest.SaveChain(t, dir, s, 3, 2)
	full := fault.Rule{On: fault.Write, Match: func(name string) bool { return strings.HasSuffix(name, ".safetensors") }, Nth: 2, Times: -1, Do: fault.Fail(syscall.ENOSPC)}
	two := stepAt(t, dir, 2)
	before := bytesOf(t, two.Dir())
	if _, err := transfer.Flatten(t.Context(), fault.New(two, full), &transfer.Options{Parallel: 1}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Flatten = %v; want %v", err, syscall.ENOSPC)
	}
	if after := bytesOf(t, two.Dir()); after != before {
		t.Errorf("the folder has %d bytes; want %d as before", after, before)
	}
	checkContents(t, two, want[2], s.State, 1)
}

// A checkpoint has data files of both kinds. If a file that is stored whole is damaged, the
// checkpoint is not made worse by an attempt to flatten it.
func TestFlattenOfADamagedFile(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 34)
	for i, names := range [][]string{{"frozen"}, {"frozen", "all"}} {
		state := cairn.State{}
		for _, n := range names {
			state[n] = s.State[n]
		}
		o := cairn.SaveOptions{Base: &storage.Base{}}
		o.FilesPerRank = 2
		if i > 0 {
			o.Base.Folder = "step-0"
		}
		must.Get(cairn.Save(t.Context(), stepAt(t, dir, i), state, &o))(t)
	}
	one := stepAt(t, dir, 1)
	flipByte(t, filepath.Join(one.Dir(), "*.safetensors"))
	for _, flatten := range []func() error{
		func() error { _, err := transfer.Flatten(t.Context(), one, nil); return err },
		func() error {
			_, err := transfer.Copy(t.Context(), one, one, &transfer.Options{Overwrite: true})
			return err
		},
	} {
		if err := flatten(); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("flatten = %v; want %v", err, storage.ErrCorrupt)
		}
		checkPart(t, one.Dir(), "frozen", s)
	}
}

// checkPart loads one tensor of a checkpoint.
func checkPart(t *testing.T, dir, name string, s *jobtest.Trained) {
	t.Helper()
	x := blankOf(t, s)[name]
	store := must.Get(cairn.OpenStore(dir))(t)
	if _, err := cairn.Load(context.Background(), store, cairn.State{name: x}, nil); err != nil {
		t.Errorf("Load of %s = %v", name, err)
	}
}

// flipByte changes a byte in the middle of the first file that matches.
func flipByte(t *testing.T, pattern string) {
	t.Helper()
	files := must.Get(filepath.Glob(pattern))(t)
	if len(files) == 0 {
		t.Fatalf("%s matches no file", pattern)
	}
	b := must.Get(os.ReadFile(files[0]))(t)
	b[len(b)/2] ^= 4
	must.Do(t, os.WriteFile(files[0], b, 0o666))
}
