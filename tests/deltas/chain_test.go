package deltas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
	"github.com/cairn-ckpt/cairn/transfer"
)

// checkContents loads a checkpoint on some ranks, cut into columns, and compares it.
func checkContents(t testing.TB, store blob.Store, want map[string][]byte, like map[string]*tensor.Tensor, ranks int) {
	t.Helper()
	jobtest.OnRanks(t, ranks, func(ctx context.Context, g group.Group) error {
		state := cairn.State{}
		for name, x := range like {
			state[name] = must.Get(shard.Empty(jobtest.Columns(ranks), x.DType(), x.Shape(), g.Rank()))(t)
		}
		if _, err := cairn.Load(ctx, store, state, &cairn.LoadOptions{Group: g}); err != nil {
			return err
		}
		for name, x := range like {
			all := must.Get(tensor.FromBytes(x.DType(), x.Shape(), want[name]))(t)
			got := state[name].(*shard.Tensor)
			for i, box := range got.Boxes() {
				if !tensor.Equal(must.Get(got.Part(i))(t), must.Get(all.Narrow(box))(t)) {
					return fmt.Errorf("%s: part %d of rank %d differs", name, i, g.Rank())
				}
			}
		}
		return nil
	})
}

func bytesOf(t testing.TB, dir string) (n int64) {
	must.Do(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			fi, err := d.Info()
			n += fi.Size()
			return err
		}
		return err
	}))
	return n
}

// Saves on the base of others store the changes, and load as they were saved, also after
// more saves than a chain may have, on other numbers of ranks, copied and flattened.
func TestChainOfSaves(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 1)
	const n = 11
	want := jobtest.SaveChain(t, dir, s, n, 2)
	first := bytesOf(t, filepath.Join(dir, "step-0"))
	for i := range n {
		at := filepath.Join(dir, fmt.Sprintf("step-%d", i))
		store := must.Get(file.Open(at, nil))(t)
		checkContents(t, store, want[i], s.State, 3)
		c := must.Get(cairn.Open(t.Context(), store))(t)
		rep, err := c.Verify(t.Context(), nil)
		if err != nil || len(rep.Problems) > 0 {
			t.Errorf("step %d: Verify = %+v, %v", i, rep, err)
		}
		if missing, err := c.MissingFiles(t.Context()); len(missing) > 0 || err != nil {
			t.Errorf("step %d: MissingFiles = %v, %v", i, missing, err)
		}
		info := c.Info()
		if len(info.Bases) > 8 || i > 0 && len(info.Bases) == 0 {
			t.Errorf("step %d refers to %v", i, info.Bases)
		}
		if size := bytesOf(t, at); i > 0 && i < 8 && size > first/4 {
			t.Errorf("step %d has %d bytes, the first %d", i, size, first)
		}
		must.Do(t, c.Close())
	}
	last := must.Get(file.Open(filepath.Join(dir, fmt.Sprintf("step-%d", n-1)), nil))(t)
	away := must.Get(file.Open(t.TempDir(), nil))(t)
	must.Get(transfer.Copy(t.Context(), last, away, &transfer.Options{Full: true}))(t)
	checkContents(t, away, want[n-1], s.State, 1)
	if c := must.Get(cairn.Open(t.Context(), away))(t); len(c.Info().Bases) > 0 || c.Info().Version != "cairn 1" {
		t.Errorf("the copy is %+v; want a checkpoint that stands alone", c.Info())
	}
	// Flattened in place.
	must.Get(transfer.Copy(t.Context(), last, last, &transfer.Options{Overwrite: true}))(t)
	for i := range n - 1 {
		must.Do(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("step-%d", i))))
	}
	checkContents(t, last, want[n-1], s.State, 2)
	for _, e := range must.Get(os.ReadDir(last.Dir()))(t) {
		if strings.HasSuffix(e.Name(), ".delta") {
			t.Errorf("%s stays", e.Name())
		}
	}
}

