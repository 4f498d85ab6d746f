package saver

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/hosts"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
)

// savePlanner plans the state of a trainer in its saver. The content is in the
// arena, or is fetched from the trainer if it is not staged yet.
type savePlanner struct {
	plan.DefaultSave // makes the global plan
	generation       uint64
	arena            []byte // without the window
	local            *plan.SavePlan
	items            []stagedItem
	byKey            map[plan.ItemKey]*stagedItem
	fetch            func(ctx context.Context, f fetchBody, p []byte) error
	block            int64 // the most bytes of a fetch
	released         func(item int)
	claims           *claims

	broken   context.Context // ends when err is set
	stop     context.CancelCauseFunc
	recorder *protocol.Recorder // of the save

	fits bool // everything will be staged, so no item is fetched

	// replicas, if not nil, chooses which ranks copy files of other ranks from their own state. kept are the items
	// that this rank needs for that, until forget, and of the ranks whose files it copies.
	replicas func(local, final []*plan.SavePlan) []memory.Replica
	options  string // what replicas depends on
	kept     map[*stagedItem]bool
	of       []int
	finished bool // FinishPlan was called

	mu      sync.Mutex
	changed chan struct{} // closed when items are staged, or err is set
	err     error         // why the state cannot be used any more
	all     bool          // everything is staged
	ready   chan struct{} // closed once all is set, or err is
}

// stagedItem is one item of a state.
type stagedItem struct {
	itemBody
	number int
	span   int64 // bytes from the first element to the last
	dtype  tensor.DType
	sizes  []int64
	at     int64 // in the arena; negative: it is not staged
	stamp  int64
	unit   *unitClaim // nil: it is not staged, or it was done before that
	done   bool       // it was released
}

// unitClaim is the memory of a staged unit.
type unitClaim struct {
	claim
	left int // items that are not done
}

// newSavePlanner checks a description. claims are the parts of the arena that are in use.
func newSavePlanner(b *saveBody, arena []byte, c *claims) (*savePlanner, error) {
	if b.Generation == 0 {
		return nil, fmt.Errorf("%w: a save with generation 0, which stands for memory that is not staged", ErrMessage)
	}
	for _, name := range b.Absent {
		if err := meta.CheckFQN(name); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrMessage, err)
		}
	}

	s := &savePlanner{
		claims:      c,
		DefaultSave: plan.DefaultSave{Owner: b.Owner, ValuesMayDiffer: b.ValuesMayDiffer},
		generation:  b.Generation, arena: arena, fits: b.Fits, ready: make(chan struct{}), changed: make(chan struct{}),
		local: &plan.SavePlan{Absent: b.Absent}, items: make([]stagedItem, len(b.Items)), byKey: make(map[plan.ItemKey]*stagedItem, len(b.Items)),
	}
	s.broken, s.stop = context.WithCancelCause(context.Background())

	known := map[string]*plan.Info{}
	for i := range b.Items {
		it, err := b.Items[i].writeItem(known, !b.ValuesMayDiffer)
		if err != nil {
			return nil, err
		}
		if it.Kind != plan.KindBytes && b.TensorsMayDiffer {
			it.MayDiffer = true
		}

		x := &s.items[i]
		*x = stagedItem{itemBody: b.Items[i], number: i, dtype: it.Info.DType, sizes: it.Box.Sizes, at: -1}
		if it.Kind != plan.KindBytes {
			if x.span, err = x.itemBody.span(&it); err != nil {
				return nil, err
			}
		}

		if s.byKey[it.Key()] != nil {
			continue // equal boxes have equal contents
		}
		s.byKey[it.Key()] = x
		s.local.Items = append(s.local.Items, it)
	}
	return s, nil
}

