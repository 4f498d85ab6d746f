// Package stage copies the state of a rank aside, so that training can go on while the
// copy is saved. An [Arena] is the memory for the copies, and a [Snapshot] is one copied
// state, as a planner that a save can use. The package does not depend on storage or
// processes.
package stage

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

var (
	// ErrGeneration means that staged memory no longer holds the state that was
	// staged there.
	ErrGeneration = errors.New("the staged memory holds another generation")
	// ErrArena means that memory cannot be used as an arena.
	ErrArena = errors.New("not an arena")
)

const (
	// unitBytes is the size up to which small tensors share a unit. It is less in a
	// small arena, of which a unit takes at most one part of minUnits.
	unitBytes = 8 << 20
	minUnits  = 4
	// blockBytes is how much one goroutine copies at a time.
	blockBytes = 4 << 20
	// align is the alignment of tensors in a unit.
	align = 64
	// stampBytes is the size of the stamp at the beginning of a unit.
	stampBytes = align
	// sparse is how many times larger than its elements the memory of a tensor may be
	// to be copied as it is.
	sparse = 2
)

// Snapshot is the state of one rank at one moment, staged in an arena. It is the planner
// of the save: the planner that it wraps makes the plans, the content is the
// staged one.
type Snapshot struct {
	inner      plan.SavePlanner
	arena      *Arena
	generation uint64
	local      *plan.SavePlan
	list       []*item // as in the local plan
	items      map[plan.ItemKey]*item
	units      []*unit
	bytes      int64 // to be staged

	// Staged, if not nil, is called when a unit was staged, and Complete when the caller
	// may change its memory. Failed, if not nil, is called once if the rest of the
	// snapshot cannot be staged. They must not wait for anything.
	Staged   func(u Unit)
	Complete func()
	Failed   func(err error)

	mu      sync.Mutex
	event   chan struct{} // closed at the next change
	fits    bool          // all units have memory
	pending int           // units with memory that the caller must not change yet
	err     error         // why the save cannot use the snapshot any more
}

// item is one tensor or value of the snapshot.
type item struct {
	unit   *unit          // nil: a value
	source *tensor.Tensor // in the memory of the caller
	bytes  []byte         // the value
	at     int64          // offset of the first element in the unit
	dense  bool           // staged as contiguous elements; otherwise as it is in memory
	number int            // in the local plan
	done   bool           // it was read, or the save does not need it
}

// state is the state of a unit.
type state uint8

const (
	waiting state = iota // not staged
	copying              // being staged
	staged
	direct // read from the memory of the caller, because the save wanted it before it was staged
	gone   // not needed any more
)

// unit is a part of a snapshot that is staged and freed as a whole.
type unit struct {
	state    state
	segments []segment
	items    []*item
	left     int          // items that are not done
	open     int          // calls of open without release
	uncopied atomic.Int32 // tasks, while it is copied
	size     int64        // in the arena
	off      int64        // in the arena
}

// segment is memory of the caller that is copied as it is, or one tensor that is copied
// element by element.
type segment struct {
	memory []byte
	tensor *tensor.Tensor
	at     int64 // in the unit
}

// New plans the snapshot of a state. It does not copy the state yet.
func New(p plan.SavePlanner, setup plan.SaveSetup, a *Arena, generation uint64) (*Snapshot, error) {
	if err := p.SetUp(setup); err != nil {
		return nil, err
	}
	local, err := p.LocalPlan()
	if err != nil {
		return nil, err
	}
	if local == nil {
		return nil, fmt.Errorf("%w: the planner's LocalPlan returned no plan and no error", plan.ErrProtocol)
	}
	s := &Snapshot{inner: p, arena: a, generation: generation, local: local, items: make(map[plan.ItemKey]*item, len(local.Items)), event: make(chan struct{})}
	if err := s.collect(); err != nil {
		return nil, err
	}
	return s, nil
}

// Generation returns the number of the snapshot.
func (s *Snapshot) Generation() uint64 { return s.generation }

