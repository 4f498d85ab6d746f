package runs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// gated:///PATH?gate=FILE is a folder in which a new file appears only when the gate is open:
// that file exists. Saver processes know it too.
func init() {
	blob.Register("gated", func(_ context.Context, address string) (blob.Store, error) {
		u, err := url.Parse(address)
		if err != nil {
			return nil, err
		}
		dir, err := file.Open(filepath.FromSlash(u.Path), nil)
		return &gated{dir, u.Query().Get("gate")}, err
	})
}

type gated struct {
	blob.Store
	gate string
}

func (g *gated) Unwrap() blob.Store { return g.Store }

func (g *gated) Create(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
	for ; ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(g.gate); err == nil {
			return g.Store.Create(ctx, name, o)
		}
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
	}
}

// newGate returns the address of a gated folder, the folder, and a function that opens the
// gate.
func newGate(t *testing.T) (address func(name string) string, dir string, open func()) {
	t.Helper()
	dir = t.TempDir()
	gate := filepath.Join(t.TempDir(), "gate")
	open = func() {
		if err := os.WriteFile(gate, nil, 0o666); err != nil {
			t.Error(err)
		}
	}
	return func(name string) string {
		return "gated://" + filepath.ToSlash(dir) + "/" + name + "?gate=" + url.QueryEscape(gate)
	}, dir, open
}

// isOver reports whether a channel is closed.
func isOver(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// tierForms are formats of checkpoints with two stores.
var tierForms = map[string]storage.Format{
	"native": native.Format{}, "torchdcp": torchdcp.Format{}, "hyper": hyper.Format{}, "hf": hf.Format{},
	"hf pieces": hf.Format{Distributed: true}, "torch": torchfile.Format{File: "model.pt"},
}

// wantTensor fails unless the checkpoint in a store is whole and has the tensor.
func wantTensor(t *testing.T, s blob.Store, name string, want []byte) {
	t.Helper()
	c, err := cairn.Open(t.Context(), s)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	if _, err := c.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if x, err := c.ReadTensor(t.Context(), name); err != nil || !bytes.Equal(x.Contents(), want) {
		t.Errorf("%s of %s is not what was saved: %v", name, s, err)
	}
}

// Saves go to the local store and then to the remote one, in all formats, and the next one
// replaces both checkpoints.
func TestTiers(t *testing.T) {
	for mode, options := range jobtest.Modes {
		for form, format := range tierForms {
			t.Run(mode+" "+form, func(t *testing.T) {
				s := jobtest.Stager(t, options(4<<20))
				local, remote := jobtest.OpenFolder(t, t.TempDir(), "run", "a"), filepath.Join(t.TempDir(), "bucket", "run", "a")
				for step := range int64(3) {
					x := jobtest.Numbered(t, 300<<10, byte(step))
					p := must.Get(cairn.SaveAsync(t.Context(), local, cairn.State{"w": x}, &cairn.AsyncOptions{
						Stager: s, Remote: remote, SaveOptions: cairn.SaveOptions{Step: &step, Format: format},
					}))(t)
					saved := must.Get(p.Wait(t.Context()))(t)
					wantTensor(t, local, "w", x.Contents())
					up := must.Get(p.WaitUploaded(t.Context()))(t)
					if up.SaveID != saved.SaveID || up.Bytes != saved.Bytes || up.Files != saved.Files || up.RankBytes < saved.RankBytes || up.Time <= 0 || up.Direct {
						t.Errorf("the upload = %+v of the save %+v", up, saved)
					}
					wantTensor(t, jobtest.OpenFolder(t, remote), "w", x.Contents())
					if got, want := listing(t, remote), listing(t, local.Dir()); !slices.Equal(got, want) {
						t.Errorf("the remote folder has %v; want %v", got, want)
					}
				}
			})
		}
	}
}

// listing returns the files in a folder and their sizes.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	for info, err := range jobtest.OpenFolder(t, dir).List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprint(info.Name, " ", info.Size))
	}
	return out
}

// Saves to one place do not disturb the uploads of those before them.
func TestTiersInOnePlace(t *testing.T) {
	for mode, options := range jobtest.Modes {
		s := jobtest.Stager(t, options(1<<20))
		local := jobtest.TempStore(t)
		remote, bucket, open := newGate(t)
		var saves []*cairn.Pending
		for seed := range byte(3) {
			p := must.Get(cairn.SaveAsync(t.Context(), local, cairn.State{"w": jobtest.Numbered(t, 50_000, seed)}, &cairn.AsyncOptions{Stager: s, Remote: remote("a")}))(t)
			saves = append(saves, p)
		}
		must.Get(saves[0].Wait(t.Context()))(t)
		open()
		for i, p := range saves {
			if _, err := p.WaitUploaded(t.Context()); err != nil {
				t.Errorf("%s: upload %d = %v", mode, i, err)
			}
		}
		wantTensor(t, local, "w", jobtest.Numbered(t, 50_000, 2).Contents())
		wantTensor(t, jobtest.OpenFolder(t, bucket, "a"), "w", jobtest.Numbered(t, 50_000, 2).Contents())
	}
}

