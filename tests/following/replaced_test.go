package following

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// weightsOf returns the state of a version of a publisher. Few elements of "sparse" change from
// version to version, and all of "dense".
func weightsOf(round, version int) (cairn.State, error) {
	sparse, err := tensor.New(tensor.Uint16, []int64{64, 512})
	if err != nil {
		return nil, err
	}
	mem, _ := sparse.Bytes()
	for i, bits := 0, tensor.Numbers[uint16](mem); i < len(bits); i++ {
		if bits[i] = uint16(7 * i); i%50 == version {
			bits[i] ^= uint16(round)
		}
	}
	dense, err := tensor.New(tensor.Uint16, []int64{16, 256})
	if err != nil {
		return nil, err
	}
	mem, _ = dense.Bytes()
	for i, bits := 0, tensor.Numbers[uint16](mem); i < len(bits); i++ {
		bits[i] = uint16(i + 16*round + version)
	}
	return cairn.State{"sparse": sparse, "dense": dense, "round": round, "version": version}, nil
}

// follows is the part of a rank of a follower.
func follows(t testing.TB, g group.Group) cairn.State {
	state := must.Get(weightsOf(0, 0))(t)
	for _, name := range []string{"sparse", "dense"} {
		x := state[name].(*tensor.Tensor)
		state[name] = must.Get(shard.Empty(jobtest.Columns(g.Size()), x.DType(), x.Shape(), g.Rank()))(t)
	}
	return state
}

// checkFollowed returns an error unless state is one version of one publisher, and that version.
func checkFollowed(t testing.TB, state cairn.State, version int64, g group.Group) error {
	want := must.Get(weightsOf(state["round"].(int), int(version)))(t)
	if state["version"] != int(version) {
		return fmt.Errorf("the state has version %v; want %d", state["version"], version)
	}
	for _, name := range []string{"sparse", "dense"} {
		right := jobtest.Cut(t, jobtest.Columns(g.Size()), want[name].(*tensor.Tensor), g.Rank())
		a, b := state[name].(*shard.Tensor).Local(), right.Local()
		if !bytes.Equal(a.Contents(), b.Contents()) {
			return fmt.Errorf("%s differs from version %d of publisher %v", name, version, state["round"])
		}
	}
	return nil
}

// saveWeights saves a version of a publisher on the base of the version before it.
func saveWeights(t testing.TB, dir string, round, version int) {
	t.Helper()
	o := &cairn.SaveOptions{Step: new(int64(version)), Base: &storage.Base{}, Overwrite: true}
	if version > 1 {
		o.Base.Folder = fmt.Sprintf("step-%d", version-1)
	}
	store := must.Get(file.Open(filepath.Join(dir, fmt.Sprintf("step-%d", version)), &file.Options{NoSync: true}))(t)
	must.Get(cairn.Save(t.Context(), store, must.Get(weightsOf(round, version))(t), o))(t)
}

// A version is replaced or removed before each operation of a follower in turn. The follower
// looks again, and has a whole version in the end.
func TestFollowVersionsThatChangeAtEveryStep(t *testing.T) {
	versions := t.TempDir()
	for v := range 3 {
		saveWeights(t, versions, 1, v+1)
	}
	if c := jobtest.MustOpen(t, jobtest.OpenFolder(t, versions, "step-3")); len(c.Info().Bases) == 0 {
		t.Fatal("version 3 refers to no other version")
	}
	for name, event := range map[string]func(dir string){
		"replaced": func(dir string) { saveWeights(t, dir, 2, 3) },
		"replaced, and its base": func(dir string) {
			saveWeights(t, dir, 2, 2)
			saveWeights(t, dir, 2, 3)
		},
		"deleted": func(dir string) { must.Do(t, os.RemoveAll(filepath.Join(dir, "step-3"))) },
		"deleted, and a newer one saved": func(dir string) {
			must.Do(t, os.RemoveAll(filepath.Join(dir, "step-3")))
			saveWeights(t, dir, 2, 4)
		},
		"removed": func(dir string) {
			_, _ = formats.Remove(t.Context(), jobtest.OpenFolder(t, dir, "step-3"), nil) // unless it is in use
		},
	} {
		t.Run(name, func(t *testing.T) {
			for n := range deep.Steps[int]() {
				if !changesAt(t, versions, n-1, event) || t.Failed() {
					return
				}
			}
		})
	}
}

// changesAt follows a copy of versions. Before an operation, event changes it. The result is
// false if the follower makes fewer operations.
func changesAt(t *testing.T, versions string, at int, event func(dir string)) bool {
	dir := t.TempDir()
	must.Do(t, os.CopyFS(dir, os.DirFS(versions)))
	var counts atomic.Bool
	var n atomic.Int64 // the operations since counts is set
	hook := fault.Rule{On: fault.Reading, Times: -1, Match: func(string) bool {
		if counts.Load() && n.Add(1) == int64(at)+1 {
			event(dir)
		}
		return false
	}}
	address := jobtest.FaultyAddress(t, dir, func(dir blob.Store) blob.Store { return fault.New(dir, hook) })
	f := must.Get(cairn.Follow(address, &cairn.FollowOptions{Interval: time.Millisecond}))(t)
	defer f.Close()
	state := follows(t, group.Solo())
	must.Get(must.Get(f.Prepare(t.Context(), state, 1))(t).Commit())(t)

	counts.Store(true)
	if _, err := f.Wait(t.Context()); err != nil {
		t.Errorf("operation %d: Wait = %v", at, err)
		return false
	}
	r, err := f.Update(t.Context(), state)
	if err != nil {
		t.Errorf("operation %d: Update = %v", at, err)
		return false
	}
	if err := checkFollowed(t, state, r.Version, group.Solo()); err != nil {
		t.Errorf("operation %d: %v", at, err)
	}
	return n.Load() > int64(at)
}
