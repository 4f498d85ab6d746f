package deltas

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// copies is a run of which other programs copy parts to another folder.
type copies struct {
	*testing.T
	from   string
	saves  map[string][]map[string][]byte // the contents of all saves of a folder
	like   map[string]*tensor.Tensor
	wholes []map[string]string // the files of each folder of each state of the run, as text
}

// filesOf returns the contents of the files of a folder by name.
func filesOf(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	must.Do(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		out[must.Get(filepath.Rel(dir, path))(t)] = b
		return err
	}))
	return out
}

// sumOf returns a text that depends on the names and contents of the files of a folder.
func sumOf(t *testing.T, dir string) string {
	t.Helper()
	sums := map[string]uint32{}
	for name, b := range filesOf(t, dir) {
		sums[name] = crc32.ChecksumIEEE(b)
	}
	return fmt.Sprint(sums) // sorted
}

// note notes the files of all folders of the run: a folder with the same files is a whole copy.
func (c *copies) note() {
	c.Helper()
	state := map[string]string{}
	for folder := range c.saves {
		state[folder] = sumOf(c.T, filepath.Join(c.from, folder))
	}
	c.wholes = append(c.wholes, state)
}

// hasAll reports whether a folder has all files that the folder of the run had at one time.
func (c *copies) hasAll(dir, folder string) bool {
	sum := sumOf(c.T, filepath.Join(dir, folder))
	return slices.ContainsFunc(c.wholes, func(state map[string]string) bool { return state[folder] == sum })
}

// newCopies makes a run of steps 0 to 3, in which each step refers to the one before it, and returns
// the files of the run as it was when it had only the first two steps, of which the second was replaced later.
func newCopies(t *testing.T, seed uint64) (c *copies, old map[string][]byte) {
	t.Helper()
	s := jobtest.NewTrained(t, seed)
	c = &copies{T: t, from: filepath.Join(t.TempDir(), "run"), saves: map[string][]map[string][]byte{}, like: s.State}
	save := func(step int64) {
		folder := fmt.Sprint("step-", step)
		o := cairn.SaveOptions{Step: &step, Base: &storage.Base{}}
		if step > 0 {
			o.Base.Folder = fmt.Sprint("step-", step-1)
		}
		must.Get(cairn.Save(t.Context(), must.Get(file.Open(filepath.Join(c.from, folder), nil))(t), s.Parts(t, 0, 1), &o))(t)
		c.saves[folder] = append(c.saves[folder], s.Clone(t))
		s.Step()
	}
	save(0)
	save(1)
	c.note()
	old = filesOf(t, c.from)
	save(1)
	save(2)
	save(3)
	c.note()
	return c, old
}

// check reads all checkpoints of a folder. It fails if the contents of one were never saved there,
// and if one has all of its own files, cannot be read, and the error has no advice. It returns how
// many can be read.
func (c *copies) check(dir, when string) (reads int) {
	c.Helper()
	for _, folder := range slices.Sorted(maps.Keys(c.saves)) {
		store := must.Get(file.Open(filepath.Join(dir, folder), nil))(c.T)
		in, got := cairn.State{}, map[string]*tensor.Tensor{}
		for name, x := range c.like {
			got[name] = must.Get(tensor.New(x.DType(), x.Shape()))(c.T)
			in[name] = got[name]
		}
		_, err := cairn.Load(c.Context(), store, in, nil)
		verified := c.verify(store)
		if err == nil {
			reads++
			if verified != nil {
				c.Errorf("%s: %s is read, and Verify = %v", when, folder, verified)
			}
			if !slices.ContainsFunc(c.saves[folder], func(want map[string][]byte) bool {
				return !slices.ContainsFunc(slices.Collect(maps.Keys(got)), func(name string) bool { return !bytes.Equal(got[name].Contents(), want[name]) })
			}) {
				c.Errorf("%s: %s has contents that were never saved there", when, folder)
			}
			continue
		}
		if verified == nil {
			c.Errorf("%s: Verify of %s finds no fault; Load = %v", when, folder, err)
		}
		if !c.hasAll(dir, folder) {
			continue
		}
		for _, err := range []error{err, verified} {
			if !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), "cairn cp") || !strings.Contains(err.Error(), "cairn flatten") {
				c.Errorf("%s: %s cannot be read: %v; want what to do", when, folder, err)
			}
		}
	}
	return reads
}

// verify returns the first problem of a checkpoint.
func (c *copies) verify(store *file.Store) error {
	checkpoint, err := cairn.Open(c.Context(), store)
	if err != nil {
		return err
	}
	defer checkpoint.Close()
	rep, err := checkpoint.Verify(c.Context(), nil)
	if err == nil && len(rep.Problems) > 0 {
		err = fmt.Errorf("%w: %s", storage.ErrCorrupt, rep.Problems[0].Text)
	}
	return err
}

// put writes files below a folder.
func (c *copies) put(dir string, files map[string][]byte) {
	c.Helper()
	for name, b := range files {
		must.Do(c.T, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o777))
		must.Do(c.T, os.WriteFile(filepath.Join(dir, name), b, 0o666))
	}
}

// filesIn returns the files in some of the folders.
func filesIn(files map[string][]byte, folders ...string) map[string][]byte {
	out := map[string][]byte{}
	for name, b := range files {
		if slices.Contains(folders, filepath.Dir(name)) {
			out[name] = b
		}
	}
	return out
}

