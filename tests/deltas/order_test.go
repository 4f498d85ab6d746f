package deltas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
	"github.com/cairn-ckpt/cairn/transfer"
)

// A save on a base crashes at every step: the base and the old checkpoint stay.
func TestCrashOfASaveOnABase(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 12)
	want := jobtest.SaveChain(t, dir, s, 3, 1)
	old := want[2]
	for n := range deep.Steps[int64]() {
		s.Step()
		store := fault.New(stepAt(t, dir, 2), fault.CrashAt(n))
		_, err := cairn.Save(t.Context(), store, s.Parts(t, 0, 1), &cairn.SaveOptions{Base: &storage.Base{Folder: "step-1"}})
		if err == nil {
			old = s.Clone(t)
		}
		checkContents(t, stepAt(t, dir, 1), want[1], s.State, 1)
		now := stepAt(t, dir, 2)
		if errors.Is(err, storage.ErrUncertain) { // it may be either
			got := must.Get(tensor.New(tensor.BFloat16, s.State["row"].Shape()))(t)
			must.Get(cairn.Load(t.Context(), now, cairn.State{"row": got}, nil))(t)
			if bytes.Equal(got.Contents(), s.State["row"].Contents()) {
				old = s.Clone(t)
			}
		}
		checkContents(t, now, old, s.State, 1)
		if err == nil && store.Ops().Count(fault.Mutating) < n {
			t.Logf("%d operations", n)
			break
		}
	}
	must.Get(commit.Sweep(t.Context(), stepAt(t, dir, 2), native.Files(), 0, nil))(t)
	checkContents(t, stepAt(t, dir, 2), old, s.State, 1)
}

// every checkpoint as it was saved.
func TestAnyOrderOfSavesAndRemovals(t *testing.T) {
	seed := deep.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := filepath.Join(t.TempDir(), "run")
	names := []string{"a", "b", "c", "d", "e"}
	have := map[string]map[string]*tensor.Tensor{}
	open := func(name string) *file.Store {
		return must.Get(file.Open(filepath.Join(dir, name), &file.Options{NoSync: true}))(t)
	}
	state := map[string]*tensor.Tensor{}
	fill := func(name string, dtype tensor.DType, shape ...int64) {
		x := must.Get(tensor.New(dtype, shape))(t)
		for i := range x.Contents() {
			x.Contents()[i] = byte(random.Uint32()) & 0x3f
		}
		state[name] = x
	}
	fill("x", tensor.BFloat16, 300, 1000)
	fill("y", tensor.Float32, 50, 40)
	fill("z", tensor.Float32, 0, 4)
	fill("w", tensor.Int64)
	var log []string
	for range deep.Rounds(20, 200) {
		name := names[random.IntN(len(names))]
		var err error
		op := random.IntN(10)
		text := fmt.Sprint(op, " ", name)
		switch op {
		case 0, 1, 2, 3, 4: // 4 fails
			for _, n := range slices.Sorted(maps.Keys(state)) {
				x := must.Get(tensor.FromBytes(state[n].DType(), state[n].Shape(), bytes.Clone(state[n].Contents())))(t)
				state[n] = x
				if b := x.Contents(); len(b) > 0 && random.IntN(2) == 0 {
					for range 1 + len(b)/400 {
						b[random.IntN(len(b))] ^= 1
					}
				}
			}
			switch random.IntN(12) {
			case 0:
				fill("y", tensor.Float32, 50, int64(30+random.IntN(3)))
			case 1:
				fill("y", tensor.Int32, 50, 40)
			case 2:
				state["v"] = state["y"]
			case 3:
				delete(state, "v")
			case 4:
				fill("u", tensor.BFloat16, 200, 100)
			}
			o := cairn.SaveOptions{Base: &storage.Base{Folder: names[random.IntN(len(names))]}}
			o.FilesPerRank = 1 + random.IntN(4)
			o.BufferBytes = int64(1 + random.IntN(2<<20))
			if random.IntN(6) == 0 {
				o.Base = nil
			} else {
				text += " on " + o.Base.Folder
			}
			in := cairn.State{"n": int64(len(log))}
			for n, x := range state {
				in[n] = x
			}
			var store blob.Store = open(name)
			if op == 4 {
				store = fault.New(store, fault.Rule{Nth: 1 + int64(random.IntN(60)), Times: int64(random.IntN(3)) - 1, Do: fault.Fail(syscall.EIO)})
			}
			_, err = cairn.Save(t.Context(), store, in, &o)
			if errors.Is(err, storage.ErrUncertain) {
				t.Skip("uncertain")
			}
			if err == nil {
				have[name] = maps.Clone(state)
			} else if op != 4 {
				t.Errorf("Save = %v", err)
			}
		case 5, 6:
			if _, err = formats.Remove(t.Context(), open(name), nil); err == nil {
				delete(have, name)
			} else if !errors.Is(err, storage.ErrInUse) && !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrIncomplete) {
				t.Errorf("Remove = %v", err)
			}
		case 7:
			if _, err = transfer.Copy(t.Context(), open(name), open(name), &transfer.Options{Overwrite: true}); err != nil && have[name] != nil {
				t.Errorf("flatten = %v", err)
			}
		case 8:
			_, err = commit.Sweep(t.Context(), open(name), native.Files(), 0, nil)
			must.Do(t, err)
		case 9:
			must.Do(t, os.MkdirAll(dir, 0o777))
			must.Do(t, os.Rename(dir, dir+"x"))
			dir += "x"
		}
		log = append(log, fmt.Sprint(text, ": ", err))
		for n, want := range have {
			in := cairn.State{}
			got := map[string]*tensor.Tensor{}
			for k, x := range want {
				got[k] = must.Get(tensor.New(x.DType(), x.Shape()))(t)
				in[k] = got[k]
			}
			_, err := cairn.Load(t.Context(), open(n), in, nil)
			for k, x := range want {
				if err == nil && !bytes.Equal(got[k].Contents(), x.Contents()) {
					err = fmt.Errorf("%s differs", k)
				}
			}
			if err != nil {
				t.Fatalf("%s: %v after\n%s", n, err, strings.Join(log, "\n"))
			}
		}
	}
}

// While a save writes its data or its record, another one replaces its base, or the base is
// flattened. The files to which the new record refers stay.
func TestBaseIsReplacedDuringASave(t *testing.T) {
	for _, suffix := range []string{".delta", "-index.cairn"} {
		for _, flatten := range []bool{false, true} {
			dir, s := t.TempDir(), jobtest.NewTrained(t, 15)
			jobtest.SaveChain(t, dir, s, 2, 1)
			s.Step()
			store := &onCreate{Store: stepAt(t, dir, 2), suffix: suffix, do: func() {
				base, err := stepAt(t, dir, 1), error(nil)
				if flatten {
					_, err = transfer.Copy(context.Background(), base, base, &transfer.Options{Overwrite: true})
				} else {
					_, err = cairn.Save(context.Background(), base, cairn.State{"other": jobtest.Whole(t, []int64{3}, 1)}, nil)
				}
				if err != nil {
					t.Error(err)
				}
				if _, err := commit.Sweep(context.Background(), base, native.Files(), 0, nil); err != nil {
					t.Error(err)
				}
			}}
			_, err := cairn.Save(t.Context(), store, s.Parts(t, 0, 1), &cairn.SaveOptions{Base: &storage.Base{Folder: "step-1"}})
			if err != nil {
				t.Errorf("at %s: Save = %v", suffix, err)
				continue
			}
			checkContents(t, stepAt(t, dir, 2), s.Clone(t), s.State, 1)
		}
	}
}
