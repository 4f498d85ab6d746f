// Package memory tests checkpoints in the memory of several hosts: what is lost with a host, and
// what the others still have.
package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m, works...) }

// works are the jobs of this program if a test has started it as a rank.
var works []func()

// job is a job: the memory of the host of each rank.
type job []ram.Root

// newHost returns the memory of a host.
func newHost(t testing.TB) ram.Root {
	root := filepath.Join(t.TempDir(), "memory")
	must.Do(t, os.Mkdir(root, 0o700))
	return ram.Root(root)
}

// run runs fn on all ranks, after they have joined the run.
func (j job) run(t testing.TB, fn func(ctx context.Context, g group.Group, m *memory.Job, store blob.Store) error) {
	t.Helper()
	jobtest.OnRanks(t, len(j), func(ctx context.Context, g group.Group) error {
		m, err := memory.Join(ctx, g, j[g.Rank()], "llama", nil)
		if err != nil {
			return err
		}
		defer m.Leave()
		store, err := m.Root.Open(ctx, "llama")
		if err == nil {
			err = fn(ctx, g, m, store)
		}
		// A rank that leaves takes the files of its host along.
		return errors.Join(err, group.Each(ctx, g, "leave", func(context.Context) error { return nil }))
	})
}

// save saves a state in memory, with copies on other hosts.
func (j job) save(t testing.TB, s *jobtest.Trained, step int64) {
	t.Helper()
	j.run(t, func(ctx context.Context, g group.Group, m *memory.Job, store blob.Store) error {
		_, err := saveStep(ctx, t, g, m, store, s, step)
		return err
	})
}

// saveStep saves the part of a rank in memory, with copies on other hosts.
func saveStep(ctx context.Context, t testing.TB, g group.Group, m *memory.Job, store blob.Store, s *jobtest.Trained, step int64) (*memory.Report, error) {
	return saveCopies(ctx, t, g, m, store, s, step, memory.Saved{})
}

// saveCopies is saveStep with the numbers of a memory.Saved.
func saveCopies(ctx context.Context, t testing.TB, g group.Group, m *memory.Job, store blob.Store, s *jobtest.Trained, step int64, saved memory.Saved) (*memory.Report, error) {
	folder := run.FolderName(step)
	at, err := blob.NewSub(store, folder)
	if err != nil {
		return nil, err
	}
	w, err := native.Format{}.NewWriter(at, storage.WriteOptions{})
	if err != nil {
		return nil, err
	}
	rep, err := cairn.Save(ctx, at, s.Parts(t, g.Rank(), g.Size()), &cairn.SaveOptions{Group: g, Step: &step, Writer: w})
	if err == nil {
		saved.SaveID, saved.Files = rep.SaveID, rep.Wrote
		if g.Rank() == 0 {
			saved.Last = w.(storage.Publisher).Published()
		}
	}
	return m.Copy(ctx, g, folder, saved, err)
}

// load loads a step on all ranks, and compares it with a state.
func (j job) load(t testing.TB, s *jobtest.Trained, step int64) {
	t.Helper()
	j.run(t, func(ctx context.Context, g group.Group, _ *memory.Job, store blob.Store) error {
		return loadStep(ctx, t, g, store, s, step)
	})
}

// loadStep loads the part of a rank, and compares it with a state.
func loadStep(ctx context.Context, t testing.TB, g group.Group, store blob.Store, s *jobtest.Trained, step int64) error {
	at, err := blob.NewSub(store, run.FolderName(step))
	if err != nil {
		return err
	}
	got := jobtest.NewTrained(t, 99).Parts(t, g.Rank(), g.Size())
	if _, err := cairn.Load(ctx, at, got, &cairn.LoadOptions{Group: g}); err != nil {
		return err
	}
	want := s.Parts(t, g.Rank(), g.Size())
	for name, x := range want {
		if x, ok := x.(*shard.Tensor); ok && !bytes.Equal(x.Local().Contents(), got[name].(*shard.Tensor).Local().Contents()) {
			return fmt.Errorf("%s differs on rank %d", name, g.Rank())
		}
	}
	return nil
}

