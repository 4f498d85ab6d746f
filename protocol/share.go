package protocol

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// canShare reports whether this rank can read for other ranks. A rank that waits for
// messages must be notified if another rank fails, so the group must also be an
// Alarmer.
func (l *RankLoad) canShare() bool {
	_, mail := l.Group.(group.Messenger)
	_, alarm := l.Group.(group.Alarmer)
	return l.Share && mail && alarm && l.Group.Size() > 1 && plan.CanShare(l.Planner)
}

// assignReaders adds to the messages in out the reads of the ranks for each other. all holds
// the messages that the ranks sent. Each load has its own tag, so that messages of a load
// that failed are never mistaken for messages of the next load.
func (l *RankLoad) assignReaders(out, all []loadMessage) {
	if len(out) != len(all) {
		return // the step refuses it
	}

	plans, hosts := make([]*plan.LoadPlan, len(out)), map[string][]bool{}
	for r := range out {
		plans[r] = out[r].plan
		// The reader's data of a plan may depend on its items, which sharing changes.
		if !all[r].canShare || len(out[r].plan.StorageData) > 0 {
			continue
		}
		if hosts[all[r].host] == nil {
			hosts[all[r].host] = make([]bool, len(out))
		}
		hosts[all[r].host][r] = true
	}

	tag := group.LoadTags + rand.IntN(math.MaxInt-group.LoadTags)
	for _, takesPart := range hosts {
		for r, s := range plan.AssignReaders(l.Metadata, plans, takesPart) {
			if takesPart[r] {
				out[r].share, out[r].tag = s, tag
			}
		}
	}
}

// sharing is one rank's part in a load in which ranks read for each other. It has one
// goroutine that reads, one for each rank that it sends to, and one for each rank that it
// receives from. If a goroutine waits for memory or a message, the goroutine that provides it
// never waits for the first one; see docs/design/0013-read-once-share.md.
type sharing struct {
	*RankLoad
	mail group.Messenger
	tag  int
	data *plan.LoadPlan
	dst  target

	alone  []*piece                 // tensors that this rank reads for itself only
	mine   []*piece                 // pieces and strips that it also reads for other ranks
	parts  map[int64]*piece         // its own parts of its strips, by ID
	from   map[int]map[int64]*piece // pieces that other ranks read for it: by rank and ID
	queues map[int]chan *piece      // by rank: pieces that were read and are to be sent

	stage    budget // pieces of mine that are not in the planner's memory
	inbound  budget // received pieces that are not in the planner's memory
	outbound budget // bytes that are being sent

	received atomic.Int64

	common   sync.Mutex // held while memory of several parts is filled
	mu       sync.Mutex
	awaited  map[string][]*piece       // items that the reader will ask for; guarded by mu
	resolved map[*tensor.Tensor]*piece // by the memory that the reader received; guarded by mu
	unread   int                       // pieces of mine that are not read yet; guarded by mu
}

var _ storage.Receiver = (*sharing)(nil)

// piece is a part of this rank's plan: an item, or some rows of one.
type piece struct {
	id     int64
	item   plan.ReadItem
	dtype  tensor.DType   // as saved; the bytes are sent in this dtype
	bytes  int64          // of that dtype
	to     *tensor.Tensor // the planner's memory
	direct bool           // the bytes can be read or received directly into that memory
	common bool           // another part uses the same memory

	ranks  []int        // the ranks to send it to
	left   atomic.Int32 // how many of them it was not sent to yet
	body   []byte       // the bytes to send; nil once they are sent to all ranks
	crc    uint32
	weight int64 // bytes of stage that it holds

	// strip is set if it is not a part of this rank's plan, but a strip that has parts of
	// the plans of several ranks. of is the strip if it is such a part, to be sent.
	strip *plan.Strip
	of    *piece
}

// sends reports whether other ranks wait for a part.
func (p *piece) sends() bool { return len(p.ranks) > 0 || p.strip != nil }

