package tcp

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// names checks that err is of Join and names those ranks.
func names(t *testing.T, err error, ranks ...int) {
	t.Helper()
	ge, ok := errors.AsType[*group.Error](err)
	if !ok || ge.Op != opJoin || !slices.Equal(ge.Ranks, ranks) {
		t.Errorf("Join = %v; want an error of ranks %v", err, ranks)
	}
}

// follower is a rank that comes to a meeting step by step.
func follower(t *testing.T, cfg Config, rank int) *host {
	t.Helper()
	cfg, err := cfg.withDefaults()
	must.Do(t, err)
	h := newHost(cfg, rank, cfg.Size)
	t.Cleanup(h.close)
	return h
}

// registrant is a rank that has registered and then stays silent.
func registrant(t *testing.T, cfg Config, rank int) *host {
	t.Helper()
	h := follower(t, cfg, rank)
	must.Get(h.enrol(limited(t)))(t)
	return h
}

// A rank that registers while rank 0 gives up receives the dismissal too.
func TestDismissalOfARankThatRegisters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newFakeNet().config(3)
		cfg.parting = time.Minute
		h := leader(t, cfg)
		one := follower(t, cfg, 1)
		f, err := one.dialAs(t.Context(), toMeet, 0, h.addr, one.process)
		must.Do(t, err)
		defer f.Close()
		must.Do(t, one.startListening(t.Context(), "127.0.0.1:0", f.Conn))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		dismissed := make(chan error, 1)
		go func() { dismissed <- h.dismiss(ended) }()
		must.Do(t, f.WriteFrame([]byte(one.addr)))
		b, err := f.readFrame(maxNotice)
		must.Do(t, err)
		tm, err := decodeTerms(b)
		must.Do(t, err)
		one.wait.begin(tm, h.addr)
		f.Close()
		until(t, "the rank hears that the meeting is over", func() bool {
			r := one.wait.state().last
			return r.notice == noticeRefused
		})
		r := one.wait.state().last
		names(t, r.error, 2)
		names(t, <-dismissed, 2)
	})
}

// once is a rendezvous that finds rank 0 once, and then waits for it as etcd does.
type once struct {
	Rendezvous
	found bool
}

func (o *once) Find(ctx context.Context) (string, error) {
	if o.found {
		<-ctx.Done()
		return "", group.ContextError(ctx)
	}
	o.found = true
	return o.Rendezvous.Find(ctx)
}

// If rank 0 ends without a message, the other ranks give up by themselves, and name
// rank 0 and the ranks that were missing.
func TestRanksGiveUpIfRankZeroIsLost(t *testing.T) {
	for claim, meet := range map[string]func(n *fakeNet) Rendezvous{
		"by an address that stays": func(n *fakeNet) Rendezvous { return fakeBoard{n} },
		"by one that waits":        func(n *fakeNet) Rendezvous { return &once{Rendezvous: fakeBoard{n}} },
	} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newFakeNet()
				cfg := n.config(4)
				h := leader(t, cfg)
				cfg.Meet = meet(n)
				one := joinLater(t, cfg, 1)
				h.registered(t, 1)
				h.close()
				<-one.done
				names(t, one.err, 0)
				if !strings.Contains(one.err.Error(), "ranks 2, 3: missing") || !errors.Is(one.err, errForgotten) || errors.Is(one.err, context.DeadlineExceeded) {
					t.Errorf("Join = %v; want %v, before the context ends, and which ranks were missing", one.err, errForgotten)
				}
			})
		})
	}
}

// If the context of a rank ends, its error names the ranks that are missing at that time. If
// no rank is known to be missing, the error names the rank with the ended context.
func TestErrorsNameTheMissingRanks(t *testing.T) {
	gone := errors.New("of no use")
	for claim, c := range map[string]struct {
		meanwhile func(h *host)
		want      int
	}{
		"a rank that was here": {func(h *host) { h.meeting.lose([]absence{{1, rankMissing, "it was cut off"}}) }, 1},
		"rank 0":               {func(h *host) { h.close() }, 0},
		"itself":               {func(*host) {}, 2},
	} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := newFakeNet().config(3)
				cfg.interval = time.Hour // no rank registers again
				h := leader(t, cfg)
				registrant(t, cfg, 1)
				two := joinLater(t, cfg, 2) // it hears that no rank is missing
				h.registered(t, 2)
				c.meanwhile(h)
				two.cancel(gone)
				<-two.done
				if names(t, two.err, c.want); !errors.Is(two.err, gone) {
					t.Errorf("Join = %v; want the cause, %v", two.err, gone)
				}
			})
		})
	}
}

// If the context of rank 0 ends while it calls the roll, all ranks name the one
// that does not answer, and not ranks that rank 0 could not call because of it.
func TestRankThatDoesNotAnswerIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNet()
		cfg := n.config(4)
		cfg.Arity = 1
		zero := joinFor(t, cfg, 0, 7*time.Second) // between a call that begins and the time for it
		js := []*joining{zero, joinLater(t, cfg, 2), joinLater(t, cfg, 3)}
		synctest.Wait()
		registrant(t, n.slow(cfg, stopped(0)), 1)
		for _, j := range js {
			<-j.done
			names(t, j.err, 1)
		}
	})
}

// If all ranks have come when the context of rank 0 ends, all ranks return an error
// that names the end of that context.
func TestTimeoutOfRankZeroReachesAllRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newFakeNet().config(2)
		h := leader(t, cfg)
		one := joinLater(t, cfg, 1)
		h.registered(t, 1)
		ctx, cancel := context.WithCancel(limited(t))
		cancel()
		names(t, h.dismiss(ctx), 0)
		<-one.done
		names(t, one.err, 0)
		if !errors.Is(one.err, context.Canceled) || errors.Is(one.err, errMissing) {
			t.Errorf("Join = %v; want %v and no missing rank", one.err, context.Canceled)
		}
	})
}
