package run

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/transfer"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(killDirEnv); dir != "" {
		step, _ := strconv.Atoi(os.Getenv(killStepEnv))
		pruneAndDie(dir, step)
	}
	config, err := os.MkdirTemp("", "cairn-run-") // tests must not confirm places for the user
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_CONFIG_HOME", config)
	os.Setenv("HOME", config)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(config)
		os.Exit(code)
	}))
}

// saveIn saves a checkpoint of about 4 KB. A negative step is not recorded.
func saveIn(t testing.TB, s blob.Store, f storage.Format, id string, step int64) {
	t.Helper()
	md := meta.Storage{SaveID: id, Time: recent.Add(time.Duration(step) * time.Minute), WorldSize: 1, Writer: "test"}
	if step >= 0 {
		md.Step = &step
	}
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(f, s, storage.WriteOptions{}) }}
	must.Do(t, storagetest.Save(t.Context(), p, md, plan.State{"v": storagetest.Filled(t, tensor.Float32, []int64{1000}, 1)}))
}

// save saves a checkpoint in cairn's own format. The id of the save contains the step.
func save(t testing.TB, dir string, step int64) string {
	t.Helper()
	name := FolderName(step)
	saveIn(t, openDir(t, dir, name), native.Format{}, "save-"+name, step)
	return name
}

func openDir(t testing.TB, dir ...string) blob.Store {
	t.Helper()
	return must.Get(file.Open(filepath.Join(dir...), nil))(t)
}

// copyFolder copies a folder with its checkpoint.
func copyFolder(t testing.TB, from, to string) {
	t.Helper()
	must.Do(t, os.CopyFS(to, os.DirFS(from)))
}

// openRun opens a run. remote may be empty.
func openRun(t testing.TB, dir, remote string) *Run {
	t.Helper()
	return must.Get(Open(t.Context(), dir, remote))(t)
}

// list returns the names of the checkpoints of a run, each with its copies.
func list(t testing.TB, r *Run) []string {
	t.Helper()
	out := []string{}
	for _, c := range must.Get(r.Checkpoints(t.Context()))(t) {
		where := c.Copies()
		if where == "" {
			where = c.lacks()
		}
		out = append(out, c.Name+" "+where)
	}
	return out
}

func TestCheckpoints(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	a, b, c, d := save(t, local, 100), save(t, local, 200), save(t, local, 300), save(t, local, 400)
	copyFolder(t, filepath.Join(local, a), filepath.Join(remote, a))
	copyFolder(t, filepath.Join(local, b), filepath.Join(remote, b))
	must.Do(t, os.RemoveAll(filepath.Join(local, a)))
	copyFolder(t, filepath.Join(local, c), filepath.Join(remote, c))
	must.Do(t, os.Remove(filepath.Join(remote, c, "cairn.json"))) // an upload was interrupted
	must.Do(t, os.RemoveAll(filepath.Join(remote, d)))
	saveIn(t, openDir(t, remote, d), native.Format{}, "another", 400)
	must.Do(t, os.Mkdir(filepath.Join(local, "logs"), 0o777))
	must.Do(t, os.WriteFile(filepath.Join(local, "logs", "x.txt"), nil, 0o666))
	must.Do(t, os.Mkdir(filepath.Join(local, ".hidden"), 0o777))
	r := openRun(t, local, remote)
	want := []string{a + " remote", b + " both", c + " local", d + " differ"}
	if got := list(t, r); !slices.Equal(got, want) {
		t.Errorf("the checkpoints are %q; want %q", got, want)
	}
	all := must.Get(r.Checkpoints(t.Context()))(t)
	x := all[1]
	if *x.Step != 200 || x.SaveID != "save-"+b || x.Format != formats.Native || !x.Time.Equal(recent.Add(200*time.Minute)) || !x.Uploaded() || all[2].Uploaded() || all[3].Uploaded() {
		t.Errorf("the checkpoint is %+v", x)
	}
	var bytes int64
	for info, err := range openDir(t, local, b).List(t.Context(), "") {
		must.Do(t, err)
		bytes += info.Size
	}
	if x.Bytes != bytes || x.Local.Bytes != bytes || x.Remote.Path != filepath.Join(remote, b) {
		t.Errorf("it has %d bytes: %+v, %+v; want %d", x.Bytes, x.Local, x.Remote, bytes)
	}
	if p := all[2].Remote; p.State != Incomplete || !strings.Contains(p.Problem, "incomplete") {
		t.Errorf("the interrupted upload is %+v", p)
	}
	if c := must.Get(r.Find(t.Context(), "200"))(t); c.Name != b {
		t.Errorf("step 200 is %s", c.Name)
	}
	if _, err := r.Find(t.Context(), "step-7"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Find of a checkpoint that is not there: %v", err)
	}
	if got := list(t, openRun(t, filepath.Join(local, "nowhere"), "")); len(got) != 0 {
		t.Errorf("a run that does not exist has %q", got)
	}
}