// newSharing prepares a rank's part in the load. It does not read or send.
func (l *RankLoad) newSharing(p *plan.LoadPlan, share *plan.SharedReads, tag int) (*sharing, error) {
	if err := share.Check(p, l.Group.Rank(), l.Group.Size()); err != nil {
		return nil, err
	}

	mail, ok := l.Group.(group.Messenger)
	if !ok {
		return nil, fmt.Errorf("%w: shared reads for a rank that cannot take part", plan.ErrProtocol)
	}

	s := &sharing{
		RankLoad: l, mail: mail, tag: tag, data: p, dst: target{l.Planner},
		from: map[int]map[int64]*piece{}, queues: map[int]chan *piece{}, parts: map[int64]*piece{},
		awaited: map[string][]*piece{}, resolved: map[*tensor.Tensor]*piece{},
	}

	bytes := (&storage.ReadOptions{BufferBytes: l.BufferBytes}).Budget()
	s.stage, s.inbound, s.outbound = newBudget(bytes/2), newBudget(bytes/4), newBudget(bytes/4)
	if err := s.sort(share); err != nil {
		return nil, err
	}
	return s, s.resolve()
}

// budget bounds the bytes that are in use for one purpose.
type budget struct {
	free *semaphore.Weighted
	size int64
}

func newBudget(bytes int64) budget {
	bytes = max(1, bytes)
	return budget{semaphore.NewWeighted(bytes), bytes}
}

// acquire waits for n bytes, or for the whole budget if n is larger, and returns how
// many bytes it acquired.
func (b budget) acquire(ctx context.Context, n int64) (int64, error) {
	n = min(n, b.size)
	if b.free.Acquire(ctx, n) != nil {
		return 0, context.Cause(ctx)
	}
	return n, nil
}

// sort divides the parts of the plan into alone, mine and from, by the rank that
// reads them.
func (s *sharing) sort(share *plan.SharedReads) error {
	pieced := make([]bool, len(s.data.Items))
	sends := map[int]int{}
	for i := range share.Pieces {
		c := &share.Pieces[i]
		pieced[c.Item] = true
		p, err := s.newPiece(c.Of(s.data.Items[c.Item]))
		if err != nil {
			return err
		}

		p.id, p.ranks = c.ID, c.To
		if c.Reader != s.Group.Rank() {
			if s.from[c.Reader] == nil {
				s.from[c.Reader] = map[int64]*piece{}
			}
			s.from[c.Reader][p.id] = p
			continue
		}

		if len(p.ranks) == 0 {
			s.parts[p.id] = p
			continue
		}

		p.left.Store(int32(len(p.ranks)))
		s.mine = append(s.mine, p)
		for _, r := range p.ranks {
			sends[r]++
		}
	}

	for i := range share.Strips {
		c := &share.Strips[i]
		p, err := s.newPiece(c.Item())
		if err != nil {
			return err
		}

		p.strip = c
		for _, part := range c.Parts {
			if part.To != s.Group.Rank() {
				sends[part.To]++
				p.left.Add(1)
			}
		}

		s.mine = append(s.mine, p)
	}

	for r, n := range sends {
		s.queues[r] = make(chan *piece, n)
	}

	for i := range s.data.Items {
		if pieced[i] || s.data.Items[i].Kind != plan.KindTensor {
			continue
		}
		p, err := s.newPiece(s.data.Items[i])
		if err != nil {
			return err
		}
		s.alone = append(s.alone, p)
	}

	return nil
}

// newPiece returns a part of the plan.
func (s *sharing) newPiece(it plan.ReadItem) (*piece, error) {
	e, ok := s.Metadata.Find(it.Source.FQN)
	if !ok || e.Tensor == nil {
		return nil, fmt.Errorf("%w: %q is %w", plan.ErrMismatch, it.Source.FQN, plan.ErrMissing)
	}
	n, err := tensor.NumBytes(e.Tensor.DType, it.Lengths)
	if err != nil {
		return nil, plan.Named(it.Source.FQN, err)
	}
	return &piece{item: it, dtype: e.Tensor.DType, bytes: n}, nil
}