// A save that a newer one replaces is not uploaded, and the uploads of all ranks stay in
// step.
func TestReplacedSaveIsNotUploaded(t *testing.T) {
	for mode, options := range jobtest.Modes {
		top := t.TempDir()
		remote, bucket, open := newGate(t)
		jobtest.EachRank(t, 2, func(ctx context.Context, g group.Group) error {
			s, err := cairn.NewStager(options(1 << 20))
			if err != nil {
				return err
			}
			defer s.Close(ctx)
			var saves []*cairn.Pending
			for seed := range byte(3) {
				p, err := cairn.SaveAsync(ctx, jobtest.OpenFolder(t, top, "a"), cairn.State{"w": jobtest.Numbered(t, 50_000, seed)}, &cairn.AsyncOptions{
					Stager: s, Remote: remote("a"), Busy: cairn.BusyReplace, SaveOptions: cairn.SaveOptions{Group: g},
				})
				if err != nil {
					return err
				}
				if saves = append(saves, p); seed == 0 {
					if _, err := p.Wait(ctx); err != nil { // the next one waits for its upload
						return err
					}
				}
			}
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			open()
			for i, p := range saves {
				_, err := p.Wait(ctx)
				_, uploadErr := p.WaitUploaded(ctx)
				replaced := errors.Is(err, cairn.ErrReplaced)
				// A saver process may read that it is replaced after it has begun.
				if want := i == 1; replaced != want && (!want || mode != "process") || errors.Is(uploadErr, cairn.ErrReplaced) != replaced || (uploadErr != nil) != replaced {
					return fmt.Errorf("save %d = %w, its upload = %w", i, err, uploadErr)
				}
			}
			return nil
		})
		if t.Failed() {
			t.Fatal(mode)
		}
		wantTensor(t, jobtest.OpenFolder(t, bucket, "a"), "w", jobtest.Numbered(t, 50_000, 2).Contents())
	}
}

// If the upload of one rank fails, the uploads of all ranks fail, and no checkpoint appears.
func TestUploadFailsOnOneRank(t *testing.T) {
	errBroken := errors.New("broken on purpose")
	top, bucket := t.TempDir(), t.TempDir()
	address := jobtest.FaultyAddress(t, bucket, func(dir blob.Store) blob.Store {
		return fault.New(dir, fault.Rule{On: fault.Commit, Do: fault.Fail(errBroken)})
	})
	jobtest.EachRank(t, 2, func(ctx context.Context, g group.Group) error {
		s, err := cairn.NewStager(nil)
		if err != nil {
			return err
		}
		defer s.Close(ctx)
		w, err := shard.Zeros[uint8](shard.Rows(2), []int64{2, 1000}, g.Rank())
		if err != nil {
			return err
		}
		for _, name := range []string{"a", "b"} {
			o := &cairn.AsyncOptions{Stager: s, Remote: filepath.Join(bucket, name), SaveOptions: cairn.SaveOptions{Group: g}}
			if g.Rank() == 1 {
				o.Remote = address + "/" + name
			}
			p, err := cairn.SaveAsync(ctx, jobtest.OpenFolder(t, top, name), cairn.State{"w": w}, o)
			if err != nil {
				return err
			}
			if _, err := p.Wait(ctx); err != nil {
				return err
			}
			_, err = p.WaitUploaded(ctx)
			step, ok := errors.AsType[*group.StepError](err)
			if failed := name == "a"; failed != (err != nil) || failed && (!ok || !slices.Equal(step.Ranks(), []int{1})) {
				return fmt.Errorf("the upload of %s = %w", name, err)
			}
			_, openErr := cairn.Open(ctx, jobtest.OpenFolder(t, bucket, name))
			if (openErr == nil) != (err == nil) {
				return fmt.Errorf("the remote checkpoint %s: %w", name, openErr)
			}
		}
		return nil
	})
}

