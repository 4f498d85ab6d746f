package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// errMissing reports ranks that have not come to a meeting.
var errMissing = errors.New("have not come")

// A rank that has not found rank 0 looks again, soon at first and then less and
// less often.
const (
	firstRetry = 2 * time.Millisecond
	lastRetry  = 250 * time.Millisecond
)

// Join meets the other ranks of the job and returns this rank's end of their
// group. It returns when all ranks have come and are connected, or with an error
// that says which are missing when ctx ends. The caller must call Close.
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
	h.meeting = newMeeting(h.size)
	if err := h.startListening(ctx, place, nil); err != nil {
		return err
	}
	if err := h.cfg.Meet.Announce(ctx, h.addr); err != nil {
		return err
	}
	if err := h.meeting.gather(ctx); err != nil {
		return err
	}
	t := terms{arity: h.cfg.Arity, timeout: h.cfg.Timeout}
	rand.Read(t.session[:])
	for r, s := range h.meeting.end() {
		h.setAddress(r, s.addr)
	}
	h.begin(t)
	h.meeting.tell(func(rank int) []byte {
		mine := t
		mine.parent = h.address((rank - 1) / t.arity)
		return mine.encode()
	})
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
	h.cfg.Timeout, h.cfg.Arity = t.timeout, t.arity
	h.node = tree.New(h.rank, h.size, network{h}, tree.Options{
		Arity: t.arity, Timeout: t.timeout, MaxValue: h.cfg.MaxMessage,
	})
	close(h.met)
}

// follow is what the other ranks do: they look for rank 0 until they have met.
func (h *host) follow(ctx context.Context) error {
	var last error
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		t, err := h.attend(ctx)
		if err == nil {
			h.setAddress((h.rank-1)/t.arity, t.parent)
			h.begin(t)
			return nil
		}
		if e, ok := errors.AsType[final](err); ok {
			return e.error
		}
		if errors.Is(err, ErrSecret) {
			return err
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return &group.Error{Op: opJoin, Ranks: []int{0}, Err: fmt.Errorf("%w: %w (%w)", errMissing, group.ContextError(ctx), last)}
		}
	}
}

// final is an error after which it makes no sense to try again.
type final struct{ error }

// attend comes to the meeting once.
func (h *host) attend(ctx context.Context) (terms, error) {
	addr, err := h.cfg.Meet.Find(ctx)
	if err != nil {
		return terms{}, err
	}
	f, err := h.dial(ctx, toMeet, 0, addr)
	if err != nil {
		return terms{}, err
	}
	defer f.Close()
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	if h.ln == nil {
		if err := h.startListening(ctx, h.cfg.place(h.rank, f.Conn), f.Conn); err != nil {
			return terms{}, final{err}
		}
	}
	if err := f.WriteFrame([]byte(h.addr), nil); err != nil {
		return terms{}, err
	}
	return awaitTerms(ctx, f)
}

// awaitTerms waits until all ranks have come. Where it does not come to that its
// error is what rank 0 last said.
func awaitTerms(ctx context.Context, f *framed) (terms, error) {
	var missing []int
	for {
		b, err := f.readFrame(maxNotice)
		switch {
		case err != nil && ctx.Err() != nil && missing != nil:
			return terms{}, final{missed(missing, ctx)}
		case err != nil:
			return terms{}, err
		}
		switch body := b[1:]; notice(b[0]) {
		case noticeWait:
			if missing, _, err = decodeMissing(body); err != nil {
				return terms{}, err
			}
		case noticeMet:
			return decodeTerms(body)
		case noticeRefused:
			ranks, cause, err := decodeMissing(body)
			if err != nil {
				return terms{}, err
			}
			return terms{}, final{&group.Error{Op: opJoin, Ranks: ranks, Err: cause}}
		default:
			return terms{}, fmt.Errorf("notice %d: %w", b[0], errFrame)
		}
	}
}

// missed returns the error of a rank whose context ended before those came.
func missed(ranks []int, ctx context.Context) *group.Error {
	return &group.Error{Op: opJoin, Ranks: ranks, Err: fmt.Errorf("%w: %w", errMissing, group.ContextError(ctx))}
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
		h.setAddress(rank, r.String())
	}
	return r.Done()
}