// resolve asks the planner for the memory of all parts, and sets direct and common.
func (s *sharing) resolve() error {
	all := slices.Concat(s.alone, s.mine)
	all = slices.DeleteFunc(all, func(p *piece) bool { return p.strip != nil })
	for _, want := range s.from {
		all = slices.AppendSeq(all, maps.Values(want))
	}

	all = slices.AppendSeq(all, maps.Values(s.parts))
	for _, p := range all {
		t, err := s.dst.ResolveTensor(&p.item)
		if err != nil {
			return plan.Named(p.item.Source.FQN, err)
		}
		if t == nil || !slices.Equal(t.Shape(), p.item.Lengths) {
			return fmt.Errorf("%q: %w: the planner's ResolveTensor returned %v for a box of %v", p.item.Source.FQN, plan.ErrProtocol, t, p.item.Lengths)
		}
		p.to, p.direct = t, t.DType() == p.dtype && t.Contiguous()
	}

	return markOverlaps(all)
}

// run reads, sends and receives. When it returns nil, every part of the plan was
// handed over to the planner.
func (s *sharing) run(ctx context.Context) (storage.ReadStats, error) {
	g, gctx := errgroup.WithContext(ctx)
	start := func(fn func() error) {
		g.Go(func() error { return group.Catch(fn) })
	}
	for rank, queue := range s.queues {
		start(func() error { return s.sendAll(gctx, rank, queue) })
	}

	for rank, want := range s.from {
		start(func() error { return s.receiveAll(gctx, rank, want) })
	}

	var stats storage.ReadStats
	start(func() (err error) {
		stats, err = s.readAll(gctx)
		return err
	})

	err := g.Wait()
	if err == nil {
		err = context.Cause(ctx) // a cancelled load is not complete
	}

	n, foreign := s.received.Load(), s.foreign()
	stats.Add(storage.ReadStats{Needed: n - foreign, Rounded: n, Received: n})
	return stats, err
}

// foreign returns how many bytes this rank reads that only other ranks need.
func (s *sharing) foreign() int64 {
	var n int64
	for _, p := range s.mine {
		if p.strip != nil {
			n += p.bytes
		}
	}

	for _, p := range s.parts {
		n -= p.bytes
	}

	return n
}

// fill converts the saved elements of a part, src, into the planner's memory.
func (s *sharing) fill(p *piece, src *tensor.Tensor) error {
	if p.common {
		s.common.Lock()
		defer s.common.Unlock()
	}
	if err := tensor.Convert(p.to, src, tensor.CastInRange); err != nil {
		return plan.Named(p.item.Source.FQN, err)
	}
	return nil
}

// commit hands a part over to the planner.
func (s *sharing) commit(p *piece) error {
	if err := s.dst.CommitTensor(&p.item, p.to); err != nil {
		return plan.Named(p.item.Source.FQN, err)
	}
	return nil
}

// readAll reads everything that this rank has to read. First it reads the pieces that
// other ranks wait for, in as many calls as the memory limit requires. The last of
// these calls also reads the rest.
func (s *sharing) readAll(ctx context.Context) (storage.ReadStats, error) {
	var stats storage.ReadStats
	for rest := s.mine; ; {
		n, weight := s.round(rest)
		if _, err := s.stage.acquire(ctx, weight); err != nil {
			return stats, err
		}

		now := rest[:n]
		rest = rest[n:]
		st, err := s.readRound(ctx, now, len(rest) == 0)
		stats.Add(st)
		if err != nil || len(rest) == 0 {
			return stats, err
		}
	}
}

