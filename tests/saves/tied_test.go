package saves

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// stored returns the bytes of all objects of a store.
func stored(t testing.TB, s blob.Store) (n int64) {
	t.Helper()
	for info, err := range s.List(context.Background(), "") {
		if err != nil {
			t.Fatal(err)
		}
		n += info.Size
	}
	return n
}

// checkTied loads a new state and returns it. The names must be one tensor.
func checkTied(t testing.TB, s blob.Store, names ...string) cairn.State {
	t.Helper()
	got, _, err := cairn.LoadNew(context.Background(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names[1:] {
		if got[name] == nil || got[name] != got[names[0]] {
			t.Errorf("%s and %s are %p and %p; want one tensor", names[0], name, got[names[0]], got[name])
		}
	}
	return got
}

func TestTiedTensorsTakeTheSpaceOfOne(t *testing.T) {
	const size = 16 << 20
	w := must.Get(tensor.New(tensor.Float32, []int64{4096, size / 4 / 4096}))(t)
	b, _ := w.Bytes()
	for i := 0; i < len(b); i += 4096 {
		b[i] = byte(i >> 12)
	}
	for name, opts := range map[string]*cairn.SaveOptions{"": nil, "several files": {FilesPerRank: 3}} {
		s := new(mem.Store)
		rep := must.Get(cairn.Save(t.Context(), s, cairn.State{"embed": w, "head": w, "step": 7}, opts))(t)
		if n := stored(t, s); n > size+1<<20 || rep.Bytes > size+1<<20 {
			t.Errorf("%s: the checkpoint has %d bytes, the report %d; want about %d", name, n, rep.Bytes, size)
		}
		got := checkTied(t, s, "embed", "head")
		if !tensor.Equal(got["head"].(*tensor.Tensor), w) {
			t.Errorf("%s: head differs from what was saved", name)
		}
	}
}

// Ranks hold shards and copies of tensors that have two names. Which rank writes a copy
// depends on the bytes of the ranks, and is the same for both names.
func TestTiedTensorsOfSeveralRanks(t *testing.T) {
	const ranks, rows, cols = 4, 32, 64
	full := jobtest.Whole(t, []int64{rows, cols}, 1)
	for _, owner := range []plan.OwnerRule{plan.LeastLoaded, plan.LowestRank, plan.EveryHolder} {
		s, alone := new(mem.Store), new(mem.Store)
		save := func(s blob.Store, tie bool) {
			err := inproc.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) error {
				layout := shard.Placed{Mesh: shard.Mesh{Shape: []int{ranks}}, Placements: []shard.Placement{shard.Shard(0)}}
				cut, err := shard.Empty(layout, tensor.Float32, full.Shape(), g.Rank())
				if err != nil {
					return err
				}
				part, err := full.Narrow(cut.Boxes()[0])
				if err != nil {
					return err
				}
				if err := tensor.Copy(cut.Local(), part); err != nil {
					return err
				}
				copied := full.Clone()
				state := cairn.State{"cut": cut, "copy": copied, fmt.Sprintf("own%d", g.Rank()): jobtest.Whole(t, []int64{int64(100 * g.Rank())}, 1)}
				if tie {
					state["cut2"], state["copy2"] = cut, copied
				}
				_, err = cairn.Save(ctx, s, state, &cairn.SaveOptions{Group: g, Planner: &plan.DefaultSave{Owner: owner}})
				return err
			})
			if err != nil {
				t.Fatalf("%v: %v", owner, err)
			}
		}
		save(s, true)
		save(alone, false)
		if got, want := stored(t, s), stored(t, alone); got > want+4096 {
			t.Errorf("%v: %d bytes with further names, %d without", owner, got, want)
		}
		got := checkTied(t, s, "cut", "cut2")
		checkTied(t, s, "copy", "copy2")
		for _, name := range []string{"cut2", "copy2"} {
			if !tensor.Equal(got[name].(*tensor.Tensor), full) {
				t.Errorf("%v: %s differs from what was saved", owner, name)
			}
		}
	}
}

// A name is one tensor with another on some ranks only: it is written by itself.
func TestTensorsThatAreTiedOnSomeRanks(t *testing.T) {
	s := new(mem.Store)
	must.Do(t, inproc.Run(t.Context(), 2, func(ctx context.Context, g group.Group) error {
		w := jobtest.Whole(t, []int64{8}, 1)
		state := cairn.State{"a": w, "b": w}
		if g.Rank() == 1 {
			state["b"] = w.Clone()
		}
		_, err := cairn.Save(ctx, s, state, &cairn.SaveOptions{Group: g})
		return err
	}))
	got, _, err := cairn.LoadNew(t.Context(), s, nil)
	if err != nil || got["a"] == got["b"] || !tensor.Equal(got["a"].(*tensor.Tensor), got["b"].(*tensor.Tensor)) {
		t.Errorf("LoadNew = %v, %v; want two equal tensors", got, err)
	}
}

// In the background, with less memory than the state needs: the further names are
// released when the tensor was written.
func TestTiedTensorsInTheBackground(t *testing.T) {
	const n = 300 << 10
	for mode, options := range jobtest.Modes {
		for _, ceiling := range []int64{64 << 20, 1 << 20, 64 << 10} {
			for _, format := range []storage.Format{native.Format{}, torchfile.Format{File: "x.pt"}} {
				t.Run(fmt.Sprint(mode, ceiling, format.Name()), func(t *testing.T) {
					store := jobtest.TempStore(t)
					s := jobtest.Stager(t, options(ceiling))
					state := cairn.State{}
					for i := range 5 {
						x := jobtest.Numbered(t, n+int64(i), byte(i))
						state[fmt.Sprint("a", i)], state[fmt.Sprint("b", i)] = x, x
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					for range 2 {
						p := must.Get(cairn.SaveAsync(ctx, store, state, &cairn.AsyncOptions{Stager: s, SaveOptions: cairn.SaveOptions{Format: format}}))(t)
						must.Get(p.Wait(ctx))(t)
					}
					if got := stored(t, store); got > 5*n+64<<10 {
						t.Errorf("the checkpoint has %d bytes; want about %d", got, 5*n)
					}
					got := checkTied(t, store, "a3", "b3")
					if !tensor.Equal(got["a3"].(*tensor.Tensor), state["a3"].(*tensor.Tensor)) {
						t.Error("a3 is not what was saved")
					}
				})
			}
		}
	}
}
