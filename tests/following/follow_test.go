package following

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// followed is a state of a server: columns of the tensors of a training.
func followed(t testing.TB, s *jobtest.Trained, rank, ranks int) cairn.State {
	t.Helper()
	out := cairn.State{}
	for name, x := range s.State {
		zero := must.Get(tensor.New(x.DType(), x.Shape()))(t)
		out[name] = jobtest.Cut(t, jobtest.Columns(ranks), zero, rank)
	}
	return out
}

// differs returns an error for the first tensor of a rank with columns that differ from want.
func differs(t testing.TB, s *jobtest.Trained, state cairn.State, want map[string][]byte, rank, ranks int) error {
	t.Helper()
	for name, x := range s.State {
		all := must.Get(tensor.FromBytes(x.DType(), x.Shape(), want[name]))(t)
		got, right := state[name].(*shard.Tensor), jobtest.Cut(t, jobtest.Columns(ranks), all, rank)
		for i := range right.Boxes() {
			a, b := must.Get(got.Part(i))(t), must.Get(right.Part(i))(t)
			if !bytes.Equal(a.Contents(), b.Contents()) {
				return fmt.Errorf("%s: part %d of rank %d differs", name, i, rank)
			}
		}
	}
	return nil
}

// damage changes a byte in the middle of the largest file of a folder.
func damage(t testing.TB, dir string) {
	t.Helper()
	var largest string
	var size int64
	for _, e := range must.Get(os.ReadDir(dir))(t) {
		if fi := must.Get(e.Info())(t); !e.IsDir() && fi.Size() > size {
			largest, size = e.Name(), fi.Size()
		}
	}
	store := must.Get(file.Open(dir, nil))(t)
	must.Do(t, fault.Damage(t.Context(), store, largest, func(b []byte) []byte {
		b[len(b)/2] ^= 0x10
		return b
	}))
}

// Three ranks follow the versions that two ranks have saved, one by one, forward and back,
// and read little of each.
func TestFollow(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 21)
	const n, ranks = 12, 3
	want := jobtest.SaveChain(t, dir, s, n, 2)
	full := int64(0)
	for _, x := range s.State {
		full += x.NumBytes()
	}
	jobtest.OnRanks(t, ranks, func(ctx context.Context, g group.Group) error {
		f := must.Get(cairn.Follow(dir, &cairn.FollowOptions{Group: g, BufferBytes: 50_000 << (10 * g.Rank())}))(t)
		defer f.Close()
		state := followed(t, s, g.Rank(), ranks)
		if v, err := f.Wait(ctx); v != n-1 || err != nil {
			return fmt.Errorf("Wait = %d, %w", v, err)
		}
		last := int64(-1)
		for _, v := range []int64{0, 1, 2, 3, 5, 4, 0, 11, 10} {
			p, err := f.Prepare(ctx, state, v)
			if err != nil {
				return err
			}
			if last >= 0 {
				if err := differs(t, s, state, want[last], g.Rank(), ranks); err != nil {
					return fmt.Errorf("before Commit of version %d: %w", v, err)
				}
			}
			r, err := p.Commit()
			if err != nil {
				return err
			}
			if err := differs(t, s, state, want[v], g.Rank(), ranks); err != nil {
				return fmt.Errorf("version %d: %w", v, err)
			}
			if r.Version != v || r.HasFrom != (last >= 0) || r.HasFrom && r.From != last || r.Full != (last < 0) || len(r.Tried) > 0 {
				return fmt.Errorf("version %d after %d: %+v", v, last, r)
			}
			if now, ok := f.Version(); now != v || !ok {
				return fmt.Errorf("Version = %d, %v; want %d", now, ok, v)
			}
			if v == 3 && r.ReadBytes > full/4 {
				return fmt.Errorf("version 3: rank %d has read %d bytes, all are %d", g.Rank(), r.ReadBytes, full)
			}
			last = v
		}
		r, err := f.Update(ctx, state)
		if err != nil || r.Version != n-1 {
			return fmt.Errorf("Update = %+v, %w", r, err)
		}
		return differs(t, s, state, want[n-1], g.Rank(), ranks)
	})
}