// round returns how many of the pieces are read by one call, and how many bytes of
// stage they take. Pieces that are read directly into the planner's memory take no
// bytes of stage. A round takes at most half of stage, unless a single piece takes more, so
// that one round can be read while another is sent.
func (s *sharing) round(rest []*piece) (n int, weight int64) {
	for _, p := range rest {
		switch {
		case p.strip != nil: // and copies of its parts
			p.weight = min(2*p.bytes, s.stage.size)
		case !p.direct:
			p.weight = min(p.bytes, s.stage.size)
		}

		if n > 0 && weight+p.weight > s.stage.size/2 {
			break
		}
		n, weight = n+1, weight+p.weight
	}
	return n, weight
}

// readRound reads pieces. If it is the last round, it also reads the items for the rank
// alone.
func (s *sharing) readRound(ctx context.Context, pieces []*piece, last bool) (storage.ReadStats, error) {
	p := &plan.LoadPlan{PlannerData: s.data.PlannerData}
	s.mu.Lock()
	s.unread += len(pieces)
	if last {
		pieces = append(pieces[:len(pieces):len(pieces)], s.alone...)
	}

	for _, c := range pieces {
		k := c.item.Key()
		s.awaited[k] = append(s.awaited[k], c)
		p.Items = append(p.Items, c.item)
	}
	s.mu.Unlock()

	if last {
		for i := range s.data.Items {
			if s.data.Items[i].Kind != plan.KindTensor {
				p.Items = append(p.Items, s.data.Items[i])
			}
		}
	}

	st, err := s.Reader.ReadData(ctx, p, s)
	if err != nil {
		return st, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.unread > 0 {
		return st, fmt.Errorf("%w: the reader has not committed %d items of its plan", plan.ErrProtocol, s.unread)
	}
	return st, nil
}

// ResolveTensor returns the memory that a part is read into: the planner's, or new
// memory if the planner's cannot be sent as it is.
func (s *sharing) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	list := s.awaited[it.Key()]
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: the reader asks for an item that is not in its plan, or for an item twice", plan.ErrProtocol)
	}

	p := list[0]
	s.awaited[it.Key()] = list[1:]
	to := p.to
	if p.sends() && !p.direct {
		var err error
		if to, err = tensor.New(p.dtype, p.item.Lengths); err != nil {
			return nil, err
		}
	}

	s.resolved[to] = p
	return to, nil
}

// CommitTensor takes a part that was read and verified. It queues the part for the
// ranks that need it, and hands it over to the planner. If the memory that is sent
// is the planner's, sent hands it over later.
func (s *sharing) CommitTensor(_ *plan.ReadItem, t *tensor.Tensor) error {
	s.mu.Lock()
	p := s.resolved[t]
	delete(s.resolved, t)
	if p != nil && p.sends() {
		s.unread--
	}
	s.mu.Unlock()

	switch {
	case p == nil:
		return fmt.Errorf("%w: the reader commits a tensor that it did not receive from ResolveTensor", plan.ErrProtocol)
	case p.strip != nil:
		return s.commitStrip(p, t)
	case len(p.ranks) == 0:
		return s.commit(p)
	case !p.direct:
		if err := s.fill(p, t); err != nil {
			return err
		}
		if err := s.commit(p); err != nil {
			return err
		}
	}

	p.body, _ = t.Bytes()
	p.crc = crc32c.Update(headSum(p.id, p.bytes), p.body)
	for _, r := range p.ranks {
		s.queues[r] <- p // never blocks: the queue has room for all pieces
	}

	return nil
}

