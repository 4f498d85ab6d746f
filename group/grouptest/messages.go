package grouptest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/deep"
)

// messages tests groups that are a [group.Messenger].
func (s *suite) messages(t *testing.T) {
	for name, fn := range map[string]func(*env){
		"each to each, of all sizes":             func(e *env) { s.eachToEach(e, send) },
		"each to each, in parts":                 func(e *env) { s.eachToEach(e, sendParts) },
		"order of one tag, in memory used again": s.order,
		"a tag that no call receives":            s.apart,
		"a rank sends to itself":                 s.toItself,
		"peers and tags that are not valid":      s.noPeers,
		"messages of different groups":           s.messageGroups,
		"many goroutines":                        s.messageStress,
		"messages into memory":                   s.into,
		"many goroutines into memory":            s.intoStress,
	} {
		s.test(t, name, fn)
	}
	if s.pairs {
		s.pairMessages(t)
	}
}

// pairMessages tests what happens between the first rank and the last one, while the others
// do nothing.
func (s *suite) pairMessages(t *testing.T) {
	for name, fn := range map[string]func(*env){
		"senders wait for receivers":            func(e *env) { s.bounded(e, 1<<20, 64) },
		"senders of empty messages wait too":    func(e *env) { s.bounded(e, 0, 100_000) },
		"contexts that end":                     s.messageEnds,
		"messages before and after a call":      s.early,
		"calls that end while a message comes":  s.intoEnds,
		"messages that end while they are sent": func(e *env) { s.sendEnds(e, send) },
		"parts that end while they are sent":    func(e *env) { s.sendEnds(e, sendParts) },
	} {
		s.test(t, name, fn)
	}
}

func messenger(g group.Group) group.Messenger { return g.(group.Messenger) }

// sender is Send or SendParts.
type sender func(ctx context.Context, g group.Group, to, tag int, b []byte) error

func send(ctx context.Context, g group.Group, to, tag int, b []byte) error {
	return messenger(g).Send(ctx, to, tag, b)
}

// sendParts sends b in parts of different sizes, some of them empty, if the group is a
// [group.PartSender].
func sendParts(ctx context.Context, g group.Group, to, tag int, b []byte) error {
	m, ok := g.(group.PartSender)
	if !ok {
		return send(ctx, g, to, tag, b)
	}

	var parts [][]byte
	for i := 0; len(b) > 0; i++ {
		n := min(len(b), []int{0, 1, 1000, 70_000, 4096}[i%5])
		parts, b = append(parts, b[:n]), b[n:]
	}

	return m.SendParts(ctx, to, tag, parts)
}

// both runs send while recv runs. An error of recv does not wait for send.
func both(send, recv func() error) error {
	sent := make(chan error, 1)
	go func() { sent <- send() }()
	if err := recv(); err != nil {
		return err
	}
	return <-sent
}

// receive receives a message and compares it with want.
func receive(ctx context.Context, g group.Group, from, tag int, want []byte) error {
	got, err := messenger(g).Recv(ctx, from, tag)
	return errors.Join(err, equal("message", got, want))
}

// eachToEach sends messages of many sizes from every rank to every rank while it receives
// theirs. Large ones go to rank 0 and to the next rank.
func (s *suite) eachToEach(e *env, send sender) {
	sizesOf := func(from, to int) []int {
		sizes := []int{0, 1, 100, 64 << 10}
		if to == 0 || to == (from+1)%s.n {
			sizes = append(sizes, 1<<20+1)
		}
		return sizes
	}
	e.must("exchange", func(ctx context.Context, g group.Group) error {
		errs := make([]error, g.Size())
		var wg sync.WaitGroup
		for to := range g.Size() {
			wg.Go(func() {
				for _, size := range sizesOf(g.Rank(), to) {
					errs[to] = errors.Join(errs[to], send(ctx, g, to, 7, pattern(g.Rank(), to, size)))
				}
			})
		}

		for from := range g.Size() {
			for _, size := range sizesOf(from, g.Rank()) {
				if err := receive(ctx, g, from, 7, pattern(from, g.Rank(), size)); err != nil {
					return err
				}
			}
		}

		wg.Wait()
		return errors.Join(errs...)
	})
}

