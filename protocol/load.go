package protocol

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// RankLoad is one rank's part in a load.
type RankLoad struct {
	Group   group.Group
	Planner plan.LoadPlanner
	Reader  storage.Reader
	State   plan.State
	// Metadata describes the checkpoint. Nil: Reader reads it.
	Metadata *meta.Metadata
	// Share lets one of the ranks that need the same bytes read them and send them to
	// the other ranks, if possible. BufferBytes bounds the memory for that. Zero:
	// 1 GiB.
	Share       bool
	BufferBytes int64
	// Host is the host of this rank. Ranks read only for ranks with the same host.
	Host string
	// Observer receives the progress of this rank. Nil: it is not reported.
	Observer *Observer
	// Recorder notes the phases of this rank. Nil: Load makes one that reports to
	// Observer.
	Recorder *Recorder

	rank, size int
	adopt      func() error // copies the values that the planner has assigned to State
}

// localPlan sets the planner and the reader up and returns this rank's plan.
func (l *RankLoad) localPlan(ctx context.Context) (*plan.LoadPlan, error) {
	if l.Metadata == nil {
		md, err := given("the reader's ReadMetadata", func() (*meta.Metadata, error) { return l.Reader.ReadMetadata(ctx) })
		if err != nil {
			return nil, err
		}
		l.Metadata = md
	}

	coordinator := l.rank == 0
	setup := plan.LoadSetup{State: l.State, Metadata: l.Metadata, Rank: l.rank, Size: l.size, Coordinator: coordinator}
	var err error
	if l.adopt, err = setup.SetUp(l.Planner); err != nil {
		return nil, err
	}

	err = l.Reader.SetUp(ctx, l.Metadata, storage.Session{
		Rank: l.rank, Size: l.size, Coordinator: coordinator, Storage: l.Metadata.Storage,
		Progress: l.Observer.Moved, Warn: l.warn(),
	})
	if err != nil {
		return nil, err
	}

	p, err := given("the planner's LocalPlan", l.Planner.LocalPlan)
	if err != nil {
		return nil, err
	}
	return given("the reader's PrepareLocalPlan", func() (*plan.LoadPlan, error) { return l.Reader.PrepareLocalPlan(ctx, p) })
}

// globalPlan makes the final plans from the plans of all ranks.
func (l *RankLoad) globalPlan(ctx context.Context, plans []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	out, err := givenAll("the planner's GlobalPlan", len(plans), func() ([]*plan.LoadPlan, error) { return l.Planner.GlobalPlan(plans) })
	if err != nil {
		return nil, err
	}
	return givenAll("the reader's PrepareGlobalPlan", len(plans), func() ([]*plan.LoadPlan, error) {
		return l.Reader.PrepareGlobalPlan(ctx, out)
	})
}

// finishPlan completes this rank's final plan.
func (l *RankLoad) finishPlan(p *plan.LoadPlan) (*plan.LoadPlan, error) {
	return given("the planner's FinishPlan", func() (*plan.LoadPlan, error) { return l.Planner.FinishPlan(p) })
}

// readData reads the items of a plan that finishPlan returned.
func (l *RankLoad) readData(ctx context.Context, p *plan.LoadPlan) (storage.ReadStats, error) {
	return l.Reader.ReadData(ctx, p, target{l.Planner})
}