// The state has other dtypes, strides, names and values than the version.
func TestFollowIntoOtherTensors(t *testing.T) {
	dir := t.TempDir()
	x := must.Get(tensor.New(tensor.Float32, []int64{20, 30}))(t)
	values := must.Get(tensor.Values[float32](x))(t)
	r := must.Get(cairn.NewRun(dir, nil))(t)
	strided := must.Get(must.Get(tensor.New(tensor.Float32, []int64{30, 20}))(t).Transpose(0, 1))(t)
	narrow := must.Get(tensor.New(tensor.BFloat16, []int64{20, 30}))(t)
	f := must.Get(cairn.Follow(dir, &cairn.FollowOptions{Rename: func(fqn string) string {
		if fqn == "epoch" {
			return fqn
		}
		return "model.x"
	}}))(t)
	state := cairn.State{"a": strided, "b": map[string]any{"c": narrow}, "epoch": 0}
	for v := range int64(4) {
		for i := range values {
			if v == 0 || i%(1<<(2*v)) == 0 {
				values[i] += float32(i) + 0.5
			}
		}
		must.Get(r.Save(t.Context(), cairn.State{"model": cairn.State{"x": x}, "epoch": v}, &cairn.SaveOptions{Step: &v}))(t)
		p := must.Get(f.Prepare(t.Context(), state, cairn.Newest))(t)
		if state["epoch"] == int(v) && v > 0 {
			t.Errorf("epoch = %v before Commit", state["epoch"])
		}
		rep := must.Get(p.Commit())(t)
		if !tensor.Equal(strided, x) || state["epoch"] != int(v) {
			t.Errorf("version %d: the strided tensor differs, or the epoch is %v", v, state["epoch"])
		}
		if want := must.Get(tensor.Cast(x, tensor.BFloat16))(t); !tensor.Equal(narrow, want) {
			t.Errorf("version %d: the narrow tensor differs", v)
		}
		if rep.Elements != 1200 || v > 0 && rep.Changed > 1200/(1<<(2*v))+4 {
			t.Errorf("version %d: %+v", v, rep)
		}
	}
	must.Do(t, r.Close(t.Context()))
}

// A damaged version is not reported. The newest one before it that can be loaded is, or none.
func TestFollowPastDamage(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 22)
	want := jobtest.SaveChain(t, dir, s, 4, 1)
	f := must.Get(cairn.Follow(dir, nil))(t)
	state := followed(t, s, 0, 1)
	p := must.Get(f.Prepare(t.Context(), state, 1))(t)
	must.Get(p.Commit())(t)
	damage(t, filepath.Join(dir, "step-3"))
	r, err := f.Update(t.Context(), state)
	if err != nil || r.Version != 2 || r.From != 1 || !r.Full || len(r.Tried) != 2 || !errors.Is(r.Tried[0], cairn.ErrCorrupt) {
		t.Fatalf("Update = %+v, %v; want version 2 after two attempts", r, err)
	}
	must.Do(t, differs(t, s, state, want[2], 0, 1))
	if v, err := f.Newest(t.Context()); v != 2 || err != nil {
		t.Errorf("Newest = %d, %v; want 2, because 3 is damaged", v, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if v, err := f.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait = %d, %v; want the end of the time", v, err)
	}
	if _, err := f.Prepare(t.Context(), state, 3); !errors.Is(err, cairn.ErrCorrupt) || !strings.Contains(err.Error(), "stays as it is") {
		t.Errorf("Prepare of version 3 = %v; want ErrCorrupt", err)
	}
	must.Do(t, differs(t, s, state, want[2], 0, 1))
	if r, err := f.Update(t.Context(), state); err != nil || r.Version != 2 {
		t.Errorf("Update = %+v, %v; want version 2", r, err)
	}
	// A new one that does not refer to the damaged one.
	store := must.Get(file.Open(filepath.Join(dir, "step-4"), nil))(t)
	s.Step()
	must.Get(cairn.Save(t.Context(), store, s.Parts(t, 0, 1), &cairn.SaveOptions{Step: new(int64(4))}))(t)
	if v, err := f.Wait(t.Context()); v != 4 || err != nil {
		t.Errorf("Wait = %d, %v; want 4", v, err)
	}
	if r, err := f.Update(t.Context(), state); err != nil || r.Version != 4 || len(r.Tried) > 0 {
		t.Errorf("Update = %+v, %v; want version 4", r, err)
	}
	must.Do(t, differs(t, s, state, s.Clone(t), 0, 1))
}

