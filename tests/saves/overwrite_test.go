package saves

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
)

// contents returns the files of a folder.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, e := range must.Get(os.ReadDir(dir))(t) {
		out[e.Name()] = string(must.Get(os.ReadFile(filepath.Join(dir, e.Name())))(t))
	}
	return out
}

// TestSavesKeepCheckpointsOfOtherJobs copies a checkpoint to a place to which this process has not
// saved: it might be of another job.
func TestSavesKeepCheckpointsOfOtherJobs(t *testing.T) {
	for name, format := range map[string]storage.Format{"native": nil, "hf": hf.Format{}, "torchdcp": torchdcp.Format{}} {
		t.Run(name, func(t *testing.T) {
			ctx, dir := t.Context(), t.TempDir()
			state := cairn.State{"w": ones(t, 1)}
			save := func(at string, o cairn.SaveOptions) error {
				o.Format = format
				_, err := cairn.Save(ctx, must.Get(cairn.OpenStore(at))(t), state, &o)
				return err
			}
			first, copied := filepath.Join(dir, "first"), filepath.Join(dir, "copied")
			for range 3 { // a loop that saves to one place
				must.Do(t, save(first, cairn.SaveOptions{Metrics: map[string]float64{"loss": 1}}))
			}
			must.Do(t, os.CopyFS(copied, os.DirFS(first)))
			before := contents(t, copied)

			if err := save(copied, cairn.SaveOptions{}); !errors.Is(err, cairn.ErrExists) {
				t.Errorf("a save has replaced the checkpoint of another job: %v", err)
			}
			pending := must.Get(cairn.SaveAsync(ctx, must.Get(cairn.OpenStore(copied))(t), state, &cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Format: format}}))(t)
			if _, err := pending.Wait(ctx); !errors.Is(err, cairn.ErrExists) {
				t.Errorf("a background save has replaced the checkpoint of another job: %v", err)
			}
			if d := cmp.Diff(before, contents(t, copied)); d != "" {
				t.Errorf("a save that was refused has changed files: %s", d)
			}

			must.Get(cairn.Load(ctx, must.Get(cairn.OpenStore(copied))(t), state, nil))(t)
			must.Do(t, save(copied, cairn.SaveOptions{}))

			again := filepath.Join(dir, "again")
			must.Do(t, os.CopyFS(again, os.DirFS(first)))
			must.Do(t, save(again, cairn.SaveOptions{Overwrite: true}))
			must.Do(t, save(again, cairn.SaveOptions{}))
		})
	}
}

func TestUploadsKeepCheckpointsOfOtherJobs(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	local, remote := filepath.Join(dir, "local"), filepath.Join(dir, "remote")
	state := cairn.State{"w": ones(t, 1)}
	must.Get(cairn.Save(ctx, must.Get(cairn.OpenStore(filepath.Join(dir, "other")))(t), state, nil))(t)
	must.Do(t, os.CopyFS(remote, os.DirFS(filepath.Join(dir, "other"))))
	before := contents(t, remote)
	upload := func(o cairn.SaveOptions) error {
		p, err := cairn.SaveAsync(ctx, must.Get(cairn.OpenStore(local))(t), state, &cairn.AsyncOptions{SaveOptions: o, Remote: remote})
		if err == nil {
			_, err = p.WaitUploaded(ctx)
		}
		return err
	}

	if err := upload(cairn.SaveOptions{}); !errors.Is(err, cairn.ErrExists) {
		t.Errorf("an upload has replaced the checkpoint of another job: %v", err)
	}
	if d := cmp.Diff(before, contents(t, remote)); d != "" {
		t.Errorf("an upload that was refused has changed files: %s", d)
	}
	must.Do(t, upload(cairn.SaveOptions{Overwrite: true}))
	must.Do(t, upload(cairn.SaveOptions{}))
}

func TestSavesKeepDamagedCheckpoints(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	store := must.Get(cairn.OpenStore(dir))(t)
	state := cairn.State{"w": ones(t, 1)}
	must.Get(cairn.Save(ctx, store, state, nil))(t)
	must.Do(t, os.WriteFile(filepath.Join(dir, "cairn.json"), []byte("{"), 0o666))
	before := contents(t, dir)

	if _, err := cairn.Save(ctx, store, state, nil); !errors.Is(err, cairn.ErrExists) {
		t.Errorf("a save has replaced a checkpoint that cannot be read: %v", err)
	}
	if d := cmp.Diff(before, contents(t, dir)); d != "" {
		t.Errorf("a save that was refused has changed files: %s", d)
	}
	must.Get(cairn.Save(ctx, store, state, &cairn.SaveOptions{Overwrite: true}))(t)
}