// move returns the memory of a host after a restart of all of its processes: other processes find
// the files in another folder.
func move(t testing.TB, from ram.Root) ram.Root {
	to := newHost(t)
	must.Do(t, os.CopyFS(string(to), os.DirFS(string(from))))
	return to
}

// With one copy, any one of the hosts may be lost, wherever its ranks are. The others go on
// with any number of ranks, also with a host that holds nothing.
func TestLosingAHost(t *testing.T) {
	hosts := []ram.Root{newHost(t), newHost(t), newHost(t)}
	s := jobtest.NewTrained(t, 1)
	job{hosts[1], hosts[0], hosts[0], hosts[2]}.save(t, s, 10)
	for lost := range hosts {
		t.Run(fmt.Sprint("host ", lost), func(t *testing.T) {
			var left []ram.Root
			for i, h := range hosts {
				if i != lost {
					left = append(left, move(t, h))
				}
			}
			job(left).load(t, s, 10)
			job{newHost(t), left[1], left[0], left[0], left[1]}.load(t, s, 10)
		})
	}
	t.Run("all hosts are there", func(t *testing.T) { job(hosts).load(t, s, 10) })
}

// With two copies, any two hosts may be lost. A later save may have one copy.
func TestLosingTwoHosts(t *testing.T) {
	hosts := []ram.Root{newHost(t), newHost(t), newHost(t), newHost(t)}
	s := jobtest.NewTrained(t, 1)
	save := func(step int64, copies int) {
		job(hosts).run(t, func(ctx context.Context, g group.Group, m *memory.Job, store blob.Store) error {
			var saved memory.Saved
			if g.Rank() == 0 {
				saved.Copies = copies // the number of rank 0 counts
			}
			_, err := saveCopies(ctx, t, g, m, store, s, step, saved)
			return err
		})
	}
	save(10, 2)
	if m := must.Get(hosts[3].ReadMembers("llama"))(t); m.Copies != 2 {
		t.Errorf("the hosts have %d copies; want 2", m.Copies)
	}
	save(20, 1)
	for a := range hosts {
		for b := a + 1; b < len(hosts); b++ {
			var left job
			for i, h := range hosts {
				if i != a && i != b {
					left = append(left, move(t, h))
				}
			}
			left.load(t, s, 10)
		}
	}
}

// A rate bounds how fast a host receives its copies, whatever the number of its ranks is.
func TestRateOfCopies(t *testing.T) {
	hosts := []ram.Root{newHost(t), newHost(t)}
	s := jobtest.NewTrained(t, 1)
	job{hosts[0], hosts[0], hosts[1], hosts[1]}.run(t, func(ctx context.Context, g group.Group, m *memory.Job, store blob.Store) error {
		free, err := saveCopies(ctx, t, g, m, store, s, 10, memory.Saved{})
		if err != nil {
			return err
		}
		rate := free.Bytes // both hosts receive about half of the bytes, so it takes about half a second
		slow, err := saveCopies(ctx, t, g, m, store, s, 20, memory.Saved{Rate: rate})
		if err != nil {
			return err
		}
		if slow.Bytes < rate/2 || slow.Time < time.Second/5 {
			return fmt.Errorf("%d bytes at %d bytes per second took %v", slow.Bytes, rate, slow.Time)
		}
		return nil
	})
}

