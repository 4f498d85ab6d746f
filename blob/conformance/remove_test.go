package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/blob/s3"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// testRemoveVersion tests that the removal of an old version does not remove the object.
func testRemoveVersion(t *testing.T, s *remote.Store) {
	t.Helper()
	old, err := blob.WriteAll(t.Context(), s, "x", []byte("old"), nil)
	if err == nil {
		_, err = blob.WriteAll(t.Context(), s, "x", []byte("another"), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	v, prefix := s.Service()
	err = v.RemoveVersion(t.Context(), prefix+"x", old.Version)
	_, statErr := s.Stat(t.Context(), "x")
	if !errors.Is(err, remote.ErrCondition) || statErr != nil {
		t.Errorf("the removal of an old version = %v, then Stat = %v; want ErrCondition, and the object", err, statErr)
	}
}

// testRemoveCheckpoint tests the removal of checkpoints with and without a record, and that
// a checkpoint that is read is not removed.
func testRemoveCheckpoint(t *testing.T, s *remote.Store) {
	t.Helper()
	for name, put := range removedCheckpoints {
		put(t, s)
		files := len(must.Get(list(t.Context(), s))(t))
		release := must.Get(commit.ReadingNow(t.Context(), s))(t)
		if _, err := formats.Remove(t.Context(), s, nil); !errors.Is(err, storage.ErrInUse) {
			t.Errorf("%s: Remove of a checkpoint that is read = %v; want ErrInUse", name, err)
		}
		release()
		must.Do(t, opens(t.Context(), s))
		got, err := formats.Remove(t.Context(), s, nil)
		if err != nil || got.Files != files {
			t.Errorf("%s: Remove = %+v, %v; want %d files", name, got, err, files)
		}
		if now := must.Get(list(t.Context(), s))(t); len(now) > 0 {
			t.Errorf("%s: there are %q; want nothing", name, now)
		}
		if locks := must.Get(s.Locks(t.Context(), ""))(t); len(locks) > 0 {
			t.Errorf("%s: there are the locks %+v", name, locks)
		}
		if err := opens(t.Context(), s); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("%s: Open = %v; want ErrNotFound", name, err)
		}
	}
}

// removedCheckpoints write a checkpoint, by name.
var removedCheckpoints = map[string]func(t *testing.T, s blob.Store){
	"native": func(t *testing.T, s blob.Store) {
		t.Helper()
		must.Get(cairn.Save(t.Context(), s, cairn.State{"n": 1}, nil))(t)
	},
	"hf without a record":       func(t *testing.T, s blob.Store) { putFixture(t, "torch-2.14/hf-3", s) },
	"torchdcp, rank by rank":    func(t *testing.T, s blob.Store) { putFixture(t, "torch-2.14/ranklocal-2", s) },
	"a file that is everything": func(t *testing.T, s blob.Store) { putFixture(t, "torch-2.14/torchsave", s) },
}

func putFixture(t *testing.T, name string, to blob.Store) {
	t.Helper()
	dir := filepath.Join("../../testdata/fixtures", filepath.FromSlash(name), "ckpt")
	must.Get(os.Stat(dir))(t)
	from := must.Get(file.Open(dir, nil))(t)
	for _, name := range must.Get(list(t.Context(), from))(t) {
		b := must.Get(blob.ReadAll(t.Context(), from, name, 1<<30))(t)
		must.Get(blob.WriteAll(t.Context(), to, name, b, nil))(t)
	}
}

func list(ctx context.Context, s blob.Store) ([]string, error) {
	var out []string
	for info, err := range s.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		out = append(out, info.Name)
	}
	return out, nil
}

// opens opens the checkpoint of s and reads all of it.
func opens(ctx context.Context, s blob.Store) error {
	c, err := formats.Open(ctx, s, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	rep, err := c.Verify(ctx, nil)
	if err == nil && len(rep.Problems) > 0 {
		err = fmt.Errorf("%w: %+v", storage.ErrCorrupt, rep.Problems)
	}
	return err
}

// A process that dies at any of the requests of a removal, before or after the service has
// carried it out, leaves the whole checkpoint or none. When its lock is old enough, another
// process removes the rest.
func TestS3RemoverDies(t *testing.T) {
	t.Parallel() // it waits for much of its time
	for name, put := range removedCheckpoints {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %v", name, late), func(t *testing.T) {
				whole, gone := 0, 0
				for n := range deep.Steps[int64]() {
					good := openS3(t, nil)
					put(t, good)
					died, left := removerDies(t, good, n, late)
					if t.Failed() {
						t.Fatalf("at request %d", n)
					}
					if !died {
						break
					}
					if left {
						whole++
					} else {
						gone++
					}
				}
				if deep.On() && (whole < 3 || gone < 2) {
					t.Errorf("the checkpoint was whole %d times and gone %d times: the test saw too little", whole, gone)
				}
			})
		}
	}
}

// removerDies removes a checkpoint while the process dies at its n-th request. It reports
// whether the process has died, and whether the checkpoint was there then.
func removerDies(t *testing.T, good *remote.Store, n int64, late bool) (died, whole bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	through := func(p *proxy) *remote.Store {
		s, err := s3.Open(ctx, good.String()+"?endpoint="+p.URL(), &remote.Options{Policy: remote.Policy{Attempts: 1, Hedge: -1}})
		must.Do(t, err)
		return s
	}
	before := must.Get(list(ctx, good))(t)
	dying := startProxy(t, 0, 0)
	dying.CutAt, dying.CutLate = n, late
	_, err := formats.Remove(ctx, through(dying), nil)
	died = dying.Counts()[faultCut] > 0
	if !died && err != nil {
		t.Error(err)
	}
	opened := opens(ctx, good)
	if opened != nil && !errors.Is(opened, storage.ErrNotFound) {
		t.Errorf("the removal = %v; then Open = %v; want a whole checkpoint or ErrNotFound", err, opened)
	}
	// The other process finds the lock by a clock that is ahead, so that the holder is not
	// alive any more.
	ahead := startProxy(t, 0, 0, func(p *proxy) {
		p.Answer = func(_ *http.Request, answer *http.Response) {
			answer.Header.Set("Date", time.Now().Add(2*blob.Lease).UTC().Format(http.TimeFormat))
		}
	})
	if _, err := formats.FinishRemovals(ctx, through(ahead)); err != nil {
		t.Errorf("FinishRemovals = %v", err)
	}
	after, locks := must.Get(list(ctx, good))(t), must.Get(good.Locks(ctx, ""))(t)
	if want := before; len(locks) > 0 || opened == nil && len(after) != len(want) || opened != nil && len(after) > 0 {
		t.Errorf("Open = %v, and after the other process there are %q and the locks %+v", opened, after, locks)
	}
	if again := opens(ctx, good); opened == nil && again != nil || opened != nil && !errors.Is(again, storage.ErrNotFound) {
		t.Errorf("Open = %v, and after the other process %v", opened, again)
	}
	return died, opened == nil
}
