package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// claims checks that an error of Join names those ranks, has all texts of want, and has none
// of the texts of not.
func claims(t *testing.T, j *joining, ranks []int, want, not []string) {
	t.Helper()
	<-j.done
	if got := group.Ranks(j.err); j.err == nil || !slices.Equal(got, ranks) {
		t.Errorf("Join = %v; want an error of ranks %v", j.err, ranks)
		return
	}
	for _, s := range want {
		if !strings.Contains(j.err.Error(), s) {
			t.Errorf("Join = %v; want %q in it", j.err, s)
		}
	}
	for _, s := range not {
		if strings.Contains(j.err.Error(), s) {
			t.Errorf("Join = %v; want no %q in it", j.err, s)
		}
	}
}

// guesses are claims that a rank without an answer must not make about another rank.
var guesses = []string{"missing", "as a rank does"}

// The error of every rank names the missing ranks, whichever context ends first. A rank that
// has given up is not missing: it was at the meeting.
func TestJoinWithMissingRanks(t *testing.T) {
	for claim, first := range map[string]int{"rank 0 gives up first": 0, "rank 2 gives up first": 2} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := newFakeNet().config(5)
				for _, j := range []*joining{joinFor(t, cfg, first, 5*time.Second), joinFor(t, cfg, 2-first, 10*time.Second)} {
					claims(t, j, []int{1, 3, 4}, []string{"missing", "deadline exceeded"}, nil)
				}
			})
		})
	}
}

// A rank that gives up frees its slot: another process can register at once.
func TestRankThatGivesUpIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newFakeNet().config(3)
		cfg.interval = time.Hour // no roll call finds out
		zero := joinFor(t, cfg, 0, time.Minute)
		claims(t, joinFor(t, cfg, 1, 5*time.Second), []int{2}, []string{"missing"}, nil)
		for _, j := range []*joining{zero, joinFor(t, cfg, 1, time.Minute), joinFor(t, cfg, 2, time.Minute)} {
			if <-j.done; j.err != nil {
				t.Errorf("Join = %v; want no error", j.err)
			}
		}
	})
}

// A meeting from which a rank leaves at the last moment does not succeed, and a connection of
// that process that comes late takes no slot.
func TestLeaveAtTheLastMoment(t *testing.T) {
	m := newMeeting(3, session{1})
	for r := 1; r < 3; r++ {
		must.Get(m.assign(r, session{byte(r)}, "x"))(t)
		m.confirm(r, session{byte(r)})
	}
	names(t, m.leave(1, session{9}, "of another process").error)
	if slots, all := m.roll(); !all || len(slots) != 2 {
		t.Errorf("roll = %v, %t; want both ranks: the process that left has no slot", slots, all)
	}
	names(t, m.leave(1, session{1}, "no more time").error)
	if slots := m.succeed("top", 2); slots != nil {
		t.Errorf("succeed = %v; want no ranks: rank 1 has left", slots)
	}
	if s, err := m.assign(1, session{1}, "x"); err == nil {
		t.Errorf("assign = %v; want an error: that process has left", s)
	}
	must.Get(m.assign(1, session{8}, "x"))(t)
}

// If the contexts of all ranks end at the same time, all of them name the same ranks, also if
// some are slow to answer.
func TestDeadlinesThatEndTogether(t *testing.T) {
	for claim, slow := range map[string][]int{"no rank is slow": nil, "rank 0 is slow": {0}, "rank 2 is slow": {2}, "all are slow": {0, 2, 4}} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newFakeNet()
				cfg := n.config(5)
				var js []*joining
				for _, r := range []int{0, 2, 4} {
					one := cfg
					if slices.Contains(slow, r) {
						one = n.slow(cfg, always(400*time.Millisecond))
					}
					js = append(js, joinFor(t, one, r, 10*time.Second))
				}
				for _, j := range js {
					claims(t, j, []int{1, 3}, []string{"missing"}, nil)
				}
			})
		})
	}
}