// collect finds the memory of all items and divides it into units.
func (s *Snapshot) collect() error {
	var tensors []*item
	for i := range s.local.Items {
		it := &s.local.Items[i]
		d, err := s.inner.Resolve(it)
		if err != nil {
			return err
		}
		x := &item{bytes: d.Bytes, source: d.Tensor}
		if d.Stream != nil {
			if x.source, err = readStream(d.Stream); err != nil {
				return plan.Named(it.FQN(), err)
			}
		}
		if it.Kind == plan.KindBytes {
			x.bytes = slices.Clone(d.Bytes)
		} else if x.source == nil {
			return plan.Named(it.FQN(), fmt.Errorf("%w: the planner's Resolve returned no tensor and no error", plan.ErrProtocol))
		} else {
			tensors = append(tensors, x)
		}
		x.number = i
		s.items[it.Key()] = x
		s.list = append(s.list, x)
	}
	s.divide(tensors)
	return nil
}

// readStream reads a tensor that is not in memory.
func readStream(r plan.Stream) (*tensor.Tensor, error) {
	defer r.Close()
	t, err := tensor.New(r.DType(), r.Shape())
	if err != nil {
		return nil, err
	}
	mem, _ := t.Bytes()
	return t, r.ReadAt(context.Background(), mem, 0)
}

// span is the memory of one item.
type span struct {
	*item
	memory []byte
	lo, hi uintptr
	order  int
}

// divide puts the items into units. Memory that several tensors share becomes one
// segment, so it is copied once and stays shared. Otherwise the order follows the
// plan, which is the order in which a save reads.
func (s *Snapshot) divide(items []*item) {
	spans := make([]span, len(items))
	for i, x := range items {
		m := x.source.Memory()
		spans[i] = span{item: x, memory: m, order: i}
		if len(m) > 0 {
			spans[i].lo = uintptr(unsafe.Pointer(&m[0]))
			spans[i].hi = spans[i].lo + uintptr(len(m))
		}
	}
	slices.SortStableFunc(spans, func(a, b span) int { return cmp.Or(cmp.Compare(a.lo, b.lo), cmp.Compare(b.hi, a.hi)) })
	var groups [][]span
	for i := 0; i < len(spans); {
		hi, j := spans[i].hi, i+1
		for ; j < len(spans) && spans[j].lo < hi; j++ {
			hi = max(hi, spans[j].hi)
		}
		groups = append(groups, spans[i:j])
		i = j
	}
	slices.SortFunc(groups, func(a, b []span) int { return first(a) - first(b) })
	for _, g := range groups {
		s.addGroup(g)
	}
	s.pending = len(s.units)
}

// first returns the smallest position in the plan.
func first(g []span) int {
	n := g[0].order
	for _, x := range g[1:] {
		n = min(n, x.order)
	}
	return n
}

// addGroup adds items that share memory to the last unit, or to a new one.
func (s *Snapshot) addGroup(g []span) {
	lo, hi := g[0].lo, g[0].hi
	for _, x := range g {
		hi = max(hi, x.hi)
	}
	seg := segment{memory: unsafe.Slice(unsafe.SliceData(g[0].memory), int(hi-lo))}
	size := int64(hi - lo)
	if len(g) == 1 && size > sparse*g[0].source.NumBytes() {
		seg, size = segment{tensor: g[0].source}, g[0].source.NumBytes()
		g[0].dense = true
	}
	u := s.unitFor(size)
	seg.at = u.size
	for _, x := range g {
		x.unit, x.at = u, seg.at+int64(x.lo-lo)
		u.items = append(u.items, x.item)
	}
	u.left += len(g)
	u.segments = append(u.segments, seg)
	u.size += (size + align - 1) / align * align
	s.bytes += size
}

// unitFor returns a unit with room for size bytes.
func (s *Snapshot) unitFor(size int64) *unit {
	if n := len(s.units); n > 0 && s.units[n-1].size+size <= min(unitBytes, s.arena.limit/minUnits) {
		return s.units[n-1]
	}
	u := &unit{size: stampBytes}
	s.units = append(s.units, u)
	return u
}

// Fill stages the units that fit into memory, in parallel, and returns whether these are all
// units. It calls start when the save may begin. A save waits for units that are being
// copied, and reads units without memory from the memory of the caller. If early is set or
// there is not enough memory, the save can read each unit as soon as it is copied, and
// otherwise when all are.
func (s *Snapshot) Fill(ctx context.Context, early bool, start func()) (all bool, err error) {
	all, _, err = s.fill(ctx, early, start)
	if errors.Is(err, errClosed) {
		return true, nil // the save is over
	}
	return all, err
}