// Wait does not return the newest version again if it does not fit the state.
func TestFollowAVersionThatDoesNotFit(t *testing.T) {
	dir := t.TempDir()
	jobtest.SaveStep(t, filepath.Join(dir, "step-1"), 1, nil)
	f := must.Get(cairn.Follow(dir, &cairn.FollowOptions{Interval: time.Millisecond}))(t)
	x := cairn.State{"x": must.Get(tensor.New(tensor.Float32, []int64{4}))(t)}
	wrong := cairn.State{"y": must.Get(tensor.New(tensor.Float32, []int64{4}))(t)}
	waits := func(what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if v, err := f.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: Wait = %d, %v; want the end of the time", what, v, err)
		}
	}
	for step := int64(1); step < 4; step++ {
		if v, err := f.Wait(t.Context()); v != step || err != nil {
			t.Errorf("Wait = %d, %v; want %d", v, err, step)
		}
		if _, err := f.Update(t.Context(), wrong); !errors.Is(err, cairn.ErrMissing) {
			t.Fatalf("Update = %v; want ErrMissing", err)
		}
		waits("a name that it lacks")
		if step == 2 {
			if r, err := f.Update(t.Context(), x); err != nil || r.Version != 2 {
				t.Fatalf("Update of another state = %+v, %v; want version 2", r, err)
			}
			waits("the version of the state")
		}
		jobtest.SaveStep(t, filepath.Join(dir, fmt.Sprintf("step-%d", step+1)), step+1, nil)
	}
	if _, err := f.Update(t.Context(), wrong); !errors.Is(err, cairn.ErrMissing) {
		t.Fatalf("Update = %v; want ErrMissing", err)
	}
	jobtest.SaveStep(t, filepath.Join(dir, "step-4"), 4, nil) // another save
	if v, err := f.Wait(t.Context()); v != 4 || err != nil {
		t.Errorf("Wait = %d, %v; want 4, which was saved again", v, err)
	}
}

// Newer versions that cannot be opened are named: in Tried on all ranks, and to the Logger.
func TestFollowNamesDamagedVersions(t *testing.T) {
	dir := t.TempDir()
	for step := range int64(4) {
		jobtest.SaveStep(t, filepath.Join(dir, fmt.Sprintf("step-%d", step)), step, nil)
	}
	for _, step := range []string{"step-2", "step-3"} {
		must.Do(t, os.Truncate(filepath.Join(dir, step, "cairn.json"), 7))
	}
	next := filepath.Join(t.TempDir(), "step-4")
	jobtest.SaveStep(t, next, 4, nil)
	jobtest.OnRanks(t, 2, func(ctx context.Context, g group.Group) error {
		var log []string // each version that is named
		writer := onWrite(func(p []byte) {
			if log = append(log, string(p)); len(log) == 2 { // Wait ends
				_ = os.Rename(next, filepath.Join(dir, "step-4"))
			}
		})
		f, err := cairn.Follow(dir, &cairn.FollowOptions{Group: g, Interval: time.Millisecond, Logger: slog.New(slog.NewTextHandler(writer, nil))})
		if err != nil {
			return err
		}
		x, err := tensor.New(tensor.Float32, []int64{4})
		if err != nil {
			return err
		}
		r, err := f.Update(ctx, cairn.State{"x": x})
		if err != nil {
			return err
		}
		if r.Version != 1 || len(r.Tried) != 2 || !strings.HasPrefix(r.Tried[0].Error(), "version 3: ") || !errors.Is(r.Tried[1], cairn.ErrCorrupt) {
			return fmt.Errorf("Update = %+v; want version 1, and 3 and 2 in Tried", r)
		}
		if v, err := f.Wait(ctx); v != 4 || err != nil {
			return fmt.Errorf("Wait = %d, %v; want 4", v, err)
		}
		if g.Rank() == 0 && (len(log) != 2 || !strings.Contains(log[0], "level=WARN") || log[0] == log[1]) {
			return fmt.Errorf("the log is %q; want a warning for each version", log)
		}
		return nil
	})
	f := must.Get(cairn.Follow(dir, nil))(t)
	x := must.Get(tensor.New(tensor.Float32, []int64{4}))(t)
	if _, err := f.Prepare(t.Context(), cairn.State{"x": x}, 3); !errors.Is(err, cairn.ErrCorrupt) || !strings.Contains(err.Error(), "step-3") {
		t.Errorf("Prepare of version 3 = %v; want ErrCorrupt of its folder", err)
	}
}

