package tcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// opJoin is the Op of errors about ranks that have not registered.
const opJoin group.Op = "join"

var (
	// errMissing reports ranks that have not registered with rank 0, or that have ended
	// since.
	errMissing = errors.New("missing from the meeting")
	// errSilent reports ranks that are at the meeting and do not answer.
	errSilent = errors.New("no answer at the meeting")
	// errLeft reports ranks that were at the meeting until their context ended.
	errLeft = errors.New("gave up at the meeting")
)

// missingAt returns errMissing with the address at which the ranks meet.
func missingAt(addr string) error { return fmt.Errorf("%w at %s", errMissing, addr) }

// standing is the state of a rank in the meeting, as far as rank 0 knows it. The error of a
// meeting names the ranks of the first standing below rankHere that some rank has, and
// mentions the ranks of the others.
type standing byte

const (
	rankHere    standing = iota // it is registered, and may be called
	rankMissing                 // it has not registered, or its process has ended
	rankSilent                  // it has registered or is registering, and does not answer
	rankLeft                    // its context has ended
	standings                   // the number of standings
)

// reasons are the errors that describe ranks with a standing.
var reasons = [standings]error{rankMissing: errMissing, rankSilent: errSilent, rankLeft: errLeft}

// meeting is the list of the registered ranks, on rank 0. It holds no connections:
// ranks send their address and disconnect. Roll calls show whether they still run.
type meeting struct {
	size    int
	session session
	addr    string        // at which the other ranks look for rank 0
	full    chan struct{} // has an element if all ranks may be registered
	settled chan struct{} // has an element if no rank may be registering

	mu      sync.Mutex
	ranks   []entry      // by rank; guarded by mu
	here    int          // how many slots are confirmed; guarded by mu
	coming  int          // connections of ranks that register now; guarded by mu
	over    error        // why no more ranks can register, or nil; guarded by mu
	verdict *group.Error // why the ranks have not met, once rank 0 has given up; guarded by mu
	refused absence      // the process that was last refused; guarded by mu
}

// entry is the record of rank 0 about one rank.
type entry struct {
	slot   *slot   // nil: the rank has no slot
	coming int     // its connections that register now
	away   absence // of the process that last lost its slot or left; zero after another has registered
	left   session // the process that has left
}

// standing returns the standing of the rank.
func (e *entry) standing() standing {
	switch {
	case e.slot != nil && e.slot.here:
		return rankHere
	case e.slot != nil || e.coming > 0:
		return rankSilent
	case e.away.standing != rankHere:
		return e.away.standing
	}
	return rankMissing
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
		size: size, session: s, ranks: make([]entry, size),
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
		m.ranks[rank].coming++
	}
	return err
}

