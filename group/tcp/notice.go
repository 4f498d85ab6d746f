package tcp

import (
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// notice says what a call of the roll is about.
type notice byte

const (
	noticeWait    notice = iota + 1 // who is missing
	noticeMet                       // all have come
	noticeRefused                   // why the meeting has ended
)

const (
	// maxNotice bounds the length of a frame while ranks meet.
	maxNotice = 64 << 10
	// maxMissing bounds how many missing or absent ranks are told, maxHint how
	// many of them a rank hears of as it comes.
	maxMissing = 4096
	maxHint    = 64
	// maxReasons bounds how many of the absent ranks are told with a reason,
	// maxWhy the length of one.
	maxReasons = 16
	maxWhy     = 256
	// maxRank bounds what is taken for a rank before it is compared with a size.
	maxRank = 1 << 30
)

// terms are what rank 0 tells a rank that has come.
type terms struct {
	session session
	arity   int
	timeout time.Duration
	again   time.Duration // come again where nobody has called for so long
	above   string        // where the rank above listens, where all have come
	missing []int         // some of those who have not
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
	if t.arity < 1 || t.timeout <= 0 || t.again <= 0 || len(t.above) > MaxAddress {
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

// roll is what is told in a call of the roll.
type roll struct {
	notice notice
	error  *group.Error // who is missing, and why that matters; nil where all have come
	called int          // how many seats follow
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
	cause, passedOn := c.error.Err.(*group.RemoteError)
	if !passedOn {
		cause = group.NewRemoteError(c.error.Err)
	}
	if b, err := cause.MarshalBinary(); err == nil { // as it is for all that are within bounds
		w.Bytes(b)
	}
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

// encodeSeats returns a frame with the first of the seats, and how many.
func encodeSeats(seats []seat) (b []byte, n int) {
	var w wire.Writer
	for _, s := range seats {
		if len(w.B)+2*MaxAddress+16 > maxNotice {
			break
		}
		w.Uvarint(uint64(s.rank))
		w.String(s.addr)
		w.String(s.above)
		n++
	}
	return w.B, n
}

// decodeSeats reads a frame with seats of a group of that size.
func decodeSeats(b []byte, size int) ([]seat, error) {
	r := wire.NewReader(b)
	var seats []seat
	for r.Len() > 0 {
		s := seat{rank: r.CountMax(maxRank), addr: r.String(), above: r.String()}
		if s.rank < 1 || s.rank >= size || len(s.addr) > MaxAddress || len(s.above) > MaxAddress {
			r.Fail("rank %d of %d, at an address of %d bytes", s.rank, size, len(s.addr))
		}
		seats = append(seats, s)
	}
	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("seats: %w", err)
	}
	return seats, nil
}

// absence is a rank that did not answer a call.
type absence struct {
	rank   int
	lost   bool   // it was tried; otherwise there was no time for it
	reason string // why it did not answer; empty if it was not called
}

func encodeAbsent(absent []absence) []byte {
	absent = absent[:min(len(absent), maxMissing)]
	var w wire.Writer
	w.Uvarint(uint64(len(absent)))
	for i, a := range absent {
		w.Uvarint(uint64(a.rank))
		w.Bool(a.lost)
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
		absent[i] = absence{rank: r.CountMax(maxRank), lost: r.Bool(), reason: r.String()}
		if len(absent[i].reason) > maxWhy {
			r.Fail("reason of %d bytes", len(absent[i].reason))
		}
	}
	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("answer: %w", err)
	}
	return absent, nil
}