// stage notes where items lie.
func (s *savePlanner) stage(b *stagedBody) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all {
		return fmt.Errorf("%w: generation %d is staged again after the last unit", ErrMessage, s.generation)
	}
	for i := range b.Units {
		if err := s.stageUnit(&b.Units[i]); err != nil {
			return err
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
	if b.All {
		if i := slices.IndexFunc(s.items, func(x stagedItem) bool { return x.Codec == "" && x.at < 0 && !x.done }); i >= 0 && s.err == nil {
			return fmt.Errorf("%w: generation %d is staged, but not %q", ErrMessage, s.generation, s.items[i].Name)
		}
		s.all = true
		if s.err == nil {
			close(s.ready)
		}
	}
	return nil
}

// stageUnit notes where the items of a unit lie.
func (s *savePlanner) stageUnit(u *unitBody) error {
	size := int64(len(s.arena))
	if len(u.Items) != len(u.At) || u.Stamp < 0 || u.Stamp > size-8 || u.Stamp%8 != 0 {
		return fmt.Errorf("%w: a unit with %d items, %d places and the stamp at %d", ErrMessage, len(u.Items), len(u.At), u.Stamp)
	}
	c := &unitClaim{claim: claim{lo: u.Stamp, hi: u.Stamp + 8}}
	c.owner = c
	for i, n := range u.Items {
		if n < 0 || n >= len(s.items) || s.items[n].Codec != "" || s.items[n].at >= 0 {
			return fmt.Errorf("%w: item %d of %d was staged twice or is not a tensor", ErrMessage, n, len(s.items))
		}
		x, at := &s.items[n], u.At[i]
		if at < 0 || at > size-x.span {
			return fmt.Errorf("%w: %q with %d bytes at %d of an arena of %d", ErrMessage, x.Name, x.span, at, size)
		}
		if at < u.Stamp+8 && u.Stamp < at+x.span {
			return fmt.Errorf("%w: %q lies over the stamp at %d", ErrMessage, x.Name, u.Stamp)
		}
		x.at, x.stamp = at, u.Stamp
		if x.span > 0 {
			c.lo, c.hi = min(c.lo, at), max(c.hi, at+x.span)
		}
		if !x.done {
			x.unit = c
			c.left++
		}
	}
	if c.left == 0 || s.err != nil {
		return nil // the trainer has freed it, or will when it receives the outcome
	}
	return s.claims.add(c.claim)
}

// markDone notes that an item is not needed any more, before the trainer receives that:
// when all items of a unit are done, its memory is free. It returns false if that was noted before.
func (s *savePlanner) markDone(x *stagedItem) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.done {
		return false
	}
	x.done = true
	if u := x.unit; u != nil {
		if u.left--; u.left == 0 {
			s.claims.remove(u.claim)
		}
	}
	return true
}

// forget gives up the memory of all units: the save is over, and so are the copies that need what was kept.
func (s *savePlanner) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.items {
		if u := s.items[i].unit; u != nil && u.left > 0 {
			u.left = 0
			s.claims.remove(u.claim)
		}
	}
}

// fail ends the use of the state.
func (s *savePlanner) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.setErr(err)
}

// setErr sets why the state cannot be used any more. The caller holds mu.
func (s *savePlanner) setErr(err error) {
	s.err = err
	close(s.changed)
	s.changed = make(chan struct{})
	s.stop(err)
	if !s.all {
		close(s.ready)
	}
}

// abandon fails a state that was not staged completely: the trainer is gone.
func (s *savePlanner) abandon(err error) {
	s.mu.Lock()
	all := s.all
	s.mu.Unlock()
	if !all {
		s.fail(err)
	}
}