// Saves go on during an upload, in memory that the upload does not need. Uploads end in the
// order of the saves.
func TestUploadNeedsNoStagingMemory(t *testing.T) {
	for mode, options := range jobtest.Modes {
		s := jobtest.Stager(t, options(1<<20))
		remote, _, open := newGate(t)
		run := t.TempDir()
		var saves []*cairn.Pending
		for step := range 4 {
			name := fmt.Sprint("step-", step)
			p, err := cairn.SaveAsync(t.Context(), jobtest.OpenFolder(t, run, name), cairn.State{"w": jobtest.Numbered(t, 700_000, byte(step))}, &cairn.AsyncOptions{
				Stager: s, Remote: remote(name), Busy: cairn.BusySkip, // no save is under way
			})
			if err == nil {
				_, err = p.Wait(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			saves = append(saves, p)
		}
		if isOver(saves[0].Uploaded()) {
			t.Errorf("%s: an upload is over while the gate is closed", mode)
		}
		if u := s.Usage(); u.Used != 0 {
			t.Errorf("%s: %d bytes are staged during uploads", mode, u.Used)
		}
		open()
		if _, err := saves[3].WaitUploaded(t.Context()); err != nil {
			t.Error(err)
		}
		for i, p := range saves {
			if !isOver(p.Uploaded()) {
				t.Errorf("%s: the last upload was over before upload %d", mode, i)
			}
		}
	}
}

// Close waits for uploads. If its context has ended, uploads in this process are cancelled,
// and a saver process completes them.
func TestCloseDuringUpload(t *testing.T) {
	for mode, options := range jobtest.Modes {
		for _, patient := range []bool{true, false} {
			s := must.Get(cairn.NewStager(options(1 << 20)))(t)
			remote, bucket, open := newGate(t)
			p, err := cairn.SaveAsync(t.Context(), jobtest.TempStore(t), cairn.State{"w": jobtest.Numbered(t, 1000, 1)}, &cairn.AsyncOptions{Stager: s, Remote: remote("a")})
			if err == nil {
				_, err = p.Wait(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			if patient {
				time.AfterFunc(50*time.Millisecond, open)
			} else {
				cancel()
			}
			if err := s.Close(ctx); err != nil {
				t.Error(err)
			}
			cancel()
			if !isOver(p.Uploaded()) {
				t.Errorf("%s, patient=%v: Close returns before the upload is over", mode, patient)
			}
			open()
			jobtest.WaitSavers(t)
			_, err = p.WaitUploaded(t.Context())
			_, openErr := cairn.Open(t.Context(), jobtest.OpenFolder(t, bucket, "a"))
			if complete := patient || mode == "process"; (err == nil) != patient || (openErr == nil) != complete {
				t.Errorf("%s, patient=%v: the upload = %v, the remote checkpoint: %v", mode, patient, err, openErr)
			}
		}
	}
}

// Without a second store, Uploaded is closed with Done.
func TestUploadedWithoutRemote(t *testing.T) {
	for mode, options := range jobtest.Modes {
		s := jobtest.Stager(t, options(1<<20))
		p := must.Get(cairn.SaveAsync(t.Context(), jobtest.TempStore(t), cairn.State{"a": 1}, &cairn.AsyncOptions{Stager: s}))(t)
		if r, err := p.WaitUploaded(t.Context()); r != nil || err != nil {
			t.Errorf("%s: WaitUploaded = %v, %v; want nil", mode, r, err)
		}
		<-p.Uploaded()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.WaitUploaded(ctx); err != nil {
			t.Errorf("%s: WaitUploaded with an ended context = %v", mode, err)
		}
	}
}

// Ranks with disks of their own upload one checkpoint, and so do ranks that share one.
func TestTiersOfSeveralRanks(t *testing.T) {
	const ranks = 3
	for mode, options := range jobtest.Modes {
		for _, apart := range []bool{false, true} {
			for _, form := range []string{"native", "torchdcp", "hyper", "hf pieces"} {
				t.Run(fmt.Sprint(mode, " apart=", apart, " ", form), func(t *testing.T) {
					top, remote := t.TempDir(), filepath.Join(t.TempDir(), "run", "a")
					jobtest.EachRank(t, ranks, func(ctx context.Context, g group.Group) error {
						dir := filepath.Join(top, "shared", "a")
						if apart {
							dir = filepath.Join(top, fmt.Sprint("disk", g.Rank()), "a")
						}
						w, err := shard.Zeros[uint8](shard.Rows(ranks), []int64{ranks, 100 << 10}, g.Rank())
						if err != nil {
							return err
						}
						own, _ := w.Local().Bytes()
						s, err := cairn.NewStager(options(1 << 20))
						if err != nil {
							return err
						}
						defer s.Close(ctx)
						for step := range 3 {
							for i := range own {
								own[i] = byte(10*step + g.Rank())
							}
							p, err := cairn.SaveAsync(ctx, jobtest.OpenFolder(t, dir), cairn.State{"w": w}, &cairn.AsyncOptions{
								Stager: s, Remote: remote, SaveOptions: cairn.SaveOptions{Group: g, Format: tierForms[form]},
							})
							if err != nil {
								return err
							}
							if _, err := p.Wait(ctx); err != nil {
								return err
							}
							r, err := p.WaitUploaded(ctx)
							if err != nil || r.Bytes < 3*100<<10 || r.RankBytes >= r.Bytes {
								return fmt.Errorf("the upload = %+v, %w", r, err)
							}
							if err := g.Barrier(ctx); err != nil { // before the next one replaces it
								return err
							}
							if g.Rank() == 0 {
								var want []byte
								for r := range ranks {
									want = append(want, bytes.Repeat([]byte{byte(10*step + r)}, 100<<10)...)
								}
								wantTensor(t, jobtest.OpenFolder(t, remote), "w", want)
							}
							if err := g.Barrier(ctx); err != nil {
								return err
							}
						}
						return nil
					})
					if _, err := cairn.Load(t.Context(), jobtest.OpenFolder(t, top, "disk0", "a"), cairn.State{"w": jobtest.Numbered(t, 1, 1)}, nil); apart && err == nil {
						t.Error("a disk with the files of one rank can be loaded")
					}
				})
			}
		}
	}
}

// A failed upload is reported. It leaves the local checkpoint whole, and no remote
// checkpoint that can be opened. The next one succeeds.
func TestFailedUpload(t *testing.T) {
	errBroken := errors.New("broken on purpose")
	run, bucket := t.TempDir(), t.TempDir()
	var mu sync.Mutex
	broken := true
	address := jobtest.FaultyAddress(t, bucket, func(dir blob.Store) blob.Store {
		return fault.New(dir, fault.Rule{On: fault.Commit, Times: -1, Do: fault.Fail(errBroken), Match: func(string) bool {
			mu.Lock()
			defer mu.Unlock()
			return broken
		}})
	})
	s := jobtest.Stager(t, nil)
	var outcomes []*cairn.Outcome
	var log bytes.Buffer
	for step := range 2 {
		name := fmt.Sprint("step-", step)
		p, err := cairn.SaveAsync(t.Context(), jobtest.OpenFolder(t, run, name), cairn.State{"w": jobtest.Numbered(t, 1000, 7)}, &cairn.AsyncOptions{
			Stager: s, Remote: address + "/" + name, ReturnLast: true,
			SaveOptions: cairn.SaveOptions{
				Observer: &cairn.Observer{Uploaded: func(o *cairn.Outcome) { outcomes = append(outcomes, o) }},
				Logger:   slog.New(slog.NewTextHandler(&log, nil)),
			},
		})
		if err != nil {
			t.Fatal(err) // the save itself has not failed
		}
		must.Get(p.Wait(t.Context()))(t)
		r, err := p.WaitUploaded(t.Context())
		wantTensor(t, jobtest.OpenFolder(t, run, name), "w", jobtest.Numbered(t, 1000, 7).Contents())
		if step == 1 {
			if err != nil {
				t.Error(err)
			}
			wantTensor(t, jobtest.OpenFolder(t, bucket, name), "w", jobtest.Numbered(t, 1000, 7).Contents())
			if len(outcomes) != 2 || outcomes[1].Op != cairn.OpUpload || outcomes[1].Err != nil || outcomes[1].Bytes == 0 {
				t.Errorf("Uploaded received %+v; want a success", outcomes)
			}
			continue
		}
		e, ok := errors.AsType[*cairn.Error](err)
		if r != nil || !errors.Is(err, errBroken) || !ok || e.Op != "upload" || !strings.Contains(e.Where, "step-0") {
			t.Errorf("WaitUploaded = %v, %v", r, err)
		}
		if len(outcomes) != 1 || outcomes[0].Op != cairn.OpUpload || outcomes[0].Err != err {
			t.Errorf("Uploaded received %+v; want the error", outcomes)
		}
		if text := log.String(); !strings.Contains(text, `level=ERROR msg="upload: failed"`) || strings.Contains(text, "level=WARN") {
			t.Errorf("the log is %s\nwant the failed upload as an error, once", text)
		}
		if _, err := cairn.Open(t.Context(), jobtest.OpenFolder(t, bucket, name)); err == nil {
			t.Error("the remote checkpoint can be opened")
		}
		mu.Lock()
		broken = false
		mu.Unlock()
	}
}

// A save that fails has no upload.
func TestFailedSaveIsNotUploaded(t *testing.T) {
	for mode, options := range jobtest.Modes {
		dir, remote := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "a")
		if err := os.WriteFile(dir, nil, 0o666); err != nil { // where the folder would be
			t.Fatal(err)
		}
		s := jobtest.Stager(t, options(1<<20))
		p, err := cairn.SaveAsync(t.Context(), jobtest.OpenFolder(t, dir, "b"), cairn.State{"a": 1}, &cairn.AsyncOptions{Stager: s, Remote: remote})
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Wait(t.Context())
		if r, uploadErr := p.WaitUploaded(t.Context()); err == nil || r != nil || uploadErr != err {
			t.Errorf("%s: Wait = %v, WaitUploaded = %v, %v; want the same error", mode, err, r, uploadErr)
		}
		if _, err := os.Stat(remote); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the remote folder exists: %v", mode, err)
		}
	}
}

func TestTierOptions(t *testing.T) {
	g := group.Solo()
	step := func(o cairn.AsyncOptions) cairn.AsyncOptions {
		o.Remote = cmp.Or(o.Remote, "bucket/run/step-1")
		return o
	}
	for name, o := range map[string]cairn.AsyncOptions{
		"LocalBytes is negative":        step(cairn.AsyncOptions{LocalBytes: -1}),
		"has no effect without":         {LocalBytes: 1},
		"SaveOptions.RankLocal":         step(cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{RankLocal: &cairn.RankLocal{Size: 1, SaveID: "a"}, Format: torchdcp.Format{}}}),
		"SaveOptions.Writer":            step(cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Writer: ownWriter{}}}),
		`"step-1" in the local run and`: {Remote: "bucket/run/step-2", LocalBytes: 1 << 30},
		"the format torch":              step(cairn.AsyncOptions{LocalBytes: 1, SaveOptions: cairn.SaveOptions{Format: torchfile.Format{File: "a.pt"}}}),
	} {
		for mode, options := range jobtest.Modes {
			o.Group = cmp.Or(o.Group, nil)
			o.Stager = jobtest.Stager(t, options(1<<20))
			if o.RankLocal == nil {
				o.Group = g
			}
			_, err := cairn.SaveAsync(t.Context(), jobtest.OpenFolder(t, t.TempDir(), "step-1"), cairn.State{"a": 1}, &o)
			if !errors.Is(err, cairn.ErrOptions) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: SaveAsync = %v; want ErrOptions with %q", mode, err, name)
			}
		}
	}
	_, err := cairn.SaveAsync(t.Context(), new(mem.Store), cairn.State{"a": 1}, &cairn.AsyncOptions{Remote: "bucket/a", LocalBytes: 1})
	if !errors.Is(err, cairn.ErrOptions) || !strings.Contains(err.Error(), "is not a folder") {
		t.Errorf("SaveAsync to memory with a ceiling = %v; want ErrOptions", err)
	}
	if _, err := cairn.SaveAsync(t.Context(), jobtest.TempStore(t), cairn.State{"a": 1}, &cairn.AsyncOptions{Remote: "nothing://bucket/a"}); !errors.Is(err, blob.ErrAddress) {
		t.Errorf("SaveAsync with an unknown scheme = %v; want ErrAddress", err)
	}
}

