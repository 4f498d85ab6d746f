package storagetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

var errOnPurpose = errors.New("went wrong on purpose")

// prepared returns a save that has come as far as its plans.
func (s *suite) prepared(t *testing.T, p Place, states ...plan.State) *Saving {
	t.Helper()
	sv := NewSaving(p, Storage("prepared", 1, len(states)), len(states))
	must.Do(t, sv.Plan(t.Context(), states))
	return sv
}

func (s *suite) plansStay(t *testing.T, p Place) {
	encode := func(plans ...*plan.SavePlan) [][]byte {
		var out [][]byte
		for _, q := range plans {
			b, err := plan.SavePlanCodec{}.Encode(q)
			must.Do(t, err)
			out = append(out, b)
		}
		return out
	}

	equal := func(a, b [][]byte) bool { return slices.EqualFunc(a, b, slices.Equal) }
	sv := s.prepared(t, p, s.sample(t, 1))
	local, err := sv.Planners[0].LocalPlan()
	must.Do(t, err)

	before := encode(local)
	if _, err := sv.Writers[0].PrepareLocalPlan(t.Context(), local); err != nil || !equal(before, encode(local)) {
		t.Errorf("PrepareLocalPlan = %v, or it changed its argument", err)
	}

	final, _, err := sv.Planners[0].GlobalPlan([]*plan.SavePlan{local})
	if err != nil {
		t.Fatal(err)
	}

	given := slices.Clone(final)
	before = encode(final...)
	if _, err := sv.Writers[0].PrepareGlobalPlan(t.Context(), given); err != nil || !equal(before, encode(final...)) || given[0] != final[0] {
		t.Errorf("PrepareGlobalPlan = %v, or it changed its argument", err)
	}

	before = encode(sv.Plans...)
	if err := sv.Write(t.Context()); err != nil || !equal(before, encode(sv.Plans...)) {
		t.Errorf("WriteData = %v, or it changed its argument", err)
	}
}

func (s *suite) badResults(t *testing.T, p Place) {
	for name, spoil := range map[string]func(r *storage.WriteResults){
		"an item is missing": func(r *storage.WriteResults) { r.Items = r.Items[1:] },
		"an item comes twice": func(r *storage.WriteResults) {
			r.Items = append(r.Items, r.Items[0])
		},
		"an item comes instead of another": func(r *storage.WriteResults) { r.Items[0] = r.Items[1] },
		"an item is unknown":               func(r *storage.WriteResults) { r.Items[0].Index.FQN = "stranger" },
	} {
		sv := s.prepared(t, p, s.small(t, 1))
		must.Do(t, sv.Write(t.Context()))
		spoil(sv.Results[0])

		if err := sv.Finish(t.Context()); err == nil || errors.Is(err, storage.ErrUncertain) {
			t.Errorf("%s: Finish = %v; want a refusal", name, err)
		}
		if err := sv.Abort(t.Context()); err != nil {
			t.Errorf("%s: Abort = %v", name, err)
		}
		s.emptyPlace(t, p)
	}
}

// resolver is a function that implements storage.Resolver.
type resolver func(it *plan.WriteItem) (plan.Data, error)

func (r resolver) Resolve(it *plan.WriteItem) (plan.Data, error) { return r(it) }

func (s *suite) badResolver(t *testing.T, p Place) {
	state := s.sample(t, 1)
	counted := s.prepared(t, p, state)
	n := len(counted.Plans[0].Items)
	must.Do(t, counted.Abort(t.Context()))

	for fail := range n {
		sv := s.prepared(t, p, state)
		var calls atomic.Int64
		_, err := sv.Writers[0].WriteData(t.Context(), sv.Plans[0], resolver(func(it *plan.WriteItem) (plan.Data, error) {
			if calls.Add(1) == int64(fail)+1 {
				return plan.Data{}, errOnPurpose
			}
			return sv.Planners[0].Resolve(it)
		}))
		if !errors.Is(err, errOnPurpose) {
			t.Errorf("item %d: WriteData = %v; want %v", fail, err, errOnPurpose)
		}
		if err := sv.Abort(t.Context()); err != nil {
			t.Errorf("item %d: Abort = %v", fail, err)
		}
	}

	s.emptyPlace(t, p)
}

