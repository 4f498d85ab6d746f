package ram

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// The name has the id of the job, as far as it can, and a sum of the absolute path. All jobs of a run are found
// by that.
func TestBeside(t *testing.T) {
	t.Chdir(t.TempDir())
	here := must.Get(os.Getwd())(t)
	t.Setenv("CAIRN_RUN", "")
	t.Setenv("TORCHELASTIC_RUN_ID", "none")
	t.Setenv("SLURM_JOB_ID", "")
	t.Setenv("JOBSET_NAME", "")
	if name, err := Beside("run"); err == nil {
		t.Errorf("without the id of a job, the name is %q", name)
	}
	for job, want := range map[string]string{
		"7":     "run-7-dc2b1b9e",
		"a b/ä": "run-a-b---dc2b1b9e",
	} {
		t.Setenv("CAIRN_RUN", job)
		for _, address := range []string{"/data/run", "file:///data/run", "/data/x/../run"} {
			if got := must.Get(Beside(address))(t); got != want {
				t.Errorf("the run beside %s in the job %s is %s; want %s", address, job, got, want)
			}
		}
	}
	name := must.Get(Beside("run"))(t)
	if other := must.Get(Beside("s3://bucket/run"))(t); other == name {
		t.Errorf("two runs have the name %s", name)
	}
	if same := must.Get(Beside(filepath.Join(here, "run")))(t); same != name {
		t.Errorf("the run has the names %s and %s", name, same)
	}

	root := filepath.Join(here, "memory")
	t.Setenv(Variable, root)
	if got := must.Get(RunsBeside("run"))(t); len(got) != 0 {
		t.Errorf("without a folder, there are the runs %q", got)
	}
	if _, err := os.Stat(root); err == nil {
		t.Error("RunsBeside has made the folder")
	}
	another := "run-8" + name[len(name)-9:]
	for _, run := range []string{name, another, "run-7-00000000"} {
		must.Do(t, os.MkdirAll(filepath.Join(root, run), 0o700))
	}
	want := []string{name, another}
	slices.Sort(want)
	if got := must.Get(RunsBeside("run"))(t); !slices.Equal(got, want) {
		t.Errorf("beside the run are %q; want %q", got, want)
	}
}
