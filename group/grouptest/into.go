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

	"github.com/cairn-ckpt/cairn/group"
)

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

// isLength reports whether err tells of a message of another size.
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
		e.Fatalf("%d messages of no bytes were taken that nobody received; want the sender to wait", n)
	}
	for i := range n {
		if err := to.RecvInto(e.context(), 0, 11, nil); err != nil {
			e.Fatalf("message %d: %v", i, err)
		}
	}
}
