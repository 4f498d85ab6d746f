package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// log lists the checkpoints that a job has in memory beside a run, also if the run has no others yet.
func TestLogListsCheckpointsInMemory(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(ram.Variable, filepath.Join(dir, "memory"))
	t.Setenv("CAIRN_RUN", "job 7")
	ck, in := filepath.Join(dir, "ck"), filepath.Join(dir, "run")
	wantCommand(t, 0, "", strings.Fields("demo --size 64KiB --ranks 2 --load-ranks 1 --dir "+ck)...)
	wantCommand(t, 3, "", "log", in)
	if _, err := os.Stat(filepath.Join(dir, "memory")); err == nil {
		t.Error("log has made the folder for runs in memory")
	}

	address := "memory://" + must.Get(ram.Beside(in))(t)
	wantCommand(t, 0, address, "memory", "name", in)
	wantCommand(t, 0, "", "cp", ck, address+"/step-000000012")
	here := regexp.MustCompile(`(?m)^in memory, on the hosts of the job: ` + regexp.QuoteMeta(address) + `\nCHECKPOINT +STEP +AGE +SIZE +STATE\nstep-000000012 +\d+ .* complete$`)
	if code, out, _ := command(t, "log", in); code != 0 || !here.MatchString(out) || strings.Contains(out, "checkpoints,") {
		t.Errorf("log of a run that is only in memory: exit code %d\n%s", code, out)
	}
	wantCommand(t, 0, "", "cp", ck, filepath.Join(in, "step-1"))
	if code, out, _ := command(t, "log", in); code != 0 || !here.MatchString(out) || !strings.Contains(out, "step-1 ") {
		t.Errorf("log: exit code %d\n%s", code, out)
	}
	if code, out, _ := command(t, "log", in, "--json"); code != 0 || !strings.Contains(out, `"path": "`+address+`"`) {
		t.Errorf("log --json: exit code %d\n%s", code, out)
	}
	for _, name := range []string{"CAIRN_RUN", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "JOBSET_NAME"} {
		t.Setenv(name, "")
	}
	wantCommand(t, 2, "set CAIRN_RUN", "memory", "name", in)
	if _, out, _ := command(t, "log", ck+"/.."); strings.Contains(out, "in memory") {
		t.Errorf("the log of another run lists them:\n%s", out)
	}
}

// memory lists the hosts of a run, their networks, and which hosts keep copies of their files.
func TestMemoryListsPartners(t *testing.T) {
	root := filepath.Join(t.TempDir(), "memory")
	t.Setenv(ram.Variable, root)
	at := must.Get(ram.Here())(t)
	must.Do(t, os.Mkdir(filepath.Join(root, "llama"), 0o700))
	own := must.Get(at.HostID())(t)
	must.Do(t, at.WriteMembers("llama", &ram.Members{Secret: []byte("x"), Copies: 1, Hosts: []ram.Host{
		{ID: own, Name: "n1", Addresses: []string{"127.0.0.1:1"}, Interface: "ib0"}, {ID: "b", Name: "n2", Addresses: []string{"127.0.0.1:2"}},
		{ID: "c", Name: "n3", Addresses: []string{"127.0.0.1:3"}, Left: true},
	}}))
	_, out, _ := command(t, "memory")
	for _, want := range []string{
		`(?m)^RUN +STEP +CHECKPOINTS +BYTES HERE +SPARE +HOST +STATE +NETWORK +COPIES ON$`,
		`(?m)^llama +- +0 +0 B +0 B +n1 +here +ib0 127.0.0.1:1 +n2$`, `(?m)^llama +- +0 +0 B +0 B +n2 +silent +127.0.0.1:2 +n1$`, `(?m)^llama .* n3 +left +127.0.0.1:3`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("memory prints no line like %s:\n%s", want, out)
		}
	}

	// doctor does so too.
	_, out, _ = command(t, "doctor", "memory:llama", "--quick")
	for _, want := range []string{`(?m)^llama .* n1 +here +ib0 127.0.0.1:1 +n2$`, `(?m)^llama .* n2 +silent +127.0.0.1:2 +n1$`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("doctor prints no line like %s:\n%s", want, out)
		}
	}
	wantCommand(t, 3, "this host has no such run in memory", "doctor", "memory:other")
	must.Do(t, at.WriteMembers("llama", &ram.Members{Secret: []byte("x"), Copies: 1, Hosts: []ram.Host{
		{ID: own, Name: "n1", Addresses: []string{"127.0.0.1:1"}, Interface: "ib0"},
	}}))
	if code, out, stderr := command(t, "doctor", "memory:llama", "--quick", "--json"); code != 0 || !strings.Contains(out, `"interface": "ib0"`) || !strings.Contains(out, `"safe": true`) {
		t.Errorf("doctor --json of a run: exit code %d\n%s%s", code, out, stderr)
	}
}