func pattern(from, to, size int) []byte {
	return bytes.Repeat([]byte{byte(from), byte(to), byte(size), 1}, size/4+1)[:size]
}

// order sends messages of one tag around a ring and overwrites the sent and the received
// bytes.
func (s *suite) order(e *env) {
	sizes := slices.Repeat([]int{1, 100_000, 10}, deep.Rounds(30, 70))
	e.must("ring", func(ctx context.Context, g group.Group) error {
		next, prev := neighbours(g)
		return both(func() error {
			b := make([]byte, slices.Max(sizes))
			for i, size := range sizes {
				copy(b, pattern(i, next, size))
				if err := messenger(g).Send(ctx, next, 0, b[:size]); err != nil {
					return err
				}
				clear(b)
			}
			return nil
		}, func() error {
			for i, size := range sizes {
				got, err := messenger(g).Recv(ctx, prev, 0)
				if err := errors.Join(err, equal("message", got, pattern(i, g.Rank(), size))); err != nil {
					return err
				}
				clear(got)
			}
			return nil
		})
	})
}

// apart receives the tags of another rank in the opposite order, the first of
// which are too large to be taken without a receiver.
func (s *suite) apart(e *env) {
	const tags = 4
	large := func(tag int) []byte { return pattern(tag, tag, 1<<20+1) }
	e.must("tags", func(ctx context.Context, g group.Group) error {
		next, prev := neighbours(g)
		var wg sync.WaitGroup
		errs := make([]error, tags)
		for tag := range tags {
			wg.Go(func() { errs[tag] = messenger(g).Send(ctx, next, tag, large(tag)) })
		}

		for _, tag := range []int{3, 2, 1, 0} {
			if err := receive(ctx, g, prev, tag, large(tag)); err != nil {
				return err
			}
		}

		wg.Wait()
		return errors.Join(errs...)
	})
}

func (s *suite) toItself(e *env) {
	e.must("self", func(ctx context.Context, g group.Group) error {
		text := short(g.Rank(), g.Rank())
		if err := messenger(g).Send(ctx, g.Rank(), 1, text); err != nil {
			return err
		}
		return receive(ctx, g, g.Rank(), 1, text)
	})
}