// Copies of some folders of a chain are read, or the error says how to copy them.
func TestCopiesOfPartsOfAChain(t *testing.T) {
	c, _ := newCopies(t, 50)
	now := filesOf(t, c.from)
	all := slices.Sorted(maps.Keys(c.saves))
	for bits := range 1 << len(all) { // each set of folders
		var folders []string
		for i, folder := range all {
			if bits>>i&1 == 1 {
				folders = append(folders, folder)
			}
		}
		dir := t.TempDir()
		c.put(dir, filesIn(now, folders...))
		want := 0 // all folders up to the first that is not there
		for want < len(folders) && folders[want] == all[want] {
			want++
		}
		if got := c.check(dir, fmt.Sprint(folders)); got < want {
			t.Errorf("of a copy of %s, %d can be read; want %d", folders, got, want)
		}
	}
}

// The folder of a base has another name: the checkpoints that refer to it cannot be read, with
// advice in the error, until the base has its name again.
func TestRenamedBase(t *testing.T) {
	c, _ := newCopies(t, 51)
	must.Do(t, os.Rename(filepath.Join(c.from, "step-0"), filepath.Join(c.from, "first")))
	if got := c.check(c.from, "renamed"); got != 0 {
		t.Errorf("%d checkpoints can be read without step-0", got)
	}
	store := must.Get(file.Open(filepath.Join(c.from, "first"), nil))(t)
	checkContents(t, store, c.saves["step-0"][0], c.like, 1)
	must.Do(t, os.Rename(filepath.Join(c.from, "first"), filepath.Join(c.from, "step-0")))
	if got := c.check(c.from, "renamed back"); got != 4 {
		t.Errorf("%d checkpoints can be read; want 4", got)
	}
}

// A run is moved, alone and with a link left behind. At both addresses it is read, bases stay, and a
// job saves and keeps it in order.
func TestMovedRun(t *testing.T) {
	for _, link := range []bool{false, true} {
		c, _ := newCopies(t, 52)
		to := filepath.Join(t.TempDir(), "another", "place")
		must.Do(t, os.MkdirAll(filepath.Dir(to), 0o777))
		must.Do(t, os.Rename(c.from, to))
		dirs := []string{to}
		if link {
			must.Do(t, os.Symlink(to, c.from))
			dirs = append(dirs, c.from)
		}
		for _, dir := range dirs {
			if got := c.check(dir, "moved"); got != 4 {
				t.Errorf("link %v: %d checkpoints can be read; want 4", link, got)
			}
			if _, err := formats.Remove(t.Context(), must.Get(file.Open(filepath.Join(dir, "step-0"), nil))(t), nil); !errors.Is(err, storage.ErrInUse) {
				t.Errorf("Remove of a base = %v; want %v", err, storage.ErrInUse)
			}
		}
		for i, dir := range dirs {
			step := int64(10 + i)
			r := must.Get(cairn.NewRun(dir, &cairn.RunOptions{Keep: must.Get(cairn.ParsePolicy("last 2"))(t)}))(t)
			state := cairn.State{}
			for name, x := range c.like {
				state[name] = x
			}
			must.Get(r.Save(t.Context(), state, &cairn.SaveOptions{Step: &step}))(t)
			must.Do(t, r.Close(t.Context()))
			found, err := cairn.Latest(t.Context(), dir, nil)
			if err != nil || *found.Step != step {
				t.Fatalf("Latest = %+v, %v; want step %d", found, err, step)
			}
			want := map[string][]byte{}
			for name, x := range c.like {
				want[name] = x.Contents()
			}
			checkContents(t, must.Get(file.Open(found.Path, nil))(t), want, c.like, 1)
		}
	}
}

// A program such as rsync copies a run file by file, in some order, into an empty folder or over an
// older copy, removes files that the run does not have before or after that, and is killed. At each
// moment every checkpoint is read as it was saved, or the error has advice.
//
// SOAK is how long it goes on, such as 5m. SEED repeats the same choices.
func TestSoakSyncedParts(t *testing.T) {
	length := deep.Soak(t, 0, time.Minute)
	seed := deep.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	c, old := newCopies(t, seed)
	now := filesOf(t, c.from)
	for begin, round := time.Now(), 0; (round < 4 || time.Since(begin) < length) && !t.Failed(); round++ {
		dir := filepath.Join(t.TempDir(), "copy")
		names := slices.Sorted(maps.Keys(now))
		if slices.Reverse(names); round >= 2 { // the newest first, and later at random
			random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		}
		if round%2 == 1 {
			c.put(dir, old)
		}
		c.sync(dir, names, now, random)
		if got := c.check(dir, "at the end"); got != 4 {
			t.Errorf("%d checkpoints can be read at the end; want 4", got)
		}
		must.Do(t, os.RemoveAll(dir))
	}
}

// sync makes dir a copy of the files, in the order of names, and checks it after each step.
func (c *copies) sync(dir string, names []string, files map[string][]byte, random *rand.Rand) {
	c.Helper()
	var log []string
	remove := func() {
		if _, err := os.Stat(dir); err != nil {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(filesOf(c.T, dir))) {
			if files[name] == nil {
				must.Do(c.T, os.Remove(filepath.Join(dir, name)))
				log = append(log, "remove "+name)
				c.check(dir, strings.Join(log, ", "))
			}
		}
	}
	first := random.IntN(2) == 0
	if first {
		remove()
	}
	for _, name := range names {
		if random.IntN(3) == 0 { // cp writes in place
			c.put(dir, map[string][]byte{name: files[name][:random.IntN(len(files[name])+1)]})
			log = append(log, "begin "+name)
			c.check(dir, strings.Join(log, ", "))
		}
		c.put(dir, map[string][]byte{name: files[name]})
		log = append(log, "copy "+name)
		c.check(dir, strings.Join(log, ", "))
	}
	if !first {
		remove()
	}
}
