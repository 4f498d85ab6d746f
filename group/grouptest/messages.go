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
)

// messages tests groups that are a [group.Messenger].
func (s *suite) messages(t *testing.T) {
	for name, fn := range map[string]func(*env){
		"each to each, of all sizes":              s.eachToEach,
		"order of one tag":                        s.order,
		"a tag that no call receives":             s.apart,
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
		e.Errorf("%d messages of %d bytes were taken that no call received; want the sender to wait", n, large)
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
		sent := make(chan error, 1)
		go func() {
			var err error
			for _, size := range sizes {
				for range 3 {
					err = errors.Join(err, m.Send(ctx, to, 3, pattern(g.Rank(), to, size)))
				}
			}
			sent <- err
		}()
		var err error
		for _, size := range sizes {
			want := pattern(from, g.Rank(), size)
			got := make([]byte, size)
			err = errors.Join(err, m.RecvInto(ctx, from, 3, got), equal("message", got, want))
			if e := m.RecvInto(ctx, from, 3, make([]byte, size+1)); !isLength(e, size, size+1) {
				err = errors.Join(err, fmt.Errorf("RecvInto of a byte too many = %v; want a LengthError", e))
			}
			got, e := m.Recv(ctx, from, 3)
			err = errors.Join(err, e, equal("message", got, want))
		}
		return errors.Join(err, <-sent)
	})
}

// isLength reports whether err is about a message of another size.
func isLength(err error, got, want int) bool {
	e, ok := errors.AsType[*group.LengthError](err)
	return ok && *e == group.LengthError{Got: got, Want: want} && errors.Is(err, group.ErrDisagree)
}

// early lets messages come before anybody asks for them, and late ones after.
func (s *suite) early(e *env) {
	for _, size := range intoSizes() {
		for _, first := range []string{"Send", "RecvInto"} {
			from, to := e.gs[0], e.gs[s.n-1]
			want, got := pattern(size, 1, size), make([]byte, size)
			errs := make(chan error, 2)
			send := func() { errs <- messenger(from).Send(e.context(), to.Rank(), 6, want) }
			recv := func() { errs <- messenger(to).RecvInto(e.context(), from.Rank(), 6, got) }
			if first == "Send" {
				go send()
				e.idle()
				go recv()
			} else {
				go recv()
				e.idle()
				go send()
			}
			err := errors.Join(<-errs, <-errs, equal("message", got, want))
			if err != nil {
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

// recvBriefly is a call of RecvInto whose context ends once others had a number
// of turns.
func (e *env) recvBriefly(m group.Messenger, from int, b []byte, turns int) error {
	ctx, cancel := context.WithCancel(e.context())
	defer cancel()
	errs := make(chan error, 1)
	go func() { errs <- m.RecvInto(ctx, from, 8, b) }()
	for range turns {
		select {
		case err := <-errs:
			return err
		default:
			runtime.Gosched()
		}
	}
	cancel()
	return <-errs
}

// sendEnds ends calls of Send while RecvInto waits for what they send: a message
// comes whole or not at all, and the next one does.
func (s *suite) sendEnds(e *env) {
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
			err := messenger(from).Send(ctx, to.Rank(), 4, b)
			if err != nil && !errors.Is(err, context.Canceled) {
				e.Errorf("Send = %v; want none or the context's error", err)
			}
			ok[i] = err == nil
			clear(b) // it may not be read any more
			<-stop
		}
		if err := messenger(from).Send(e.context(), to.Rank(), 4, pattern(n, 2, size)); err != nil {
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

// emptyBounded sends messages of no bytes without a receiver: at some point the
// sender must wait, as with others.
func (s *suite) emptyBounded(e *env) {
	const most = 100_000
	from, to := messenger(e.gs[0]), messenger(e.gs[s.n-1])
	ctx, cancel := context.WithCancel(e.context())
	var taken atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for taken.Load() < most && from.Send(ctx, s.n-1, 11, nil) == nil {
			taken.Add(1)
		}
	}()
	for last := int64(-1); last < taken.Load(); {
		last = taken.Load()
		e.idle()
	}
	cancel()
	<-done
	n := taken.Load()
	if n == most {
		e.Fatalf("%d messages of no bytes were taken that no call received; want the sender to wait", n)
	}
	for i := range n {
		if err := to.RecvInto(e.context(), 0, 11, nil); err != nil {
			e.Fatalf("message %d: %v", i, err)
		}
	}
}