// A rank that gives up waits for a rank 0 that is slow to answer, and names the rank that
// rank 0 names.
func TestSlowRankZeroIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNet()
		cfg := n.config(3)
		cfg.interval = time.Hour // no rank is called
		leader(t, n.slow(cfg, always(400*time.Millisecond)))
		one := joinFor(t, cfg, 1, 10*time.Second)
		time.Sleep(5 * time.Second)
		two := joinFor(t, cfg, 2, 10*time.Second) // rank 0 tells it that all ranks are registered
		claims(t, one, []int{1}, nil, guesses)
		claims(t, two, []int{1}, []string{"gave up"}, guesses)
	})
}

// A rank 0 that was at the meeting and does not answer any more is not missing.
func TestRankZeroThatDoesNotAnswer(t *testing.T) {
	for claim, c := range map[string]struct {
		size int
		want []int
		not  []string
	}{
		"no rank was missing": {2, []int{0}, guesses},
		"a rank was missing":  {3, []int{2}, []string{"as a rank does"}},
	} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newFakeNet()
				cfg := n.config(c.size)
				cfg.interval = time.Hour
				leader(t, n.slow(cfg, stopped(3*time.Second)))
				claims(t, joinFor(t, cfg, 1, 10*time.Second), c.want, []string{"rank 0", "not answer"}, c.not)
			})
		})
	}
}

// A process that accepts connections and sends no byte may be a rank 0 that is slow.
func TestSilenceIsNotAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNet()
		cfg := n.config(2)
		mute := must.Get(n.listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
		defer mute.Close()
		must.Do(t, cfg.Meet.Announce(t.Context(), mute.Addr().String()))
		claims(t, joinFor(t, cfg, 1, 30*time.Second), []int{0}, []string{"not answer", mute.Addr().String()}, guesses)
	})
}

// A rank with a context that ends while rank 0 registers it has found rank 0.
func TestDeadlineWhileARankRegisters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNet()
		cfg := n.config(4)
		leader(t, n.slow(cfg, always(time.Second)))
		claims(t, joinFor(t, cfg, 2, 2500*time.Millisecond), []int{1, 3}, []string{"missing"}, nil)
	})
}

// The end of the meeting reaches a rank that registers again at that time, although rank 0
// does not answer it and then is gone.
func TestDismissalOfARankThatRegistersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNet()
		cfg := n.config(3)
		cfg.interval = 10 * time.Second // a rank that is not called for three intervals registers again
		h := leader(t, n.slow(cfg, stopped(20*time.Second)))
		one := joinFor(t, cfg, 1, time.Hour)
		time.Sleep(35 * time.Second)
		slots, _ := h.meeting.roll()
		over := roll{notice: noticeRefused, error: &group.Error{Op: opJoin, Ranks: []int{2}, Err: errMissing}}
		h.announcer().spread(t.Context(), over, slots)
		h.close()
		claims(t, one, []int{2}, nil, []string{"rank 0"})
	})
}

// A rank that is registered and does not answer is not missing. Ranks that never registered
// are named before it.
func TestSilentRankIsNotMissing(t *testing.T) {
	for claim, c := range map[string]struct {
		size      int
		want      []int
		text, not []string
	}{
		"beside a missing rank": {4, []int{3}, []string{"rank 3: missing", "rank 1: no answer"}, nil},
		"alone":                 {3, []int{1}, []string{"no answer", "rank 1 was registered"}, guesses},
	} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newFakeNet()
				cfg := n.config(c.size)
				zero := joinFor(t, cfg, 0, 20*time.Second)
				two := joinFor(t, cfg, 2, 20*time.Second)
				synctest.Wait()
				registrant(t, n.slow(cfg, stopped(0)), 1)
				claims(t, zero, c.want, c.text, c.not)
				claims(t, two, c.want, c.text, c.not)
			})
		})
	}
}