// A Run refers from save to save by itself, keeps checkpoints that others refer to, and
// goes on after a load.
func TestRunRefersToItsCheckpoints(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 2)
	keep := must.Get(cairn.ParsePolicy("last 1"))(t)
	save := func(r *cairn.Run, i int64) {
		t.Helper()
		must.Get(r.Save(t.Context(), s.Parts(t, 0, 1), &cairn.SaveOptions{Step: &i}))(t)
	}
	r := must.Get(cairn.NewRun(dir, &cairn.RunOptions{Keep: keep}))(t)
	for i := range int64(4) {
		save(r, i)
		s.Step()
	}
	must.Do(t, r.Close(t.Context()))
	r = must.Get(cairn.NewRun(dir, &cairn.RunOptions{Keep: keep}))(t)
	must.Get(r.Load(t.Context(), s.Parts(t, 0, 1), nil))(t)
	save(r, 5)
	must.Do(t, r.Close(t.Context()))
	want := s.Clone(t)
	all := must.Get(r.Checkpoints(t.Context()))(t)
	last := all[len(all)-1]
	if len(last.Bases) == 0 || last.Bytes > all[0].Bytes/4 {
		t.Errorf("the last checkpoint has %d bytes and refers to %v; the first has %d bytes", last.Bytes, last.Bases, all[0].Bytes)
	}
	for _, base := range last.Bases {
		if _, err := os.Stat(filepath.Join(dir, base, "cairn.json")); err != nil {
			t.Errorf("the base %s: %v", base, err)
		}
	}
	store := must.Get(file.Open(filepath.Join(dir, last.Name), nil))(t)
	checkContents(t, store, want, s.State, 2)
}

// A save that replaces a checkpoint leaves the files to which other checkpoints refer, and so
// does a sweep.
func TestReplacedBaseStays(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 3)
	want := jobtest.SaveChain(t, dir, s, 3, 1)
	zero := must.Get(file.Open(filepath.Join(dir, "step-0"), nil))(t)
	for range 2 {
		must.Get(cairn.Save(t.Context(), zero, cairn.State{"other": jobtest.Whole(t, []int64{3}, 1)}, nil))(t)
	}
	must.Get(commit.Sweep(t.Context(), zero, native.Files(), 0, nil))(t)
	checkContents(t, must.Get(file.Open(filepath.Join(dir, "step-2"), nil))(t), want[2], s.State, 2)
}

// A damaged base is named, by loads and by a verification.
func TestDamagedBaseIsNamed(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 4)
	jobtest.SaveChain(t, dir, s, 3, 1)
	files := must.Get(filepath.Glob(filepath.Join(dir, "step-0", "*.safetensors")))(t)
	b := must.Get(os.ReadFile(files[0]))(t)
	b[len(b)/2] ^= 4
	must.Do(t, os.WriteFile(files[0], b, 0o666))
	store := must.Get(file.Open(filepath.Join(dir, "step-2"), nil))(t)
	state := s.Parts(t, 0, 1)
	if _, err := cairn.Load(t.Context(), store, state, nil); !errors.Is(err, cairn.ErrCorrupt) || !strings.Contains(err.Error(), "step-0") {
		t.Errorf("Load = %v; want %v and the name of the base", err, cairn.ErrCorrupt)
	}
	c := must.Get(cairn.Open(t.Context(), store))(t)
	defer c.Close()
	if _, err := c.Verify(t.Context(), nil); !errors.Is(err, cairn.ErrCorrupt) || !strings.Contains(err.Error(), "step-0/") {
		t.Errorf("Verify = %v; want a problem with the name of the base", err)
	}
	must.Do(t, os.Remove(files[0]))
	if _, err := cairn.Load(t.Context(), store, state, nil); !errors.Is(err, cairn.ErrCorrupt) || !strings.Contains(err.Error(), "step-0") {
		t.Errorf("Load without the base = %v; want %v and its name", err, cairn.ErrCorrupt)
	}
}

