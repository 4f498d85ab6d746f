package protocol_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// lanes is the number of parallel tests. Those in deaths_test.go mostly wait for
// timeouts, so they all run at once, even on few processors.
const lanes = 20

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", strconv.Itoa(lanes)); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// world is the number of ranks in these tests.
const world = 4

// onRanks runs fn on every rank in a synctest bubble, which reports a rank that waits
// forever as a deadlock. It returns the ranks' errors.
func onRanks(t *testing.T, fn func(ctx context.Context, g *inproc.Group) error) []error {
	t.Helper()
	errs := make([]error, world)
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		for r, g := range inproc.New(world) {
			wg.Go(func() { errs[r] = fn(t.Context(), g) })
		}
		wg.Wait()
	})
	return errs
}

// state returns the state that a rank saves: a part of a matrix, a tensor that all have,
// values large and small, all different for each seed.
func state(t testing.TB, rank int, seed byte) plan.State {
	x := storagetest.Filled(t, tensor.Float32, []int64{16, 6}, seed)
	return plan.State{
		"x": storagetest.Cut(t, storagetest.Along(0, world), x, rank),
		"b": storagetest.Filled(t, tensor.Int64, []int64{5}, seed),
		"v": map[string]any{"n": int64(seed), "big": slices.Repeat([]byte{seed}, 20_000), fmt.Sprint("own", rank): int64(rank)},
	}
}

// blank returns the state that a rank loads into: another part of the matrix.
func blank(t testing.TB, rank int) plan.State {
	x := storagetest.Filled(t, tensor.Float32, []int64{16, 6}, 0)
	return plan.State{
		"x": storagetest.Cut(t, storagetest.Along(1, world), x, rank),
		"b": storagetest.Filled(t, tensor.Int64, []int64{5}, 0),
		"v": map[string]any{"n": nil, "big": nil, fmt.Sprint("own", rank): nil},
	}
}

// saveJob returns one rank's part in a save.
func saveJob(t testing.TB, g group.Group, s blob.Store, id string, seed byte) protocol.RankSave {
	return protocol.RankSave{
		Group: g, Planner: new(plan.DefaultSave), Writer: storagetest.NewWriter(native.Format{}, s, storage.WriteOptions{}), State: state(t, g.Rank(), seed),
		Storage: describe(g, id),
	}
}

// describe returns a rank's description of a save. Only the coordinator's counts.
func describe(g group.Group, id string) meta.Storage {
	if g.Rank() != 0 {
		return meta.Storage{SaveID: "not-the-coordinator", Step: new(int64(-1))}
	}
	return meta.Storage{SaveID: id, Step: new(int64(7)), WorldSize: world, Writer: "test", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
}

// mustSave saves on all ranks.
func mustSave(t *testing.T, s blob.Store, id string, seed byte) {
	t.Helper()
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		_, err := protocol.Save(ctx, saveJob(t, g, s, id, seed))
		return err
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("save %s: %v", id, err)
	}
}

// checkHolds loads on all ranks, cut the other way, and compares.
func checkHolds(t *testing.T, s blob.Store, seed byte) {
	t.Helper()
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		got := blank(t, g.Rank())
		_, err := protocol.Load(ctx, protocol.RankLoad{Group: g, Planner: new(plan.DefaultLoad), Reader: storage.NewReader(native.Format{}.Open, s, storage.ReadOptions{}), State: got})
		if err != nil {
			return err
		}
		return compare(t, got, g.Rank(), seed)
	})
	if err := errors.Join(errs...); err != nil {
		t.Errorf("load: %v", err)
	}
}

func compare(t testing.TB, got plan.State, rank int, seed byte) error {
	x := storagetest.Filled(t, tensor.Float32, []int64{16, 6}, seed)
	want := storagetest.Cut(t, storagetest.Along(1, world), x, rank)
	v := got["v"].(map[string]any)
	switch {
	case !tensor.Equal(want.Local(), got["x"].(interface{ Local() *tensor.Tensor }).Local()):
		return errors.New("x has other elements")
	case !tensor.Equal(storagetest.Filled(t, tensor.Int64, []int64{5}, seed), got["b"].(*tensor.Tensor)):
		return errors.New("b has other elements")
	case v["n"] != int64(seed) || len(v["big"].([]byte)) != 20_000 || v[fmt.Sprint("own", rank)] != int64(rank):
		return fmt.Errorf("values %v", v["n"])
	}
	return nil
}

// checkSame fails unless every rank returned a *group.StepError of that step
// with the same text, which names exactly those ranks; or, of steps that stop
// early, some of them: the first failure may keep the others from theirs.
func checkSame(t *testing.T, errs []error, step string, ranks []int) {
	t.Helper()
	for r, err := range errs {
		se, ok := errors.AsType[*group.StepError](err)
		if !ok {
			t.Errorf("rank %d returned %v; want a *group.StepError", r, err)
			continue
		}
		named := slices.Equal(se.Ranks(), ranks)
		if step == "write" || step == "read" {
			named = len(se.Ranks()) > 0 && !slices.ContainsFunc(se.Ranks(), func(r int) bool { return !slices.Contains(ranks, r) })
		}
		if se.Step != step || !named || err.Error() != errs[0].Error() {
			t.Errorf("rank %d returned %v, of step %q, ranks %v; want %q, %v, on all ranks alike", r, err, se.Step, se.Ranks(), step, ranks)
		}
	}
}