// fill is Fill. The channels are closed when memory was freed since, and when a unit is
// not needed any more.
func (s *Snapshot) fill(ctx context.Context, early bool, start func()) (all bool, again [2]<-chan struct{}, err error) {
	now, freed := s.reserve()
	start()
	copied := func(*unit) {}
	if early || freed != nil {
		copied = func(u *unit) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.copied(u)
			s.signal()
		}
	}

	if len(now) > 0 {
		err = s.copyUnits(ctx, now, copied)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range now {
		switch {
		case u.state != copying:
		case u.uncopied.Load() == 0:
			s.copied(u)
		default:
			s.drop(u)
		}
	}

	if err != nil {
		s.setErr(err)
	}
	all = s.pending == 0
	if all && s.err == nil && s.Complete != nil {
		s.Complete()
	}
	s.signal()
	return all, [2]<-chan struct{}{freed, s.event}, s.err
}

// copied makes a unit readable.
func (s *Snapshot) copied(u *unit) {
	if s.err != nil {
		s.drop(u)
		return
	}
	binary.LittleEndian.PutUint64(s.stamp(u), s.generation)
	u.state = staged
	s.pending--
	if s.Staged != nil {
		s.Staged(describe(u))
	}
	if u.left == 0 {
		s.drop(u)
	}
}

// Unit is memory that was staged as a whole: where its generation lies, and each of its
// items, by its number in the local plan, with the place of its first element.
type Unit struct {
	Stamp int64
	Items []int
	At    []int64
}

func describe(u *unit) Unit {
	d := Unit{Stamp: u.off, Items: make([]int, len(u.items)), At: make([]int64, len(u.items))}
	for i, x := range u.items {
		d.Items[i], d.At[i] = x.number, u.off+x.at
	}
	return d
}

// Strides returns the strides of an item of the local plan in the arena, or nil if its
// elements are contiguous.
func (s *Snapshot) Strides(item int) []int64 {
	x := s.list[item]
	if x.dense || x.source == nil || x.source.Contiguous() {
		return nil
	}
	return x.source.Strides()
}

// Value returns the content of an item of the local plan that is a value.
func (s *Snapshot) Value(item int) []byte { return s.list[item].bytes }

// Fetch copies a part of an item of the local plan to an offset of the arena.
func (s *Snapshot) Fetch(item int, off, length, at int64) error {
	start, block := Window(s.arena.Size())
	if item < 0 || item >= len(s.list) || s.list[item].unit == nil || length < 0 || length > block || at < start || at > s.arena.Size()-length {
		return fmt.Errorf("%w: %d bytes of item %d at %d", ErrArena, length, item, at)
	}
	x := s.list[item]
	t, err := s.open(x)
	if err != nil {
		return err
	}
	err = t.ReadAt(s.arena.mem[at:at+length], off)
	s.mu.Lock()
	defer s.mu.Unlock()
	x.unit.open--
	s.signal()
	return err
}

// Release says that a save in another process does not need an item any more.
func (s *Snapshot) Release(item int) {
	if item < 0 || item >= len(s.list) || s.list[item].unit == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished(s.list[item])
	s.signal()
}

// reserve returns the waiting units that there is memory for. If there is not enough, the
// channel is closed when memory was freed.
func (s *Snapshot) reserve() (now []*unit, freed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.units {
		if u.state != waiting || u.size > s.arena.limit {
			continue // the save reads a unit that never fits from the caller's memory
		}
		off, ok, wait := s.arena.alloc(u.size)
		if !ok {
			freed = wait
			break
		}
		u.state, u.off = copying, off
		binary.LittleEndian.PutUint64(s.stamp(u), 0)
		now = append(now, u)
	}
	s.fits = !slices.ContainsFunc(s.units, func(u *unit) bool { return u.state == waiting })
	return now, freed
}

// Fits reports, once Fill has called start, whether there is memory for everything: no
// unit is read from the memory of the caller.
func (s *Snapshot) Fits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fits
}

