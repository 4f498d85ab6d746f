package tcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
)

// opJoin is the Op of errors about ranks that have not registered.
const opJoin group.Op = "join"

// errMissing reports ranks that have not registered with rank 0.
var errMissing = errors.New("missing from the meeting")

// missingAt returns errMissing with the address at which the ranks meet.
func missingAt(addr string) error { return fmt.Errorf("%w at %s", errMissing, addr) }

// meeting is the list of the registered ranks, on rank 0. It holds no connections:
// ranks send their address and disconnect. Roll calls show whether they still run.
type meeting struct {
	size    int
	session session
	addr    string        // at which the other ranks look for rank 0
	full    chan struct{} // has an element if all ranks may be registered
	settled chan struct{} // has an element if no rank may be registering

	mu      sync.Mutex
	slots   map[int]*slot // guarded by mu
	here    int           // how many slots are confirmed; guarded by mu
	coming  int           // connections of ranks that register now; guarded by mu
	over    error         // why no more ranks can register, or nil; guarded by mu
	latest  absence       // the process that last lost its slot and has not registered again; guarded by mu
	refused absence       // the process that was last refused; guarded by mu
}

// slot is the entry of a rank that registers or has registered.
type slot struct {
	rank    int
	process session // identifies the process, among processes with the same rank
	addr    string  // at which it listens
	above   string  // address of the rank above it, once all are registered
	here    bool    // the rank has confirmed that it received the terms
}

func newMeeting(size int, s session) *meeting {
	return &meeting{
		size: size, session: s, slots: make(map[int]*slot),
		full: make(chan struct{}, 1), settled: make(chan struct{}, 1),
	}
}

// admit returns why a process may not take the slot of a rank, or nil if it may
// register. The caller must call arrived after that.
func (m *meeting) admit(rank int, process session) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.taken(rank, process)
	if err == nil {
		m.coming++
	}
	return err
}

// arrived records that a process that was admitted has registered or disconnected.
func (m *meeting) arrived() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.coming--; m.coming == 0 {
		signal(m.settled)
	}
}

// signal puts an element into a channel of capacity one, unless it is full.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// taken returns why a process may not take the slot of a rank, or nil. The lock is
// held.
func (m *meeting) taken(rank int, process session) error {
	s := m.slots[rank]
	switch {
	case s != nil && s.process == process:
		return nil
	case m.over != nil:
		return m.over
	case s != nil:
		return fmt.Errorf("rank %d is already registered", rank)
	}
	return nil
}

// assign gives a slot to a rank that listens at addr, unless the rank has one. It
// returns a copy of the slot.
func (m *meeting) assign(rank int, process session, addr string) (slot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.taken(rank, process); err != nil {
		return slot{}, err
	}
	s := m.slots[rank]
	if s == nil {
		s = &slot{rank: rank, process: process, addr: addr}
		m.slots[rank] = s
	}
	return *s, nil
}

// confirm records that a rank has received the terms, so that it can be called.
func (m *meeting) confirm(rank int, process session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.slots[rank]
	if s == nil || s.process != process || s.here {
		return
	}
	s.here = true
	m.here++
	if m.latest.rank == rank {
		m.latest = absence{}
	}
	if m.here == m.size-1 {
		signal(m.full)
	}
}

// noteRefused records that rank 0 refused a process that claimed to be a rank, so that
// errors about a missing rank can mention it. The claim may be false.
func (m *meeting) noteRefused(hi hello, err error) {
	if hi.purpose != toMeet {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused = absence{rank: hi.from, reason: err.Error()}
}

// settle waits until no rank registers, for up to d.
func (m *meeting) settle(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for ctx.Err() == nil {
		m.mu.Lock()
		coming := m.coming
		m.mu.Unlock()
		if coming == 0 {
			return
		}
		select {
		case <-m.settled:
		case <-ctx.Done():
		}
	}
}

// vacate frees a slot that its rank has not confirmed.
func (m *meeting) vacate(rank int, process session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.slots[rank]; s != nil && s.process == process && !s.here {
		delete(m.slots, rank)
	}
}

// lose frees the slots of ranks that could not be called.
func (m *meeting) lose(absent []absence) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range absent {
		if s := m.slots[a.rank]; a.lost && s != nil && s.here {
			delete(m.slots, a.rank)
			m.here--
			m.latest = a
		}
	}
}

// roll returns the registered ranks, in order, and whether they are all ranks.
func (m *meeting) roll() ([]slot, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.present(), m.here == m.size-1
}

// present returns the registered ranks, in order. The lock is held.
func (m *meeting) present() []slot {
	slots := make([]slot, 0, m.here)
	for _, s := range m.slots {
		if s.here {
			slots = append(slots, *s)
		}
	}
	slices.SortFunc(slots, func(a, b slot) int { return cmp.Compare(a.rank, b.rank) })
	return slots
}

// rest returns the registered ranks that are not in notified, and adds them to
// notified. If it returns no ranks, more reports whether a rank may still be
// registering. If not, the meeting is over.
func (m *meeting) rest(notified map[int]bool) (slots []slot, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.present() {
		if !notified[s.rank] {
			slots = append(slots, s)
			notified[s.rank] = true
		}
	}
	more = len(slots) > 0 || m.coming > 0
	if !more {
		m.over = errors.New("the meeting is over: not all ranks have registered")
	}
	return slots, more
}

