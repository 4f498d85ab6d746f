package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// wantCommand runs a command, and compares its exit code and a part of its output.
func wantCommand(t *testing.T, code int, part string, args ...string) {
	t.Helper()
	if got, out, errOut := command(t, args...); got != code || !strings.Contains(out+errOut, part) {
		t.Errorf("cairn %s: exit code %d, %s%s; want %d and %q", strings.Join(args, " "), got, out, errOut, code, part)
	}
}

// flip changes a byte of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	b := must.Get(os.ReadFile(path))(t)
	b[len(b)/2] ^= 0x55
	must.Do(t, os.WriteFile(path, b, 0o644))
}

// Commands agree on the newest checkpoint of a run that was rewound.
func TestRunsAfterRewind(t *testing.T) {
	dir := makeLines(t)
	wantCommand(t, 0, "goes on from step-000000100\n", "rewind", dir, filepath.Join(dir, "step-000000100"))
	_, out, _ := command(t, "runs", dir, "--json")
	var res runsResult
	must.Do(t, json.Unmarshal([]byte(out), &res))
	if len(res.Runs) != 1 || res.Runs[0].Step == nil || *res.Runs[0].Step != 100 {
		t.Errorf("runs after 'rewind 100': %s", out)
	}
}

// Hints name the next command with the run.
func TestHintsNameTheRun(t *testing.T) {
	dir := makeLines(t)
	wantCommand(t, 0, "'cairn rewind "+dir+" CHECKPOINT' goes back to one", "log", dir)
	wantCommand(t, 3, "hint: 'cairn log "+dir+"' lists its checkpoints", "rewind", dir, "7")
	wantCommand(t, 3, "hint: 'cairn log "+dir+"' lists the checkpoints of that folder", "tag", filepath.Join(dir, "step-7"))
	wantCommand(t, 0, dir+" goes on from step-000000150 now: 'cairn rewind "+dir+" CHECKPOINT'", "rm", filepath.Join(dir, "step-000000200~2"), "--force")
	wantCommand(t, 0, dir+" goes on from step-000000100 now: ", "rm", filepath.Join(dir, "step-000000150"), "--force")
}

// A damaged checkpoint or damaged settings leave the rest of the run usable, and hints say how.
func TestHintsOfDamagedRuns(t *testing.T) {
	dir := makeLines(t)
	newest := filepath.Join(dir, "step-000000200~2")
	flip(t, must.Get(filepath.Glob(filepath.Join(newest, "*.safetensors")))(t)[0])
	wantCommand(t, 5, "hint: 'cairn verify "+quoteArg(newest)+"' says what can be done; 'cairn rewind "+dir+" CHECKPOINT'", "verify", dir)

	wantCommand(t, 0, "last 9", "settings", dir, "--keep", "last 9")
	flip(t, filepath.Join(dir, "cairn-run.json"))
	wantCommand(t, 5, "hint: 'cairn settings "+dir+" --keep POLICY' writes the file again", "settings", dir)
	wantCommand(t, 5, "step-000000300", "log", dir)
	wantCommand(t, 0, "last 9", "settings", dir, "--keep", "last 9")
	wantCommand(t, 0, "step-000000300", "log", dir)
}

// makeReferring makes a run in which the second checkpoint refers to the first one.
func makeReferring(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	x := must.Get(tensor.New(tensor.Float32, []int64{1 << 18}))(t)
	r := must.Get(cairn.NewRun(dir, nil))(t)
	for step := range int64(2) {
		must.Get(r.Save(t.Context(), cairn.State{"x": x}, &cairn.SaveOptions{Step: &step}))(t)
	}
	must.Do(t, r.Close(t.Context()))
	return dir
}

// A copy of a checkpoint that refers to others stands alone, and is the same save.
func TestSyncOfReferringCheckpoints(t *testing.T) {
	dir, other := makeReferring(t), filepath.Join(t.TempDir(), "copy")
	wantCommand(t, 0, "2 checkpoints copied", "sync", dir, other)
	_, out, _ := command(t, "sync", dir, other)
	if strings.Count(out, "present") != 2 {
		t.Errorf("a second sync: %s; want both checkpoints to be present", out)
	}
	wantCommand(t, 0, "present", "sync", other, dir)
}

// The folder to which a checkpoint refers is lost: the hints lead to the removal of the checkpoint.
func TestHintsOfLostBases(t *testing.T) {
	dir := makeReferring(t)
	second := filepath.Join(dir, "step-000000001")
	must.Do(t, os.RemoveAll(filepath.Join(dir, "step-000000000")))
	for _, args := range [][]string{{"verify", second}, {"flatten", second}, {"cp", second, dir + "-copy"}, {"rm", second}} {
		wantCommand(t, 5, "hint: if the other folder is lost, 'cairn rm CHECKPOINT --force' removes this one", args...)
	}
	wantCommand(t, 0, "removed", "rm", second, "--force")
}