// A rank that is slow to answer the last roll call is not missing: all ranks name the rank
// that has no more time.
func TestSlowAnswerToTheLastCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNet()
		cfg := n.config(2)
		zero := joinFor(t, cfg, 0, 500*time.Millisecond)
		one := joinFor(t, n.slow(cfg, always(600*time.Millisecond)), 1, time.Hour)
		claims(t, zero, []int{0}, []string{"deadline exceeded"}, guesses)
		claims(t, one, []int{0}, []string{"deadline exceeded"}, guesses)
	})
}

// A rank that is slow to register while rank 0 gives up is not missing.
func TestRankThatRegistersSlowlyIsNotMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNet()
		cfg := n.config(4)
		zero := joinFor(t, cfg, 0, 10*time.Second)
		time.Sleep(8400 * time.Millisecond)
		cfg.Wrap = func(c net.Conn) net.Conn {
			return slowConn{c.(*fakeConn), func() {
				if time.Since(n.start) < 12*time.Second {
					time.Sleep(1500 * time.Millisecond)
				}
			}}
		}
		two := joinFor(t, cfg, 2, time.Hour)
		claims(t, zero, []int{1, 3}, []string{"rank 2: no answer"}, nil)
		claims(t, two, []int{1, 3}, nil, nil)
	})
}

// A process that hangs up in the handshake was not refused.
func TestProcessThatHangsUpWasNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNet()
		cfg := n.config(2)
		zero := joinFor(t, cfg, 0, time.Minute)
		synctest.Wait()
		c := must.Get(n.dial(t.Context(), "tcp", n.announced))(t)
		hi := hello{purpose: toMeet, from: 1, size: 2, job: cfg.Job}
		rand.Read(hi.nonce[:])
		c.Write(hi.encode())
		io.ReadFull(c, make([]byte, nonceSize))
		c.Close()
		claims(t, zero, []int{1}, []string{"missing"}, []string{"refused"})
	})
}

// Rank 0 with another secret has answered, and is not missing.
func TestRankZeroWithAnotherSecretIsNotMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newFakeNet().config(2)
		leader(t, cfg)
		cfg.Secret = []byte("another")
		one := joinFor(t, cfg, 1, secretPatience/2)
		if <-one.done; !errors.Is(one.err, ErrSecret) || !errors.Is(one.err, context.DeadlineExceeded) || errors.Is(one.err, errMissing) {
			t.Errorf("Join = %v; want %v, and not that rank 0 is missing", one.err, ErrSecret)
		}
	})
}

// A rank that has not heard yet that all ranks have met is not gone: ranks below it wait for
// it as long as for any rank.
func TestLinksWaitForTheAnnouncement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newFakeNet().config(3)
		h := leader(t, cfg)
		one, two := registrant(t, cfg, 1), registrant(t, cfg, 2)
		two.session = h.meeting.session
		linked := make(chan error)
		go func() {
			f, err := two.dial(t.Context(), toLink, 1, one.addr)
			if err == nil {
				f.Close()
			}
			linked <- err
		}()
		time.Sleep(15 * time.Second)
		one.begin(one.wait.state().agreed)
		if err := <-linked; err != nil {
			t.Errorf("dial = %v; want it to wait", err)
		}
	})
}

// endsLate cancels a context when the last bytes of an answer have been read.
type endsLate struct {
	net.Conn
	left   int
	cancel func()
}

func (c *endsLate) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.left -= n; c.left <= 0 {
		c.cancel()
	}
	return n, err
}

// A refusal is an answer, also if the context ends at the same time.
func TestRefusalAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newFakeNet().config(2)
		h := leader(t, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cfg.Job = "another"
		cfg.Wrap = func(c net.Conn) net.Conn { return &endsLate{c, nonceSize + 1, cancel} }
		one := follower(t, cfg, 1)
		if _, err := one.dialAs(ctx, toMeet, 0, h.addr, one.process); !errors.Is(err, ErrRefused) {
			t.Errorf("dialAs = %v; want %v", err, ErrRefused)
		}
	})
}