// Rest stages the rest of the snapshot as memory becomes free. It returns when the state
// may be changed: everything is staged, was read by the save, or is not needed. done is
// closed when the save is over. After an error, Await waits for the save.
func (s *Snapshot) Rest(ctx context.Context, done <-chan struct{}) error {
	for {
		all, again, err := s.fill(ctx, true, func() {})
		if errors.Is(err, errClosed) {
			return nil // the save is over
		}
		if all || err != nil {
			return err
		}
		select {
		case <-again[0]:
		case <-again[1]:
		case <-done:
			return nil
		case <-ctx.Done():
			if s.fail(context.Cause(ctx)) {
				return s.Verify()
			}
		}
	}
}

// Await waits until a save that fails does not read from the memory of the caller any
// more. done is closed when the save is over.
func (s *Snapshot) Await(done <-chan struct{}) {
	for {
		s.mu.Lock()
		busy := slices.ContainsFunc(s.units, func(u *unit) bool { return u.state == direct && u.open > 0 })
		event := s.event
		s.mu.Unlock()
		if !busy {
			return
		}
		select {
		case <-event:
		case <-done:
			return
		}
	}
}

// fail makes the save fail: it must not read the snapshot any more. If the state does not
// have to be kept any longer, fail does not change the save and returns false.
func (s *Snapshot) fail(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == 0 {
		return false
	}
	s.setErr(err)
	s.signal()
	return true
}

// setErr sets why the snapshot cannot be used any more, unless it is set.
func (s *Snapshot) setErr(err error) {
	if s.err != nil {
		return
	}
	s.err = err
	if s.Failed != nil {
		s.Failed(err)
	}
}

// Close frees the memory. The snapshot must not be read after that.
func (s *Snapshot) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = errClosed
	}
	for _, u := range s.units {
		if u.state != copying {
			s.drop(u)
		}
	}
	s.signal()
}

// drop frees a unit.
func (s *Snapshot) drop(u *unit) {
	switch u.state {
	case staged, copying:
		binary.LittleEndian.PutUint64(s.stamp(u), 0)
		s.arena.release(u.off, u.size)
	case waiting, direct:
		s.pending--
	}
	u.state = gone
}

// signal wakes everything that waits for a change.
func (s *Snapshot) signal() {
	close(s.event)
	s.event = make(chan struct{})
}

// memory returns the memory of a unit in the arena.
func (s *Snapshot) memory(u *unit) []byte { return s.arena.mem[u.off : u.off+u.size : u.off+u.size] }

// stamp returns the beginning of a unit, which holds the generation of the staged
// unit, or zero while it is being copied.
func (s *Snapshot) stamp(u *unit) []byte { return s.memory(u)[:stampBytes] }

// check returns ErrGeneration if the unit does not hold this snapshot.
func (s *Snapshot) check(u *unit) error {
	if g := binary.LittleEndian.Uint64(s.stamp(u)); g != s.generation {
		s.err = fmt.Errorf("%w: %d instead of %d", ErrGeneration, g, s.generation)
		return s.err
	}
	return nil
}

// task is a part of the copying.
type task struct {
	unit     *unit
	dst, src []byte
	tensor   *tensor.Tensor // is copied element by element, if not nil
}

// copyUnits copies the caller's memory into the arena in parallel, in the order of the
// units. It calls copied for each unit.
func (s *Snapshot) copyUnits(ctx context.Context, units []*unit, copied func(*unit)) error {
	var batches [][]task // small tasks share one
	size := blockBytes
	add := func(t task) {
		if size >= blockBytes {
			batches, size = append(batches, nil), 0
		}
		size += len(t.dst)
		last := &batches[len(batches)-1]
		*last = append(*last, t)
		t.unit.uncopied.Add(1)
	}

	for _, u := range units {
		mem := s.memory(u)
		for _, g := range u.segments {
			if g.tensor != nil {
				add(task{unit: u, dst: mem[g.at : g.at+g.tensor.NumBytes()], tensor: g.tensor})
				continue
			}
			dst, src := mem[g.at:], g.memory
			for first := true; first || len(src) > 0; first = false {
				n := min(len(src), blockBytes)
				add(task{unit: u, dst: dst[:n], src: src[:n]})
				dst, src = dst[n:], src[n:]
			}
		}
	}

	return work.Each(ctx, len(batches), runtime.GOMAXPROCS(0), func(_ context.Context, i int) error {
		for _, t := range batches[i] {
			if t.tensor == nil {
				copy(t.dst, t.src)
			} else if err := t.tensor.ReadAt(t.dst, 0); err != nil {
				return err
			}
			if t.unit.uncopied.Add(-1) == 0 {
				copied(t.unit)
			}
		}
		return nil
	})
}

