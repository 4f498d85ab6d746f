package work

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Ten waits for a second's bytes take nine seconds: the first one does not wait.
func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, start := &Limiter{Rate: 1000}, time.Now()
		for range 10 {
			if err := l.Wait(t.Context(), 1000); err != nil {
				t.Fatal(err)
			}
		}
		if got := time.Since(start); got != 9*time.Second {
			t.Errorf("10,000 bytes took %v; want 9 s", got)
		}

		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stop")
		cancel(stop)
		if err := l.Wait(ctx, 1); !errors.Is(err, stop) {
			t.Errorf("Wait after the end: %v; want the cause", err)
		}
		if err := new(Limiter).Wait(ctx, 1<<40); err != nil {
			t.Errorf("Wait without a bound: %v", err)
		}
	})
}