// TestPlaces tests which saves a process counts as its own.
func TestPlaces(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	state := cairn.State{"w": ones(t, 1)}
	at := func(name string) string { return filepath.Join(dir, name) }
	save := func(t *testing.T, folder string, format storage.Format) error {
		_, err := cairn.Save(ctx, must.Get(cairn.OpenStore(folder))(t), state, &cairn.SaveOptions{Format: format})
		return err
	}
	queue := func(t *testing.T, folder, remote string, format storage.Format) (saved, uploaded []error) {
		s := must.Get(cairn.NewStager(nil))(t)
		defer s.Close(ctx)
		var all []*cairn.Pending
		for range 3 {
			all = append(all, must.Get(cairn.SaveAsync(ctx, must.Get(cairn.OpenStore(folder))(t), state,
				&cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Format: format}, Remote: remote, Stager: s}))(t))
		}
		for _, p := range all {
			_, err := p.Wait(ctx)
			saved = append(saved, err)
			_, err = p.WaitUploaded(ctx)
			uploaded = append(uploaded, err)
		}
		return saved, uploaded
	}
	want := func(t *testing.T, errs []error, want error) {
		t.Helper()
		for i, err := range errs {
			if !errors.Is(err, want) {
				t.Errorf("%d: %v; want %v", i, err, want)
			}
		}
	}
	foreign := func(t *testing.T, folder string, format storage.Format) {
		from := filepath.Join(t.TempDir(), "from")
		must.Get(cairn.Save(ctx, must.Get(cairn.OpenStore(from))(t), cairn.State{"w": ones(t, 2)}, &cairn.SaveOptions{Format: format}))(t)
		must.Do(t, os.CopyFS(folder, os.DirFS(from)))
	}
	file := torchfile.Format{File: "m.pt"}

	t.Run("queued saves of files without ids", func(t *testing.T) {
		foreign(t, at("queued"), file)
		saved, _ := queue(t, at("queued"), "", file)
		want(t, saved, cairn.ErrExists)
		saved, _ = queue(t, at("free"), "", file)
		want(t, saved, nil)
	})
	t.Run("uploads of files without ids", func(t *testing.T) {
		foreign(t, at("remote"), file)
		for range 2 {
			saved, uploaded := queue(t, at("local"), at("remote"), file)
			want(t, saved, nil)
			want(t, uploaded, cairn.ErrExists)
		}
		_, uploaded := queue(t, at("local"), at("free remote"), file)
		want(t, uploaded, nil)
	})
	t.Run("two files of a folder", func(t *testing.T) {
		foreign(t, at("two"), file)
		want(t, []error{save(t, at("two"), torchfile.Format{File: "n.pt"}), save(t, at("two"), file)}[1:], cairn.ErrExists)
		must.Get(cairn.Load(ctx, must.Get(cairn.OpenStore(filepath.Join(at("two"), "m.pt")))(t), state, nil))(t)
		must.Do(t, save(t, at("two"), file))
		for range 2 {
			for _, name := range []string{"x.pt", "y.pt"} {
				_, uploaded := queue(t, at("both"), at("both remote"), torchfile.Format{File: name})
				want(t, uploaded, nil)
			}
		}
		if got := len(contents(t, at("both remote"))); got != 2 {
			t.Errorf("%d files were uploaded; want 2", got)
		}
	})
	t.Run("a load while a save is pending", func(t *testing.T) {
		must.Do(t, save(t, at("busy"), nil))
		p := must.Get(cairn.SaveAsync(ctx, must.Get(cairn.OpenStore(at("busy")))(t), state, nil))(t)
		_, _ = cairn.Load(ctx, must.Get(cairn.OpenStore(at("busy")))(t), state, nil) // the save may replace it meanwhile
		must.Get(p.Wait(ctx))(t)
		must.Do(t, save(t, at("busy"), nil))
	})
	t.Run("other spellings", func(t *testing.T) {
		must.Do(t, save(t, at("spelled"), nil))
		must.Do(t, os.Symlink("spelled", at("link")))
		t.Chdir(dir)
		for _, address := range []string{at("spelled") + "/", "spelled", "./x/../spelled", "link", "file://" + at("link")} {
			must.Do(t, save(t, address, nil))
		}
	})
}
