package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// errForgotten reports a meeting in which this rank was not called any more:
// rank 0 has gone, or could not reach it for a while.
var errForgotten = errors.New("rank 0 has not called")

// A rank that has not found rank 0 looks again, soon at first and then less and
// less often, and less often the more ranks may do so.
const firstRetry = 2 * time.Millisecond

func (h *host) lastRetry() time.Duration {
	return 250*time.Millisecond + time.Duration(h.size)*time.Second/10000
}

// Join meets the other ranks of the job and returns this rank's end of their
// group. It returns when all ranks have come and are connected, or with an error
// that says which are missing when ctx ends or rank 0 gives up. If rank 0 was found
// and is lost, or refuses this rank, Join gives up after the timeout, at least 20 s.
// As long as rank 0 was never found only ctx bounds the wait. The caller must call
// Close.
func Join(ctx context.Context, cfg Config) (*Group, error) {
	g, err := join(ctx, cfg)
	if err != nil {
		if ge, ok := errors.AsType[*group.Error](err); ok && ge.Op == opJoin {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", opJoin, err)
	}
	return g, nil
}

func join(ctx context.Context, cfg Config) (*Group, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	defer cfg.Meet.Close()
	rank, size := cfg.Rank, cfg.Size
	if size == 0 {
		if rank, size, err = cfg.Meet.Seat(ctx); err != nil {
			return nil, err
		}
	}
	if err := cfg.checkSeat(rank, size); err != nil {
		return nil, err
	}
	h := newHost(cfg, rank, size)
	if rank == 0 {
		err = h.lead(ctx)
	} else {
		err = h.follow(ctx)
	}
	if err == nil {
		err = h.share(ctx)
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return &Group{Group: h.node.World(), host: h}, nil
}

// lead is what rank 0 does: it lets the others come.
func (h *host) lead(ctx context.Context) error {
	place, err := h.cfg.Meet.Place()
	if err != nil {
		return err
	}
	switch {
	case isUnix(h.cfg.Listen):
		place = socketIn(h.cfg.Listen[len(unixPrefix):], 0)
	case h.cfg.Listen != "":
		place = h.cfg.Listen
	case place == "":
		place = "127.0.0.1:0"
	}
	t := terms{arity: h.cfg.Arity, timeout: h.cfg.Timeout}
	rand.Read(t.session[:])
	h.meeting = newMeeting(h.size, t.session)
	if err := h.startListening(ctx, place, nil); err != nil {
		return err
	}
	if err := h.cfg.Meet.Announce(ctx, h.addr); err != nil {
		return err
	}
	if err := h.gather(ctx); err != nil {
		return err
	}
	seats := h.meeting.succeed(h.addr, t.arity)
	for _, s := range seats {
		h.setAddress(s.rank, s.addr)
	}
	h.begin(t)
	// Who does not hear it now will come again and ask, or is gone, which the
	// tree notices.
	met := roll{notice: noticeMet}
	h.wg.Go(func() { h.crier().spread(h.during(met), met, seats) })
	return nil
}

// startListening lets others connect to this rank, which reached rank 0 by conn.
func (h *host) startListening(ctx context.Context, place string, conn net.Conn) error {
	ln, err := h.cfg.listen(ctx, place)
	if err != nil {
		return err
	}
	h.ln, h.addr = ln, advertised(ln, conn)
	h.setAddress(h.rank, h.addr)
	h.wg.Go(h.serve)
	return nil
}

// begin starts the tree under the terms that rank 0 has set.
func (h *host) begin(t terms) {
	h.session = t.session
	h.node = tree.New(h.rank, h.size, network{h}, tree.Options{
		Arity: t.arity, Timeout: t.timeout, MaxValue: h.cfg.MaxMessage,
	})
	close(h.met)
}

// secretPatience is how long a rank 0 with another secret may be one of an earlier
// job, whose place the right one takes soon.
const secretPatience = 2 * time.Second

// follow is what the other ranks do: they look for rank 0 until they have met.
func (h *host) follow(ctx context.Context) error {
	var last error
	var refused time.Time
	start := time.Now()
	for retry := firstRetry; ; retry = min(2*retry, h.lastRetry()) {
		t, err := h.attend(ctx)
		if err == nil {
			if above := tree.Parent(h.rank, h.size, t.arity); above > 0 {
				h.setAddress(above, t.above)
			}
			h.cfg.Timeout, h.cfg.Arity = t.timeout, t.arity
			h.begin(t)
			return nil
		}
		if e, ok := errors.AsType[final](err); ok {
			return e.error
		}
		if errors.Is(err, ErrSecret) && time.Since(start) > secretPatience {
			return err
		}
		switch {
		case errors.Is(err, errForgotten):
			retry = firstRetry
		case !errors.Is(err, ErrRefused):
			refused = time.Time{}
		case refused.IsZero():
			refused = time.Now()
		case time.Since(refused) > h.cfg.searchTime():
			return err
		}
		at, due := h.wait.lastSeen()
		lost := !at.IsZero() && time.Since(due) > h.cfg.searchTime()
		if last == nil || ctx.Err() == nil && !lost { // else err may only say that time was up
			last = err
		}
		if lost && ctx.Err() == nil {
			return h.without(fmt.Errorf("%w for %v", errForgotten, time.Since(at).Round(time.Millisecond)), last)
		}
		select {
		case <-time.After(retry/2 + mathrand.N(retry)):
		case <-ctx.Done():
			if errors.Is(last, ErrRefused) {
				return fmt.Errorf("%w: %w", last, group.ContextError(ctx))
			}
			return h.without(group.ContextError(ctx), last)
		}
	}
}

// without returns the error of a rank that did not find rank 0, with the cause and
// the last error of its search. The error also names the ranks that rank 0 reported
// as missing last.
func (h *host) without(cause, last error) *group.Error {
	err := fmt.Errorf("%w: %w (%w)", errMissing, cause, last)
	if ranks := h.wait.missing(); len(ranks) > 0 {
		err = fmt.Errorf("%w; before that: %w", err, &group.Error{Op: opJoin, Ranks: ranks, Err: errMissing})
	}
	return &group.Error{Op: opJoin, Ranks: []int{0}, Err: err}
}

// final is an error after which it makes no sense to try again.
type final struct{ error }

// attend comes to the meeting and waits there to be called.
func (h *host) attend(ctx context.Context) (terms, error) {
	if _, err := h.enrol(ctx); err != nil {
		return terms{}, err
	}
	for {
		r, t := h.wait.heard()
		switch r.notice {
		case noticeMet:
			return t, nil
		case noticeRefused:
			return terms{}, final{r.error}
		}
		select {
		case <-h.wait.news:
		case <-time.After(t.again):
			return terms{}, fmt.Errorf("%w for %v", errForgotten, t.again)
		case <-ctx.Done():
			return terms{}, final{h.missed(ctx, r.error)}
		}
	}
}

// enrol tells rank 0 where this rank listens, and hears the terms.
func (h *host) enrol(ctx context.Context) (t terms, err error) {
	if _, due := h.wait.lastSeen(); !due.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, due.Add(h.cfg.searchTime()))
		defer cancel()
	}
	addr, err := h.cfg.Meet.Find(ctx)
	if err != nil {
		return t, err
	}
	ctx, cancel := context.WithTimeout(ctx, max(hasty, h.cfg.Timeout))
	defer cancel()
	f, err := h.dialAs(ctx, toMeet, 0, addr, h.process)
	if err != nil {
		return t, err
	}
	h.wait.met()
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })()
	if h.ln == nil {
		if err := h.startListening(ctx, h.cfg.place(h.rank, addr, f.Conn), f.Conn); err != nil {
			return t, final{err}
		}
	}
	if err := f.WriteFrame([]byte(h.addr), nil); err != nil {
		return t, err
	}
	b, err := f.readFrame(maxNotice)
	if err != nil {
		return t, err
	}
	if t, err = decodeTerms(b); err != nil {
		return t, err
	}
	h.setAddress(0, addr)
	h.wait.begin(t)
	return t, nil
}

