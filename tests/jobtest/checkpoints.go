package jobtest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// MustOpen opens a checkpoint, which is closed at the end of the test.
func MustOpen(t testing.TB, s blob.Store) *cairn.Checkpoint {
	t.Helper()
	c := must.Get(cairn.Open(context.Background(), s))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// SaveStep saves a small state in a folder and returns the folder. A negative step is not
// recorded.
func SaveStep(t *testing.T, dir string, step int64, f storage.Format) string {
	t.Helper()
	x := must.Get(tensor.Of([]int64{4}, []float32{1, 2, 3, 4}))(t)
	o := &cairn.SaveOptions{Overwrite: true, Format: f}
	if step >= 0 {
		o.Step = &step
	}
	must.Get(cairn.Save(t.Context(), OpenStore(t, dir), cairn.State{"x": x}, o))(t)
	return dir
}

// OpenStore returns the store at an address.
func OpenStore(t *testing.T, dir string) blob.Store {
	t.Helper()
	s := must.Get(cairn.OpenStore(dir))(t)
	return s
}

// RemoveFiles removes the files of a folder that match a pattern.
func RemoveFiles(t *testing.T, dir, pattern string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s in %s: %v, %v", pattern, dir, names, err)
	}
	for _, name := range names {
		must.Do(t, os.Remove(name))
	}
}

// CheckBounds checks that a run has at most eight checkpoints beside the ones that the policy
// keeps, and at most twice the bytes that these would have if each stood alone. It returns the
// bytes.
func CheckBounds(t *testing.T, r *run.Run, keep cairn.Policy, whole int64) int64 {
	t.Helper()
	all := must.Get(r.Checkpoints(t.Context()))(t)
	kept, bytes := 0, int64(0)
	for _, v := range run.Apply(keep, all, time.Now()) {
		bytes += v.Checkpoint.Bytes
		if !v.Keep || !v.Checkpoint.Complete() {
			t.Fatalf("%s stays after Prune: %v, %+v", v.Checkpoint.Name, v.Reasons, v.Checkpoint.Local)
		}
		if slices.ContainsFunc(v.Reasons, func(r string) bool { return r != run.ReasonReferred }) {
			kept++
		}
	}
	if len(all) > kept+8 || bytes > 2*int64(kept)*whole {
		t.Fatalf("%d checkpoints with %d bytes stay; want at most %d+8 with %d", len(all), bytes, kept, 2*int64(kept)*whole)
	}
	return bytes
}
