package grouptest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
)

// messages tests groups that are a [group.Messenger].
func (s *suite) messages(t *testing.T) {
	for name, fn := range map[string]func(*env){
		"each to each, of all sizes":              s.eachToEach,
		"order of one tag":                        s.order,
		"a tag that nobody receives":              s.apart,
		"a rank sends to itself":                  s.toItself,
		"senders wait for receivers":              s.bounded,
		"contexts that end":                       s.messageEnds,
		"peers and tags that are none":            s.noPeers,
		"messages of different groups":            s.messageGroups,
		"many goroutines":                         s.messageStress,
		"what was sent may be written to at once": s.reuse,
		"messages into memory":                    s.into,
		"messages before and after a call":        s.early,
		"calls that end while a message comes":    s.intoEnds,
		"messages that end while they are sent":   s.sendEnds,
		"many goroutines into memory":             s.intoStress,
		"messages of no bytes are bounded":        s.emptyBounded,
	} {
		s.test(t, name, fn)
	}
}

func messenger(g group.Group) group.Messenger { return g.(group.Messenger) }

// eachToEach sends a message of every size from every rank to every rank while
// it receives theirs.
func (s *suite) eachToEach(e *env) {
	sizes := []int{0, 1, 100, 64 << 10, 1<<20 + 1}
	e.must("exchange", func(ctx context.Context, g group.Group) error {
		m := messenger(g)
		errs := make(chan error, g.Size())
		for to := range g.Size() {
			go func() {
				var err error
				for _, size := range sizes {
					err = errors.Join(err, m.Send(ctx, to, 7, pattern(g.Rank(), to, size)))
				}
				errs <- err
			}()
		}
		var err error
		for from := range g.Size() {
			for _, size := range sizes {
				got, e := m.Recv(ctx, from, 7)
				err = errors.Join(err, e, equal("message", got, pattern(from, g.Rank(), size)))
			}
		}
		for range g.Size() {
			err = errors.Join(err, <-errs)
		}
		return err
	})
}

func pattern(from, to, size int) []byte {
	return bytes.Repeat([]byte{byte(from), byte(to), byte(size), 1}, size/4+1)[:size]
}