// A second store that is the first one would be no copy, and the ceiling would remove the
// only checkpoint.
func TestRemoteIsNotTheLocalStore(t *testing.T) {
	top := t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(top, "run"), 0o777))
	remotes := []string{filepath.Join(top, "run", "a"), "file://" + filepath.ToSlash(top) + "/run/a", top + "/run/../run/a/"}
	if err := os.Symlink("run", filepath.Join(top, "link")); err == nil {
		remotes = append(remotes, filepath.Join(top, "link", "a"))
	}
	for mode, options := range jobtest.Modes {
		for _, remote := range remotes {
			for range 2 { // before and after the folder exists
				s := jobtest.Stager(t, options(1<<20))
				_, err := cairn.SaveAsync(t.Context(), jobtest.OpenFolder(t, top, "run", "a"), cairn.State{"a": 1}, &cairn.AsyncOptions{Stager: s, Remote: remote})
				if !errors.Is(err, cairn.ErrOptions) || !strings.Contains(err.Error(), "is the local one") {
					t.Errorf("%s: SaveAsync with the remote store %s = %v; want ErrOptions", mode, remote, err)
				}
				jobtest.SaveStep(t, filepath.Join(top, "run", "a"), 1, native.Format{})
			}
			must.Do(t, os.RemoveAll(filepath.Join(top, "run", "a")))
		}
	}
}