// bounded sends messages without a receiver: after at most limit messages the sender
// must wait. The messages that it sent before are received, and the tag goes on.
func (s *suite) bounded(e *env, size, limit int) {
	from, to := messenger(e.gs[0]), messenger(e.gs[s.n-1])
	ctx, cancel := context.WithCancel(e.context())
	var taken atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; n <= limit && from.Send(ctx, s.n-1, 3, pattern(n, n, size)) == nil; n++ {
			taken.Add(1)
		}
	}()

	for last := int64(-1); last < taken.Load(); {
		last = taken.Load()
		e.idle()
	}

	cancel()
	<-done
	n := int(taken.Load())
	if n > limit {
		e.Fatalf("%d messages of %d bytes were taken that no call received; want the sender to wait", n, size)
	}

	// A message of a Send that ended arrives whole or not at all.
	if err := from.Send(e.context(), s.n-1, 4, nil); err != nil {
		e.Fatalf("Send after one that ended = %v; want no error", err)
	}

	for i := range n {
		if err := receive(e.context(), e.gs[s.n-1], 0, 3, pattern(i, i, size)); err != nil {
			e.Fatalf("message %d: %v", i, err)
		}
	}

	end := []byte("end")
	err := both(func() error { return from.Send(e.context(), s.n-1, 3, end) }, func() error {
		got, err := to.Recv(e.context(), 0, 3)
		if err == nil && bytes.Equal(got, pattern(n, n, size)) {
			got, err = to.Recv(e.context(), 0, 3)
		}
		return errors.Join(err, equal("message", got, end))
	})
	if err = errors.Join(err, receive(e.context(), e.gs[s.n-1], 0, 4, nil)); err != nil {
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
	err = both(
		func() error { return messenger(e.gs[peer]).Send(e.context(), 0, 0, []byte("x")) },
		func() error { return receive(e.context(), e.gs[0], peer, 0, []byte("x")) },
	)
	if err != nil {
		e.Errorf("the next message of the tag: %v", err)
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
				if err := receive(ctx, gs[i], from, 5, fmt.Appendf(short(from, 0), " in %d", i)); err != nil {
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
					err := receive(ctx, g, (g.Rank()-i%s.n+s.n)%s.n, lane, pattern(i, lane, i*97))
					errs[2*lane+1] = errors.Join(errs[2*lane+1], err)
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

// neighbours returns the ranks after and before g's.
func neighbours(g group.Group) (next, prev int) {
	return (g.Rank() + 1) % g.Size(), (g.Rank() + g.Size() - 1) % g.Size()
}

// intoSizes are around every length at which a group may do something else.
func intoSizes() []int {
	sizes := []int{0, 1, 3<<20 + 1}
	for _, n := range []int{4 << 10, 64 << 10, 128 << 10, 512 << 10, 1 << 20} {
		sizes = append(sizes, n-1, n, n+1)
	}
	return sizes
}

// into receives messages into memory, by turns with Recv, and one of another
// size.
func (s *suite) into(e *env) {
	sizes := []int{0, 1, 64<<10 + 1, 1<<20 + 1}
	e.must("exchange", func(ctx context.Context, g group.Group) error {
		m := messenger(g)
		to, from := neighbours(g)
		return both(func() error {
			var err error
			for _, size := range slices.Repeat(sizes, 3) {
				err = errors.Join(err, m.Send(ctx, to, 3, pattern(g.Rank(), to, size)))
			}
			return err
		}, func() error {
			var err error
			for _, size := range sizes {
				got := make([]byte, size)
				err = errors.Join(err, m.RecvInto(ctx, from, 3, got), equal("message", got, pattern(from, g.Rank(), size)))
			}

			for _, size := range sizes {
				if e := m.RecvInto(ctx, from, 3, make([]byte, size+1)); !isLength(e, size, size+1) {
					err = errors.Join(err, fmt.Errorf("RecvInto of a byte too many = %v; want a LengthError", e))
				}
			}

			for _, size := range sizes {
				err = errors.Join(err, receive(ctx, g, from, 3, pattern(from, g.Rank(), size)))
			}

			return err
		})
	})
}

// isLength reports whether err is about a message of another size.
func isLength(err error, got, want int) bool {
	e, ok := errors.AsType[*group.LengthError](err)
	return ok && *e == group.LengthError{Got: got, Want: want} && errors.Is(err, group.ErrDisagree)
}

// early lets messages come before a call receives them, and after.
func (s *suite) early(e *env) {
	for _, size := range intoSizes() {
		for _, first := range []string{"Send", "RecvInto"} {
			from, to := e.gs[0], e.gs[s.n-1]
			want, got := pattern(size, 1, size), make([]byte, size)
			calls := []func() error{
				func() error { return messenger(from).Send(e.context(), to.Rank(), 6, want) },
				func() error { return messenger(to).RecvInto(e.context(), from.Rank(), 6, got) },
			}
			if first == "RecvInto" {
				slices.Reverse(calls)
			}

			err := both(calls[0], func() error {
				e.idle()
				return calls[1]()
			})
			if err := errors.Join(err, equal("message", got, want)); err != nil {
				e.Fatalf("%d bytes, %s first: %v", size, first, err)
			}
		}
	}
}

// intoEnds ends calls of RecvInto while messages come: each message is still
// received, whole and in order, and memory of a call that has ended is not
// written to.
func (s *suite) intoEnds(e *env) {
	const n, size = 5, 2<<20 + 5
	from, to := e.gs[0], e.gs[s.n-1]
	sent := make(chan error, 1)
	go func() {
		var err error
		for i := range n {
			err = errors.Join(err, messenger(from).Send(e.context(), to.Rank(), 8, pattern(i, 8, size)))
		}
		sent <- err
	}()

	mark := bytes.Repeat([]byte{0xee}, size)
	left := slices.Clone(mark) // memory of the last call that ended
	for i := range n {
		got := make([]byte, size)
		for turns := i * 30; ; turns += 2 {
			err := e.recvBriefly(messenger(to), from.Rank(), got, turns)
			if !bytes.Equal(left, mark) {
				e.Fatal("memory was written to after RecvInto had returned")
			}

			if err == nil {
				break
			}
			if !errors.Is(err, context.Canceled) {
				e.Fatalf("RecvInto = %v; want a message or the context's error", err)
			}
			left, got = got, left
			copy(left, mark)
		}

		if err := equal("message", got, pattern(i, 8, size)); err != nil {
			e.Fatalf("message %d: %v", i, err)
		}
	}

	if err := <-sent; err != nil {
		e.Error(err)
	}
}

// sendEnds ends calls that send while RecvInto waits for their message: a message comes whole
// or not at all, and the next one does.
func (s *suite) sendEnds(e *env, send sender) {
	const n, size = 8, 2<<20 + 7
	from, to := e.gs[0], e.gs[s.n-1]
	sent := make(chan []bool, 1)
	go func() {
		ok := make([]bool, n)
		b := make([]byte, size)
		for i := range n {
			ctx, cancel := context.WithCancel(e.context())
			copy(b, pattern(i, 2, size))
			stop := make(chan struct{})
			go func() {
				defer close(stop)
				for range 10 * i {
					runtime.Gosched()
				}
				cancel()
			}()

			err := send(ctx, from, to.Rank(), 4, b)
			if err != nil && !errors.Is(err, context.Canceled) {
				e.Errorf("send = %v; want none or the context's error", err)
			}

			ok[i] = err == nil
			clear(b) // it may not be read any more
			<-stop
		}

		if err := send(e.context(), from, to.Rank(), 4, pattern(n, 2, size)); err != nil {
			e.Error(err)
		}
		sent <- ok
	}()

	came := make([]bool, n+1)
	got := make([]byte, size)
	for last := -1; last < n; {
		if err := messenger(to).RecvInto(e.context(), from.Rank(), 4, got); err != nil {
			e.Fatal(err)
		}

		i := int(got[0])
		if i <= last || i > n {
			e.Fatalf("message %d after %d; want them in order", i, last)
		}
		if err := equal("message", got, pattern(i, 2, size)); err != nil {
			e.Fatal(err)
		}
		came[i], last = true, i
	}

	for i, ok := range <-sent {
		if ok && !came[i] {
			e.Errorf("message %d was sent and has not come", i)
		}
	}
}

// intoStress lets goroutines of every rank receive messages of some tags into
// memory, several of each tag.
func (s *suite) intoStress(e *env) {
	const tags, calls, rounds = 3, 3, 4
	size := func(tag int) int { return []int{70_000, 1000, 300_000}[tag] }
	e.must("tags", func(ctx context.Context, g group.Group) error {
		m := messenger(g)
		next, prev := neighbours(g)
		var mu sync.Mutex
		var err error
		seen := make(map[[2]byte]bool)
		note := func(e error) {
			mu.Lock()
			defer mu.Unlock()
			err = errors.Join(err, e)
		}

		var wg sync.WaitGroup
		for tag := range tags {
			wg.Go(func() {
				for i := range calls * rounds {
					note(m.Send(ctx, next, tag, pattern(i, tag, size(tag))))
				}
			})
			for range calls {
				wg.Go(func() {
					b := make([]byte, size(tag))
					for range rounds {
						note(m.RecvInto(ctx, prev, tag, b))
						note(equal("message", b, pattern(int(b[0]), tag, len(b))))
						mu.Lock()
						seen[[2]byte{b[0], byte(tag)}] = true
						mu.Unlock()
					}
				})
			}
		}

		wg.Wait()
		if len(seen) != tags*calls*rounds {
			err = errors.Join(err, fmt.Errorf("%d different messages; want %d", len(seen), tags*calls*rounds))
		}
		return err
	})
}
