package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// LoadJob is one rank's part in a load.
type LoadJob struct {
	Group   group.Group
	Planner plan.LoadPlanner
	Reader  storage.Reader
	State   plan.State
	// Share lets ranks that need the same bytes read them for each other, where
	// they can. BufferBytes bounds the memory for that. Zero: 1 GiB.
	Share       bool
	BufferBytes int64
	Observer
}

// LoadResult says what a load did.
type LoadResult struct {
	Metadata *meta.Metadata
	// Local counts what this rank read, Total what all did.
	Local, Total storage.ReadStats
	PlanTime     time.Duration
	ReadTime     time.Duration
}

// Load carries a load out. Every rank of the group calls it, with whatever
// state it has to fill, be it empty; every rank returns the same error, if any,
// and the state's contents are undefined then.
func Load(ctx context.Context, job LoadJob) (*LoadResult, error) {
	start := time.Now()
	l := &loadRun{LoadJob: job}
	own, err := group.ReduceScatter(ctx, l.Group, "plan", loadCodec{}, loadCodec{}, l.localPlan, l.globalPlan)
	if err != nil {
		return nil, err
	}
	planned := time.Now()
	out := &LoadResult{Metadata: l.md, PlanTime: planned.Sub(start)}
	out.Total, err = group.AllReduce(ctx, group.StopEarly(l.Group), "read", group.JSON[storage.ReadStats](), group.JSON[storage.ReadStats](),
		func(ctx context.Context) (storage.ReadStats, error) {
			var err error
			out.Local, err = l.read(ctx, own)
			return out.Local, err
		}, sumStats)
	if err != nil {
		return nil, err
	}
	plan.Unbind(l.State, l.bound)
	out.ReadTime = time.Since(planned)
	return out, nil
}

func sumStats(_ context.Context, all []storage.ReadStats) (storage.ReadStats, error) {
	var sum storage.ReadStats
	for _, s := range all {
		sum.Add(s)
	}
	return sum, nil
}

type loadRun struct {
	LoadJob
	md    *meta.Metadata
	bound plan.State // what the planner was given to fill State
}

// loadMessage is a plan and the save it was made for: ranks that read the
// metadata of different saves must not load together.
type loadMessage struct {
	saveID string
	plan   *plan.LoadPlan
	// takes says that the rank can read for others and have them read for it.
	takes bool
	// replicated says that the ranks read some bytes more than once.
	replicated bool
	// share is what comes of it, and tag that of the messages between the ranks.
	share *plan.Share
	tag   int
}

func (l *loadRun) localPlan(ctx context.Context) (loadMessage, error) {
	md, err := given("the reader's ReadMetadata", func() (*meta.Metadata, error) { return l.Reader.ReadMetadata(ctx) })
	if err != nil {
		return loadMessage{}, err
	}
	l.md = md
	rank, size := l.Group.Rank(), l.Group.Size()
	setup := plan.LoadSetup{State: l.State, Metadata: md, Rank: rank, Size: size, Coordinator: rank == 0}.Bind()
	l.bound = setup.State
	err = l.Planner.SetUp(setup)
	if err != nil {
		return loadMessage{}, err
	}
	err = l.Reader.SetUp(ctx, md, storage.Session{
		Rank: rank, Size: size, Coordinator: rank == 0, Storage: md.Storage, Progress: l.Moved, Warn: l.Warned,
	})
	if err != nil {
		return loadMessage{}, err
	}
	p, err := given("the planner's LocalPlan", l.Planner.LocalPlan)
	if err != nil {
		return loadMessage{}, err
	}
	p, err = given("the reader's PrepareLocalPlan", func() (*plan.LoadPlan, error) { return l.Reader.PrepareLocalPlan(ctx, p) })
	return loadMessage{saveID: md.Storage.SaveID, plan: p, takes: l.takes()}, err
}

func (l *loadRun) globalPlan(ctx context.Context, all []loadMessage) ([]loadMessage, error) {
	plans := make([]*plan.LoadPlan, len(all))
	for r, m := range all {
		if m.saveID != all[0].saveID {
			return nil, fmt.Errorf("%w: rank 0 sees save %s, rank %d %s", storage.ErrChanged, all[0].saveID, r, m.saveID)
		}
		plans[r] = m.plan
	}
	plans, err := givenAll("the planner's GlobalPlan", len(all), func() ([]*plan.LoadPlan, error) { return l.Planner.GlobalPlan(plans) })
	if err != nil {
		return nil, err
	}
	plans, err = givenAll("the reader's PrepareGlobalPlan", len(all), func() ([]*plan.LoadPlan, error) {
		return l.Reader.PrepareGlobalPlan(ctx, plans)
	})
	if err != nil {
		return nil, err
	}
	out := make([]loadMessage, len(plans))
	again := replicated(l.md, plans)
	for r, p := range plans {
		out[r] = loadMessage{plan: p, replicated: again}
	}
	l.elect(out, all)
	return out, nil
}

// replicated reports whether the plans read a good part of the checkpoint more
// than once: together they ask for at least a quarter more elements than it has.
func replicated(md *meta.Metadata, plans []*plan.LoadPlan) bool {
	var has, asked int64
	for i := range md.Entries {
		if t := md.Entries[i].Tensor; t != nil {
			has += tensor.Whole(t.Shape).Volume()
		}
	}
	for _, p := range plans {
		for i := range p.Items {
			asked += tensor.Whole(p.Items[i].Lengths).Volume()
		}
	}
	return asked-has > has/4
}

func (l *loadRun) read(ctx context.Context, own loadMessage) (storage.ReadStats, error) {
	p, err := given("the planner's FinishPlan", func() (*plan.LoadPlan, error) { return l.Planner.FinishPlan(own.plan) })
	if err != nil {
		return storage.ReadStats{}, err
	}
	l.planned(l.bytes(p))
	if own.share == nil {
		q := *p
		q.Replicated = own.replicated
		return l.Reader.ReadData(ctx, &q, target{l.Planner})
	}
	if !sameItems(p, own.plan) {
		return storage.ReadStats{}, fmt.Errorf("%w: the planner shares its items and has changed them", plan.ErrProtocol)
	}
	s, err := l.newSharing(p, own.share, own.tag)
	if err != nil {
		return storage.ReadStats{}, err
	}
	return s.run(ctx)
}

// bytes returns how many bytes the plan's items ask for.
func (l *loadRun) bytes(p *plan.LoadPlan) int64 {
	var n int64
	for i := range p.Items {
		it := &p.Items[i]
		e, ok := l.md.Find(it.Source.FQN)
		switch {
		case !ok:
		case e.Tensor != nil:
			n += it.SourceBox().Volume() * int64(e.Tensor.DType.Size())
		case e.Bytes.Inline == nil:
			n += e.Bytes.Size
		}
	}
	return n
}