func (s *suite) changedContent(t *testing.T, p Place) {
	type change struct {
		name string
		data plan.Data
	}
	wrong := map[string]change{
		"another shape": {"w", plan.Data{Tensor: Filled(t, s.DTypes[0], []int64{1, 1, 1}, 0)}},
		"nothing":       {"w", plan.Data{}},
		"bytes":         {"w", plan.Data{Bytes: make([]byte, 4000)}},
	}
	if len(s.DTypes) > 1 {
		wrong["another type"] = change{"w", plan.Data{Tensor: Filled(t, s.DTypes[1], []int64{4, 3}, 0)}}
	}

	if !s.NoValues {
		wrong["more bytes"] = change{"step", plan.Data{Bytes: make([]byte, 4000)}}
		wrong["no bytes"] = change{"step", plan.Data{}}
	}

	sv := s.prepared(t, p, s.small(t, 1))
	for what, c := range wrong {
		_, err := sv.Writers[0].WriteData(t.Context(), sv.Plans[0], resolver(func(it *plan.WriteItem) (plan.Data, error) {
			if it.FQN() == c.name {
				return c.data, nil
			}
			return sv.Planners[0].Resolve(it)
		}))
		if !errors.Is(err, plan.ErrState) {
			t.Errorf("%s: WriteData = %v; want %v", what, err, plan.ErrState)
		}
	}

	must.Do(t, sv.Abort(t.Context()))
	s.emptyPlace(t, p)
}

// saved saves a state and returns a load of it that has come as far as its plan.
func (s *suite) saved(t *testing.T, p Place, state plan.State) (*Loading, plan.State) {
	t.Helper()
	must.Do(t, Save(t.Context(), p, Storage("saved", 1, 1), state))
	into := blankState(t, state)
	l := NewLoading(p, 1)
	must.Do(t, l.Plan(t.Context(), []plan.State{into}))
	return l, into
}

// receiver counts the tensors and values that it receives, and fails at one of the calls.
type receiver struct {
	storage.Receiver
	t      testing.TB
	failAt int64

	calls    atomic.Int64
	mu       sync.Mutex
	resolved map[*plan.ReadItem]*tensor.Tensor
	finished map[*plan.ReadItem]int
}

func (r *receiver) next() error {
	if r.calls.Add(1) == r.failAt {
		return errOnPurpose
	}
	return nil
}

func (r *receiver) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	if err := r.next(); err != nil {
		return nil, err
	}

	x, err := r.Receiver.ResolveTensor(it)
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.resolved[it] != nil {
		r.t.Errorf("%v was resolved twice", it.Dest)
	}
	r.resolved[it] = x
	return x, err
}

func (r *receiver) CommitTensor(it *plan.ReadItem, x *tensor.Tensor) error {
	if err := r.next(); err != nil {
		return err
	}

	r.mu.Lock()
	r.finished[it]++
	if r.resolved[it] != x {
		r.t.Errorf("%v was committed with another tensor than was resolved", it.Dest)
	}
	r.mu.Unlock()
	return r.Receiver.CommitTensor(it, x)
}

func (r *receiver) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	if err := r.next(); err != nil {
		return err
	}
	r.mu.Lock()
	r.finished[it]++
	r.mu.Unlock()
	return r.Receiver.LoadBytes(it, codec, data)
}

func newReceiver(t testing.TB, r storage.Receiver, failAt int64) *receiver {
	return &receiver{Receiver: r, t: t, failAt: failAt, resolved: map[*plan.ReadItem]*tensor.Tensor{}, finished: map[*plan.ReadItem]int{}}
}

func (s *suite) handedOver(t *testing.T, p Place) {
	want := s.sample(t, 1)
	l, got := s.saved(t, p, want)
	r := newReceiver(t, l.Planners[0], 0)
	stats, err := l.Readers[0].ReadData(t.Context(), l.Plans[0], r)
	must.Do(t, err)

	items := l.Plans[0].Items
	for i := range items {
		if r.finished[&items[i]] != 1 {
			t.Errorf("%v was handed over %d times", items[i].Source, r.finished[&items[i]])
		}
	}

	if len(r.finished) != len(items) {
		t.Errorf("%d items were handed over; want %d", len(r.finished), len(items))
	}

	var tensors int64
	for _, x := range r.resolved {
		tensors += x.NumBytes()
	}

	if stats.Needed < tensors || stats.Rounded < stats.Needed || stats.Read <= 0 || stats.Requests <= 0 {
		t.Errorf("stats = %+v; want at least the %d bytes of the tensors", stats, tensors)
	}
	checkState(t, want, got)
}

// handedOverInParts loads the inner part of a long tensor, which takes several
// reads if the format checksums blocks.
func (s *suite) handedOverInParts(t *testing.T, p Place) {
	x := Filled(t, s.DTypes[0], []int64{3 << 20 / int64(s.DTypes[0].Size())}, 1)
	must.Do(t, Save(t.Context(), p, Storage("long", 1, 1), plan.State{"x": x}))
	box := tensor.Box{Offsets: []int64{1000}, Sizes: []int64{x.NumElements() - 2000}}
	part := must.Get(shard.Empty(shard.Boxes(map[int]tensor.Box{0: box}), x.DType(), x.Shape(), 0))(t)
	l := NewLoading(p, 1)
	must.Do(t, l.Plan(t.Context(), []plan.State{{"x": part}}))

	r := newReceiver(t, l.Planners[0], 0)
	if _, err := l.Readers[0].ReadData(t.Context(), l.Plans[0], r); err != nil {
		t.Fatalf("ReadData = %v", err)
	}
	if n := r.finished[&l.Plans[0].Items[0]]; n != 1 {
		t.Errorf("handed over %d times; want once", n)
	}
	if !tensor.Equal(part.Local(), must.Get(x.Narrow(box))(t)) {
		t.Error("other elements than were saved")
	}
}

