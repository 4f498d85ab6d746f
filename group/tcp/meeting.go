package tcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// opJoin is the Op of errors about ranks that have not come.
const opJoin group.Op = "join"

// notice is the first byte of what rank 0 sends to those who wait to meet.
type notice byte

const (
	noticeWait    notice = iota + 1 // who is missing
	noticeMet                       // all have come
	noticeRefused                   // why the meeting has ended
)

// maxNotice bounds the length of a notice, and of a registration.
const maxNotice = 64 << 10

// meeting is where rank 0 gathers the others. Every rank holds a connection here
// until all have come.
type meeting struct {
	size int

	mu    sync.Mutex
	seats map[int]*seat // guarded by mu
	here  int           // how many have said where they listen; guarded by mu
	over  bool          // guarded by mu
	full  chan struct{} // closed when all are here
}

// seat is a rank that has come.
type seat struct {
	rank int
	conn *framed // nil until it has said where it listens
	addr string
}

func newMeeting(size int) *meeting {
	m := &meeting{size: size, seats: make(map[int]*seat), full: make(chan struct{})}
	if size == 1 {
		close(m.full)
	}
	return m
}

// reserve gives a seat to a rank.
func (m *meeting) reserve(rank int) (*seat, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.over:
		return nil, errors.New("the ranks have met without this process")
	case m.seats[rank] != nil:
		return nil, fmt.Errorf("rank %d is here already", rank)
	}
	s := &seat{rank: rank}
	m.seats[rank] = s
	return s, nil
}

// vacate frees the seat of a rank that went away.
func (m *meeting) vacate(s *seat) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seats[s.rank] != s || m.over {
		return
	}
	delete(m.seats, s.rank)
	if s.conn != nil {
		m.here--
	}
}

// sit hears where a rank listens. The connection stays until watch returns.
func (m *meeting) sit(f *framed, s *seat) error {
	b, err := f.readFrame(maxAddress)
	if err != nil {
		return err
	}
	if err := f.Conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	m.mu.Lock()
	s.conn, s.addr = f, string(b)
	m.here++
	if m.here == m.size-1 {
		m.over = true
		close(m.full)
	}
	m.mu.Unlock()
	return nil
}

// watch returns when the rank has gone away, and frees its seat.
func (m *meeting) watch(s *seat) {
	defer s.conn.Close()
	_, _ = s.conn.readFrame(1) // nothing comes but the end
	m.vacate(s)
}

// close ends the connections that are left.
func (m *meeting) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
	for _, s := range m.seats {
		if s.conn != nil {
			s.conn.Close()
		}
	}
}

// end ends the meeting for all that come later and returns who is here.
func (m *meeting) end() map[int]*seat {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
	return m.seats
}

// missing returns the ranks that are not here, as an error with a cause.
func (m *meeting) missing(cause error) *group.Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &group.Error{Op: opJoin, Err: cause}
	for r := 1; r < m.size; r++ {
		if s := m.seats[r]; s == nil || s.conn == nil {
			e.Ranks = append(e.Ranks, r)
		}
	}
	return e
}

// tell sends a notice to all who are here.
func (m *meeting) tell(n func(rank int) []byte) {
	m.mu.Lock()
	var to []*seat
	for _, s := range m.seats {
		if s.conn != nil {
			to = append(to, s)
		}
	}
	m.mu.Unlock()
	for _, s := range to {
		_ = s.conn.SetWriteDeadline(time.Now().Add(hasty)) // who does not read is noticed later
		_ = s.conn.WriteFrame(n(s.rank), nil)
	}
}

// gather waits until all ranks are here, and tells now and then who is not.
func (m *meeting) gather(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-m.full:
			return nil
		case <-tick.C:
			b := encodeMissing(noticeWait, m.missing(errMissing))
			m.tell(func(int) []byte { return b })
		case <-ctx.Done():
			err := m.missing(group.NewRemoteError(fmt.Errorf("%w: %w", errMissing, group.ContextError(ctx))))
			m.end()
			b := encodeMissing(noticeRefused, err)
			m.tell(func(int) []byte { return b })
			return err
		}
	}
}

// maxMissing bounds how many missing ranks are told.
const maxMissing = 4096

func encodeMissing(n notice, e *group.Error) []byte {
	var w wire.Writer
	w.Byte(byte(n))
	ranks := e.Ranks[:min(len(e.Ranks), maxMissing)]
	w.Uvarint(uint64(len(ranks)))
	for _, r := range ranks {
		w.Uvarint(uint64(r))
	}
	cause, err := group.NewRemoteError(e.Err).MarshalBinary()
	if err == nil { // as it is for all that NewRemoteError makes
		w.Bytes(cause)
	}
	return w.B
}

func decodeMissing(b []byte) ([]int, *group.RemoteError, error) {
	r := wire.NewReader(b)
	ranks := make([]int, r.CountMax(min(maxMissing, len(b))))
	for i := range ranks {
		ranks[i] = r.CountMax(1 << 30)
	}
	cause := new(group.RemoteError)
	err := cause.UnmarshalBinary(r.Bytes())
	if e := r.Done(); e != nil {
		err = e
	}
	if err != nil {
		return nil, nil, fmt.Errorf("missing ranks: %w", err)
	}
	return ranks, cause, nil
}

// terms are what rank 0 tells when all have come.
type terms struct {
	session session
	arity   int
	timeout time.Duration
	parent  string // where the rank above listens
}

func (t *terms) encode() []byte {
	var w wire.Writer
	w.Byte(byte(noticeMet))
	w.B = append(w.B, t.session[:]...)
	w.Uvarint(uint64(t.arity))
	w.Uvarint(uint64(t.timeout))
	w.String(t.parent)
	return w.B
}

func decodeTerms(b []byte) (terms, error) {
	r := wire.NewReader(b)
	var t terms
	copy(t.session[:], r.Raw(len(t.session)))
	t.arity = r.CountMax(1 << 16)
	t.timeout = time.Duration(r.Size())
	t.parent = r.String()
	if err := r.Done(); err != nil {
		return t, fmt.Errorf("terms: %w", err)
	}
	if t.arity < 1 || t.timeout <= 0 || len(t.parent) > maxAddress {
		return t, fmt.Errorf("terms: arity %d, timeout %v: %w", t.arity, t.timeout, wire.ErrMalformed)
	}
	return t, nil
}