// If both hosts of a byte are lost, the load says which file is missing, and a checkpoint that is
// only partly there is not complete.
func TestLosingBothCopies(t *testing.T) {
	hosts := []ram.Root{newHost(t), newHost(t), newHost(t), newHost(t)}
	s := jobtest.NewTrained(t, 1)
	job(hosts).save(t, s, 10)
	complete := 0
	for a := range hosts {
		for b := a + 1; b < len(hosts); b++ {
			var left job
			for i, h := range hosts {
				if i != a && i != b {
					left = append(left, move(t, h))
				}
			}
			left.run(t, func(ctx context.Context, g group.Group, _ *memory.Job, store blob.Store) error {
				at, err := blob.NewSub(store, run.FolderName(10))
				if err != nil {
					return err
				}
				_, err = cairn.Load(ctx, at, jobtest.NewTrained(t, 2).Parts(t, g.Rank(), g.Size()), &cairn.LoadOptions{Group: g})
				if err != nil && !errors.Is(err, cairn.ErrCorrupt) {
					return fmt.Errorf("load without hosts %d and %d: %w; want ErrCorrupt", a, b, err)
				}
				if err != nil && !strings.Contains(err.Error(), ".safetensors") {
					return fmt.Errorf("the error names no file: %w", err)
				}
				if g.Rank() == 0 && err == nil {
					complete++
				}
				return nil
			})
		}
	}
	if complete != 4 { // of six pairs, two are partners
		t.Errorf("%d of 6 pairs of hosts can be lost; want 4", complete)
	}
}

// A data file with a flipped byte is not used: the bytes come from the copy. With both damaged, the
// load fails.
func TestDamagedCopies(t *testing.T) {
	hosts := []ram.Root{newHost(t), newHost(t)}
	s := jobtest.NewTrained(t, 1)
	job(hosts).save(t, s, 10)
	var files []string
	must.Do(t, filepath.WalkDir(string(hosts[0]), func(path string, d fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".safetensors") {
			files = append(files, path)
		}
		return err
	}))
	if len(files) != 2 {
		t.Fatalf("the first host has the data files %q; want its own one and a copy", files)
	}
	for _, path := range files {
		flip(t, path)
	}
	job(hosts).load(t, s, 10)
}

// flip flips a bit of a file.
func flip(t testing.TB, path string) {
	data := must.Get(os.ReadFile(path))(t)
	data[len(data)/2] ^= 1
	must.Do(t, os.Chmod(path, 0o600))
	must.Do(t, os.WriteFile(path, data, 0o600))
}

// A load that finds damaged files has the hosts that keep them fetch them again: a file that the rank reads on its own host,
// and one that it reads on another host.
func TestDamagedFilesAreReplaced(t *testing.T) {
	hosts := []ram.Root{newHost(t), newHost(t)}
	s := jobtest.NewTrained(t, 1)
	job(hosts).save(t, s, 10)
	at := func(host int) string { return filepath.Join(string(hosts[host]), "llama", run.FolderName(10)) }
	good := map[string][]byte{}
	for host := range hosts {
		must.Do(t, filepath.WalkDir(at(host), func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				good[path] = must.Get(os.ReadFile(path))(t)
			}
			return err
		}))
	}
	if len(good) != 8 { // two data files, an index and a record, on each host
		t.Fatalf("the hosts have %d files; want 8", len(good))
	}

	files := must.Get(filepath.Glob(filepath.Join(at(0), "*.safetensors")))(t)
	flip(t, files[0])
	flip(t, filepath.Join(at(1), filepath.Base(files[1])))
	job(hosts).run(t, func(ctx context.Context, g group.Group, _ *memory.Job, store blob.Store) error {
		if err := loadStep(ctx, t, g, store, s, 10); err != nil || g.Rank() != 0 {
			return err
		}
		for wait := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			bad := ""
			for path, want := range good {
				if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
					bad = path
				}
			}
			if bad == "" {
				return nil
			}
			if time.Now().After(wait) {
				return fmt.Errorf("%s is still damaged", bad)
			}
		}
	})
}

// A step is saved again with other values. Every host then has the new checkpoint, and nothing of
// the old one.
func TestSavingAStepAgain(t *testing.T) {
	hosts := []ram.Root{newHost(t), newHost(t), newHost(t)}
	old, s := jobtest.NewTrained(t, 1), jobtest.NewTrained(t, 1)
	s.Step()
	job(hosts).save(t, old, 10)
	job{hosts[1], hosts[2], hosts[0]}.save(t, s, 10)
	for lost := range hosts {
		left := slices.Delete(slices.Clone(hosts), lost, lost+1)
		job{move(t, left[0]), move(t, left[1])}.load(t, s, 10)
		if ids := saveIDs(t, hosts[lost], 10); len(ids) != 1 {
			t.Errorf("host %d has files of the saves %q; want one", lost, ids)
		}
	}
}

