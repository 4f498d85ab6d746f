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
)

// opJoin is the Op of errors about ranks that have not come.
const opJoin group.Op = "join"

// errMissing reports ranks that have not come to a meeting.
var errMissing = errors.New("missing from the meeting")

// meeting is the list that rank 0 keeps of the ranks that have come. No
// connection belongs to it: ranks say where they listen and hang up, and whether
// they are still there is seen by calling the roll.
type meeting struct {
	size    int
	session session
	full    chan struct{} // has an element where all may be here

	mu     sync.Mutex
	seats  map[int]*seat // guarded by mu
	here   int           // how many have heard that they have a seat; guarded by mu
	over   bool          // guarded by mu
	latest absence       // who last lost its seat and has not come back; guarded by mu
	turned absence       // who was last refused; guarded by mu
}

// seat is a rank that has come.
type seat struct {
	rank    int
	process session // a name of the process, to tell it from another of the same rank
	addr    string  // where it listens
	above   string  // where the rank above it listens, once all have come
	here    bool    // it has heard that it has the seat
}

func newMeeting(size int, s session) *meeting {
	return &meeting{size: size, session: s, seats: make(map[int]*seat), full: make(chan struct{}, 1)}
}

// interval is how long rank 0 waits between two calls of the roll.
func (m *meeting) interval() time.Duration {
	return time.Second + time.Duration(m.size)*time.Second/4000
}

// check returns why a process may not have a rank's seat, or nil.
func (m *meeting) check(rank int, process session) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.taken(rank, process)
}

// taken is check where the lock is held.
func (m *meeting) taken(rank int, process session) error {
	s := m.seats[rank]
	switch {
	case s != nil && s.process == process:
		return nil
	case m.over:
		return errors.New("the ranks have met without this process")
	case s != nil:
		return fmt.Errorf("rank %d is here already", rank)
	}
	return nil
}

// sit gives a seat to a rank that listens at addr, or the one that it has. It
// returns a copy of it.
func (m *meeting) sit(rank int, process session, addr string) (seat, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.taken(rank, process); err != nil {
		return seat{}, err
	}
	s := m.seats[rank]
	if s == nil {
		s = &seat{rank: rank, process: process, addr: addr}
		m.seats[rank] = s
	}
	return *s, nil
}

// confirm notes that a rank knows of its seat, so that it can be called.
func (m *meeting) confirm(rank int, process session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.seats[rank]
	if s == nil || s.process != process || s.here {
		return
	}
	s.here = true
	m.here++
	if m.latest.rank == rank {
		m.latest = absence{}
	}
	if m.here == m.size-1 {
		select {
		case m.full <- struct{}{}:
		default:
		}
	}
}

// turnedAway notes that a process that said to be a rank was refused, for who
// wonders where that rank is. A stranger may say anything.
func (m *meeting) turnedAway(hi hello, err error) {
	if hi.purpose != toMeet {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turned = absence{rank: hi.from, reason: err.Error()}
}

// vacate frees a seat whose rank does not know that it has it.
func (m *meeting) vacate(rank int, process session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.seats[rank]; s != nil && s.process == process && !s.here {
		delete(m.seats, rank)
	}
}

// lose frees the seats of ranks that could not be called.
func (m *meeting) lose(absent []absence) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range absent {
		if s := m.seats[a.rank]; a.lost && s != nil && s.here {
			delete(m.seats, a.rank)
			m.here--
			m.latest = a
		}
	}
}

// roll returns who is here, by rank, and whether that is all.
func (m *meeting) roll() ([]seat, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seats := make([]seat, 0, m.here)
	for _, s := range m.seats {
		if s.here {
			seats = append(seats, *s)
		}
	}
	slices.SortFunc(seats, func(a, b seat) int { return cmp.Compare(a.rank, b.rank) })
	return seats, m.here == m.size-1
}

// end ends the meeting for all that come later, and returns who is here, by rank.
func (m *meeting) end() []seat {
	m.mu.Lock()
	m.over = true
	m.mu.Unlock()
	seats, _ := m.roll()
	return seats
}