// Verify returns an error if anything that was read is not of this generation, or if the
// trainer is gone before everything was staged. It waits until everything is staged, so
// that a checkpoint is published only if the trainer has confirmed it.
func (s *savePlanner) Verify() error {
	<-s.ready
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

var _ plan.SavePlanner = (*savePlanner)(nil)

func (s *savePlanner) SetUp(plan.SaveSetup) error { return nil }

func (s *savePlanner) LocalPlan() (*plan.SavePlan, error) { return s.local, nil }

// copyFor lets the ranks make copies from their own state.
func (s *savePlanner) copyFor(c *Copies) {
	s.options = fmt.Sprintf(" copies=%d of %s", c.Copies, c.Run)
	s.replicas = func(local, final []*plan.SavePlan) []memory.Replica { return c.Replicas(local, final, c.Copies) }
	c.Held = func(to *memory.Saved) { to.Of, to.Parts = s.of, s.parts }
}

// replica is the planner's data of a final plan: what the rank copies of files of other ranks.
type replica struct {
	Of []int `json:"of"`
	// Items has a bit for each item of the local plan, the lowest bit of the first byte for the first one.
	Items []byte `json:"items"`
}

// GlobalPlan makes the final plans, in which ranks also learn what they copy of files of other ranks.
func (s *savePlanner) GlobalPlan(local []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	final, md, err := s.DefaultSave.GlobalPlan(local)
	if err != nil || s.replicas == nil {
		return final, md, err
	}
	for rank, r := range s.replicas(local, final) {
		if len(r.Of) == 0 {
			continue
		}
		data := replica{Of: r.Of, Items: make([]byte, len(local[rank].Items)/8+1)}
		for _, i := range r.Items {
			data.Items[i/8] |= 1 << (i % 8)
		}
		if final[rank].PlannerData, err = json.Marshal(data); err != nil {
			return nil, nil, err
		}
	}
	return final, md, nil
}

// PlanOptions identifies the planner's options.
func (s *savePlanner) PlanOptions() string { return s.DefaultSave.PlanOptions() + s.options }

// keep notes which items this rank needs for copies. If the state is not staged as a whole, it keeps none: the trainer
// needs the memory of the items to stage the others.
func (s *savePlanner) keep(data json.RawMessage) error {
	if len(data) == 0 || !s.fits {
		return nil
	}
	var r replica
	if err := json.Unmarshal(data, &r); err != nil {
		return fmt.Errorf("%w: the planner's data: %w", plan.ErrProtocol, err)
	}
	s.of, s.kept = r.Of, map[*stagedItem]bool{}
	for i := range s.local.Items {
		if i/8 >= len(r.Items) || r.Items[i/8]&(1<<(i%8)) == 0 {
			continue
		}
		if x := s.byKey[s.local.Items[i].Key()]; x.Codec == "" {
			s.kept[x] = true
		}
	}
	return nil
}

// FinishPlan releases the items that this rank does not need: other ranks write them.
func (s *savePlanner) FinishPlan(p *plan.SavePlan) (*plan.SavePlan, error) {
	needed := make(map[*stagedItem]bool, len(p.Items))
	for i := range p.Items {
		needed[s.byKey[p.Items[i].Key()]] = true
	}

	s.mu.Lock()
	err := s.keep(p.PlannerData)
	s.finished = true
	s.mu.Unlock()
	for i := range s.items {
		if x := &s.items[i]; x.Codec == "" && !needed[x] && !s.kept[x] && s.markDone(x) {
			s.released(x.number)
		}
	}
	return p, err
}

// parts returns what this rank has kept of a file that another rank has written.
func (s *savePlanner) parts(ctx context.Context, store blob.Store, name string) ([]hosts.Part, error) {
	file, err := native.FileParts(ctx, store, name)
	if err != nil {
		return nil, err
	}
	var out []hosts.Part
	for _, f := range file {
		it := plan.WriteItem{Info: &plan.Info{FQN: f.FQN}, Kind: plan.KindTensor, Box: f.Box}
		x := s.byKey[it.Key()]
		if x == nil || !s.kept[x] || x.dtype != f.DType {
			continue
		}
		out = append(out, hosts.Part{At: f.Offset, Length: f.Length, Read: func(p []byte, off int64) error {
			staged, err := s.readStaged(x, p, off)
			if !staged && err == nil {
				err = fmt.Errorf("%w: %q is not staged", ErrMessage, x.Name)
			}
			return err
		}})
	}
	return out, nil
}

// Resolve returns the content of an item.
func (s *savePlanner) Resolve(it *plan.WriteItem) (plan.Data, error) {
	x := s.byKey[it.Key()]
	if x == nil {
		return plan.Data{}, plan.Named(it.FQN(), fmt.Errorf("%w: the item was not described", plan.ErrProtocol))
	}
	if x.Codec != "" {
		return plan.Data{Bytes: x.Data}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.fits && x.at < 0 && s.err == nil {
		changed := s.changed
		s.mu.Unlock()
		<-changed
		s.mu.Lock()
	}
	if s.err != nil {
		return plan.Data{}, s.err
	}
	if x.at < 0 {
		return plan.Data{Stream: &fetched{s, x}}, nil
	}
	if err := s.check(x); err != nil {
		return plan.Data{}, err
	}
	t, err := x.tensor(s.arena[x.at : x.at+x.span])
	return plan.Data{Tensor: t, Release: sync.OnceValue(func() error { return s.release(x) })}, err
}

// tensor returns the item in the memory that it takes.
func (x *stagedItem) tensor(mem []byte) (*tensor.Tensor, error) {
	if x.Strides == nil {
		return tensor.FromBytes(x.dtype, x.sizes, mem)
	}
	return tensor.FromStrided(x.dtype, x.sizes, x.Strides, 0, mem)
}

// check fails the state if the memory of an item is of another generation.
func (s *savePlanner) check(x *stagedItem) error {
	if g := binary.LittleEndian.Uint64(s.arena[x.stamp:]); g != s.generation {
		err := plan.Named(x.Name, fmt.Errorf("%w: %d instead of %d", stage.ErrGeneration, g, s.generation))
		if s.err == nil {
			s.setErr(err)
		}
		return err
	}
	return nil
}

// release notes that a staged item has been read.
func (s *savePlanner) release(x *stagedItem) error {
	s.mu.Lock()
	err := s.check(x)
	if err == nil {
		err = s.err
	}
	stays := s.kept[x] || s.fits && !s.finished // until FinishPlan, it may still be kept
	s.mu.Unlock()
	if !stays {
		s.markDone(x)
		s.released(x.number)
	}
	return err
}

// fetched is an item that the trainer copies into the window of the arena, part by part.
type fetched struct {
	s *savePlanner
	x *stagedItem
}

var _ plan.Stream = (*fetched)(nil)

func (f *fetched) DType() tensor.DType { return f.x.dtype }

func (f *fetched) Shape() []int64 { return f.x.sizes }

// ReadAt reads from the arena if the item was staged meanwhile. Then the save does not
// need the trainer any more, which may be gone.
func (f *fetched) ReadAt(ctx context.Context, p []byte, off int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(f.s.broken, func() { cancel(context.Cause(f.s.broken)) })()
	for len(p) > 0 {
		n := int(min(int64(len(p)), f.s.block))
		staged, err := f.s.readStaged(f.x, p[:n], off)
		if !staged {
			err = f.s.fetch(ctx, fetchBody{Generation: f.s.generation, Item: f.x.number, Offset: off, Length: int64(n)}, p[:n])
			if errors.Is(err, errTrainerGone) {
				err = f.readAfterTrainer(ctx, p[:n], off, err)
			}
		}
		if err != nil {
			return plan.Named(f.x.Name, err)
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// readAfterTrainer reads a part of the item after the trainer has ended: the item may have
// been staged since the save has asked for it. It waits until the last messages of the
// trainer have been handled. If the item is not staged, it returns gone.
func (f *fetched) readAfterTrainer(ctx context.Context, p []byte, off int64, gone error) error {
	select {
	case <-f.s.ready:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if staged, err := f.s.readStaged(f.x, p, off); staged {
		return err
	}
	return gone
}

// readStaged reads a part of an item from the arena, if the item is staged.
func (s *savePlanner) readStaged(x *stagedItem, p []byte, off int64) (bool, error) {
	s.mu.Lock()
	at, err := x.at, s.err
	if at >= 0 && err == nil {
		err = s.check(x)
	}
	s.mu.Unlock()
	if at < 0 || err != nil {
		return at >= 0, err
	}
	t, err := x.tensor(s.arena[at : at+x.span])
	if err == nil {
		err = t.ReadAt(p, off)
	}
	if err != nil {
		return true, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return true, s.check(x)
}

func (f *fetched) Close() error {
	f.s.markDone(f.x)
	f.s.released(f.x.number)
	return nil
}