// missed returns the error of a rank whose context ended before the ranks of e came.
// If these are unknown, it asks rank 0 once more.
func (h *host) missed(ctx context.Context, e *group.Error) *group.Error {
	ended := group.ContextError(ctx)
	if len(e.Ranks) > 0 {
		return &group.Error{Op: opJoin, Ranks: e.Ranks, Err: fmt.Errorf("%w: %w", e.Err, ended)}
	}
	brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWord)
	defer cancel()
	t, err := h.enrol(brief)
	switch {
	case err != nil:
		return h.without(ended, err)
	case len(t.missing) > 0:
		return &group.Error{Op: opJoin, Ranks: t.missing, Err: fmt.Errorf("%w: %w", errMissing, ended)}
	}
	return &group.Error{Op: opJoin, Ranks: []int{h.rank}, Err: ended} // only the time is up
}

// share tells all ranks where all listen, which also is when all are connected.
func (h *host) share(ctx context.Context) error {
	var w wire.Writer
	if h.rank == 0 {
		for _, a := range h.table {
			w.String(a)
		}
	}
	b, err := h.node.World().Broadcast(ctx, 0, w.B)
	if err != nil {
		return err
	}
	r := wire.NewReader(b)
	for rank := range h.size {
		addr := r.String()
		if rank > 0 || h.rank == 0 { // that of rank 0 is the one by which this rank has reached it
			h.setAddress(rank, addr)
		}
	}
	return r.Done()
}
