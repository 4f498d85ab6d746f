package upload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, dir ...string) *file.Store {
	t.Helper()
	s := must.Get(file.Open(filepath.Join(dir...), nil))(t)
	return s
}

// save saves a checkpoint of about 4 KB in a folder.
func save(t *testing.T, dir, id string) {
	t.Helper()
	s := open(t, dir)
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(native.Format{}, s, storage.WriteOptions{}) }}
	state := plan.State{"v": storagetest.Filled(t, tensor.Float32, []int64{1000}, 1)}
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage(id, 1, 1), state))
}

func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	must.Do(t, os.CopyFS(to, os.DirFS(from)))
}

// remove removes the files that match a pattern.
func remove(t *testing.T, pattern ...string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(pattern...))
	if err != nil || len(names) == 0 {
		t.Fatalf("%v: %v, %v", pattern, names, err)
	}
	for _, name := range names {
		must.Do(t, os.Remove(name))
	}
}

// A local checkpoint is removed if the remote run has all files of the same save, and only
// then.
func TestOnlyCompleteCopiesAreRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, local, remote string)
		wrap   func(blob.Store) blob.Store // of the remote run
		stays  []string                    // patterns of files that stay; nil: the folder is removed
		warns  bool
	}{
		"a whole copy":                  {change: func(*testing.T, string, string) {}},
		"no copy":                       {func(t *testing.T, _, remote string) { remove(t, remote, "*"); remove(t, remote) }, nil, []string{"*"}, false},
		"a copy without its record":     {func(t *testing.T, _, remote string) { remove(t, remote, "cairn.json") }, nil, []string{"*"}, false},
		"a copy without its data":       {func(t *testing.T, _, remote string) { remove(t, remote, "*.safetensors") }, nil, []string{"*"}, false},
		"a copy without its index":      {func(t *testing.T, _, remote string) { remove(t, remote, "*-index.cairn") }, nil, []string{"*"}, false},
		"a copy of another save":        {func(t *testing.T, _, remote string) { save(t, remote, "save9") }, nil, []string{"*"}, false},
		"a file of the copy is shorter": {func(t *testing.T, _, remote string) { truncate(t, remote, "*.safetensors") }, nil, []string{"*"}, false},
		"files of the user": {func(t *testing.T, local, remote string) {
			must.Do(t, os.WriteFile(filepath.Join(local, "notes.txt"), nil, 0o666))
		}, nil, []string{"notes.txt"}, false},
		"notes": {func(t *testing.T, local, remote string) {
			for _, dir := range []string{local, remote} {
				must.Do(t, os.WriteFile(filepath.Join(dir, storage.NotesFile), nil, 0o666))
			}
		}, nil, nil, false},
		"notes that the copy lacks": {func(t *testing.T, local, _ string) {
			must.Do(t, os.WriteFile(filepath.Join(local, storage.NotesFile), nil, 0o666))
		}, nil, []string{storage.NotesFile}, false},
		"a part without a record":  {func(t *testing.T, local, _ string) { remove(t, local, "cairn.json"); remove(t, local, "*-index.cairn") }, nil, nil, false},
		"a part of another save":   {func(t *testing.T, _, remote string) { remove(t, remote, "*"); save(t, remote, "save9") }, nil, []string{"*"}, false},
		"a newer save replaces it": {func(t *testing.T, local, _ string) { save(t, local, "save9") }, nil, []string{"*"}, false},
		"the remote store does not answer": {
			func(*testing.T, string, string) {},
			func(s blob.Store) blob.Store {
				return fault.New(s, fault.Rule{Times: -1, Do: fault.Fail(errors.New("no answer"))})
			}, []string{"*"}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			local, remote := t.TempDir(), t.TempDir()
			a, b := filepath.Join(local, "step-1"), filepath.Join(remote, "step-1")
			save(t, a, "save1")
			copyFolder(t, a, b)
			c.change(t, a, b)
			before := names(t, a)
			var warned []error
			r := &Room{
				Ceiling: 1000, Dir: local, Name: "step-2", Remote: open(t, remote), Warn: func(err error) { warned = append(warned, err) },
				Uploads: func(context.Context) bool { return false },
			}
			if c.wrap != nil {
				r.Remote = c.wrap(r.Remote)
			}
			if got, want := r.make(t.Context(), 900), c.stays == nil || c.stays[0] != "*"; got != want || (len(warned) > 0) != c.warns {
				t.Errorf("make = %v, warnings %v; want %v", got, warned, want)
			}
			after := names(t, a)
			switch {
			case c.stays == nil:
				if _, err := os.Stat(a); err == nil {
					t.Errorf("the folder stays, with %v", after)
				}
			case c.stays[0] == "*":
				if !slices.Equal(after, before) {
					t.Errorf("the folder has %v; want %v", after, before)
				}
			case !slices.Equal(after, c.stays):
				t.Errorf("the folder has %v; want %v", after, c.stays)
			}
		})
	}
}