func TestCheckpointsWithProblems(t *testing.T) {
	dir := t.TempDir()
	damaged, notes, whole := save(t, dir, 1), save(t, dir, 2), save(t, dir, 3)
	data := must.Get(filepath.Glob(filepath.Join(dir, damaged, "*.safetensors")))(t)
	must.Do(t, os.Truncate(data[0], 100))
	must.Do(t, os.WriteFile(filepath.Join(dir, notes, NotesFile), []byte("{"), 0o666))
	lock := must.Get(commit.LockSave(t.Context(), openDir(t, dir, "begun-4"), "native", "save4"))(t)
	if lock == nil {
		t.Skip("no locks here")
	}
	defer lock.Release()
	must.Do(t, os.WriteFile(filepath.Join(dir, "begun-4", "save4-r00000-0.safetensors"), []byte("x"), 0o666))
	r := openRun(t, dir, "")
	want := []string{damaged + " incomplete", notes + " local", whole + " local", "begun-4 under way"}
	if got := list(t, r); !slices.Equal(got, want) {
		t.Errorf("the checkpoints are %q; want %q", got, want)
	}
	all := must.Get(r.Checkpoints(t.Context()))(t)
	if !strings.Contains(all[0].Local.Problem, "missing") || !strings.Contains(all[1].Problem, NotesFile) || all[2].Problem != "" {
		t.Errorf("the problems are %q, %q and %q", all[0].Local.Problem, all[1].Problem, all[2].Problem)
	}
}

// A run below a run is not a checkpoint of it, even if a file names its newest one.
func TestRunBelowARun(t *testing.T) {
	dir := t.TempDir()
	save(t, dir, 1)
	saveIn(t, openDir(t, dir, "other", "iter_0000007"), torchdcp.Format{}, "save7", 7)
	must.Do(t, os.WriteFile(filepath.Join(dir, "other", "latest_checkpointed_iteration.txt"), []byte("7"), 0o666))
	if got := list(t, openRun(t, dir, "")); len(got) != 1 {
		t.Errorf("the checkpoints are %q; want one", got)
	}
	if got := list(t, openRun(t, filepath.Join(dir, "other"), "")); !slices.Equal(got, []string{"iter_0000007 local"}) {
		t.Errorf("the checkpoints of the other run are %q", got)
	}
}

// everyFormat has all formats that can be written, and a file with any name.
var everyFormat = map[string]storage.Format{
	"native":          native.Format{},
	"torchdcp":        torchdcp.Format{},
	"hyper":           hyper.Format{},
	"hf":              hf.Format{},
	"hf, shards":      hf.Format{MaxShardBytes: 1000},
	"torch":           torchfile.Format{File: "model.pt"},
	"torch, any name": torchfile.Format{File: "weights"},
}

