package tcp

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

// What was sent arrives, also where the rank closes while others of its
// goroutines are about to send.
func TestCloseWhileLargeMessagesAreSent(t *testing.T) {
	for range 3 {
		a, b := patiently(t)
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				for a.Send(t.Context(), 1, 100+i, make([]byte, 400<<10)) == nil {
				}
			})
			wg.Go(func() {
				for b.RecvInto(t.Context(), 0, 100+i, make([]byte, 400<<10)) == nil {
				}
			})
		}
		const small = 50
		for tag := range small {
			if err := a.Send(t.Context(), 1, tag, []byte{byte(tag)}); err != nil {
				t.Fatalf("Send = %v", err)
			}
		}
		a.Close()
		for tag := range small {
			if got, err := b.Recv(t.Context(), 0, tag); err != nil || len(got) != 1 || got[0] != byte(tag) {
				t.Fatalf("Recv of message %d = %v, %v; want what was sent", tag, got, err)
			}
		}
		wg.Wait()
	}
}

// A message that is not sent any more is an error, not one that is lost.
func TestSendThatOverlapsClose(t *testing.T) {
	for range 5 {
		a, b := patiently(t)
		sent := make(chan int)
		go func() {
			tag := 0
			for a.Send(t.Context(), 1, tag, []byte("x")) == nil {
				tag++
			}
			sent <- tag
		}()
		until(t, "messages have come", func() bool {
			_, err := b.Recv(t.Context(), 0, 0)
			return err == nil
		})
		a.Close()
		n := <-sent
		for tag := 1; tag < n; tag++ {
			if _, err := b.Recv(t.Context(), 0, tag); err != nil {
				t.Fatalf("Recv of message %d of %d = %v; want what was sent", tag, n, err)
			}
		}
	}
}

// A rank that closes has left, for all others, also for those who send to it just
// then and hear of it late.
func TestRankThatClosesIsNotLost(t *testing.T) {
	cfg := pairConfig(t)
	cfg.Size, cfg.Arity, cfg.Timeout = 6, 1, 20*time.Second
	gs := several(t, cfg)
	last := cfg.Size - 1
	var wg sync.WaitGroup
	for _, g := range gs[:last] {
		wg.Go(func() {
			var err error
			for tag := 0; err == nil; tag++ {
				err = g.Send(t.Context(), last, tag%100, []byte("x"))
			}
			if !errors.Is(err, group.ErrLeft) {
				t.Errorf("Send of rank %d = %v; want ErrLeft", g.Rank(), err)
			}
		})
	}
	if _, err := gs[last].Recv(t.Context(), 0, 3); err != nil {
		t.Fatal(err)
	}
	gs[last].Close()
	wg.Wait()
}