// ownWriter is a writer that is never used.
type ownWriter struct{ storage.Writer }

// Options of the ranks must agree.
func TestTiersOnSomeRanks(t *testing.T) {
	top := t.TempDir()
	jobtest.EachRank(t, 2, func(ctx context.Context, g group.Group) error {
		o := &cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Group: g}}
		if g.Rank() == 1 {
			o.Remote = filepath.Join(top, "remote", "a")
		}
		if _, err := cairn.SaveAsync(ctx, jobtest.OpenFolder(t, top, "a"), cairn.State{"a": 1}, o); !errors.Is(err, cairn.ErrOptions) {
			return fmt.Errorf("SaveAsync = %w; want ErrOptions", err)
		}
		return nil
	})
}

// Ranks with disks of their own save to one folder again and again. Files of the saves that
// were replaced do not stay on any disk.
func TestTiersReplaceOnSeveralDisks(t *testing.T) {
	for mode, options := range jobtest.Modes {
		t.Run(mode, func(t *testing.T) {
			top := t.TempDir()
			jobtest.EachRank(t, 2, func(ctx context.Context, g group.Group) error {
				s, err := cairn.NewStager(options(4 << 20))
				if err != nil {
					return err
				}
				defer s.Close(ctx)
				disk := filepath.Join(top, fmt.Sprint("disk", g.Rank()))
				for step := range int64(3) {
					p, err := cairn.SaveAsync(ctx, jobtest.OpenFolder(t, disk, "last"), cairn.State{fmt.Sprint("w", g.Rank()): jobtest.Numbered(t, 1000, byte(step))}, &cairn.AsyncOptions{
						Stager: s, Remote: filepath.Join(top, "bucket", "last"), SaveOptions: cairn.SaveOptions{Group: g, Step: &step},
					})
					if err != nil {
						return err
					}
					r, err := p.Wait(ctx)
					if err != nil {
						return err
					}
					for name := range filesBelow(t, disk) {
						if strings.HasPrefix(filepath.Base(name), blob.Reserved) {
							continue // the lock of the upload, which reads the checkpoint
						}
						if !strings.Contains(name, r.SaveID) && filepath.Base(name) != "cairn.json" {
							t.Errorf("step %d: %s stays after the save %s", step, name, r.SaveID)
						}
					}
					if _, err := p.WaitUploaded(ctx); err != nil {
						return err
					}
				}
				return nil
			})
			wantTensor(t, jobtest.OpenFolder(t, top, "bucket", "last"), "w1", jobtest.Numbered(t, 1000, 2).Contents())
		})
	}
}

