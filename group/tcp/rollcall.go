package tcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// crier calls the roll of a meeting, from any of its ranks.
type crier struct {
	host    *host
	session session
	arity   int
	timeout time.Duration
}

// knock bounds how long it may take to reach a rank: as long as one may be
// silent, but not longer than is worth to wait for.
func (c crier) knock() time.Duration { return min(c.timeout, hasty/2) }

// spread calls seats: the first ones by this rank, and through them the others,
// so that a rank calls at most arity at once. It returns those who did not answer.
func (c crier) spread(ctx context.Context, r roll, seats []seat) []absence {
	k := min(c.arity, len(seats))
	absent := make([][]absence, k)
	var wg sync.WaitGroup
	for i := range k {
		wg.Go(func() { absent[i] = c.pass(ctx, r, part(seats, i, k)) })
	}
	wg.Wait()
	return slices.Concat(absent...)
}

// part returns every k-th of seats: ranks that are gone for one reason are likely
// to be neighbours, and each of them costs time.
func part(seats []seat, i, k int) []seat {
	p := make([]seat, 0, len(seats)/k+1)
	for ; i < len(seats); i += k {
		p = append(p, seats[i])
	}
	return p
}

// pass calls the first of seats that answers, and the rest through it.
func (c crier) pass(ctx context.Context, r roll, seats []seat) (absent []absence) {
	ctx, cancel := context.WithTimeout(ctx, c.patience(len(seats)))
	defer cancel()
	for i, s := range seats {
		if ctx.Err() != nil {
			absent = append(absent, absence{rank: s.rank})
			continue
		}
		more, lost, err := c.call(ctx, r, seats[i:])
		if err == nil {
			return append(absent, more...)
		}
		a := absence{s.rank, lost && ctx.Err() == nil, err.Error()}
		if !lost && len(seats) > i+1 {
			a.reason = "" // it was reached, and may wait for one of the others
		}
		absent = append(absent, a)
	}
	return absent
}

// patience is how long a call of n ranks by one of them may take. For it and for
// each level below it, it allows the time to find that a rank is gone, plus the
// same time once more, so that it ends later than the time for the last rank.
func (c crier) patience(n int) time.Duration {
	levels := 2
	for ; n > 1; n = (n - 1) / max(c.arity, 2) {
		levels++
	}
	return time.Duration(levels) * c.knock()
}

// call calls the first of seats and hands it the rest. It returns who of them did
// not answer. Where there is an error, lost says that the first was not reached.
func (c crier) call(ctx context.Context, r roll, seats []seat) (absent []absence, lost bool, err error) {
	s := seats[0]
	brief, cancel := context.WithTimeout(ctx, c.knock())
	defer cancel()
	f, err := c.host.dialAs(brief, toCall, s.rank, s.addr, c.session)
	if err != nil {
		return nil, true, err
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })()
	r.called = len(seats)
	if err := writeCall(f, r, seats); err != nil {
		return nil, true, err
	}
	b, err := f.readFrame(maxNotice)
	if err != nil {
		return nil, false, err
	}
	absent, err = decodeAbsent(b)
	return absent, false, err
}

func writeCall(f *framed, c roll, seats []seat) error {
	if err := f.WriteFrame(c.encode(), nil); err != nil {
		return err
	}
	for len(seats) > 0 {
		b, n := encodeSeats(seats)
		if err := f.WriteFrame(b, nil); err != nil {
			return err
		}
		seats = seats[n:]
	}
	return nil
}

// readCall reads a call of ranks of a group of that size.
func readCall(f *framed, size int) (roll, []seat, error) {
	b, err := f.readFrame(maxNotice)
	if err != nil {
		return roll{}, nil, err
	}
	c, err := decodeRoll(b)
	if err != nil {
		return c, nil, err
	}
	if c.called < 1 || c.called >= size {
		return c, nil, fmt.Errorf("call of %d ranks of %d: %w", c.called, size, wire.ErrMalformed)
	}
	var seats []seat
	for len(seats) < c.called {
		if b, err = f.readFrame(maxNotice); err != nil {
			return c, nil, err
		}
		some, err := decodeSeats(b, size)
		if err != nil {
			return c, nil, err
		}
		seats = append(seats, some...)
	}
	if len(seats) != c.called {
		return c, nil, fmt.Errorf("call of %d ranks, not %d: %w", len(seats), c.called, wire.ErrMalformed)
	}
	return c, seats, nil
}

// answer takes a call of the roll: it passes it on and tells who did not answer.
func (h *host) answer(f *framed, hi hello) error {
	r, seats, err := readCall(f, h.size)
	if err != nil {
		return err
	}
	if seats[0].rank != h.rank {
		return fmt.Errorf("call for rank %d: %w", seats[0].rank, wire.ErrMalformed)
	}
	t := h.wait.terms()
	c := crier{h, hi.session, t.arity, t.timeout}
	if err := f.Conn.SetDeadline(time.Now().Add(c.patience(len(seats)))); err != nil {
		return err
	}
	h.wait.hear(hi.session, r, seats[0].above)
	return f.WriteFrame(encodeAbsent(c.spread(h.during(r), r, seats[1:])), nil)
}

// during returns the context of a call. The last word is passed on even where
// this rank closes at once because of it.
func (h *host) during(r roll) context.Context {
	if r.notice == noticeWait {
		return h.ctx
	}
	return context.WithoutCancel(h.ctx)
}

// waiting is what a rank other than 0 knows while it waits for all to meet.
type waiting struct {
	news chan struct{} // has an element where something was heard

	mu     sync.Mutex
	since  time.Time // when rank 0 last answered or called; guarded by mu
	agreed terms     // of the meeting that the rank has come to; guarded by mu
	last   roll      // what was heard last; guarded by mu
}

// begin notes that the rank has come to a meeting.
func (w *waiting) begin(t terms) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.agreed.session != t.session {
		w.last = roll{}
	}
	w.agreed, w.since = t, time.Now()
	switch {
	case t.above != "":
		w.last = roll{notice: noticeMet}
	case w.last.notice == 0 || w.last.notice == noticeWait:
		e := &group.Error{Op: opJoin, Ranks: t.missing, Err: errMissing}
		w.last = roll{notice: noticeWait, error: e}
	}
}

func (w *waiting) terms() terms {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.agreed
}

// check returns why a call is none of this rank's business, or nil.
func (w *waiting) check(s session) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.last.notice == 0 || s != w.agreed.session:
		return errors.New("this process has not come to that meeting")
	case w.last.notice == noticeMet:
		return errors.New("the ranks have met")
	}
	return nil
}

// hear notes what was told in a call.
func (w *waiting) hear(s session, r roll, above string) {
	w.mu.Lock()
	if s == w.agreed.session && w.last.notice == noticeWait {
		w.last, w.agreed.above, w.since = r, above, time.Now()
	}
	w.mu.Unlock()
	poke(w.news)
}

// met notes that rank 0 has answered, whatever follows.
func (w *waiting) met() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = time.Now()
}

// lastSeen returns when rank 0 last answered or called, and when it will be time to
// come again if it does not. Both are zero if it never did.
func (w *waiting) lastSeen() (at, due time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		return at, due
	}
	return w.since, w.since.Add(w.agreed.again)
}

// missing returns the ranks that rank 0 reported as missing last.
func (w *waiting) missing() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.error == nil {
		return nil
	}
	return w.last.error.Ranks
}

// heard returns what was heard last, and the terms as they are then.
func (w *waiting) heard() (roll, terms) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last, w.agreed
}
