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

// announcer makes the roll calls of a meeting, or the part of one rank in them.
type announcer struct {
	host    *host
	session session
	arity   int
	timeout time.Duration
}

// dialTime bounds how long it may take to reach a rank.
func (c announcer) dialTime() time.Duration { return min(c.timeout, handshakeTimeout/2) }

// spread calls the ranks of slots. This rank calls at most arity of them, and these
// call the rest. It returns the ranks that did not answer.
func (c announcer) spread(ctx context.Context, r roll, slots []slot) []absence {
	k := min(c.arity, len(slots))
	absent := make([][]absence, k)
	var wg sync.WaitGroup

	// Each part has every k-th slot: ranks that are gone for the same reason are likely
	// to be neighbours, and each of them costs time.
	parts := make([][]slot, k)
	for i, s := range slots {
		parts[i%k] = append(parts[i%k], s)
	}

	for i, p := range parts {
		wg.Go(func() { absent[i] = c.pass(ctx, r, p) })
	}

	wg.Wait()
	return slices.Concat(absent...)
}

// pass calls the first of slots that answers, and the rest through it.
func (c announcer) pass(ctx context.Context, r roll, slots []slot) (absent []absence) {
	ctx, cancel := context.WithTimeout(ctx, c.patience(len(slots)))
	defer cancel()

	for i, s := range slots {
		if ctx.Err() != nil {
			absent = append(absent, absence{rank: s.rank})
			continue
		}

		more, reached, err := c.call(ctx, r, slots[i:])
		if err == nil {
			return append(absent, more...)
		}

		a := absence{s.rank, rankSilent, err.Error()}
		switch {
		case !reached && (isUnattended(err) || isAnswer(err)):
			a.standing = rankMissing // no process listens there, or another one
		case ctx.Err() != nil || reached && len(slots) > i+1:
			a = absence{rank: s.rank} // it had less time than dialTime, or may be waiting for another rank
		}

		absent = append(absent, a)
	}

	return absent
}

// patience bounds how long a call of n ranks through one of them may take. It allows
// dialTime for each level of the tree below, plus dialTime once more, so that it ends
// later than the time for the last rank.
func (c announcer) patience(n int) time.Duration {
	levels := 2
	for ; n > 1; n = (n - 1) / max(c.arity, 2) {
		levels++
	}
	return time.Duration(levels) * c.dialTime()
}

// call calls the first of slots and sends it the rest. It returns which of them did
// not answer. After an error, reached reports whether the first has received the call.
func (c announcer) call(ctx context.Context, r roll, slots []slot) (absent []absence, reached bool, err error) {
	s := slots[0]
	brief, cancel := context.WithTimeout(ctx, c.dialTime())
	defer cancel()

	f, err := c.host.dialAs(brief, toCall, s.rank, s.addr, c.session)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })()

	r.called = len(slots)
	if err := writeCall(f, r, slots); err != nil {
		return nil, false, err
	}

	b, err := f.readFrame(maxNotice)
	if err != nil {
		return nil, true, err
	}

	absent, err = decodeAbsent(b)
	return absent, true, err
}

func writeCall(f *conn, c roll, slots []slot) error {
	if err := f.WriteFrame(c.encode()); err != nil {
		return err
	}
	for some := range slices.Chunk(slots, slotsInFrame) {
		if err := f.WriteFrame(encodeSlots(some)); err != nil {
			return err
		}
	}
	return nil
}

// readCall reads a call of ranks of a group of that size.
func readCall(f *conn, size int) (roll, []slot, error) {
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

	var slots []slot
	for len(slots) < c.called {
		if b, err = f.readFrame(maxNotice); err != nil {
			return c, nil, err
		}
		some, err := decodeSlots(b, size)
		if err != nil {
			return c, nil, err
		}
		slots = append(slots, some...)
	}

	if len(slots) != c.called {
		return c, nil, fmt.Errorf("call of %d ranks, not %d: %w", len(slots), c.called, wire.ErrMalformed)
	}
	return c, slots, nil
}