// If all newer versions are gone, an older one is not taken for the newest.
func TestFollowDoesNotGoBack(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 24)
	want := jobtest.SaveChain(t, dir, s, 3, 1)
	f := must.Get(cairn.Follow(dir, nil))(t)
	state := followed(t, s, 0, 1)
	must.Get(f.Update(t.Context(), state))(t)
	must.Do(t, os.RemoveAll(filepath.Join(dir, "step-2")))
	if v, err := f.Newest(t.Context()); v != 1 || err != nil {
		t.Errorf("Newest = %d, %v; want 1", v, err)
	}
	if _, err := f.Update(t.Context(), state); !errors.Is(err, cairn.ErrNotFound) || !strings.Contains(err.Error(), "no version 2 or newer") {
		t.Errorf("Update = %v; want ErrNotFound", err)
	}
	must.Do(t, differs(t, s, state, want[2], 0, 1))
	r := must.Get(must.Get(f.Prepare(t.Context(), state, 1))(t).Commit())(t)
	if r.Version != 1 || r.From != 2 {
		t.Errorf("Commit = %+v; want version 1", r)
	}
	must.Do(t, differs(t, s, state, want[1], 0, 1))
}

// If the files of a base are gone, a follower that has the earlier state in memory need not
// care, and another one falls back.
func TestFollowWithoutABase(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 23)
	want := jobtest.SaveChain(t, dir, s, 3, 1)
	state := followed(t, s, 0, 1)
	f := must.Get(cairn.Follow(dir, nil))(t)
	p := must.Get(f.Prepare(t.Context(), state, 1))(t)
	must.Get(p.Commit())(t)
	jobtest.RemoveFiles(t, filepath.Join(dir, "step-0"), "*.safetensors")
	fresh := must.Get(cairn.Follow(dir, &cairn.FollowOptions{CacheBytes: -1}))(t)
	if _, err := fresh.Prepare(t.Context(), followed(t, s, 0, 1), 2); err == nil {
		t.Error("a version whose base is gone was loaded")
	}
	if _, err := fresh.Update(t.Context(), followed(t, s, 0, 1)); !errors.Is(err, cairn.ErrCorrupt) {
		t.Errorf("Update = %v; want ErrCorrupt", err)
	}
	if _, err := f.Update(t.Context(), state); err == nil {
		must.Do(t, differs(t, s, state, want[2], 0, 1))
	} else {
		must.Do(t, differs(t, s, state, want[1], 0, 1))
	}
}

// Reads that return wrong bytes, or fail, are noticed; a damaged read is made again without
// the cache.
func TestFollowThroughAFaultyStore(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 24)
	want := jobtest.SaveChain(t, dir, s, 4, 1)
	onPurpose := errors.New("on purpose")
	for name, c := range map[string]struct {
		do    fault.Action
		reads int64 // how many of them go wrong
		want  error
	}{
		"two reads are wrong": {fault.Flip(4001), 2, nil},
		"all reads are wrong": {fault.Flip(4001), math.MaxInt64, cairn.ErrCorrupt},
		"reads fail":          {fault.Fail(onPurpose), 2, onPurpose},
	} {
		t.Run(name, func(t *testing.T) {
			var left atomic.Int64
			rule := fault.Rule{On: fault.Read, Times: -1, Do: c.do, Match: func(name string) bool {
				return (strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".delta")) && left.Load() > 0 && left.Add(-1) >= 0
			}}
			address := jobtest.FaultyAddress(t, dir, func(dir blob.Store) blob.Store { return fault.New(dir, rule) })
			f := must.Get(cairn.Follow(address, nil))(t)
			state := followed(t, s, 0, 1)
			p := must.Get(f.Prepare(t.Context(), state, 1))(t)
			must.Get(p.Commit())(t)
			left.Store(c.reads)
			p, err := f.Prepare(t.Context(), state, 2)
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Fatalf("Prepare = %v; want %v", err, c.want)
			}
			must.Do(t, differs(t, s, state, want[1], 0, 1))
			if err == nil {
				r := must.Get(p.Commit())(t)
				if !r.Full || len(r.Tried) != 1 {
					t.Errorf("%+v; want one more attempt", r)
				}
				must.Do(t, differs(t, s, state, want[2], 0, 1))
			}
			left.Store(0) // the store works again
			r := must.Get(f.Update(t.Context(), state))(t)
			if r.Version != 3 {
				t.Errorf("version %d; want 3", r.Version)
			}
			must.Do(t, differs(t, s, state, want[3], 0, 1))
		})
	}
}