// order sends more messages in a row than are taken at once.
func (s *suite) order(e *env) {
	const n = 500
	e.must("ring", func(ctx context.Context, g group.Group) error {
		m := messenger(g)
		next, prev := neighbours(g)
		sent := make(chan error, 1)
		go func() {
			for i := range n {
				if err := m.Send(ctx, next, 0, fmt.Appendf(nil, "%d", i)); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		for i := range n {
			got, err := m.Recv(ctx, prev, 0)
			if err := errors.Join(err, equal("message", got, fmt.Appendf(nil, "%d", i))); err != nil {
				return err
			}
		}
		return <-sent
	})
}

// apart receives the tags of another rank in the opposite order, the first of
// which are too large to be taken without a receiver.
func (s *suite) apart(e *env) {
	const tags = 4
	large := func(tag int) []byte { return pattern(tag, tag, 2<<20) }
	e.must("tags", func(ctx context.Context, g group.Group) error {
		m := messenger(g)
		next, prev := neighbours(g)
		var wg sync.WaitGroup
		errs := make([]error, tags)
		for tag := range tags {
			wg.Go(func() { errs[tag] = m.Send(ctx, next, tag, large(tag)) })
		}
		var err error
		for _, tag := range []int{3, 2, 1, 0} {
			got, e := m.Recv(ctx, prev, tag)
			err = errors.Join(err, e, equal("message", got, large(tag)))
		}
		wg.Wait()
		return errors.Join(append(errs, err)...)
	})
}

func (s *suite) toItself(e *env) {
	e.must("self", func(ctx context.Context, g group.Group) error {
		m := messenger(g)
		if err := m.Send(ctx, g.Rank(), 1, short(g.Rank(), g.Rank())); err != nil {
			return err
		}
		got, err := m.Recv(ctx, g.Rank(), 1)
		return errors.Join(err, equal("message", got, short(g.Rank(), g.Rank())))
	})
}

// bounded sends without a receiver: at some point the sender must wait. What it
// had sent before that is received.
func (s *suite) bounded(e *env) {
	const large = 1 << 20
	last := e.gs[s.n-1]
	ctx, cancel := context.WithCancel(e.context())
	taken := make(chan int, 1)
	go func() {
		n := 0
		for messenger(e.gs[0]).Send(ctx, s.n-1, 3, pattern(n, n, large)) == nil {
			n++
		}
		taken <- n
	}()
	e.idle()
	cancel()
	n := <-taken
	if n > 64 {
		e.Errorf("%d messages of %d bytes were taken that nobody received; want the sender to wait", n, large)
	}
	// A message whose Send was cut off is there whole or not at all.
	if err := messenger(e.gs[0]).Send(e.context(), s.n-1, 4, nil); err != nil {
		e.Fatalf("Send after one that ended = %v; want no error", err)
	}
	for i := range n {
		got, err := messenger(last).Recv(e.context(), 0, 3)
		if err := errors.Join(err, equal("message", got, pattern(i, i, large))); err != nil {
			e.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- messenger(e.gs[0]).Send(e.context(), s.n-1, 3, []byte("end")) }()
	got, err := messenger(last).Recv(e.context(), 0, 3)
	if err == nil && bytes.Equal(got, pattern(n, n, large)) {
		got, err = messenger(last).Recv(e.context(), 0, 3)
	}
	if err := errors.Join(err, <-done, equal("message", got, []byte("end"))); err != nil {
		e.Error(err)
	}
	if _, err := messenger(last).Recv(e.context(), 0, 4); err != nil {
		e.Error(err)
	}
}

// messageEnds ends contexts of calls before and while they wait.
func (s *suite) messageEnds(e *env) {
	ended, cancel := context.WithCancelCause(e.context())
	cancel(errCause)
	m, peer := messenger(e.gs[0]), s.n-1
	e.peerError(m.Send(ended, peer, 0, nil), group.OpSend, peer, context.Canceled, errCause)
	_, err := m.Recv(ended, peer, 0)
	e.peerError(err, group.OpRecv, peer, context.Canceled, errCause)
	e.peerError(m.RecvInto(ended, peer, 0, nil), group.OpRecv, peer, context.Canceled, errCause)
	doomed, cancel := context.WithCancelCause(e.context())
	errs := make(chan error, 1)
	go func() {
		_, err := m.Recv(doomed, peer, 0)
		errs <- err
	}()
	e.idle()
	cancel(errCause)
	e.peerError(<-errs, group.OpRecv, peer, context.Canceled, errCause)
	// The tag goes on.
	sent := make(chan error, 1)
	go func() { sent <- messenger(e.gs[peer]).Send(e.context(), 0, 0, []byte("x")) }()
	got, err := m.Recv(e.context(), peer, 0)
	if err := errors.Join(err, <-sent, equal("message", got, []byte("x"))); err != nil {
		e.Error(err)
	}
}

// peerError checks that err is of op, names rank and wraps targets.
func (e *env) peerError(err error, op group.Op, rank int, targets ...error) {
	e.Helper()
	ge, ok := errors.AsType[*group.Error](err)
	if !ok || ge.Op != op || !slices.Equal(ge.Ranks, []int{rank}) {
		e.Errorf("error = %v; want one of %s that names rank %d", err, op, rank)
	}
	for _, target := range targets {
		if !errors.Is(err, target) {
			e.Errorf("error = %v; want it to wrap %q", err, target)
		}
	}
}

func (s *suite) noPeers(e *env) {
	m := messenger(e.gs[0])
	for _, peer := range []int{-1, s.n} {
		e.peerError(m.Send(e.context(), peer, 0, nil), group.OpSend, peer, group.ErrInvalid)
		_, err := m.Recv(e.context(), peer, 0)
		e.peerError(err, group.OpRecv, peer, group.ErrInvalid)
		e.peerError(m.RecvInto(e.context(), peer, 0, nil), group.OpRecv, peer, group.ErrInvalid)
	}
	e.peerError(m.Send(e.context(), 0, -1, nil), group.OpSend, 0, group.ErrInvalid)
	_, err := m.Recv(e.context(), 0, -1)
	e.peerError(err, group.OpRecv, 0, group.ErrInvalid)
}

// messageGroups sends with the same tag in a group, in one made from it in the
// opposite order, and in another of the same list.
func (s *suite) messageGroups(e *env) {
	back := ascending(s.n)
	slices.Reverse(back)
	e.must("groups", func(ctx context.Context, g group.Group) error {
		gs := []group.Group{g}
		for range 2 {
			sub, err := g.Sub(ctx, back)
			if err != nil {
				return err
			}
			gs = append(gs, sub)
		}
		for i, g := range gs {
			text := fmt.Appendf(short(g.Rank(), 0), " in %d", i)
			if err := messenger(g).Send(ctx, 0, 5, text); err != nil {
				return err
			}
		}
		for i := len(gs) - 1; i >= 0; i-- {
			for from := 0; from < s.n && gs[i].Rank() == 0; from++ {
				got, err := messenger(gs[i]).Recv(ctx, from, 5)
				if err := errors.Join(err, equal("message", got, fmt.Appendf(short(from, 0), " in %d", i))); err != nil {
					return err
				}
			}
		}
		return g.Barrier(ctx)
	})
}

// messageStress lets goroutines of every rank send to all others while the
// ranks make collective calls.
func (s *suite) messageStress(e *env) {
	const lanes, rounds = 4, 50
	e.must("lanes", func(ctx context.Context, g group.Group) error {
		m := messenger(g)
		errs := make([]error, 2*lanes)
		var wg sync.WaitGroup
		for lane := range lanes {
			wg.Go(func() {
				for i := range rounds {
					errs[2*lane] = errors.Join(errs[2*lane], m.Send(ctx, (g.Rank()+i)%s.n, lane, pattern(i, lane, i*97)))
				}
			})
			wg.Go(func() {
				for i := range rounds {
					got, err := m.Recv(ctx, (g.Rank()-i%s.n+s.n)%s.n, lane)
					errs[2*lane+1] = errors.Join(errs[2*lane+1], err, equal("message", got, pattern(i, lane, i*97)))
				}
			})
		}
		for range rounds {
			if err := checkAllGather(ctx, g); err != nil {
				return err
			}
		}
		wg.Wait()
		return errors.Join(errs...)
	})
}

// reuse overwrites what was sent, and what was received.
func (s *suite) reuse(e *env) {
	e.must("reuse", func(ctx context.Context, g group.Group) error {
		m := messenger(g)
		next, prev := neighbours(g)
		errs := make(chan error, 1)
		go func() {
			b := make([]byte, 100_000)
			for i := range 10 {
				copy(b, pattern(i, next, len(b)))
				if err := m.Send(ctx, next, 9, b); err != nil {
					errs <- err
					return
				}
				clear(b)
			}
			errs <- nil
		}()
		for i := range 10 {
			got, err := m.Recv(ctx, prev, 9)
			if err := errors.Join(err, equal("message", got, pattern(i, g.Rank(), 100_000))); err != nil {
				return err
			}
			clear(got)
		}
		return <-errs
	})
}
