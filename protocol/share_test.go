package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// shapes are the tensors of these tests: some are small and travel together, the
// others alone.
var shapes = map[string][]int64{
	"scalar": {}, "small": {7, 5}, "medium": {20_000}, "other": {30_000},
	"pair0": {180, 100}, "pair1": {18_000}, "pair2": {180, 100}, "pair3": {18_000},
}

// wantedBy reports whether a rank wants a tensor: all want most of them, and two
// each of the others, so that every rank reads something for others.
func wantedBy(rank int, name string) bool {
	var i int
	if _, err := fmt.Sscanf(name, "pair%d", &i); err != nil {
		return true
	}
	return rank == i || rank == (i+1)%world
}

// saveReplicas saves the tensors of shapes, and a part of another for each rank.
func saveReplicas(t *testing.T, s blob.Store) {
	t.Helper()
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		job := saveJob(t, g, s, "id", 1)
		for name, shape := range shapes {
			job.State[name] = storagetest.Filled(t, tensor.Float32, shape, name[0])
		}
		_, err := protocol.Save(ctx, job)
		return err
	})
	must.Do(t, errors.Join(errs...))
}

// replica returns the state that a rank loads into: the tensors of shapes in memory of
// different kinds and dtypes, depending on the rank.
func replica(t testing.TB, rank int) plan.State {
	s := blank(t, rank)
	for name, shape := range shapes {
		if !wantedBy(rank, name) {
			continue
		}
		d := tensor.Float32
		if (rank+len(name))%3 == 1 {
			d = tensor.Float64
		}
		x, err := tensor.New(d, shape)
		if (rank+len(name))%4 == 2 && len(shape) == 2 {
			if x, err = tensor.New(d, []int64{shape[1], shape[0]}); err == nil {
				x, err = x.Transpose(0, 1)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		s[name] = x
	}
	return s
}

// checkReplica checks the state that a rank has loaded.
func checkReplica(t testing.TB, s plan.State, rank int) error {
	for name, shape := range shapes {
		if !wantedBy(rank, name) {
			continue
		}
		got := s[name].(*tensor.Tensor)
		want, err := tensor.New(got.DType(), shape)
		if err == nil {
			err = tensor.Convert(want, storagetest.Filled(t, tensor.Float32, shape, name[0]), tensor.CastAny)
		}
		if err != nil {
			return err
		}
		if !tensor.Equal(got, want) {
			return fmt.Errorf("%s has other elements", name)
		}
	}
	return compare(t, s, rank, 1)
}

func shareJob(t testing.TB, g group.Group, s blob.Store) protocol.RankLoad {
	return protocol.RankLoad{
		Group: g, Planner: new(plan.DefaultLoad), Reader: storage.NewReader(native.Format{}.Open, s, storage.ReadOptions{}), State: replica(t, g.Rank()), Share: true,
	}
}

// Shared bytes are read once, and ranks load the same state as without sharing.
func TestShareReadsBytesOnce(t *testing.T) {
	s := new(mem.Store)
	saveReplicas(t, s)
	only := func(ranks ...int) (takes [world]bool) {
		for _, r := range ranks {
			takes[r] = true
		}
		return takes
	}
	all := only(0, 1, 2, 3)
	for name, c := range map[string]struct {
		change func(job *protocol.RankLoad, rank int)
		takes  [world]bool
	}{
		"all":                     {func(*protocol.RankLoad, int) {}, all},
		"none asks":               {func(j *protocol.RankLoad, _ int) { j.Share = false }, only()},
		"one asks":                {func(j *protocol.RankLoad, r int) { j.Share = r == 2 }, only()},
		"three ask":               {func(j *protocol.RankLoad, r int) { j.Share = r != 0 }, only(1, 2, 3)},
		"one has no messages":     {func(j *protocol.RankLoad, r int) { j.Group = without(j.Group, r == 1) }, only(0, 2, 3)},
		"one has another planner": {func(j *protocol.RankLoad, r int) { j.Planner = planners[min(r, 1)]() }, only(1, 2, 3)},
		"a planner of their own":  {func(j *protocol.RankLoad, r int) { j.Planner = &LoadPlanner{Share: true} }, all},
		"next to no memory":       {func(j *protocol.RankLoad, _ int) { j.BufferBytes = 1 }, all},
		"little memory":           {func(j *protocol.RankLoad, _ int) { j.BufferBytes = 256 << 10 }, all},
		"no room for messages":    {func(j *protocol.RankLoad, _ int) { j.Group = &narrow{Group: j.Group.(*inproc.Group)} }, all},
		"neither room nor memory": {func(j *protocol.RankLoad, _ int) { j.Group, j.BufferBytes = &narrow{Group: j.Group.(*inproc.Group)}, 1 }, all},
		"all convert":             {func(j *protocol.RankLoad, r int) { widen(t, j.State) }, all},
		"all convert, no room": {func(j *protocol.RankLoad, r int) {
			widen(t, j.State)
			j.Group, j.BufferBytes = &narrow{Group: j.Group.(*inproc.Group)}, 1
		}, all},
		"a reader that copies":   {func(j *protocol.RankLoad, _ int) { j.Reader = copying{j.Reader} }, all},
		"storage that has a say": {func(j *protocol.RankLoad, _ int) { j.Reader = &annotated{j.Reader} }, only()},
	} {
		t.Run(name, func(t *testing.T) { testShared(t, s, c.takes, c.change) })
	}
}

// widen makes all tensors of a state such that no part can be read or received in place.
func widen(t testing.TB, s plan.State) {
	for name := range shapes {
		if x, ok := s[name].(*tensor.Tensor); ok {
			s[name] = storagetest.Filled(t, tensor.Float64, x.Shape(), 0)
		}
	}
}

// expected returns the bytes of tensors that all want or two want that are read
// and received in all where those ranks take part.
func expected(takes [world]bool) (read, received int64) {
	count := func(bytes int64, wanted func(rank int) bool) {
		var n, in int64
		for r := range world {
			if wanted(r) && takes[r] {
				in++
			} else if wanted(r) {
				n++
			}
		}
		read += (n + min(in, 1)) * bytes
		received += max(0, in-1) * bytes
	}
	for name, shape := range shapes {
		count(4*tensor.Whole(shape).Volume(), func(rank int) bool { return wantedBy(rank, name) })
	}
	count(5*8, func(int) bool { return true }) // "b"
	return read, received
}

func testShared(t *testing.T, s blob.Store, takes [world]bool, change func(job *protocol.RankLoad, rank int)) {
	post := new(post)
	read, received := expected(takes)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		job := shareJob(t, g, s)
		change(&job, g.Rank())
		if n, ok := job.Group.(*narrow); ok {
			n.post = post
		}
		var planned, moved atomic.Int64
		job.Observer = &protocol.Observer{Planned: func(n int64) { planned.Add(n) }, Moved: func(n int64) { moved.Add(n) }}
		r, err := protocol.Load(ctx, job)
		if err != nil {
			return err
		}
		if p, m := planned.Load(), moved.Load(); p != m || p != r.Local.Needed {
			t.Errorf("rank %d planned %d bytes, moved %d and needed %d", g.Rank(), p, m, r.Local.Needed)
		}
		if r.Total.Received != received || r.Local.Received > r.Local.Needed {
			t.Errorf("received %d bytes in all; want %d; of %+v", r.Total.Received, received, r.Local)
		}
		// Beside them each rank reads a share of "x", by columns, and values.
		if most := read + world*(16*6*4+21_000); r.Total.Read > most || r.Total.Read < read {
			t.Errorf("read %d bytes in all; want %d and some", r.Total.Read, read)
		}
		return checkReplica(t, job.State, g.Rank())
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

var planners = []func() plan.LoadPlanner{
	func() plan.LoadPlanner { return new(LoadPlanner) }, // does not say that it shares
	func() plan.LoadPlanner { return new(plan.DefaultLoad) },
}

// without returns g, without the methods that send messages if messages is set.
func without(g group.Group, messages bool) group.Group {
	if messages {
		return struct{ group.Group }{g}
	}
	return g
}

// copying is a reader that hands over copies of its items.
type copying struct{ storage.Reader }

func (r copying) ReadData(ctx context.Context, p *plan.LoadPlan, dst storage.Receiver) (storage.ReadStats, error) {
	q := *p
	q.Items = slices.Clone(p.Items)
	return r.Reader.ReadData(ctx, &q, dst)
}

// annotated is a reader that says something of its plans.
type annotated struct{ storage.Reader }

func (r *annotated) PrepareLocalPlan(_ context.Context, p *plan.LoadPlan) (*plan.LoadPlan, error) {
	q := *p
	q.StorageData = []byte("item 3 first")
	return &q, nil
}

// If two names have the same tensor, no rank receives a mixture of both.
func TestShareTensorWithTwoNames(t *testing.T) {
	s := new(mem.Store)
	saveReplicas(t, s)
	for range 5 {
		errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
			job := shareJob(t, g, s)
			if g.Rank()%2 == 0 { // these fill one memory from two sources
				both := storagetest.Filled(t, tensor.Float32, []int64{30_000}, 0)
				part, err := both.Narrow(tensor.Box{Offsets: []int64{0}, Sizes: []int64{20_000}})
				if err != nil {
					return err
				}
				job.State["other"], job.State["medium"] = both, part
			}
			if _, err := protocol.Load(ctx, job); err != nil || g.Rank()%2 == 0 {
				return err
			}
			return checkReplica(t, job.State, g.Rank())
		})
		must.Do(t, errors.Join(errs...))
	}
}