// A host was away while the others have saved a step again. When it comes back, its old record does
// not hide the new checkpoint, whichever rank it is.
func TestHostThatWasAway(t *testing.T) {
	for name, order := range map[string][]int{
		"as rank 0": {2, 1, 0}, "as the last rank": {0, 1, 2}, "with one of the others": {2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := []ram.Root{newHost(t), newHost(t), newHost(t)}
			old, s := jobtest.NewTrained(t, 1), jobtest.NewTrained(t, 1)
			s.Step()
			job(hosts).save(t, old, 9)
			job(hosts).save(t, old, 10)
			job(hosts[:2]).save(t, s, 10)
			var again job
			for _, i := range order {
				again = append(again, hosts[i])
			}
			again.load(t, s, 10)
			if len(again) == len(hosts) {
				again.load(t, old, 9)
			}
			again.load(t, s, 10)
			for _, root := range again {
				if left := must.Get(filepath.Glob(filepath.Join(string(root), ".cairn-tmp-*")))(t); len(left) > 0 {
					t.Errorf("%q are left", left)
				}
			}
		})
	}
}

// Jobs have held the run on two hosts and on the two others, in turn. On the first ones, no checkpoint had its
// copies. The checkpoint of the others counts when all hosts are there again, although it has the step of an older one.
func TestHostsThatWereSeparated(t *testing.T) {
	all := job{newHost(t), newHost(t), newHost(t), newHost(t)}
	old, s := jobtest.NewTrained(t, 1), jobtest.NewTrained(t, 1)
	s.Step()
	all.save(t, old, 10)
	nothing := func(context.Context, group.Group, *memory.Job, blob.Store) error { return nil }
	job{all[1], all[3]}.run(t, nothing)
	job{all[0], all[2]}.save(t, s, 10)
	for range 2 {
		job{all[3], all[1]}.run(t, nothing)
	}
	all.load(t, s, 10)
	job{all[3], all[2], all[1], all[0]}.load(t, s, 10)
}

func create(ctx context.Context, s blob.Store, name string) error {
	_, err := blob.WriteAll(ctx, s, name, nil, nil)
	return err
}

// Processes of a job that is over do not change the files of hosts that another job holds.
func TestJobThatIsOver(t *testing.T) {
	all := job{newHost(t), newHost(t)}
	all.save(t, jobtest.NewTrained(t, 1), 10)
	name := run.FolderName(10) + "/cairn.json"
	there := func(host int) bool {
		_, err := os.Stat(filepath.Join(string(all[host]), "llama", name))
		return err == nil
	}
	goneOn := make(chan struct{}) // the second host goes on alone
	removed := make(chan struct{})
	all.run(t, func(ctx context.Context, g group.Group, m *memory.Job, _ blob.Store) error {
		store, err := m.Open(ctx)
		if err != nil {
			return err
		}
		if g.Rank() == 0 {
			<-goneOn
			defer close(removed)
			if err := store.Remove(ctx, name); err == nil || !strings.Contains(err.Error(), memory.ErrReplaced.Error()) {
				t.Errorf("the first host removes the record from the second one: %v; want %v", err, memory.ErrReplaced)
			}
			return nil
		}
		job{all[1]}.run(t, func(context.Context, group.Group, *memory.Job, blob.Store) error {
			for what, err := range map[string]error{
				"removes the record": store.Remove(ctx, name),
				"removes a version":  blob.RemoveVersion(ctx, store, name, "1"),
				"creates a file":     create(ctx, store, "x"),
			} {
				if !errors.Is(err, memory.ErrReplaced) {
					t.Errorf("the second host %s: %v; want %v", what, err, memory.ErrReplaced)
				}
			}
			if !there(0) {
				t.Error("the second host has removed the record from the first one")
			}
			close(goneOn)
			<-removed
			return nil
		})
		return nil
	})
	if !there(1) {
		t.Error("the record is gone")
	}
}