// The record of a checkpoint that refers to others is lost: the hints lead to its removal.
func TestHintsOfReferences(t *testing.T) {
	dir := makeReferring(t)
	second := filepath.Join(dir, "step-000000001")
	wantCommand(t, 1, "'cairn flatten'", "rm", filepath.Join(dir, "step-000000000"))
	flip(t, filepath.Join(second, "cairn.json"))
	wantCommand(t, 0, "\n1 checkpoint not complete: 'cairn verify "+second+"' says what can be done\n", "log", dir)
	wantCommand(t, 0, second+": cairn.json of ", "log", dir)
	wantCommand(t, 5, "hint: --force removes a damaged checkpoint", "rm", second)
	wantCommand(t, 5, "hint: its list of files cannot be read: if 'cairn repair "+second+"'", "rm", second, "--force")
	wantCommand(t, 1, "and delete the folder", "repair", second)
}

// Flags, names and addresses that are nearly right.
func TestHintsOfMistypedWords(t *testing.T) {
	ck := filepath.Join(t.TempDir(), "ck")
	wantCommand(t, 0, "", "demo", "--dir", ck, "--size", "64KiB", "--ranks", "1", "--load-ranks", "1")
	wantCommand(t, 2, "hint: did you mean '--json'?", "ls", ck, "--jsn")
	wantCommand(t, 2, `"hint": "did you mean '--overwrite'?"`, "cp", ck, ck+"2", "--overwritte", "--json")
	wantCommand(t, 2, "hint: see 'cairn ls --help'", "ls", ck, "--nothing-like-it")
	wantCommand(t, 3, "hint: did you mean model.norm.weight?", "cat", ck, "model.norm.wieght")
	wantCommand(t, 3, "hint: did you mean model.layers.0 or ", "ls", ck, "model.lyers.0")
	wantCommand(t, 3, "hint: did you mean model.embed.weight or ", "ls", ck, "wieght")
	wantCommand(t, 3, "hint: 'cairn ls "+ck+"' lists all names", "ls", ck, "something.else")
	wantCommand(t, 2, ": 'hf download org/name --local-dir name' makes it a folder here", "inspect", "https://huggingface.co/org/name/tree/main")
	wantCommand(t, 2, ": 'hf download org/name --local-dir name' makes it a folder here", "diff", ck, "hf://org/name")
	wantCommand(t, 2, "hint: 'cairn recipes show phi3' prints a recipe", "recipes", "phi3")
	wantCommand(t, 2, ": 'hf download gpt2 --local-dir gpt2' makes it a folder here", "ls", "https://huggingface.co/gpt2/resolve/main/model.safetensors")
	wantCommand(t, 2, ": cairn opens no web pages", "convert", "https://example.com/model.safetensors", ck+"3", "--to", "hf")
}

// schemes counts the stores of addressOf: a scheme is registered once.
var schemes atomic.Int64

// addressOf returns the address of empty stores with a fault.
func addressOf(rule fault.Rule) string {
	scheme := fmt.Sprintf("fault%d", schemes.Add(1))
	blob.Register(scheme, func(context.Context, string) (blob.Store, error) { return fault.New(new(mem.Store), rule), nil })
	return scheme + "://x"
}

// Commands that fill up a disk print the same hint.
func TestHintsOfFullDisks(t *testing.T) {
	full := addressOf(fault.Rule{On: fault.Create, Do: fault.Fail(syscall.ENOSPC)})
	ck := filepath.Join(t.TempDir(), "ck")
	demo := []string{"--size", "64KiB", "--ranks", "1", "--load-ranks", "1"}
	wantCommand(t, 0, "", append(demo, "demo", "--dir", ck)...)
	for _, args := range [][]string{
		{"cp", ck, full}, {"convert", ck, full, "--to", "dcp"}, append(demo, "demo", "--dir", full),
	} {
		wantCommand(t, 1, "hint: "+fullHint+"\n", args...)
	}
}

// A place that cannot be made, or not by this user.
func TestHintsOfImpossiblePlaces(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc")
	}
	wantCommand(t, 1, "the folder /proc/cairn cannot be made: no such file or directory\nhint: choose another place\n", "demo", "--dir", "/proc/cairn")
}

// The hint about permissions is for folders, not for services, whichever rank is refused.
func TestHintsOfRefusedRanks(t *testing.T) {
	for _, rank := range []string{"-r00000-", "-r00002-"} {
		for _, isService := range []bool{false, true} {
			refused := addressOf(fault.Rule{
				On:    fault.Create,
				Match: func(name string) bool { return strings.Contains(name, rank) },
				Do:    fault.Fail(&blob.Error{Op: "create", Store: "place", Err: fs.ErrPermission, Service: isService}),
			})
			code, _, errOut := command(t, "demo", "--dir", refused, "--size", "64KiB", "--ranks", "3")
			if code != 1 || strings.Contains(errOut, "hint: "+permissionHint) == isService {
				t.Errorf("files with %s are refused, service %t: exit code %d, %s", rank, isService, code, errOut)
			}
		}
	}
}