// Notes do not disturb a checkpoint of any format, and copies take them along.
func TestNotesBesideEveryFormat(t *testing.T) {
	for name, f := range everyFormat {
		t.Run(name, func(t *testing.T) {
			ctx, dir := t.Context(), t.TempDir()
			s := openDir(t, dir, "step-5")
			saveIn(t, s, f, "save5", 5)
			before := must.Get(openRun(t, dir, "").Checkpoints(ctx))(t)
			must.Do(t, ChangeNotes(ctx, s, before[0].SaveID, func(n *Notes) error {
				n.Tag("release")
				n.SetMetric("loss", 2)
				return nil
			}))
			checkNoted(t, dir, f.Name())
			left, err := formats.Leftovers(ctx, s)
			if err != nil || len(left) > 0 {
				t.Errorf("leftovers: %v, %v", left, err)
			}
			if removed, err := formats.Clean(ctx, s, -1); err != nil || len(removed) > 0 {
				t.Errorf("clean removes %v, %v", removed, err)
			}
			to := t.TempDir()
			must.Get(transfer.Copy(ctx, s, openDir(t, to, "step-5"), &transfer.Options{Full: true}))(t)
			checkNoted(t, to, f.Name())
			must.Get(transfer.Sync(ctx, openDir(t, to), openDir(t, to, "again"), nil))(t)
			checkNoted(t, filepath.Join(to, "again"), f.Name())
			if name != "torch, any name" { // a second save of it has another name
				saveIn(t, s, f, "save6", 6)
				if c := must.Get(openRun(t, dir, "").Checkpoints(ctx))(t)[0]; c.SaveID != "" && (len(c.Tags) > 0 || c.SaveID == before[0].SaveID) {
					t.Errorf("after a save that replaces it, the checkpoint is %+v", c)
				}
			}
		})
	}
}

// checkNoted checks the only checkpoint of a run, and its notes.
func checkNoted(t *testing.T, dir, format string) {
	t.Helper()
	all := must.Get(openRun(t, dir, "").Checkpoints(t.Context()))(t)
	if len(all) != 1 || !all[0].Complete() || all[0].Format != format || !slices.Equal(all[0].Tags, []string{"release"}) || all[0].Metrics["loss"] != 2 || *all[0].Step != 5 {
		t.Fatalf("the checkpoints are %+v", all)
	}
	c := must.Get(formats.Open(t.Context(), openDir(t, dir, all[0].Name), nil))(t)
	defer c.Close()
	if rep, err := c.Verify(t.Context(), nil); err != nil || len(rep.Problems) > 0 {
		t.Errorf("Verify = %+v, %v", rep, err)
	}
}

// The notes of both copies count, whichever has them.
func TestNotesOfBothCopies(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	name := save(t, local, 1)
	copyFolder(t, filepath.Join(local, name), filepath.Join(remote, name))
	note := func(dir, tag string) {
		must.Do(t, ChangeNotes(t.Context(), openDir(t, dir, name), "save-"+name, func(n *Notes) error { n.Tag(tag); return nil }))
	}
	note(local, "a")
	note(remote, "b")
	r := openRun(t, local, remote)
	if c := must.Get(r.Find(t.Context(), name))(t); !slices.Equal(c.Tags, []string{"a", "b"}) {
		t.Errorf("the tags are %q", c.Tags)
	}
	must.Do(t, r.Note(t.Context(), name, func(n *Notes) error { n.Untag("b"); n.SetMetric("loss", 1); return nil }))
	for _, dir := range []string{local, remote} {
		if c := must.Get(openRun(t, dir, "").Find(t.Context(), name))(t); slices.Contains(c.Tags, "b") || c.Metrics["loss"] != 1 {
			t.Errorf("the checkpoint in %s is %+v", dir, c)
		}
	}
	if err := r.Note(t.Context(), "nothing", func(*Notes) error { return nil }); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Note of a checkpoint that is not there: %v", err)
	}
}

func TestOpenSettings(t *testing.T) {
	dir, remote := t.TempDir(), t.TempDir()
	must.Do(t, WriteSettings(t.Context(), openDir(t, dir), Settings{Remote: remote, Keep: Policy{Rules: []Rule{Last(2)}}}))
	r, s, err := OpenSettings(t.Context(), dir, Settings{KeepRemote: Policy{Rules: []Rule{Last(5)}}})
	if err != nil || r.Remote.Address() != remote || s.Keep.String() != "last 2" || s.KeepRemote.String() != "last 5" {
		t.Errorf("OpenSettings = %v, %+v, %v", r, s, err)
	}
	if _, _, err := OpenSettings(context.Background(), "nothing://x", Settings{}); !errors.Is(err, blob.ErrAddress) {
		t.Errorf("OpenSettings of an unknown scheme: %v", err)
	}
}