// arrived records that a process that was admitted has registered or disconnected.
func (m *meeting) arrived(rank int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ranks[rank].coming--
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
	e := &m.ranks[rank]
	switch {
	case e.slot != nil && e.slot.process == process:
		return nil
	case m.over != nil:
		return m.over
	case e.slot != nil:
		return fmt.Errorf("rank %d is already registered", rank)
	case e.left == process:
		return fmt.Errorf("this process of rank %d has given up", rank)
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

	e := &m.ranks[rank]
	if e.slot == nil {
		e.slot = &slot{rank: rank, process: process, addr: addr}
	}
	return *e.slot, nil
}

// confirm records that a rank has received the terms, so that it can be called.
func (m *meeting) confirm(rank int, process session) {
	m.mu.Lock()
	defer m.mu.Unlock()

	e := &m.ranks[rank]
	if e.slot == nil || e.slot.process != process || e.slot.here {
		return
	}

	e.slot.here, e.away = true, absence{}
	if m.here++; m.here == m.size-1 {
		signal(m.full)
	}
}

// leave records that a process has given up, and returns the state of the meeting. Another
// process can register in its place.
func (m *meeting) leave(rank int, process session, reason string) roll {
	m.mu.Lock()
	e := &m.ranks[rank]
	mine := e.slot != nil && e.slot.process == process
	met := mine && e.slot.above != ""
	if m.over == nil && (mine || e.slot == nil) {
		m.drop(absence{rank, rankLeft, reason})
		e.left = process
	}

	verdict := m.verdict
	m.mu.Unlock()

	switch {
	case met:
		return roll{notice: noticeMet}
	case verdict != nil:
		return roll{notice: noticeRefused, error: verdict}
	}

	return roll{notice: noticeWait, error: m.missing(maxMissing, rank)}
}

// drop frees the slot of an absent rank. The lock is held.
func (m *meeting) drop(a absence) {
	e := &m.ranks[a.rank]
	if e.slot != nil && e.slot.here {
		m.here--
	}
	e.slot, e.away = nil, a
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
	e := &m.ranks[rank]
	if e.slot != nil && e.slot.process == process && !e.slot.here {
		e.slot = nil
	}
}

// lose frees the slots of ranks that did not answer a call or have ended.
func (m *meeting) lose(absent []absence) {
	m.mu.Lock()
	defer m.mu.Unlock()

	for _, a := range absent {
		if a.rank < 1 || a.rank >= m.size || a.standing == rankHere {
			continue
		}
		if s := m.ranks[a.rank].slot; s != nil && s.here {
			m.drop(a)
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
	for _, e := range m.ranks {
		if e.slot != nil && e.slot.here {
			slots = append(slots, *e.slot)
		}
	}
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

// succeed ends the meeting if all ranks are registered, and returns them, each with the
// address of the rank above it. top is the address of rank 0. It returns nil if a rank has
// left meanwhile.
func (m *meeting) succeed(top string, arity int) []slot {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.here != m.size-1 {
		return nil
	}

	m.over = errors.New("the ranks have met without this process")
	for r := 1; r < m.size; r++ {
		s := m.ranks[r].slot
		s.above = top
		if p := tree.Parent(r, m.size, arity); p > 0 {
			s.above = m.ranks[p].slot.addr
		}
	}

	return m.present()
}

// unregistered returns up to limit missing ranks.
func (m *meeting) unregistered(limit int) (ranks []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := 1; r < m.size && len(ranks) < limit; r++ {
		if m.ranks[r].standing() == rankMissing {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// missing returns an error that names up to limit ranks for which the meeting waits: ranks
// of one standing, and the ranks of other standings in the text. It leaves out one rank,
// which asks.
func (m *meeting) missing(limit, asks int) *group.Error {
	m.mu.Lock()
	defer m.mu.Unlock()

	var ranks [standings][]int
	var why [standings]string
	for r := 1; r < m.size && len(ranks[rankMissing]) < limit; r++ {
		st, away := m.ranks[r].standing(), m.ranks[r].away
		if r == asks || st == rankHere {
			continue
		}
		ranks[st] = append(ranks[st], r)
		if why[st] == "" && away.reason != "" {
			why[st] = fmt.Sprintf(" (rank %d was registered: %s)", r, away.reason)
		}
	}

	e := &group.Error{Op: opJoin, Err: missingAt(m.addr)}
	for st := rankMissing; st < standings; st++ {
		if len(ranks[st]) == 0 {
			continue
		}
		reason := fmt.Errorf("%w at %s%s", reasons[st], m.addr, why[st])
		if e.Ranks == nil {
			e.Ranks, e.Err = ranks[st][:min(len(ranks[st]), limit)], reason
		} else {
			e.Err = fmt.Errorf("%w; %s: %w", e.Err, group.RanksText(ranks[st]), reason)
		}
	}

	if m.refused.reason != "" && slices.Contains(ranks[rankMissing], m.refused.rank) {
		e.Err = fmt.Errorf("%w (a process that claimed to be rank %d was refused: %s)", e.Err, m.refused.rank, m.refused.reason)
	}
	return e
}

// giveUp decides why the ranks have not met. From now on all ranks that ask receive this
// error.
func (m *meeting) giveUp(ended error) *group.Error {
	e := m.missing(m.size, 0)
	if len(e.Ranks) > 0 {
		e.Err = group.NewRemoteError(fmt.Errorf("%w: %w", e.Err, ended))
	} else { // all are registered, but the context of rank 0 has ended
		e = &group.Error{Op: opJoin, Ranks: []int{0}, Err: group.NewRemoteError(ended)}
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	m.verdict = e
	return e
}

// gather waits until all ranks are registered and answer, and returns them. At intervals it
// makes a roll call of the registered ranks, which also sends them the list of missing ranks.
func (h *host) gather(ctx context.Context) ([]slot, error) {
	m := h.meeting
	interval := h.cfg.rollInterval(m.size)
	tick := time.NewTimer(interval)
	defer tick.Stop()

	for m.size > 1 {
		select {
		case <-m.full:
		case <-tick.C:
		case <-ctx.Done():
		}

		if ctx.Err() != nil {
			return nil, h.dismiss(ctx)
		}

		slots, all := m.roll()
		absent := h.callRoll(ctx, slots)
		m.lose(absent)
		if ctx.Err() != nil {
			return nil, h.dismiss(ctx)
		}

		if all && len(absent) == 0 {
			if met := m.succeed(h.addr, h.cfg.Arity); met != nil {
				return met, nil
			}
		}
		tick.Reset(interval)
	}

	return m.succeed(h.addr, h.cfg.Arity), nil
}

// callRoll sends the missing ranks to the ranks of slots, and returns the ranks that did
// not answer. If ctx ends meanwhile, the ranks that are being called still have the usual
// time to answer: a rank is not silent because rank 0 has no more time.
func (h *host) callRoll(ctx context.Context, slots []slot) []absence {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(h.cfg.partingTime(), cancel) })()
	return h.announcer().spread(longer, roll{notice: noticeWait, error: h.meeting.missing(maxMissing, 0)}, slots)
}

// dismiss ends a meeting if ranks have not registered or have not answered. It notifies
// the ranks that are registered or registering. A rank that it does not reach detects
// on its own that rank 0 is gone.
func (h *host) dismiss(ctx context.Context) error {
	m := h.meeting
	brief, cancel := context.WithTimeout(h.ctx, h.cfg.partingTime()) // the ranks pass the notice on, even if this rank has closed
	defer cancel()

	m.settle(brief, h.cfg.partingTime()/2)
	err := m.giveUp(group.ContextError(ctx))

	notified := make(map[int]bool)
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
	return &terms{
		session: m.session, arity: h.cfg.Arity, timeout: h.cfg.Timeout,
		again: 3 * h.cfg.rollInterval(m.size), above: s.above, missing: m.unregistered(maxHint),
	}
}

// part lets a rank leave that has given up, and sends it the ranks that are missing.
func (h *host) part(f *conn, hi hello) error {
	reason, err := f.readFrame(maxWhy)
	if err != nil {
		return err
	}
	r := h.meeting.leave(hi.from, hi.session, string(reason))
	return f.WriteFrame(r.encode())
}

func (h *host) announcer() announcer {
	return announcer{h, h.meeting.session, h.cfg.Arity, h.cfg.Timeout}
}

// answer handles a roll call: it passes the call on and reports which ranks did not
// answer.
func (h *host) answer(f *conn, hi hello) error {
	r, slots, err := readCall(f, h.size)
	if err != nil {
		return err
	}
	if slots[0].rank != h.rank {
		return fmt.Errorf("call for rank %d: %w", slots[0].rank, wire.ErrMalformed)
	}

	t := h.wait.state().agreed
	c := announcer{h, hi.session, t.arity, t.timeout}
	if err := f.Conn.SetDeadline(time.Now().Add(c.patience(len(slots)))); err != nil {
		return err
	}

	h.wait.hear(hi.session, r, slots[0].above)
	return f.WriteFrame(encodeAbsent(c.spread(h.during(r), r, slots[1:])))
}

// during returns the context of a call. The notice that the meeting has ended is passed
// on even if this rank closes at once because of it.
func (h *host) during(r roll) context.Context {
	if r.notice == noticeWait {
		return h.ctx
	}
	return context.WithoutCancel(h.ctx)
}
