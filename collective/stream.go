package collective

import (
	"context"
	"sync"
)

// duplex runs send and recv at the same time, and ends both when one fails. It
// returns the first error.
func duplex(ctx context.Context, send, recv func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var once sync.Once
	var first error
	note := func(err error) {
		if err != nil {
			once.Do(func() { first = err; cancel() })
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		note(send(ctx))
	}()
	note(recv(ctx))
	<-done
	return first
}

// tally counts what one goroutine has done for another. It holds no memory for
// what is counted.
type tally chan struct{}

// add never waits: a tally has room for all that there is to do.
func (t tally) add() { t <- struct{}{} }

// take waits for the next.
func (t tally) take(ctx context.Context) error {
	select {
	case <-t:
		return nil
	default:
	}
	select {
	case <-t:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cut returns the bytes of piece p of b, where pieces have size bytes.
func cut(b []byte, p, size int) []byte {
	lo := min(p*size, len(b))
	return b[lo:min(lo+size, len(b))]
}

// pieces returns how many pieces of size bytes hold n bytes.
func pieces(n, size int) int { return (n + size - 1) / size }