// A crash at any operation of an upload leaves the local checkpoint whole and no remote
// one, or a whole one. Clean finds all other files.
func TestCrashDuringUpload(t *testing.T) {
	for form, format := range tierForms {
		t.Run(form, func(t *testing.T) {
			for n := range deep.Steps[int64]() {
				run, bucket := t.TempDir(), t.TempDir()
				var crashing *fault.Store
				address := jobtest.FaultyAddress(t, bucket, func(dir blob.Store) blob.Store {
					crashing = fault.New(dir, fault.CrashAt(n))
					return crashing
				})
				s := jobtest.Stager(t, nil)
				p, err := cairn.SaveAsync(t.Context(), jobtest.OpenFolder(t, run, "a"), cairn.State{"w": jobtest.Numbered(t, 5000, 3)}, &cairn.AsyncOptions{
					Stager: s, Remote: address + "/a", SaveOptions: cairn.SaveOptions{Format: format},
				})
				if err == nil {
					_, err = p.Wait(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
				_, err = p.WaitUploaded(t.Context())
				wantTensor(t, jobtest.OpenFolder(t, run, "a"), "w", jobtest.Numbered(t, 5000, 3).Contents())
				crashed := crashing.Crashed()
				if (err == nil) == crashed {
					t.Fatalf("crash at %d: the upload = %v", n, err)
				}
				remote := jobtest.OpenFolder(t, bucket, "a")
				_, openErr := cairn.Open(t.Context(), remote)
				if openErr == nil {
					wantTensor(t, remote, "w", jobtest.Numbered(t, 5000, 3).Contents())
				} else if _, err := formats.Clean(t.Context(), remote, 0); err != nil {
					t.Error(err)
				} else if found, err := formats.Leftovers(t.Context(), remote); err != nil || len(found) != len(filesBelow(t, bucket)) {
					// The other files are temporary files of this process, which has not died.
					t.Errorf("clean finds %v, %v, of %v", found, err, slices.Collect(maps.Keys(filesBelow(t, bucket))))
				}
				if t.Failed() {
					t.Fatalf("crash at %d", n)
				}
				if !crashed {
					return
				}
			}
		})
	}
}

// filesBelow returns the files below a folder and their sizes.
func filesBelow(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	must.Do(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		if fi, err := e.Info(); err == nil { // otherwise it was removed meanwhile
			out[path] = fi.Size()
		}
		return nil
	}))
	return out
}

func bytesBelow(t *testing.T, dir string) int64 {
	var n int64
	for _, size := range filesBelow(t, dir) {
		n += size
	}
	return n
}

// The ceiling of the local run holds after every save, and every checkpoint can be found
// in one of the runs.
func TestLocalCeiling(t *testing.T) {
	const n = 1 << 20
	for mode, options := range jobtest.Modes {
		for _, ranks := range []int{1, 2} {
			t.Run(fmt.Sprint(mode, ranks), func(t *testing.T) {
				run, bucket := filepath.Join(t.TempDir(), "run"), t.TempDir()
				const ceiling = 5 * n / 2
				jobtest.EachRank(t, ranks, func(ctx context.Context, g group.Group) error {
					s, err := cairn.NewStager(options(4 << 20))
					if err != nil {
						return err
					}
					defer s.Close(ctx)
					for step := range int64(6) {
						name := fmt.Sprint("step-", step)
						var warned []error
						// Both ranks hold the same tensor, which is saved once.
						p, err := cairn.SaveAsync(ctx, jobtest.OpenFolder(t, run, name), cairn.State{"w": jobtest.Numbered(t, n, byte(step))}, &cairn.AsyncOptions{
							Stager: s, Remote: filepath.Join(bucket, name), LocalBytes: ceiling,
							SaveOptions: cairn.SaveOptions{Group: g, Step: &step, Observer: &cairn.Observer{Warned: func(err error) { warned = append(warned, err) }}},
						})
						if err != nil {
							return err
						}
						if _, err := p.Wait(ctx); err != nil {
							return err
						}
						if err := g.Barrier(ctx); err != nil {
							return err
						}
						if g.Rank() == 0 {
							if used := bytesBelow(t, run); used > ceiling {
								t.Errorf("after step %d the local run has %d bytes; want at most %d", step, used, ceiling)
							}
							wantTensor(t, jobtest.OpenFolder(t, run, name), "w", jobtest.Numbered(t, n, byte(step)).Contents())
						}
						if r, err := p.WaitUploaded(ctx); err != nil || r.Direct || len(warned) > 0 {
							return fmt.Errorf("the upload = %+v, %w, warnings %v", r, err, warned)
						}
					}
					return nil
				})
				for step := range 6 {
					wantTensor(t, jobtest.OpenFolder(t, bucket, fmt.Sprint("step-", step)), "w", jobtest.Numbered(t, n, byte(step)).Contents())
				}
				left, err := os.ReadDir(run)
				if err != nil || len(left) != 2 || left[0].Name() != "step-4" || left[1].Name() != "step-5" {
					t.Errorf("the local run has %v, %v; want the last two steps", left, err)
				}
			})
		}
	}
}