var _ plan.SavePlanner = (*Snapshot)(nil)

// SetUp does nothing: New has set up the planner.
func (s *Snapshot) SetUp(plan.SaveSetup) error { return nil }

// LocalPlan returns the plan of this rank.
func (s *Snapshot) LocalPlan() (*plan.SavePlan, error) { return s.local, nil }

// GlobalPlan calls the wrapped planner.
func (s *Snapshot) GlobalPlan(plans []*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
	return s.inner.GlobalPlan(plans)
}

// PlanOptions calls the wrapped planner.
func (s *Snapshot) PlanOptions() string {
	o := fmt.Sprintf("%T", s.inner)
	if p, ok := s.inner.(interface{ PlanOptions() string }); ok {
		o += " " + p.PlanOptions()
	}
	return o
}

// FinishPlan calls the wrapped planner. It frees memory that the final plan does not need.
func (s *Snapshot) FinishPlan(p *plan.SavePlan) (*plan.SavePlan, error) {
	out, err := s.inner.FinishPlan(p)
	if err != nil || out == nil {
		return out, err
	}
	needed := make(map[*item]bool, len(out.Items))
	for i := range out.Items {
		needed[s.items[out.Items[i].Key()]] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.items {
		if x.unit != nil && !needed[x] {
			s.finished(x)
		}
	}
	s.signal()
	return out, nil
}

// finished notes that the save does not need an item any more.
func (s *Snapshot) finished(x *item) {
	if x.done {
		return
	}
	x.done = true
	u := x.unit
	if u.left--; u.left == 0 && u.state != copying {
		s.drop(u)
	}
}

// Resolve returns the staged content of an item, or that in the caller's memory if it is
// not staged yet.
func (s *Snapshot) Resolve(it *plan.WriteItem) (plan.Data, error) {
	x := s.items[it.Key()]
	if x == nil {
		return plan.Data{}, plan.Named(it.FQN(), fmt.Errorf("%w: it is not part of the local plan, so it was not staged", plan.ErrProtocol))
	}
	if x.unit == nil {
		return plan.Data{Bytes: x.bytes}, nil
	}
	t, err := s.open(x)
	if err != nil {
		return plan.Data{}, plan.Named(it.FQN(), err)
	}
	return plan.Data{Tensor: t, Release: sync.OnceValue(func() error { return plan.Named(it.FQN(), s.release(x)) })}, nil
}

// open returns the content of an item.
func (s *Snapshot) open(x *item) (*tensor.Tensor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := x.unit
	for u.state == copying && s.err == nil {
		event := s.event
		s.mu.Unlock()
		<-event
		s.mu.Lock()
	}
	if s.err != nil {
		return nil, s.err
	}

	switch u.state {
	case waiting:
		u.state = direct
	case staged:
		if err := s.check(u); err != nil {
			return nil, err
		}
	case gone:
		s.err = fmt.Errorf("%w: it was freed", ErrGeneration)
		return nil, s.err
	}

	u.open++
	if u.state == direct {
		return x.source, nil
	}

	mem := s.memory(u)[x.at:]
	if x.dense {
		return tensor.FromBytes(x.source.DType(), x.source.Shape(), mem[:x.source.NumBytes()])
	}
	return tensor.FromStrided(x.source.DType(), x.source.Shape(), x.source.Strides(), 0, mem[:len(x.source.Memory())])
}

// release ends the use of the stream that open returned.
func (s *Snapshot) release(x *item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.signal()
	u := x.unit
	u.open--
	if u.state == staged {
		if err := s.check(u); err != nil {
			return err
		}
	}
	s.finished(x)
	return s.err
}

// Verify returns an error if anything that the save read was not of this generation.
func (s *Snapshot) Verify() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Bytes returns how many bytes the snapshot stages.
func (s *Snapshot) Bytes() int64 { return s.bytes }