// waiting is the state of a rank other than 0 while it waits for all ranks to register.
type waiting struct {
	news chan struct{} // has an element after a call was received

	mu sync.Mutex
	waitState
}

// waitState is guarded by the lock of waiting.
type waitState struct {
	since  time.Time // when rank 0 last answered or called; zero: never
	agreed terms     // of the meeting with which the rank has registered
	last   roll      // the last call
}

func (w *waiting) state() waitState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waitState
}

// due returns the time to register again if rank 0 neither answers nor calls.
func (s *waitState) due() time.Time { return s.since.Add(s.agreed.again) }

// begin records that the rank has registered.
func (w *waiting) begin(t terms, addr string) {
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
		e := &group.Error{Op: opJoin, Ranks: t.missing, Err: missingAt(addr)}
		w.last = roll{notice: noticeWait, error: e}
	}
}

// check returns why a call is not for this rank, or nil.
func (w *waiting) check(s session) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.last.notice == 0 || s != w.agreed.session:
		return errors.New("this process has not registered for that meeting")
	case w.last.notice == noticeMet:
		return errors.New("the ranks have met")
	}
	return nil
}

// hear records the contents of a call.
func (w *waiting) hear(s session, r roll, above string) {
	w.mu.Lock()
	if s == w.agreed.session && w.last.notice == noticeWait {
		w.last, w.agreed.above, w.since = r, above, time.Now()
	}
	w.mu.Unlock()
	signal(w.news)
}

// met records that rank 0 has answered.
func (w *waiting) met() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = time.Now()
}

// notice is the kind of a roll call.
type notice byte

const (
	noticeWait    notice = iota + 1 // ranks are missing
	noticeMet                       // all ranks are registered
	noticeRefused                   // the meeting has failed
)

const (
	// maxNotice bounds the length of a frame while ranks meet.
	maxNotice = 64 << 10
	// slotsInFrame is how many slots fit into one frame.
	slotsInFrame = maxNotice / (2*maxAddress + 16)
	// maxMissing bounds how many missing or absent ranks are listed in a call or an
	// answer, maxHint how many are listed in the terms.
	maxMissing = 4096
	maxHint    = 64
	// maxReasons bounds how many of the absent ranks are listed with a reason, maxWhy
	// the length of a reason.
	maxReasons = 16
	maxWhy     = 256
	// maxRank bounds the ranks that decoders accept, before they are compared with the
	// size of the group.
	maxRank = 1 << 30
)

// terms are the answer of rank 0 to a rank that registers.
type terms struct {
	session session
	arity   int
	timeout time.Duration
	again   time.Duration // register again after this time without a call
	above   string        // address of the rank above, if all ranks are registered
	missing []int         // some of the ranks that are not registered
}

func (t *terms) encode() []byte {
	var w wire.Writer
	w.B = append(w.B, t.session[:]...)
	w.Uvarint(uint64(t.arity))
	w.Uvarint(uint64(t.timeout))
	w.Uvarint(uint64(t.again))
	w.String(t.above)
	putRanks(&w, t.missing, maxHint)
	return w.B
}

func decodeTerms(b []byte) (terms, error) {
	r := wire.NewReader(b)
	var t terms
	copy(t.session[:], r.Raw(len(t.session)))
	t.arity = r.CountMax(maxArity)
	t.timeout = time.Duration(r.Size())
	t.again = time.Duration(r.Size())
	t.above = r.String()
	t.missing = ranksOf(r, maxHint)

	if err := r.Done(); err != nil {
		return t, fmt.Errorf("terms: %w", err)
	}

	if t.arity < 1 || t.timeout <= 0 || t.again <= 0 || len(t.above) > maxAddress {
		return t, fmt.Errorf("terms: arity %d, timeout %v, again after %v: %w", t.arity, t.timeout, t.again, wire.ErrMalformed)
	}
	return t, nil
}

func putRanks(w *wire.Writer, ranks []int, limit int) {
	ranks = ranks[:min(len(ranks), limit)]
	w.Uvarint(uint64(len(ranks)))
	for _, r := range ranks {
		w.Uvarint(uint64(r))
	}
}

