package runs

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// deadly is a folder in which a process is killed when it changes something for the n-th
// time, before or after the change. Before it dies, it creates the file grave. Its address
// is deadly:///PATH?at=N&late=true&grave=PATH.
type deadly struct {
	blob.Store
	at    int64
	late  bool
	grave string
}

var changes atomic.Int64 // of this process, in deadly folders

func init() {
	blob.Register("deadly", func(_ context.Context, address string) (blob.Store, error) {
		u, err := url.Parse(address)
		if err != nil {
			return nil, err
		}
		at, err := strconv.ParseInt(u.Query().Get("at"), 10, 64)
		if err != nil {
			return nil, err
		}
		dir, err := file.Open(u.Path, nil)
		return &deadly{dir, at, u.Query().Get("late") == "true", u.Query().Get("grave")}, err
	})
}

func (d *deadly) Unwrap() blob.Store { return d.Store }

// change makes a change, and kills this process.
func (d *deadly) change(fn func()) {
	n := changes.Add(1)
	die := func() {
		_ = os.WriteFile(d.grave, nil, 0o600) // the test looks for it
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		time.Sleep(time.Hour)
	}
	if n >= d.at && !d.late {
		die()
	}
	fn()
	if n >= d.at {
		die()
	}
}

func (d *deadly) Create(ctx context.Context, name string, o *blob.CreateOptions) (w blob.Writer, err error) {
	d.change(func() { w, err = d.Store.Create(ctx, name, o) })
	if err != nil {
		return nil, err
	}
	return &deadlyWriter{w, d}, nil
}

func (d *deadly) Remove(ctx context.Context, name string) (err error) {
	d.change(func() { err = d.Store.Remove(ctx, name) })
	return err
}

type deadlyWriter struct {
	blob.Writer
	d *deadly
}

func (w *deadlyWriter) WriteAt(ctx context.Context, p []byte, off int64) (err error) {
	w.d.change(func() { err = w.Writer.WriteAt(ctx, p, off) })
	return err
}

func (w *deadlyWriter) Commit(ctx context.Context) (i blob.Info, err error) {
	w.d.change(func() { i, err = w.Writer.Commit(ctx) })
	return i, err
}

// Savers that are killed at any operation of an upload leave the local checkpoint whole, and a
// whole remote one or no remote one. Clean finds all other files. The next save has new savers and
// is uploaded.
func TestSaverKilledDuringUpload(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprint(ranks, " late=", late), func(t *testing.T) {
				for n := range deep.Steps[int64]() {
					killed := uploadAndDie(t, ranks, n, late)
					if t.Failed() {
						t.Fatalf("at operation %d", n)
					}
					if !killed {
						if n < 6 {
							t.Errorf("%d operations: the test saw too little", n-1)
						}
						return
					}
				}
			})
		}
	}
}

// uploadAndDie lets savers die at their n-th operation in the remote store. It reports
// whether they have died.
func uploadAndDie(t *testing.T, ranks int, n int64, late bool) (killed bool) {
	t.Helper()
	run, bucket, graves := t.TempDir(), t.TempDir(), t.TempDir()
	grave := func(rank int) string { return filepath.Join(graves, fmt.Sprint(rank)) }
	rows := make([]byte, ranks*50_000)
	for i := range rows {
		rows[i] = byte(i)
	}
	jobtest.EachRank(t, ranks, func(ctx context.Context, g group.Group) error {
		s, err := cairn.NewStager(jobtest.Modes["process"](1 << 20))
		if err != nil {
			return err
		}
		defer s.Close(ctx)
		w, err := shard.Zeros[uint8](shard.Rows(ranks), []int64{int64(ranks), 50_000}, g.Rank())
		if err != nil {
			return err
		}
		own, _ := w.Local().Bytes()
		copy(own, rows[g.Rank()*50_000:])
		save := func(name, remote string) (saved, uploaded error) {
			p, err := cairn.SaveAsync(ctx, jobtest.OpenFolder(t, run, name), cairn.State{"w": w}, &cairn.AsyncOptions{
				Stager: s, Remote: remote, SaveOptions: cairn.SaveOptions{Group: g},
			})
			if err != nil {
				return err, err
			}
			_, saved = p.Wait(ctx)
			_, uploaded = p.WaitUploaded(ctx)
			return saved, uploaded
		}
		saved, uploaded := save("a", fmt.Sprintf("deadly://%s/a?at=%d&late=%v&grave=%s", bucket, n, late, grave(g.Rank())))
		// The message that the save is over may die with its sender.
		if saved != nil && !errors.Is(saved, cairn.ErrSaver) || uploaded != nil && !errors.Is(uploaded, cairn.ErrSaver) {
			return fmt.Errorf("the save = %w, its upload = %w", saved, uploaded)
		}
		if g.Rank() == 0 {
			killed = uploaded != nil
		}
		saved, uploaded = save("b", filepath.Join(bucket, "b"))
		return errors.Join(saved, uploaded)
	})
	jobtest.WaitSavers(t)
	wantTensor(t, jobtest.OpenFolder(t, run, "a"), "w", rows)
	wantTensor(t, jobtest.OpenFolder(t, run, "b"), "w", rows)
	wantTensor(t, jobtest.OpenFolder(t, bucket, "b"), "w", rows)
	remote := jobtest.OpenFolder(t, bucket, "a")
	if _, err := cairn.Open(t.Context(), remote); err == nil {
		wantTensor(t, remote, "w", rows)
		return killed
	}
	if !killed {
		t.Error("the upload succeeded, and there is no remote checkpoint")
	}
	// The lock of rank 0 says that the save is over. If its saver lives, it has released the
	// lock, and the age of the files decides.
	if dead, _ := os.ReadDir(graves); len(dead) == 0 {
		t.Error("no saver has died")
	}
	olderThan := time.Duration(-1)
	if _, err := os.Stat(grave(0)); err != nil {
		olderThan = 0
	}
	if _, err := formats.Clean(t.Context(), remote, olderThan); err != nil {
		t.Error(err)
	}
	if left := filesBelow(t, filepath.Join(bucket, "a")); len(left) > 0 {
		t.Errorf("clean has left %v", left)
	}
	return killed
}

// If a saver process cannot open the remote store, saves succeed and their uploads fail,
// until there is no room for another one.
func TestSaverCannotOpenTheRemoteStore(t *testing.T) {
	run := t.TempDir()
	s := jobtest.Stager(t, jobtest.Modes["process"](4<<20))
	for step := range 3 {
		name := fmt.Sprint("step-", step)
		p, err := cairn.SaveAsync(t.Context(), jobtest.OpenFolder(t, run, name), cairn.State{"w": jobtest.Numbered(t, 1<<20, byte(step))}, &cairn.AsyncOptions{
			Stager: s, Remote: "nothing://bucket/" + name, LocalBytes: 5 << 19,
		})
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Wait(t.Context())
		_, uploadErr := p.WaitUploaded(t.Context())
		if uploadErr == nil || !strings.Contains(uploadErr.Error(), "this program knows the schemes") {
			t.Errorf("the upload of step %d = %v", step, uploadErr)
		}
		if full := step == 2; (err != nil) != full || full && !strings.Contains(err.Error(), "has no room") {
			t.Errorf("the save of step %d = %v", step, err)
		}
		if used := bytesBelow(t, run); used > 5<<19 {
			t.Errorf("after step %d the local run has %d bytes", step, used)
		}
	}
	for step := range 2 {
		wantTensor(t, jobtest.OpenFolder(t, run, fmt.Sprint("step-", step)), "w", jobtest.Numbered(t, 1<<20, byte(step)).Contents())
	}
}