func truncate(t *testing.T, pattern ...string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(pattern...))
	if err != nil || len(names) == 0 {
		t.Fatalf("%v: %v, %v", pattern, names, err)
	}
	for _, name := range names {
		must.Do(t, os.Truncate(name, 100))
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	for info, err := range open(t, dir).List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, info.Name)
	}
	return out
}

// A folder keeps its files while a save is under way there, and so does the folder
// of the new checkpoint.
func TestFoldersInUseStay(t *testing.T) {
	local := t.TempDir()
	for _, name := range []string{"step-1", "step-2"} {
		save(t, filepath.Join(local, name), "save1")
	}
	remote := t.TempDir()
	copyFolder(t, local, remote)
	lock := must.Get(commit.LockSave(t.Context(), open(t, local, "step-1"), "native", "save7"))(t)
	if lock == nil {
		t.Skip("no locks here")
	}
	r := &Room{Ceiling: 2000, Dir: local, Name: "step-2", Remote: open(t, remote), Warn: func(err error) { t.Error(err) }, Uploads: func(context.Context) bool { return false }}
	if r.make(t.Context(), 1000) {
		t.Error("there is room, although both folders are in use")
	}
	must.Do(t, lock.Release())
	if r.make(t.Context(), 1000) || len(names(t, filepath.Join(local, "step-1"))) != 0 || len(names(t, filepath.Join(local, "step-2"))) == 0 {
		t.Error("not the old checkpoint was removed, and only that")
	}
}

// The only copy stays, even if it can be reached by two paths.
func TestTheOnlyCopyStays(t *testing.T) {
	local := t.TempDir()
	save(t, filepath.Join(local, "step-1"), "save1")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(local, link); err != nil {
		t.Skip(err)
	}
	for _, remote := range []string{local, link} {
		r := &Room{Ceiling: 1000, Dir: local, Name: "step-2", Remote: open(t, remote), Warn: func(err error) { t.Error(err) }, Uploads: func(context.Context) bool { return false }}
		if r.make(t.Context(), 900) || len(names(t, filepath.Join(local, "step-1"))) != 3 {
			t.Errorf("the only copy was removed, which %s is too", remote)
		}
	}
}

// The oldest checkpoint goes first, and an upload that is under way is waited for.
func TestRoomWaitsForUploads(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	for i := range 3 {
		save(t, filepath.Join(local, fmt.Sprint("step-", i)), "save1")
	}
	one := used(t, local) / 3
	uploads := 0
	r := &Room{Ceiling: 3 * one, Dir: local, Name: "step-3", Remote: open(t, remote), Warn: func(err error) { t.Error(err) }}
	r.Uploads = func(context.Context) bool {
		if uploads == 2 {
			return false
		}
		name := fmt.Sprint("step-", uploads)
		copyFolder(t, filepath.Join(local, name), filepath.Join(remote, name))
		uploads++
		return true
	}
	for i, want := range []bool{true, true, false} {
		if got := r.make(t.Context(), int64(i+1)*one); got != want {
			t.Errorf("room for %d more = %v; want %v", i+1, got, want)
		}
	}
	if _, err := os.Stat(filepath.Join(local, "step-2")); err != nil {
		t.Errorf("the checkpoint that is not uploaded: %v", err)
	}
	if r.make(t.Context(), r.Ceiling+1) {
		t.Error("there is room for more than the ceiling")
	}
}