// A state that is larger than the ceiling goes to the remote store at once. So does a state
// if its predecessors cannot be removed, because their uploads have failed.
func TestNoRoomBelowTheCeiling(t *testing.T) {
	const n = 1 << 20
	for mode, options := range jobtest.Modes {
		for _, ceiling := range []int64{1000, 3 * n / 2} {
			t.Run(fmt.Sprint(mode, ceiling), func(t *testing.T) {
				run, bucket := filepath.Join(t.TempDir(), "run"), t.TempDir()
				s := jobtest.Stager(t, options(4<<20))
				// The place of the first copy is taken.
				if ceiling > n {
					must.Do(t, os.WriteFile(filepath.Join(bucket, "step-0"), nil, 0o666))
				}
				for step := range int64(3) {
					name := fmt.Sprint("step-", step)
					var warned []string
					p, err := cairn.SaveAsync(t.Context(), jobtest.OpenFolder(t, run, name), cairn.State{"w": jobtest.Numbered(t, n, byte(step))}, &cairn.AsyncOptions{
						Stager: s, Remote: filepath.Join(bucket, name), LocalBytes: ceiling,
						SaveOptions: cairn.SaveOptions{Step: &step, Observer: &cairn.Observer{Warned: func(err error) { warned = append(warned, err.Error()) }}},
					})
					if err == nil {
						_, err = p.Wait(t.Context())
					}
					if err != nil {
						t.Fatal(err)
					}
					if used := bytesBelow(t, run); used > ceiling {
						t.Errorf("after step %d the local run has %d bytes; want at most %d", step, used, ceiling)
					}
					r, err := p.WaitUploaded(t.Context())
					if ceiling > n && step == 0 {
						if err == nil {
							t.Error("the first upload succeeded")
						}
						wantTensor(t, jobtest.OpenFolder(t, run, name), "w", jobtest.Numbered(t, n, byte(step)).Contents())
						continue
					}
					if err != nil || !r.Direct || r.Bytes < n || !strings.Contains(strings.Join(warned, "\n"), "has no room") {
						t.Errorf("the upload = %+v, %v; warnings %q", r, err, warned)
					}
					wantTensor(t, jobtest.OpenFolder(t, bucket, name), "w", jobtest.Numbered(t, n, byte(step)).Contents())
				}
				if ceiling > n {
					wantTensor(t, jobtest.OpenFolder(t, run, "step-0"), "w", jobtest.Numbered(t, n, 0).Contents())
				}
			})
		}
	}
}

// watched is a remote store that notes when a checkpoint has become complete there, and
// fails at random.
type watched struct {
	blob.Store
	fails func() bool
}

var errRandom = errors.New("failed at random")

func (w *watched) Create(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
	if w.fails() {
		return nil, errRandom
	}
	wr, err := w.Store.Create(ctx, name, o)
	if err != nil {
		return nil, err
	}
	return &watchedWriter{wr, w}, nil
}

func (w *watched) Open(ctx context.Context, name string) (blob.Reader, error) {
	if w.fails() {
		return nil, errRandom
	}
	return w.Store.Open(ctx, name)
}

type watchedWriter struct {
	blob.Writer
	w *watched
}

func (w *watchedWriter) Commit(ctx context.Context) (blob.Info, error) {
	if w.w.fails() {
		w.Abort()
		return blob.Info{}, errRandom
	}
	return w.Writer.Commit(ctx)
}

// However uploads fail and whatever else is in the folders: the ceiling holds, and after a
// successful save, its checkpoint is whole in one of the two runs at any time.
func TestLocalCopiesStayUntilTheyAreUploaded(t *testing.T) {
	rng := rand.New(rand.NewPCG(deep.Seed(t), 0))
	var mu sync.Mutex
	chance := 0.0
	fails := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return rng.Float64() < chance
	}
	for round := range deep.Rounds(4, 40) {
		run, bucket := filepath.Join(t.TempDir(), "run"), t.TempDir()
		address := jobtest.FaultyAddress(t, bucket, func(dir blob.Store) blob.Store { return &watched{dir, fails} })
		s := jobtest.Stager(t, nil)
		ceiling := int64(300_000 + rng.IntN(900_000))
		saved := map[int64]*tensor.Tensor{}
		for step := range int64(8) {
			mu.Lock()
			chance = []float64{0, 0.02, 0.2, 1}[rng.IntN(4)]
			size := int64(1 + rng.IntN(500_000))
			mu.Unlock()
			name, x := fmt.Sprint("step-", step), jobtest.Numbered(t, size, byte(step))
			p := must.Get(cairn.SaveAsync(t.Context(), jobtest.OpenFolder(t, run, name), cairn.State{"w": x}, &cairn.AsyncOptions{
				Stager: s, Remote: address + "/" + name, LocalBytes: ceiling, SaveOptions: cairn.SaveOptions{Step: &step},
			}))(t)
			if _, err := p.Wait(t.Context()); err == nil {
				saved[step] = x
			} else if !errors.Is(err, errRandom) {
				t.Errorf("round %d: the save of step %d = %v", round, step, err)
			}
			if used := bytesBelow(t, run); used > ceiling {
				t.Errorf("round %d: after step %d the local run has %d bytes; want at most %d", round, step, used, ceiling)
			}
			if step%2 == 1 {
				p.WaitUploaded(t.Context())
			}
			for step, x := range saved {
				if !inOne(t, x, jobtest.OpenFolder(t, run, fmt.Sprint("step-", step)), jobtest.OpenFolder(t, bucket, fmt.Sprint("step-", step))) {
					t.Errorf("round %d: step %d is lost", round, step)
				}
			}
		}
		if t.Failed() {
			return
		}
	}
}