// bytes returns how many bytes the plan's items ask for.
func (l *RankLoad) bytes(p *plan.LoadPlan) int64 {
	var n int64
	for i := range p.Items {
		it := &p.Items[i]
		e, ok := l.Metadata.Find(it.Source.FQN)
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

// Load runs one rank's part in a load. Every rank of the group calls it with the
// state to fill, which may be empty. If the load fails, every rank returns the same
// error, and the contents of the state are undefined.
func Load(ctx context.Context, job RankLoad) (*LoadReport, error) {
	l := &job
	l.rank, l.size = l.Group.Rank(), l.Group.Size()
	if l.Observer == nil {
		l.Observer = new(Observer)
	}

	if l.Recorder != nil {
		return l.run(ctx)
	}

	l.Recorder = NewRecorder(ctx, OpLoad, l.rank, nil, l.Observer)
	out, err := l.run(ctx)
	l.Recorder.End(out.rankBytes(), err)
	return out, err
}

func (l *RankLoad) run(ctx context.Context) (*LoadReport, error) {
	start := time.Now()
	own, err := group.Assign(ctx, l.Group, "plan", loadCodec{}, loadCodec{}, l.propose, l.decide)
	if err != nil {
		return nil, err
	}

	l.Recorder.agreed()
	planned := time.Now()
	st := l.Metadata.Storage
	l.Recorder.Describe(&st)

	out := &LoadReport{SaveID: st.SaveID, Step: st.Step, PlanTime: planned.Sub(start)}
	out.Total, err = group.Decide(ctx, group.StopEarly(l.Group), "read", group.JSON[storage.ReadStats](), group.JSON[storage.ReadStats](),
		func(ctx context.Context) (storage.ReadStats, error) {
			ctx, phase := l.Recorder.Begin(ctx, meta.PhaseRead)
			var err error
			if out.Local, err = l.read(ctx, own); err == nil {
				err = l.adopt()
			}
			phase.End(out.Local.Needed, err)
			return out.Local, err
		}, sumStats)
	if err != nil {
		return nil, err
	}

	out.ReadTime = time.Since(planned)
	if m, ok := l.Planner.(interface{ Missing() []string }); ok {
		out.Missing = m.Missing()
	}
	out.Phases = l.Recorder.Phases()
	return out, nil
}

// warn returns the function that receives errors that do no harm, or nil.
func (l *RankLoad) warn() func(error) {
	if l.Recorder != nil {
		return l.Recorder.Warn
	}
	return l.Observer.Warned
}

func sumStats(_ context.Context, all []storage.ReadStats) (storage.ReadStats, error) {
	var sum storage.ReadStats
	for _, s := range all {
		sum.Add(s)
	}
	return sum, nil
}

// propose returns the message that this rank sends to the coordinator.
func (l *RankLoad) propose(ctx context.Context) (_ loadMessage, err error) {
	ctx, phase := l.Recorder.Begin(ctx, meta.PhasePlan)
	defer func() { phase.End(0, err) }()
	p, err := l.localPlan(ctx)
	if err != nil {
		return loadMessage{}, err
	}
	return loadMessage{saveID: l.Metadata.Storage.SaveID, plan: p, canShare: l.canShare(), host: l.Host}, nil
}

// decide returns the message that the coordinator sends to each rank.
func (l *RankLoad) decide(ctx context.Context, all []loadMessage) (_ []loadMessage, err error) {
	ctx, phase := l.Recorder.Begin(ctx, meta.PhaseGlobalPlan)
	defer func() { phase.End(0, err) }()

	plans := make([]*plan.LoadPlan, len(all))
	for r, m := range all {
		if m.saveID != all[0].saveID {
			return nil, fmt.Errorf("%w: rank 0 has read save %s, rank %d save %s", storage.ErrChanged, all[0].saveID, r, m.saveID)
		}
		plans[r] = m.plan
	}

	plans, err = l.globalPlan(ctx, plans)
	if err != nil {
		return nil, err
	}

	out := make([]loadMessage, len(plans))
	manyReads := replicated(l.Metadata, plans)
	for r, p := range plans {
		out[r] = loadMessage{plan: p, replicated: manyReads}
	}

	l.assignReaders(out, all)
	return out, nil
}

// replicated reports whether the plans read a large part of the checkpoint more
// than once: together they ask for over a quarter more elements than it has.
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

// read reads the items that the coordinator's answer assigns to this rank.
func (l *RankLoad) read(ctx context.Context, own loadMessage) (storage.ReadStats, error) {
	p, err := l.finishPlan(own.plan)
	if err != nil {
		return storage.ReadStats{}, err
	}
	if own.share == nil {
		l.Observer.planned(l.bytes(p))
		q := *p
		q.Replicated = own.replicated
		return l.readData(ctx, &q)
	}

	if !sameItems(p, own.plan) {
		return storage.ReadStats{}, fmt.Errorf("%w: the planner's FinishPlan has changed items that are shared", plan.ErrProtocol)
	}

	s, err := l.newSharing(p, own.share, own.tag)
	if err != nil {
		return storage.ReadStats{}, err
	}

	l.Observer.planned(l.bytes(p) + s.foreign())
	return s.run(ctx)
}

// loadMessage is a plan and the save that it was made for: ranks that have read
// the metadata of different saves must not load together.
type loadMessage struct {
	saveID string
	plan   *plan.LoadPlan
	// canShare is set if this rank and other ranks of host can read for each other.
	canShare bool
	host     string
	// replicated is set if the ranks read many bytes more than once.
	replicated bool
	// share lists which rank reads which pieces for which ranks, and tag is the tag
	// of the messages between them. Nil: this rank reads for itself.
	share *plan.SharedReads
	tag   int
}

// loadCodec encodes load messages.
type loadCodec struct{}

func (loadCodec) Encode(m loadMessage) ([]byte, error) {
	b, err := plan.LoadPlanCodec{}.Encode(m.plan)
	if err != nil {
		return nil, err
	}

	w := wire.Writer{B: make([]byte, 0, len(b)+64)}
	w.String(m.saveID)
	w.Bytes(b)
	w.Bool(m.canShare)
	w.String(m.host)
	w.Bool(m.replicated)
	w.Bool(m.share != nil)

	if m.share == nil {
		return w.B, nil
	}

	if b, err = (plan.SharedReadsCodec{}).Encode(m.share); err != nil {
		return nil, err
	}

	w.Uvarint(uint64(m.tag))
	w.Bytes(b)
	return w.B, nil
}

func (loadCodec) Decode(b []byte) (loadMessage, error) {
	r := wire.NewReader(b)
	m := loadMessage{saveID: r.String()}
	body := r.Bytes()
	m.canShare = r.Bool()
	m.host = r.String()
	m.replicated = r.Bool()
	shared := r.Bool()
	var share []byte
	if shared {
		m.tag = r.CountMax(math.MaxInt)
		share = r.Bytes()
	}

	if err := r.Done(); err != nil {
		return m, err
	}

	var err error
	if m.plan, err = (plan.LoadPlanCodec{}).Decode(body); err == nil && shared {
		m.share, err = plan.SharedReadsCodec{}.Decode(share)
	}
	return m, err
}