// succeed ends the meeting, because all ranks are registered, and returns them, each
// with the address of the rank above it. top is the address of rank 0.
func (m *meeting) succeed(top string, arity int) []slot {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = errors.New("the ranks have met without this process")
	for _, s := range m.slots {
		s.above = top
		if p := tree.Parent(s.rank, m.size, arity); p > 0 {
			s.above = m.slots[p].addr
		}
	}
	return m.present()
}

// absent returns up to limit ranks that are not registered.
func (m *meeting) absent(limit int) (ranks []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := 1; r < m.size && len(ranks) < limit; r++ {
		if s := m.slots[r]; s == nil || !s.here {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// missing returns an error that names up to limit ranks that are not registered, with
// a cause.
func (m *meeting) missing(cause error, limit int) *group.Error {
	ranks := m.absent(limit)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.latest.reason != "" {
		cause = fmt.Errorf("%w (rank %d was registered: %s)", cause, m.latest.rank, m.latest.reason)
	}
	if m.refused.reason != "" && slices.Contains(ranks, m.refused.rank) {
		cause = fmt.Errorf("%w (a process that claimed to be rank %d was refused: %s)", cause, m.refused.rank, m.refused.reason)
	}
	return &group.Error{Op: opJoin, Ranks: ranks, Err: cause}
}

// gather waits until all ranks are registered and answer. At intervals it makes a roll
// call of the registered ranks, which also sends them the list of missing ranks.
func (h *host) gather(ctx context.Context) error {
	m := h.meeting
	interval := h.cfg.rollInterval(m.size)
	tick := time.NewTimer(interval)
	defer tick.Stop()
	var absent []absence // from the last call
	for m.size > 1 {
		select {
		case <-m.full:
		case <-tick.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return h.dismiss(ctx, absent)
		}
		slots, all := m.roll()
		absent = h.callRoll(ctx, slots)
		if all && len(absent) == 0 {
			return nil
		}
		m.lose(absent)
		if ctx.Err() != nil {
			return h.dismiss(ctx, absent)
		}
		tick.Reset(interval)
	}
	return nil
}

// answerTime is how long a rank whose context has ended waits for the answer that
// names the missing ranks.
const answerTime = time.Second

// callRoll sends the missing ranks to the ranks of slots, and returns the ranks that did
// not answer. If ctx ends meanwhile, the other ranks still have time to answer, so
// that only ranks that do not answer count as missing.
func (h *host) callRoll(ctx context.Context, slots []slot) []absence {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(answerTime, cancel) })()
	return h.announcer().spread(longer, roll{notice: noticeWait, error: h.meeting.missing(missingAt(h.meeting.addr), maxMissing)}, slots)
}

// dismiss ends a meeting if ranks have not registered or have not answered. It notifies
// the ranks that are registered or registering. A rank that it does not reach detects
// on its own that rank 0 is gone.
func (h *host) dismiss(ctx context.Context, absent []absence) error {
	m := h.meeting
	brief, cancel := context.WithTimeout(h.ctx, h.cfg.partingTime()) // the ranks pass the notice on, even if this rank has closed
	defer cancel()
	m.settle(brief, h.cfg.partingTime()/2)
	err := m.missing(group.NewRemoteError(fmt.Errorf("%w: %w", missingAt(m.addr), group.ContextError(ctx))), m.size)
	silent := unanswered(absent)
	if len(err.Ranks) == 0 {
		err.Ranks = silent
	}
	if len(err.Ranks) == 0 { // all are registered, but the context has ended
		err = &group.Error{Op: opJoin, Ranks: []int{0}, Err: group.NewRemoteError(group.ContextError(ctx))}
	}
	notified := make(map[int]bool)
	for _, r := range silent {
		notified[r] = true // another call would only delay the other ranks
	}
	for brief.Err() == nil {
		slots, more := m.rest(notified)
		if !more {
			break
		}
		h.announcer().spread(brief, roll{notice: noticeRefused, error: err}, slots)
		if len(slots) == 0 {
			m.settle(brief, h.cfg.partingTime())
		}
	}
	return err
}

// unanswered returns the ranks of absent that were called without an answer, in
// order.
func unanswered(absent []absence) (ranks []int) {
	for _, a := range absent {
		if a.reason != "" {
			ranks = append(ranks, a.rank)
		}
	}
	slices.Sort(ranks)
	return ranks
}

// register receives the address of a rank and sends it the terms.
func (h *host) register(f *conn, hi hello) error {
	b, err := f.readFrame(maxAddress)
	if err != nil {
		return err
	}
	s, err := h.meeting.assign(hi.from, hi.session, string(b))
	if err != nil {
		return err
	}
	if err := f.WriteFrame(h.terms(s).encode()); err != nil {
		h.meeting.vacate(hi.from, hi.session)
		return err
	}
	// The rank disconnects once it has stored the terms. Before that it could not
	// answer a call.
	_, _ = f.readFrame(1)
	h.meeting.confirm(hi.from, hi.session)
	return nil
}

// terms returns the terms that rank 0 sends to a rank that registers.
func (h *host) terms(s slot) *terms {
	m := h.meeting
	missing := slices.DeleteFunc(m.absent(maxHint+1), func(r int) bool { return r == s.rank }) // it is registering
	return &terms{
		session: m.session, arity: h.cfg.Arity, timeout: h.cfg.Timeout,
		again: 3 * h.cfg.rollInterval(m.size), above: s.above, missing: missing,
	}
}

func (h *host) announcer() announcer {
	return announcer{h, h.meeting.session, h.cfg.Arity, h.cfg.Timeout}
}