// saveIDs returns the ids of the saves of which a host has files of a step.
func saveIDs(t testing.TB, root ram.Root, step int64) []string {
	var out []string
	for _, e := range must.Get(os.ReadDir(filepath.Join(string(root), "llama", run.FolderName(step))))(t) {
		if parts := strings.Split(e.Name(), "-"); len(parts) > 2 {
			out = append(out, parts[0]+"-"+parts[1])
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Two jobs have the same name by mistake, and save the same steps on the same hosts at the same
// time. The one that came first fails, and says why. A checkpoint has the values of one job, or cannot be loaded.
func TestTwoJobsOfOneName(t *testing.T) {
	hosts := []ram.Root{newHost(t), newHost(t)}
	states := []*jobtest.Trained{jobtest.NewTrained(t, 1), jobtest.NewTrained(t, 1)}
	states[1].Step()
	const steps = 5
	var wg sync.WaitGroup
	second := make(chan struct{})
	replaced := func(err error) bool {
		return err != nil && strings.Contains(err.Error(), memory.ErrReplaced.Error())
	}
	for i, order := range []job{{hosts[0], hosts[1]}, {hosts[1], hosts[0]}} {
		wg.Go(func() {
			if i == 1 {
				<-second
			}
			err := inproc.Run(t.Context(), len(order), func(ctx context.Context, g group.Group) error {
				m, err := memory.Join(ctx, g, order[g.Rank()], "llama", nil)
				if err != nil {
					return err
				}
				defer m.Leave()
				if i == 0 && g.Rank() == 0 {
					close(second)
				}
				var failed error
				for step, tries := int64(0), 0; step < steps && tries < 1000; step, tries = step+1, tries+1 {
					store, err := m.Open(ctx)
					if err != nil {
						return err
					}
					_, failed = saveStep(ctx, t, g, m, store, states[i], step)
					if i == 0 && step == steps-1 && !replaced(failed) {
						step-- // until the second job has begun
					}
				}
				if i == 0 && !replaced(failed) {
					t.Errorf("the last save of the first job: %v; want %v", failed, memory.ErrReplaced)
				}
				return group.Each(ctx, g, "leave", func(context.Context) error { return nil })
			})
			if err != nil {
				t.Errorf("job %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	for step := range int64(steps) {
		job(hosts).run(t, func(ctx context.Context, g group.Group, _ *memory.Job, store blob.Store) error {
			first, second := loadStep(ctx, t, g, store, states[0], step), loadStep(ctx, t, g, store, states[1], step)
			refused := errors.Is(first, storage.ErrNotFound) || errors.Is(first, storage.ErrChanged) || errors.Is(first, cairn.ErrCorrupt)
			if first != nil && second != nil && !refused {
				return fmt.Errorf("step %d is neither state: %w; %w", step, first, second)
			}
			return nil
		})
	}
}

// A host that comes back keeps its record if that of the others is damaged, and they load with it.
func TestReturnOfAHostWithTheOnlyGoodRecord(t *testing.T) {
	hosts := []ram.Root{newHost(t), newHost(t)}
	s := jobtest.NewTrained(t, 1)
	job(hosts).save(t, s, 10)
	job{hosts[0]}.load(t, s, 10) // without the other host

	record := func(host int) string {
		return filepath.Join(string(hosts[host]), "llama", run.FolderName(10), "cairn.json")
	}
	good := must.Get(os.ReadFile(record(1)))(t)
	bad := bytes.Clone(good)
	bad[len(bad)/2] ^= 1
	must.Do(t, os.Chmod(record(0), 0o600))
	must.Do(t, os.WriteFile(record(0), bad, 0o600))

	job(hosts).load(t, s, 10)
	if got, err := os.ReadFile(record(1)); err != nil || !bytes.Equal(got, good) {
		t.Errorf("the good record is %q, %v; want it unchanged", got, err)
	}
}