func used(t *testing.T, dir string) int64 {
	t.Helper()
	n := must.Get((&Room{Dir: dir}).used())(t)
	return n
}

// planOf returns a plan of tensors of n bytes.
func planOf(n int64, names ...string) *plan.SavePlan {
	p := new(plan.SavePlan)
	for _, name := range names {
		info := &plan.Info{FQN: name, Properties: meta.Properties{DType: tensor.Uint8}, Shape: []int64{n}}
		p.Items = append(p.Items, plan.WriteItem{Kind: plan.KindTensor, Info: info, Box: tensor.Whole(info.Shape)})
	}
	return p
}

// Items that several ranks hold count once, in each folder. All ranks decide the same.
func TestRoomOfSeveralRanks(t *testing.T) {
	const n = 10 << 20
	for _, c := range []struct {
		name   string
		apart  bool // each rank has a disk of its own
		copies bool
		own    bool // each rank holds a tensor of its own
		twice  bool // the ceiling is that for two tensors
		want   bool
	}{
		{name: "the same tensor", want: true},
		{name: "the same tensor, copies", copies: true},
		{name: "the same tensor, copies, more room", copies: true, twice: true, want: true},
		{name: "different tensors", own: true},
		{name: "different tensors, more room", own: true, twice: true, want: true},
		{name: "different tensors on different disks", own: true, apart: true, want: true},
		{name: "the same tensor on different disks", apart: true, copies: true, want: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			top := t.TempDir()
			var mu sync.Mutex
			leaders := 0
			err := inproc.Run(t.Context(), 2, func(ctx context.Context, g group.Group) error {
				r := &Room{Ceiling: 3 * n / 2, Dir: filepath.Join(top, "run"), Name: "a", Copies: c.copies, Warn: func(err error) { t.Error(err) }, Uploads: func(context.Context) bool { return false }}
				p := planOf(n, "w")
				if c.own {
					p = planOf(n, fmt.Sprint("w", g.Rank()))
				}
				if c.apart {
					r.Dir = filepath.Join(top, fmt.Sprint("disk", g.Rank()), "run")
				}
				if c.twice {
					r.Ceiling = 5 * n / 2
				}
				got, err := r.Fits(ctx, g, p)
				if err != nil || got != c.want {
					return fmt.Errorf("Fits = %v, %w; want %v", got, err, c.want)
				}
				mu.Lock()
				defer mu.Unlock()
				if r.leads {
					leaders++
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			if want := map[bool]int{false: 1, true: 2}[c.apart]; leaders != want {
				t.Errorf("%d ranks have made room; want %d", leaders, want)
			}
		})
	}
}

// Ranks on hosts of the same name, with folders of the same path, make room on their own
// disks.
func TestHostsOfOneName(t *testing.T) {
	var ms [2]marked
	var all []mark
	for i := range ms {
		m, err := ms[i].put(t.Context(), t.TempDir())
		if err != nil || m.Token == "" {
			t.Fatal(m, err)
		}
		defer ms[i].release()
		ms[i].Place = "host:/run"
		all = append(all, ms[i].mark)
	}
	for i := range ms {
		if got, err := ms[i].lowest(t.Context(), all); got != i || err != nil {
			t.Errorf("rank %d: lowest = %d, %v; want %d", i, got, err, i)
		}
	}
}

// Marks of ranks that were killed do not stay.
func TestMarksOfDeadRanks(t *testing.T) {
	if os.Getenv("MARK_DIR") != "" {
		var m marked
		must.Get(m.put(t.Context(), os.Getenv("MARK_DIR")))(t)
		os.Exit(0) // without release
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMarksOfDeadRanks$")
	cmd.Env = append(os.Environ(), "MARK_DIR="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Fatalf("the dead rank has left %v, %v; want its mark", left, err)
	}
	var m marked
	must.Get(m.put(t.Context(), dir))(t)
	m.release()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the folder has %v, %v; want nothing", left, err)
	}
}

// The ceiling holds for a run that is a link to a folder.
func TestRunThatIsALink(t *testing.T) {
	top, remote := t.TempDir(), t.TempDir()
	save(t, filepath.Join(top, "disk", "step-1"), "save1")
	if err := os.Symlink("disk", filepath.Join(top, "run")); err != nil {
		t.Skip(err)
	}
	r := &Room{
		Ceiling: 1000, Dir: filepath.Join(top, "run"), Name: "step-2", Remote: open(t, remote), Warn: func(err error) { t.Error(err) },
		Uploads: func(context.Context) bool { return false },
	}
	if r.make(t.Context(), 900) {
		t.Error("make = true; want no room beside a checkpoint that is not uploaded")
	}
	copyFolder(t, filepath.Join(top, "disk", "step-1"), filepath.Join(remote, "step-1"))
	if !r.make(t.Context(), 900) {
		t.Error("make = false; want room once the checkpoint is uploaded")
	}
}

// A remote checkpoint of a newer program does not keep others from being removed.
func TestRemoteOfANewerVersion(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	for i, name := range []string{"step-1", "step-2"} {
		save(t, filepath.Join(local, name), fmt.Sprint("save", i))
		copyFolder(t, filepath.Join(local, name), filepath.Join(remote, name))
	}
	record := filepath.Join(remote, "step-1", "cairn.json")
	b := must.Get(os.ReadFile(record))(t)
	b = bytes.Replace(b, []byte(`"version": 1`), []byte(`"version": 99`), 1)
	b = bytes.Replace(b, []byte(`"crc32c"`), []byte(`"sum"`), 1)
	must.Do(t, os.WriteFile(record, b, 0o666))
	if _, err := formats.Open(t.Context(), open(t, remote, "step-1"), nil); !errors.Is(err, storage.ErrVersion) {
		t.Fatalf("Open = %v; want ErrVersion", err)
	}
	r := &Room{
		Ceiling: 1 << 20, Dir: local, Name: "step-3", Remote: open(t, remote), Warn: func(err error) { t.Error(err) },
		Uploads: func(context.Context) bool { return false },
	}
	used, err := r.used()
	if err != nil || !r.make(t.Context(), r.Ceiling-used+1) {
		t.Errorf("no room is made beside %d bytes, %v", used, err)
	}
	if left, err := os.ReadDir(local); err != nil || len(left) != 1 || left[0].Name() != "step-1" {
		t.Errorf("%v are left, %v; want step-1", left, err)
	}
}

// If one disk is full, no rank saves locally. The error of one rank reaches all.
func TestRoomFailsOnAllRanks(t *testing.T) {
	top := t.TempDir()
	errOwn := errors.New("an error of rank 1")
	err := inproc.Run(t.Context(), 2, func(ctx context.Context, g group.Group) error {
		r := &Room{Ceiling: 1 << 20, Dir: filepath.Join(top, fmt.Sprint(g.Rank())), Warn: func(err error) { t.Error(err) }, Uploads: func(context.Context) bool { return false }}
		if got, err := r.Fits(ctx, g, planOf(int64(1+g.Rank())<<19, "w")); got || err != nil {
			return fmt.Errorf("Fits = %v, %w; want no room", got, err)
		}
		if g.Rank() == 1 {
			r.Err = errOwn
		}
		if _, err := r.Fits(ctx, g, planOf(1, "w")); err == nil {
			return errors.New("Fits = nil; want the error of rank 1")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