// succeed is end where all are here. Each is told where the rank above it
// listens; top is where rank 0 does.
func (m *meeting) succeed(top string, arity int) []seat {
	m.mu.Lock()
	for _, s := range m.seats {
		s.above = top
		if p := (s.rank - 1) / arity; p > 0 {
			s.above = m.seats[p].addr
		}
	}
	m.mu.Unlock()
	return m.end()
}

// absent returns up to limit ranks that are not here.
func (m *meeting) absent(limit int) (ranks []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := 1; r < m.size && len(ranks) < limit; r++ {
		if s := m.seats[r]; s == nil || !s.here {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// missing returns an error that names up to limit ranks that are not here, with
// a cause.
func (m *meeting) missing(cause error, limit int) *group.Error {
	ranks := m.absent(limit)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.latest.reason != "" {
		cause = fmt.Errorf("%w (rank %d was here: %s)", cause, m.latest.rank, m.latest.reason)
	}
	if m.turned.reason != "" && slices.Contains(ranks, m.turned.rank) {
		cause = fmt.Errorf("%w (who came as rank %d was refused: %s)", cause, m.turned.rank, m.turned.reason)
	}
	return &group.Error{Op: opJoin, Ranks: ranks, Err: cause}
}

// gather waits until all ranks have come and answer. Now and then it calls the
// roll of those who are here, which tells them who is not.
func (h *host) gather(ctx context.Context) error {
	m := h.meeting
	tick := time.NewTimer(m.interval())
	defer tick.Stop()
	for m.size > 1 {
		select {
		case <-m.full:
		case <-tick.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return h.dismiss(ctx, nil)
		}
		seats, all := m.roll()
		absent := h.crier().spread(ctx, roll{notice: noticeWait, error: m.missing(errMissing, maxMissing)}, seats)
		if ctx.Err() != nil {
			return h.dismiss(ctx, absent)
		}
		if all && len(absent) == 0 {
			return nil
		}
		m.lose(absent)
		tick.Reset(m.interval())
	}
	return nil
}

// dismiss ends a meeting to which not all have come, or of which some have not
// answered, and tells who is here.
func (h *host) dismiss(ctx context.Context, absent []absence) error {
	m := h.meeting
	err := m.missing(group.NewRemoteError(fmt.Errorf("%w: %w", errMissing, group.ContextError(ctx))), m.size)
	if len(err.Ranks) == 0 {
		for _, a := range absent {
			err.Ranks = append(err.Ranks, a.rank)
		}
		slices.Sort(err.Ranks)
	}
	seats := m.end()
	brief, cancel := context.WithTimeout(h.ctx, 2*time.Second) // they pass it on, also without this rank
	defer cancel()
	h.crier().spread(brief, roll{notice: noticeRefused, error: err}, seats)
	return err
}

// register hears where a rank listens and tells it the terms, in the course of a
// connection of its own.
func (h *host) register(f *framed, hi hello) error {
	b, err := f.readFrame(MaxAddress)
	if err != nil {
		return err
	}
	s, err := h.meeting.sit(hi.from, hi.session, string(b))
	if err != nil {
		return err
	}
	if err := f.WriteFrame(h.terms(s).encode(), nil); err != nil {
		h.meeting.vacate(hi.from, hi.session)
		return err
	}
	// The rank hangs up once it has noted the terms. Before that it would not
	// know what a call is about.
	_, _ = f.readFrame(1)
	h.meeting.confirm(hi.from, hi.session)
	return nil
}

// terms returns what rank 0 tells a rank that has come.
func (h *host) terms(s seat) *terms {
	m := h.meeting
	return &terms{
		session: m.session, arity: h.cfg.Arity, timeout: h.cfg.Timeout,
		again: 3 * m.interval(), above: s.above, missing: m.absent(maxHint),
	}
}

func (h *host) crier() crier {
	return crier{h, h.meeting.session, h.cfg.Arity, h.cfg.Timeout}
}
