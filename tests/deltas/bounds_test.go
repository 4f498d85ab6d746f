package deltas

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// changing is a state. Its tensors change at random, each in its own rhythm.
type changing struct {
	random  *rand.Rand
	tensors map[string]*tensor.Tensor
	every   map[string]int  // a tensor changes every so many steps
	sparse  map[string]bool // few of its elements change
}

func newChanging(t testing.TB, random *rand.Rand, tensors int) *changing {
	s := &changing{random, map[string]*tensor.Tensor{}, map[string]int{}, map[string]bool{}}
	for i := range tensors {
		name := fmt.Sprintf("t%02d", i)
		x := must.Get(tensor.New(tensor.BFloat16, []int64{8, int64(512 + 512*random.IntN(8))}))(t)
		randomize(x.Contents(), random)
		s.tensors[name] = x
		s.every[name] = []int{1, 1, 2, 3, 5, 7, 1000}[random.IntN(7)]
		s.sparse[name] = random.IntN(2) == 0
	}
	return s
}

func randomize(b []byte, random *rand.Rand) {
	for i := range b {
		b[i] = byte(random.Uint32())
	}
}

// step changes the state after step n. The names are in order, so that a seed repeats it.
func (s *changing) step(n int) {
	for _, name := range slices.Sorted(maps.Keys(s.tensors)) {
		if n%s.every[name] != 0 {
			continue
		}
		b := s.tensors[name].Contents()
		if !s.sparse[name] {
			randomize(b, s.random)
			continue
		}
		for range len(b) / 200 {
			b[s.random.IntN(len(b))]++
		}
	}
}

// of returns the tensors of a rank.
func (s *changing) of(rank, ranks int) cairn.State {
	out := cairn.State{}
	for i, name := range slices.Sorted(maps.Keys(s.tensors)) {
		if i%ranks == rank {
			out[name] = s.tensors[name]
		}
	}
	return out
}

// Whatever changes from save to save, a run that is pruned keeps few checkpoints and few bytes
// for others, and all that is kept loads as it was saved. If tests do little, some policies are left
// out, others in each run.
func TestBoundsOfARun(t *testing.T) {
	random := rand.New(rand.NewPCG(deep.Seed(t), 1))
	policies := []string{"last 1", "last 2", "last 4", "every 10 steps", "last 2, every 7 steps", "best 3 by loss", "at most 2.5", "last 1, tagged", "last 3, at most 1.2"}
	for _, i := range random.Perm(len(policies))[:deep.Rounds(4, len(policies))] {
		policy, remember, ranks, own := policies[i], i%2 == 1, 1+i%3, rand.New(rand.NewPCG(random.Uint64(), 1))
		t.Run(policy, func(t *testing.T) { testBounds(t, own, policy, remember, ranks) })
	}
}

func testBounds(t *testing.T, random *rand.Rand, policy string, remember bool, ranks int) {
	s := newChanging(t, random, 12)
	whole := bytesOfAlone(t, s, ranks)
	if rules, states, ok := strings.Cut(policy, "at most "); ok { // so many times the bytes of the state
		policy = fmt.Sprintf("%sat most %d B", rules, int64(must.Get(strconv.ParseFloat(states, 64))(t)*float64(whole)))
	}
	keep := must.Get(cairn.ParsePolicy(policy))(t)
	address := t.TempDir()
	if remember && random.IntN(2) == 0 {
		address = fmt.Sprintf("bounds%d://run", random.Uint32())
		registerService(blob.Scheme(address))
	}
	open := func() []*cairn.Run {
		runs := make([]*cairn.Run, ranks)
		for i, g := range inproc.New(ranks) {
			runs[i] = must.Get(cairn.NewRun(address, &cairn.RunOptions{Group: g, Remember: remember}))(t)
		}
		return runs
	}
	pruned := must.Get(run.Open(t.Context(), address, ""))(t) // at known times, and not by the saves
	runs, want := open(), map[string]map[string][]byte{}
	for n := 1; n <= deep.Rounds(12, 48); n++ {
		step, metrics := int64(n), map[string]float64{"loss": random.Float64()}
		bases := make([]string, ranks) // of ranks with a base of their own
		for rank := range bases {
			if all := must.Get(pruned.Checkpoints(t.Context()))(t); len(all) > 0 && random.IntN(6) == 0 {
				bases[rank] = all[random.IntN(len(all))].Name
			}
		}
		onRanksOf(t, runs, func(ctx context.Context, rank int, r *cairn.Run) error {
			o := &cairn.SaveOptions{Step: &step, Metrics: metrics}
			if base := bases[rank]; base != "" {
				o.Base = &storage.Base{Folder: base}
			}
			_, err := r.Save(ctx, s.of(rank, ranks), o)
			return err
		})
		name := run.FolderName(step)
		want[name] = contentsOf(s.tensors)
		if random.IntN(8) == 0 {
			must.Do(t, runs[0].Note(t.Context(), name, func(n *cairn.Notes) error { n.Tags = []string{"x"}; return nil }))
		}
		must.Get(pruned.Prune(t.Context(), &run.PruneOptions{Keep: keep}))(t)
		bytes := jobtest.CheckBounds(t, pruned, keep, whole)
		if keep.AtMost > 0 && bytes > keep.AtMost {
			t.Fatalf("%d bytes stay; want at most %d", bytes, keep.AtMost)
		}
		if random.IntN(10) == 0 { // other processes go on
			closeRuns(t, runs)
			runs = open()
			onRanksOf(t, runs, func(ctx context.Context, rank int, r *cairn.Run) error {
				_, err := r.Load(ctx, s.of(rank, ranks), nil)
				return err
			})
		}
		s.step(n)
	}
	closeRuns(t, runs)
	for _, c := range must.Get(pruned.Checkpoints(t.Context()))(t) {
		store := must.Get(cairn.OpenStore(blob.JoinAddress(address, c.Name)))(t)
		checkContents(t, store, want[c.Name], s.tensors, 1)
	}
}

// bytesOfAlone returns the bytes of a checkpoint of s that stands alone.
func bytesOfAlone(t *testing.T, s *changing, ranks int) int64 {
	dir := t.TempDir()
	store := must.Get(cairn.OpenStore(filepath.Join(dir, "a")))(t)
	jobtest.OnRanks(t, ranks, func(ctx context.Context, g group.Group) error {
		_, err := cairn.Save(ctx, store, s.of(g.Rank(), ranks), &cairn.SaveOptions{Group: g})
		return err
	})
	return bytesOf(t, dir)
}

func contentsOf(all map[string]*tensor.Tensor) map[string][]byte {
	out := map[string][]byte{}
	for name, x := range all {
		out[name] = slices.Clone(x.Contents())
	}
	return out
}

// onRanksOf calls fn for each rank at the same time.
func onRanksOf(t *testing.T, runs []*cairn.Run, fn func(ctx context.Context, rank int, r *cairn.Run) error) {
	t.Helper()
	jobtest.OnRanks(t, len(runs), func(ctx context.Context, g group.Group) error { return fn(ctx, g.Rank(), runs[g.Rank()]) })
}

func closeRuns(t *testing.T, runs []*cairn.Run) {
	t.Helper()
	for _, r := range runs {
		must.Do(t, r.Close(t.Context()))
	}
}