// Versions appear and are pruned while ranks follow. Their reports are right, whatever the
// order.
func TestFollowWhileVersionsComeAndGo(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dir, s := t.TempDir(), jobtest.NewTrained(t, seed)
	keep := must.Get(cairn.ParsePolicy("last 2"))(t)
	const versions = 15
	var mu sync.Mutex
	want := map[int64]map[string][]byte{}
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			r, err := cairn.NewRun(dir, &cairn.RunOptions{Keep: keep})
			if err != nil {
				return err
			}
			for v := range int64(versions) {
				s.Step()
				mu.Lock()
				want[v] = s.Clone(t)
				mu.Unlock()
				if _, err := r.Save(context.Background(), s.Parts(t, 0, 1), &cairn.SaveOptions{Step: &v}); err != nil {
					return err
				}
			}
			return r.Close(context.Background())
		}()
	}()
	like := jobtest.NewTrained(t, seed)
	jobtest.OnRanks(t, 2, func(ctx context.Context, g group.Group) error {
		f := must.Get(cairn.Follow(dir, &cairn.FollowOptions{Group: g, Interval: time.Millisecond}))(t)
		state := followed(t, like, g.Rank(), 2)
		for {
			if _, err := f.Wait(ctx); err != nil {
				return err
			}
			r, err := f.Update(ctx, state)
			if err != nil {
				return err
			}
			mu.Lock()
			right := want[r.Version]
			mu.Unlock()
			if err := differs(t, like, state, right, g.Rank(), 2); err != nil {
				return fmt.Errorf("version %d after %d: %w", r.Version, r.From, err)
			}
			if r.Version == versions-1 {
				return nil
			}
		}
	})
	must.Do(t, <-done)
}

func TestFollowRefuses(t *testing.T) {
	dir := t.TempDir()
	f := must.Get(cairn.Follow(filepath.Join(dir, "nothing"), nil))(t)
	if _, err := f.Newest(t.Context()); !errors.Is(err, cairn.ErrNotFound) {
		t.Errorf("Newest = %v; want ErrNotFound", err)
	}
	if _, err := f.Update(t.Context(), cairn.State{}); !errors.Is(err, cairn.ErrNotFound) {
		t.Errorf("Update = %v; want ErrNotFound", err)
	}
	if _, ok := f.Version(); ok {
		t.Error("Version = _, true before an update")
	}
	if _, err := cairn.Follow(dir, &cairn.FollowOptions{Base: dir, Format: hf.Format{}}); !errors.Is(err, cairn.ErrOptions) {
		t.Errorf("Follow with Base and Format = %v; want ErrOptions", err)
	}
	if _, err := cairn.Follow("gopher://x", nil); err == nil {
		t.Error("Follow of an unknown scheme succeeds")
	}
	jobtest.SaveStep(t, filepath.Join(dir, "step-1"), 1, nil)
	jobtest.SaveStep(t, filepath.Join(dir, "step-2"), 2, nil)
	f = must.Get(cairn.Follow(dir, nil))(t)
	x := must.Get(tensor.New(tensor.Float32, []int64{4}))(t)
	for name, c := range map[string]struct {
		state cairn.State
		want  error
	}{
		"a name that it lacks": {cairn.State{"y": x}, cairn.ErrMissing},
		"another shape":        {cairn.State{"x": must.Get(tensor.New(tensor.Float32, []int64{5}))(t)}, cairn.ErrMismatch},
		"a Stateful":           {cairn.State{"x": &counting{}}, cairn.ErrState},
	} {
		if _, err := f.Update(t.Context(), c.state); !errors.Is(err, c.want) {
			t.Errorf("%s: Update = %v; want %v", name, err, c.want)
		}
	}
	if _, err := f.Prepare(t.Context(), cairn.State{"x": x}, 7); !errors.Is(err, cairn.ErrNotFound) {
		t.Errorf("Prepare of version 7 = %v; want ErrNotFound", err)
	}
	one, two := must.Get(f.Prepare(t.Context(), cairn.State{"x": x}, 1))(t), must.Get(f.Prepare(t.Context(), cairn.State{"x": x}, 2))(t)
	must.Get(one.Commit())(t)
	for _, p := range []*cairn.Prepared{one, two} {
		if _, err := p.Commit(); !errors.Is(err, cairn.ErrOptions) {
			t.Errorf("Commit again, or of an older state = %v; want ErrOptions", err)
		}
	}
}