// A verification says which of the files of a chain is damaged.
func TestDamagedFileOfAChainIsFound(t *testing.T) {
	dir := t.TempDir()
	jobtest.SaveChain(t, dir, jobtest.NewTrained(t, 11), 4, 1)
	last := must.Get(file.Open(filepath.Join(dir, "step-3"), nil))(t)
	for step := range 4 {
		suffix := "-r00000-0.delta"
		if step == 0 {
			suffix = "-r00000-0.safetensors"
		}
		names := must.Get(filepath.Glob(filepath.Join(dir, fmt.Sprintf("step-%d", step), "*"+suffix)))(t)
		if len(names) != 1 {
			t.Fatalf("step %d has the files %q", step, names)
		}
		whole := must.Get(os.ReadFile(names[0]))(t)
		for part := range 16 {
			b := bytes.Clone(whole)
			b[len(b)*(2*part+1)/32] ^= 0x10
			must.Do(t, os.WriteFile(names[0], b, 0o666))
			c := must.Get(cairn.Open(t.Context(), last))(t)
			rep, err := c.Verify(t.Context(), nil)
			if rep == nil {
				t.Fatalf("step %d, part %d: Verify = %v; want a report", step, part, err)
			}
			want := fmt.Sprintf("the damaged bytes are in step-%d/%s", step, filepath.Base(names[0]))
			named := len(rep.Problems) == 0 // the last step does not use the byte
			for _, p := range rep.Problems {
				named = named || strings.Contains(p.Text, want)
				if !strings.HasSuffix(p.File, ".delta") {
					t.Errorf("step %d, part %d: %+v; want the name of a delta file", step, part, p)
				}
			}
			if !named {
				t.Errorf("step %d, part %d: %+v; want %q", step, part, rep.Problems, want)
			}
			must.Do(t, c.Close())
		}
		must.Do(t, os.WriteFile(names[0], whole, 0o666))
	}
}

// A checkpoint to which others refer cannot be removed. Once no other refers to it, it goes
// with all of its files.
func TestRemoveOfABase(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 5)
	want := jobtest.SaveChain(t, dir, s, 3, 1)
	at := func(i int) *file.Store {
		return must.Get(file.Open(filepath.Join(dir, fmt.Sprintf("step-%d", i)), nil))(t)
	}
	if _, err := formats.Remove(t.Context(), at(0), nil); !errors.Is(err, storage.ErrInUse) {
		t.Errorf("Remove of a base = %v; want %v", err, storage.ErrInUse)
	}
	checkContents(t, at(2), want[2], s.State, 1)
	for i := 2; i >= 0; i-- {
		must.Get(formats.Remove(t.Context(), at(i), nil))(t)
		if left, err := os.ReadDir(filepath.Join(dir, fmt.Sprintf("step-%d", i))); len(left) > 0 {
			t.Errorf("step %d: %v stay, %v", i, left, err)
		}
	}
}

// A repair does not leave data files out that are stored as differences.
func TestRepairOfReferencesIsRefused(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 6)
	jobtest.SaveChain(t, dir, s, 2, 1)
	store := must.Get(file.Open(filepath.Join(dir, "step-1"), nil))(t)
	if rep, err := native.Repair(t.Context(), store, nil); err != nil || rep.Rebuilt {
		t.Errorf("Repair of a whole checkpoint = %+v, %v", rep, err)
	}
	must.Do(t, store.Remove(t.Context(), "cairn.json"))
	if _, err := native.Repair(t.Context(), store, nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Repair without the record = %v; want %v", err, errors.ErrUnsupported)
	}
}

// Saves in the background refer to each other too.
func TestBackgroundSavesReferToEachOther(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 7)
	r := must.Get(cairn.NewRun(dir, nil))(t)
	for i := range int64(3) {
		p := must.Get(r.SaveAsync(t.Context(), s.Parts(t, 0, 1), &cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Step: &i}}))(t)
		must.Get(p.Wait(t.Context()))(t)
		if i < 2 {
			s.Step()
		}
	}
	must.Do(t, r.Close(t.Context()))
	all := must.Get(r.Checkpoints(t.Context()))(t)
	last := all[len(all)-1]
	if len(last.Bases) != 2 || last.Bytes > all[0].Bytes/4 {
		t.Errorf("the last checkpoint has %d bytes and refers to %v; the first has %d bytes", last.Bytes, last.Bases, all[0].Bytes)
	}
	checkContents(t, must.Get(file.Open(filepath.Join(dir, last.Name), nil))(t), s.Clone(t), s.State, 2)
	remote := &cairn.AsyncOptions{Remote: t.TempDir(), SaveOptions: cairn.SaveOptions{Base: &storage.Base{}, Step: new(int64(9))}}
	remote.Stager = must.Get(cairn.NewStager(nil))(t)
	defer remote.Stager.Close(t.Context())
	if _, err := cairn.SaveAsync(t.Context(), must.Get(file.Open(t.TempDir(), nil))(t), s.Parts(t, 0, 1), remote); !errors.Is(err, cairn.ErrOptions) {
		t.Errorf("SaveAsync with a base and a remote store = %v; want %v", err, cairn.ErrOptions)
	}
}