func (s *suite) badReceiver(t *testing.T, p Place) {
	l, _ := s.saved(t, p, s.sample(t, 1))
	for n := int64(1); ; n++ {
		r := newReceiver(t, l.Planners[0], n)
		_, err := l.Readers[0].ReadData(t.Context(), l.Plans[0], r)
		if r.calls.Load() < n {
			if err != nil {
				t.Errorf("ReadData = %v; want nil", err)
			}
			return
		}

		if !errors.Is(err, errOnPurpose) {
			t.Errorf("call %d: ReadData = %v; want %v", n, err, errOnPurpose)
		}
	}
}

func (s *suite) badItems(t *testing.T, p Place) {
	l, _ := s.saved(t, p, s.small(t, 1))
	good := l.Plans[0].Items
	at := slices.IndexFunc(good, func(it plan.ReadItem) bool { return it.Source.FQN == "w" })
	for name, spoil := range map[string]func(it *plan.ReadItem){
		"an unknown name":         func(it *plan.ReadItem) { it.Source.FQN = "stranger" },
		"an unknown chunk":        func(it *plan.ReadItem) { it.Source.Offset = []int64{1, 1} },
		"a box outside the chunk": func(it *plan.ReadItem) { it.SourceOffsets = []int64{2, 1} },
		"too few dimensions":      func(it *plan.ReadItem) { it.SourceOffsets, it.Lengths = []int64{0}, []int64{4} },
		"a tensor as a value":     func(it *plan.ReadItem) { it.Kind = plan.KindBytes },
	} {
		bad := &plan.LoadPlan{Items: slices.Clone(good)}
		spoil(&bad.Items[at])
		if _, err := l.Readers[0].ReadData(t.Context(), bad, l.Planners[0]); err == nil {
			t.Errorf("%s: ReadData = nil; want a refusal", name)
		}
	}
}

func (s *suite) cancelled(t *testing.T, p Place) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errOnPurpose)
	sv := s.prepared(t, p, s.sample(t, 1))
	if _, err := sv.Writers[0].WriteData(ctx, sv.Plans[0], sv.Planners[0]); !errors.Is(err, errOnPurpose) {
		t.Errorf("WriteData = %v; want %v", err, errOnPurpose)
	}

	must.Do(t, sv.Abort(t.Context()))
	s.emptyPlace(t, p)
	sv = s.prepared(t, p, s.sample(t, 1))
	must.Do(t, sv.Write(t.Context()))

	if err := sv.Finish(ctx); !errors.Is(err, errOnPurpose) || errors.Is(err, storage.ErrUncertain) {
		t.Errorf("Finish = %v; want %v", err, errOnPurpose)
	}
	checkNone(t, p, "after a Finish that was cancelled")
	must.Do(t, sv.Abort(t.Context()))

	l, _ := s.saved(t, p, s.sample(t, 1))
	if _, err := l.Readers[0].ReadMetadata(ctx); !errors.Is(err, errOnPurpose) {
		t.Errorf("ReadMetadata = %v; want %v", err, errOnPurpose)
	}
	if _, err := l.Readers[0].ReadData(ctx, l.Plans[0], l.Planners[0]); !errors.Is(err, errOnPurpose) {
		t.Errorf("ReadData = %v; want %v", err, errOnPurpose)
	}
}

func (s *suite) progress(t *testing.T, p Place) {
	states := []plan.State{s.sample(t, 1), {"more": Filled(t, s.DTypes[0], []int64{50_000}, 3)}}
	if s.OneRank {
		states[1] = plan.State{}
	}

	reported := make([]atomic.Int64, 2)
	count := func(rank int, bytes int64) { reported[rank].Add(bytes) }
	sv := NewSaving(p, Storage("progress", 1, 2), 2)
	sv.Progress = count
	must.Do(t, sv.Run(t.Context(), states))

	for r, q := range sv.Plans {
		if got := reported[r].Swap(0); got != q.NumBytes() {
			t.Errorf("save: rank %d reported %d bytes; want %d", r, got, q.NumBytes())
		}
	}

	l := NewLoading(p, 2)
	l.Progress = count
	must.Do(t, l.Plan(t.Context(), []plan.State{blankState(t, states[1]), blankState(t, states[0])}))
	must.Do(t, l.Read(t.Context()))

	for r, st := range l.Stats {
		if got := reported[r].Load(); got != st.Needed {
			t.Errorf("load: rank %d reported %d bytes; want %d", r, got, st.Needed)
		}
	}
}