// counting is a Stateful.
type counting struct{ n int64 }

func (c *counting) State() (cairn.State, error)   { return cairn.State{"n": c.n}, nil }
func (c *counting) LoadState(s cairn.State) error { c.n = s["n"].(int64); return nil }

// The versions of other formats are numbered by their names.
func TestFollowOtherFormats(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []int{9, 10, 2} {
		x := must.Get(tensor.Of([]int64{2}, []float32{float32(n), 1}))(t)
		store := jobtest.OpenStore(t, filepath.Join(dir, fmt.Sprintf("checkpoint-%d", n)))
		must.Get(cairn.Save(t.Context(), store, cairn.State{"x": x}, &cairn.SaveOptions{Format: hf.Format{}}))(t)
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "logs"), 0o777))
	for name, o := range map[string]*cairn.FollowOptions{"detected": nil, "named": {Format: hf.Format{}}} {
		f := must.Get(cairn.Follow(dir, o))(t)
		x := must.Get(tensor.New(tensor.Float32, []int64{2}))(t)
		if r, err := f.Update(t.Context(), cairn.State{"x": x}); err != nil || r.Version != 10 {
			t.Errorf("%s: Update = %+v, %v; want version 10", name, r, err)
		}
		if got := must.Get(tensor.Values[float32](x))(t); got[0] != 10 {
			t.Errorf("%s: x = %v", name, got)
		}
	}
}

// The versions of slime, which are differences to a model, can be followed too.
func TestFollowSlime(t *testing.T) {
	const chain = "../../testdata/slime/xor-xxh3-rebase"
	expected := func(v int64) map[string]struct {
		DType  string
		Shape  []int64
		SHA256 string
	} {
		var out struct {
			Items map[string]struct {
				DType  string
				Shape  []int64
				SHA256 string
			}
		}
		b := must.Get(os.ReadFile(filepath.Join(chain, "expected", fmt.Sprintf("weight_v%06d.json", v))))(t)
		must.Do(t, json.Unmarshal(b, &out))
		return out.Items
	}
	state := cairn.State{}
	for name, it := range expected(1) {
		state[name] = must.Get(tensor.New(must.Get(tensor.ParseDType(it.DType))(t), it.Shape))(t)
	}
	base := must.Get(filepath.Abs(filepath.Join(chain, "base")))(t)
	f := must.Get(cairn.Follow(filepath.Join(chain, "published"), &cairn.FollowOptions{Base: base}))(t)
	if v, err := f.Newest(t.Context()); v != 8 || err != nil {
		t.Fatalf("Newest = %d, %v; want 8", v, err)
	}
	for _, v := range []int64{1, 2, 4, 5, 3, 8} {
		p := must.Get(f.Prepare(t.Context(), state, v))(t)
		must.Get(p.Commit())(t)
		for name, it := range expected(v) {
			if got := fmt.Sprintf("%x", sha256.Sum256(state[name].(*tensor.Tensor).Contents())); got != it.SHA256 {
				t.Errorf("version %d: %s has the sum %s; want %s", v, name, got, it.SHA256)
			}
		}
	}
}

// onWrite is a writer that calls a function with the written bytes.
type onWrite func(p []byte)

func (f onWrite) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}
