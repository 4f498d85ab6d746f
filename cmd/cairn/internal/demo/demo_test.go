package demo_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/demo"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// notes records the steps of a demo, and the phases that moved another number of
// bytes than Begin announced.
type notes struct {
	mu    sync.Mutex
	steps []string
	phase string
	total int64
	moved int64
	odd   []string
}

func (n *notes) Begin(phase string, total int64) {
	n.check()
	n.phase, n.total, n.moved = phase, total, 0
}

func (n *notes) End(step string, _ *demo.Report) {
	n.check()
	n.steps, n.phase = append(n.steps, step), ""
}

// check compares the bytes that a phase moved with the bytes that Begin announced,
// which do not include the values that are not tensors. Saves after the first one
// crash.
func (n *notes) check() {
	crashes := n.phase == "save" && len(n.steps) > 0
	if d := n.moved - n.total; n.phase != "" && !crashes && (d < 0 || d > 4<<10) {
		n.odd = append(n.odd, fmt.Sprintf("%s: %d of %d", n.phase, n.moved, n.total))
	}
}

func (n *notes) Moved(b int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.moved += b
}

func TestDemo(t *testing.T) {
	for name, c := range map[string]struct{ ranks, load int }{
		"8 to 3": {8, 3}, "1 to 1": {1, 1}, "5 to 7": {5, 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var n notes
			store := new(mem.Store)
			rep, err := demo.Run(t.Context(), demo.Config{
				Store: store, Bytes: demo.MinBytes, Ranks: c.ranks, LoadRanks: c.load, Watch: &n,
			})
			if err != nil || !rep.OK {
				t.Fatalf("Run = %+v, %v; want OK", rep, err)
			}
			want := "save verify load crash crash crash crash crash crash overwrite memory"
			if got := strings.Join(n.steps, " "); got != want {
				t.Errorf("steps: %s; want %s", got, want)
			}
			checkReport(t, rep)
			if len(n.odd) > 0 {
				t.Errorf("phases that moved another number of bytes than announced: %s", strings.Join(n.odd, ", "))
			}
			checkCheckpoint(t, store, rep)
		})
	}
}

func checkReport(t *testing.T, rep *demo.Report) {
	t.Helper()
	if n := rep.State.NumBytes; n < demo.MinBytes*2/3 || n > demo.MinBytes*4/3 {
		t.Errorf("a state of %d bytes; want about %d", n, demo.MinBytes)
	}
	// Each byte of a tensor is on one rank at least; the norms are on several ranks.
	if rep.Load.Compared < rep.State.NumBytes-8<<10 || rep.Load.Needed < rep.Load.Compared || rep.Load.Read < rep.Load.Needed {
		t.Errorf("load: compared %d, needed %d, read %d of %d", rep.Load.Compared, rep.Load.Needed, rep.Load.Read, rep.State.NumBytes)
	}
	var survivors []string
	for _, c := range rep.Crash {
		survivors = append(survivors, c.Survivor)
		if c.Digest == "" || c.Operation == "" || (c.Survivor == "new") != (c.SaveID != rep.Save.SaveID) {
			t.Errorf("crash: %+v", c)
		}
	}
	if got := strings.Join(survivors, " "); got != "old old old old old new" {
		t.Errorf("survivors: %s", got)
	}
	if rep.Crash[0].Digest == rep.Digest || rep.Overwrite.SaveID == rep.Save.SaveID {
		t.Errorf("the overwritten checkpoint is the first one")
	}
}

// checkCheckpoint checks that the store holds only the checkpoint that the report ends with.
func checkCheckpoint(t *testing.T, s blob.Store, rep *demo.Report) {
	t.Helper()
	c := must.Get(cairn.Open(t.Context(), s))(t)
	defer c.Close()
	if c.Info().SaveID != rep.Overwrite.SaveID || *c.Info().Step != rep.Overwrite.Step {
		t.Errorf("the checkpoint is %+v; want that of %+v", c.Info(), rep.Overwrite)
	}
	n := 0
	for _, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != len(c.Files())+1 {
		t.Errorf("%d objects; want the %d files of the checkpoint and its record", n, len(c.Files()))
	}
}

// second is a watcher that starts another demo when the first one has saved.
type second struct {
	notes
	play func()
}

func (s *second) End(step string, r *demo.Report) {
	if step == "save" {
		s.play()
	}
	s.notes.End(step, r)
}

func TestDemoOnDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	open := func() *file.Store {
		s := must.Get(file.Open(dir, &file.Options{NoSync: true}))(t)
		return s
	}
	c := demo.Config{Store: open(), Bytes: demo.MinBytes, Ranks: 3, LoadRanks: 2}
	c.Watch = &second{play: func() {
		if runtime.GOOS == "windows" {
			return // the lock of a folder needs Unix
		}
		other := c
		other.Store, other.Watch = open(), nil
		rep, err := demo.Run(t.Context(), other)
		if rep != nil || !errors.Is(err, demo.ErrTaken) || !strings.Contains(err.Error(), "another demo is at work in "+dir) {
			t.Errorf("a second demo: Run = %+v, %v; want ErrTaken", rep, err)
		}
	}}
	for range 2 { // the second demo replaces the checkpoint of the first, and the lock is free again
		rep := must.Get(demo.Run(t.Context(), c))(t)
		checkCheckpoint(t, c.Store, rep)
	}
	entries := must.Get(os.ReadDir(dir))(t)
	if i := slices.IndexFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), blob.Reserved) }); i >= 0 {
		t.Errorf("%s is left over", entries[i].Name())
	}
}

func TestDemoDetectsFaults(t *testing.T) {
	for claim, rule := range map[string]fault.Rule{
		"a bit that flips on the way to the disk": {On: fault.Write, Nth: 3, Do: fault.Flip(12345)},
		"a bit that flips on the way back":        {On: fault.Read, Nth: 12, Do: fault.Flip(54321)},
		"a file that cannot be written":           {On: fault.Commit, Nth: 2, Do: fault.Fail(errors.New("disk full"))},
	} {
		s := fault.New(new(mem.Store), rule)
		rep, err := demo.Run(t.Context(), demo.Config{Store: s, Bytes: demo.MinBytes, Ranks: 2, LoadRanks: 2})
		if err == nil || rep.OK {
			t.Errorf("%s: Run = %+v, nil; want an error", claim, rep)
		}
	}
}

// forgetful is a store that loses its record in a crash: Create removes the old
// record at once.
type forgetful struct{ blob.Store }

func (f forgetful) Create(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
	if name == "cairn.json" {
		if err := f.Remove(ctx, name); err != nil {
			return nil, err
		}
	}
	return f.Store.Create(ctx, name, o)
}

func TestDemoDetectsLostCheckpoint(t *testing.T) {
	_, err := demo.Run(t.Context(), demo.Config{Store: forgetful{new(mem.Store)}, Bytes: demo.MinBytes, Ranks: 2, LoadRanks: 1})
	if !errors.Is(err, cairn.ErrIncomplete) {
		t.Errorf("Run = %v; want ErrIncomplete", err)
	}
}

func TestDemoKeepsForeignFiles(t *testing.T) {
	checkpoint, other, begun := new(mem.Store), new(mem.Store), new(mem.Store)
	if _, err := cairn.Save(t.Context(), checkpoint, cairn.State{"x": 1}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := blob.WriteAll(t.Context(), other, "thesis.txt", []byte("…"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := blob.WriteAll(t.Context(), begun, "20261115t101500-00000000-r00000-0.safetensors", nil, nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		s    blob.Store
		want error
	}{{checkpoint, demo.ErrTaken}, {other, demo.ErrTaken}, {begun, cairn.ErrIncomplete}} {
		if _, err := demo.Run(t.Context(), demo.Config{Store: c.s, Bytes: demo.MinBytes}); !errors.Is(err, c.want) {
			t.Errorf("Run = %v; want %v", err, c.want)
		}
	}
}

func TestDemoRefusesInvalidSizes(t *testing.T) {
	for _, c := range []demo.Config{{Bytes: 1}, {Ranks: -1}, {LoadRanks: demo.MaxRanks + 1}} {
		c.Store = new(mem.Store)
		if _, err := demo.Run(t.Context(), c); err == nil {
			t.Errorf("Run(%+v) = nil; want an error", c)
		}
	}
}

// stopper ends a context when a phase begins or a step has ended.
type stopper struct {
	notes
	at   string
	stop func()
}

func (s *stopper) Begin(step string, _ int64) {
	if step == s.at {
		s.stop()
	}
}

func (s *stopper) End(step string, _ *demo.Report) {
	if "after "+step == s.at {
		s.stop()
	}
}

func TestDemoStopsWithContext(t *testing.T) {
	for _, at := range []string{"save", "verify", "digest", "load", "after load", "after crash"} {
		ctx, cancel := context.WithCancel(t.Context())
		store := new(mem.Store)
		_, err := demo.Run(ctx, demo.Config{
			Store: store, Bytes: demo.MinBytes, Ranks: 2, LoadRanks: 1, Watch: &stopper{at: at, stop: cancel},
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("stopped at %s: Run = %v; want Canceled", at, err)
		}
		if at == "save" {
			continue
		}
		c, err := cairn.Open(t.Context(), store)
		if err != nil {
			t.Errorf("stopped at %s: %v", at, err)
			continue
		}
		c.Close()
	}
}