// commitStrip divides a strip that was read: it queues the parts for the ranks that need
// them, and hands this rank's own parts over to the planner.
func (s *sharing) commitStrip(p *piece, t *tensor.Tensor) error {
	for i := range p.strip.Parts {
		part := &p.strip.Parts[i]
		from, err := t.Narrow(tensor.Box{Offsets: part.Offsets, Sizes: part.Lengths})
		if err != nil {
			return err
		}

		if part.To == s.Group.Rank() {
			own := s.parts[part.ID]
			if err := s.fill(own, from); err != nil {
				return err
			}
			if err := s.commit(own); err != nil {
				return err
			}
			continue
		}

		to, err := tensor.New(p.dtype, part.Lengths)
		if err != nil {
			return err
		}

		if err := tensor.Copy(to, from); err != nil {
			return err
		}

		q := &piece{id: part.ID, item: p.item, dtype: p.dtype, of: p}
		q.body, _ = to.Bytes()
		q.bytes = int64(len(q.body))
		q.crc = crc32c.Update(headSum(q.id, q.bytes), q.body)
		s.queues[part.To] <- q // never blocks: the queue has room for all pieces
	}

	if p.left.Load() == 0 { // no parts to send: only this rank has parts, or they are sent already
		s.release(p)
	}
	return nil
}

// release releases the bytes of stage that a piece holds, once.
func (s *sharing) release(p *piece) {
	if n := atomic.SwapInt64(&p.weight, 0); n > 0 {
		s.stage.free.Release(n)
	}
}

// LoadBytes passes a value to the planner.
func (s *sharing) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	return s.dst.LoadBytes(it, codec, data)
}

// sent records that a piece was sent to one more rank. Once it was sent to all of
// them, its memory is released or, if it is the planner's, handed over. It is not
// handed over earlier, because the planner may change the memory.
func (s *sharing) sent(p *piece) error {
	if p.of != nil {
		p.body = nil
		if p.of.left.Add(-1) == 0 {
			s.release(p.of)
		}
		return nil
	}

	if p.left.Add(-1) > 0 {
		return nil
	}

	p.body = nil
	if p.direct {
		return s.commit(p)
	}

	s.stage.free.Release(p.weight)
	return nil
}

// extent holds the addresses at which the memory of a part begins and ends.
type extent struct {
	begin, end uintptr
	piece      *piece
}

// markOverlaps finds the parts that overlap the memory of another part, such as two names of
// one tensor. They are read and received into other memory first, because the common memory
// may hold the other part while it is sent or checked.
func markOverlaps(all []*piece) error {
	extents := make([]extent, 0, len(all))
	for _, p := range all {
		if p.to.NumElements() == 0 {
			continue
		}
		begin, end, err := span(p.to)
		if err != nil {
			return err
		}
		extents = append(extents, extent{begin, end, p})
	}

	slices.SortFunc(extents, func(a, b extent) int { return cmp.Compare(a.begin, b.begin) })
	var furthest extent
	for _, x := range extents {
		if x.begin < furthest.end {
			for _, p := range []*piece{x.piece, furthest.piece} {
				p.direct, p.common = false, true
			}
		}
		if x.end > furthest.end {
			furthest = x
		}
	}

	return nil
}

// span returns the addresses of the first byte of t and after the last. Strides are
// not negative, so these are the addresses of its first and last element.
func span(t *tensor.Tensor) (begin, end uintptr, err error) {
	first, err := t.Narrow(tensor.Box{Offsets: make([]int64, t.Dims()), Sizes: slices.Repeat([]int64{1}, t.Dims())})
	if err != nil {
		return 0, 0, err
	}

	elements := int64(1)
	for d, n := range t.Shape() {
		elements += (n - 1) * t.Strides()[d]
	}

	begin = uintptr(unsafe.Pointer(unsafe.SliceData(first.Contents()))) // a single element is contiguous
	return begin, begin + uintptr(elements*int64(t.DType().Size())), nil
}

// sameItems reports whether two plans have the same items.
func sameItems(p, q *plan.LoadPlan) bool {
	return p == q || p != nil && slices.EqualFunc(p.Items, q.Items, func(a, b plan.ReadItem) bool { return a.Key() == b.Key() })
}