func ranksOf(r *wire.Reader, limit int) []int {
	ranks := make([]int, r.CountMax(min(limit, r.Len())))
	for i := range ranks {
		ranks[i] = r.CountMax(maxRank)
	}
	return ranks
}

// roll is the content of a roll call.
type roll struct {
	notice notice
	error  *group.Error // the missing ranks and the reason; nil if all are registered
	called int          // how many slots follow
}

func (c *roll) encode() []byte {
	var w wire.Writer
	w.Byte(byte(c.notice))
	w.Uvarint(uint64(c.called))
	if c.error == nil {
		putRanks(&w, nil, 0)
		w.Bytes(nil)
		return w.B
	}

	putRanks(&w, c.error.Ranks, maxMissing)
	b, _ := group.NewRemoteError(c.error.Err).MarshalBinary() // never fails
	w.Bytes(b)
	return w.B
}

func decodeRoll(b []byte) (roll, error) {
	r := wire.NewReader(b)
	c := roll{notice: notice(r.Byte()), called: r.CountMax(maxRank)}
	ranks, text := ranksOf(r, maxMissing), r.Bytes()
	if err := r.Done(); err != nil {
		return c, fmt.Errorf("call: %w", err)
	}

	if c.notice < noticeWait || c.notice > noticeRefused || (c.notice == noticeMet) != (len(text) == 0) {
		return c, fmt.Errorf("call of kind %d: %w", c.notice, wire.ErrMalformed)
	}
	if c.notice == noticeMet {
		return c, nil
	}

	cause := new(group.RemoteError)
	if err := cause.UnmarshalBinary(text); err != nil {
		return c, fmt.Errorf("call: %w", err)
	}

	c.error = &group.Error{Op: opJoin, Ranks: ranks, Err: cause}
	return c, nil
}

// encodeSlots returns a frame with at most slotsInFrame slots.
func encodeSlots(slots []slot) []byte {
	var w wire.Writer
	for _, s := range slots {
		w.Uvarint(uint64(s.rank))
		w.String(s.addr)
		w.String(s.above)
	}
	return w.B
}

// decodeSlots reads a frame with slots of a group of that size.
func decodeSlots(b []byte, size int) ([]slot, error) {
	r := wire.NewReader(b)
	var slots []slot
	for r.Len() > 0 {
		s := slot{rank: r.CountMax(maxRank), addr: r.String(), above: r.String()}
		if s.rank < 1 || s.rank >= size || len(s.addr) > maxAddress || len(s.above) > maxAddress {
			r.Fail("rank %d of %d, at an address of %d bytes", s.rank, size, len(s.addr))
		}
		slots = append(slots, s)
	}

	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("slots: %w", err)
	}
	return slots, nil
}

// absence is a rank that did not answer a call.
type absence struct {
	rank     int
	standing standing // rankHere if there was no time to call it
	reason   string   // why it did not answer; empty if there was no time to call it
}

func encodeAbsent(absent []absence) []byte {
	absent = absent[:min(len(absent), maxMissing)]
	var w wire.Writer
	w.Uvarint(uint64(len(absent)))
	for i, a := range absent {
		w.Uvarint(uint64(a.rank))
		w.Byte(byte(a.standing))
		if i >= maxReasons {
			a.reason = ""
		}
		w.String(a.reason[:min(len(a.reason), maxWhy)])
	}

	return w.B
}

func decodeAbsent(b []byte) ([]absence, error) {
	r := wire.NewReader(b)
	absent := make([]absence, r.CountMax(min(maxMissing, len(b))))
	for i := range absent {
		a := absence{rank: r.CountMax(maxRank), standing: standing(r.Byte()), reason: r.String()}
		if a.standing > rankSilent || len(a.reason) > maxWhy {
			r.Fail("absence of kind %d, with a reason of %d bytes", a.standing, len(a.reason))
		}
		absent[i] = a
	}

	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("answer: %w", err)
	}
	return absent, nil
}