// inOne reports whether one of two stores has a whole checkpoint of a tensor. A checkpoint
// that is removed from the first one meanwhile is in the second one.
func inOne(t *testing.T, x *tensor.Tensor, stores ...blob.Store) bool {
	t.Helper()
	for _, s := range stores {
		c, err := cairn.Open(t.Context(), s)
		if err != nil {
			continue
		}
		got, err := c.ReadTensor(t.Context(), "w")
		c.Close()
		if err == nil && bytes.Equal(got.Contents(), x.Contents()) {
			return true
		}
	}
	return false
}

// Latest finds the newest checkpoint of two runs, in the first one if both have it whole.
func TestLatestOfTwoRuns(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	o := &cairn.LatestOptions{Remote: remote}
	want := func(path string) {
		t.Helper()
		if f, err := cairn.Latest(t.Context(), local, o); err != nil || f.Path != path {
			t.Errorf("Latest = %+v, %v; want %s", f, err, path)
		}
	}
	if _, err := cairn.Latest(t.Context(), local, o); !errors.Is(err, cairn.ErrNotFound) {
		t.Errorf("Latest of two empty runs = %v; want ErrNotFound", err)
	}
	a, b := filepath.Join(local, "step-1"), filepath.Join(remote, "step-1")
	jobtest.SaveStep(t, b, 1, native.Format{})
	want(b)
	copyFolder(t, b, a)
	want(a)
	jobtest.SaveStep(t, filepath.Join(remote, "step-2"), 2, native.Format{})
	want(filepath.Join(remote, "step-2"))
	jobtest.SaveStep(t, filepath.Join(local, "step-3"), 3, native.Format{})
	want(filepath.Join(local, "step-3"))
	copyFolder(t, filepath.Join(local, "step-3"), filepath.Join(remote, "step-3"))
	want(filepath.Join(local, "step-3"))
	jobtest.RemoveFiles(t, filepath.Join(local, "step-3"), "*.safetensors")
	want(filepath.Join(remote, "step-3"))
	want1 := &cairn.LatestOptions{Remote: "nothing://bucket"}
	if _, err := cairn.Latest(t.Context(), local, want1); !errors.Is(err, blob.ErrAddress) {
		t.Errorf("Latest with a remote run that cannot be opened = %v; want ErrAddress", err)
	}
}

func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	must.Do(t, os.CopyFS(to, os.DirFS(from)))
}

// OpenNearest returns the first store that has the checkpoint whole, unless another one has
// a newer save.
func TestOpenNearest(t *testing.T) {
	top := t.TempDir()
	near, far := filepath.Join(top, "near"), filepath.Join(top, "far")
	want := func(path string) {
		t.Helper()
		s, err := cairn.OpenNearest(t.Context(), near, "nothing://bucket/far", far)
		if err != nil || s.String() != path {
			t.Errorf("OpenNearest = %v, %v; want %s", s, err, path)
		}
	}
	for _, addresses := range [][]string{nil, {near, far}, {near, "nothing://bucket/far"}} {
		s, err := cairn.OpenNearest(t.Context(), addresses...)
		wanted := cairn.ErrNotFound
		switch len(addresses) {
		case 0:
			wanted = fs.ErrInvalid
		case 2:
			if addresses[1] != far {
				wanted = blob.ErrAddress
			}
		}
		if !errors.Is(err, wanted) || s != nil {
			t.Errorf("OpenNearest of %q = %v, %v; want %v", addresses, s, err, wanted)
		}
	}
	jobtest.SaveStep(t, far, 1, native.Format{})
	want(far)
	copyFolder(t, far, near)
	want(near)
	jobtest.RemoveFiles(t, near, "*.safetensors")
	want(far)
	jobtest.SaveStep(t, near, 1, native.Format{}) // later than the checkpoint of far
	want(near)
	jobtest.SaveStep(t, far, 1, native.Format{})
	want(far)
	jobtest.SaveStep(t, near, 2, native.Format{})
	want(near)
	jobtest.RemoveFiles(t, near, "cairn.json")
	jobtest.RemoveFiles(t, far, "*.safetensors")
	if _, err := cairn.OpenNearest(t.Context(), near, far); !errors.Is(err, cairn.ErrIncomplete) && !errors.Is(err, cairn.ErrCorrupt) {
		t.Errorf("OpenNearest of two damaged checkpoints = %v", err)
	}
}
