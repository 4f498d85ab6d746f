package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// joining is a rank that is about to join.
type joining struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when it has returned
	group  *Group
	err    error
}

// joinLater lets a rank join in the background. Its group is closed at the end.
func joinLater(t *testing.T, cfg Config, rank int) *joining {
	ctx, cancel := context.WithCancelCause(limited(t))
	j := &joining{cancel: cancel, done: make(chan struct{})}
	cfg.Rank = rank
	go func() {
		defer close(j.done)
		j.group, j.err = Join(ctx, cfg)
	}()
	t.Cleanup(func() {
		cancel(nil)
		<-j.done
		if j.group != nil {
			j.group.Close()
		}
	})
	return j
}

// meets checks that ranks have joined and that a call of theirs succeeds.
func meets(t *testing.T, js ...*joining) {
	t.Helper()
	for _, j := range js {
		if <-j.done; j.err != nil {
			t.Fatalf("Join = %v; want no error", j.err)
		}
	}
	var wg sync.WaitGroup
	for _, j := range js {
		wg.Go(func() {
			if err := j.group.Barrier(limited(t)); err != nil {
				t.Errorf("barrier = %v; want no error", err)
			}
		})
	}
	wg.Wait()
}

// leader is rank 0 that lets others come, without the calls of the roll that it
// would make by itself.
func leader(t *testing.T, cfg Config) *host {
	t.Helper()
	cfg, err := cfg.withDefaults()
	must.Do(t, err)
	h := newHost(cfg, 0, cfg.Size)
	t.Cleanup(h.close)
	h.meeting = newMeeting(h.size, session{1})
	must.Do(t, h.startListening(limited(t), "127.0.0.1:0", nil))
	must.Do(t, cfg.Meet.Announce(limited(t), h.addr))
	return h
}

// registered waits until n ranks have come.
func (h *host) registered(t *testing.T, n int) []slot {
	t.Helper()
	var slots []slot
	until(t, fmt.Sprintf("%d ranks have come", n), func() bool {
		slots, _ = h.meeting.roll()
		return len(slots) == n
	})
	return slots
}

func crowdConfig(t *testing.T, size int) Config {
	cfg := pairConfig(t)
	cfg.Size, cfg.Arity = size, 2
	return cfg
}

// soon is the interval of roll calls for tests that wait for them.
const soon = 50 * time.Millisecond

// A call of the roll reaches all ranks that are there and names all others, wherever
// they are in the tree of calls.
func TestRollCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 12
		cfg := newFakeNet().config(size)
		cfg.Arity = 2
		h := leader(t, cfg)
		gone := []int{1, 2, 3, 8, 11}
		var dying []*host
		for r := 1; r < size; r++ {
			if slices.Contains(gone, r) {
				dying = append(dying, registrant(t, cfg, r))
			} else {
				joinLater(t, cfg, r)
			}
		}
		wait := roll{notice: noticeWait, error: h.meeting.missing(maxMissing, 0)}
		if absent := h.announcer().spread(limited(t), wait, h.registered(t, size-1)); len(absent) > 0 {
			t.Errorf("absent where all are here: %v; want none", absent)
		}
		for _, d := range dying {
			d.close() // without a word
		}
		slots := h.registered(t, size-1)
		absent := h.announcer().spread(limited(t), wait, slots)
		var got []int
		for _, a := range absent {
			got = append(got, a.rank)
			if a.standing != rankMissing || !strings.Contains(a.reason, "refused") {
				t.Errorf("rank %d: standing %d, because %q; want a connection that is refused", a.rank, a.standing, a.reason)
			}
		}
		if slices.Sort(got); !slices.Equal(got, gone) {
			t.Errorf("absent: %v; want %v", got, gone)
		}
		h.meeting.lose(absent)
		if got := h.meeting.unregistered(size); !slices.Equal(got, gone) {
			t.Errorf("without a slot: %v; want %v", got, gone)
		}
		if err := h.meeting.missing(2, 0); len(err.Ranks) != 2 || !strings.Contains(err.Error(), "was registered: connect to rank") {
			t.Errorf("missing = %v; want two ranks, and why one that was here is not any more", err)
		}
	})
}

// A rank that accepts connections and stays silent loses its slot within the timeout, and the
// ranks that it should have called are called anyway.
func TestRollCallOfSilentRanks(t *testing.T) {
	for claim, arity := range map[string]int{"one after the other": 1, "all at once": 8} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newFakeNet()
				cfg := n.config(4)
				cfg.Arity = arity
				h := leader(t, cfg)
				registrant(t, n.slow(cfg, stopped(0)), 1)
				joinLater(t, cfg, 2)
				joinLater(t, cfg, 3)
				absent := h.callRoll(limited(t), h.registered(t, 3))
				if len(absent) != 1 || absent[0].rank != 1 || absent[0].standing != rankSilent {
					t.Errorf("absent: %v; want rank 1, silent", absent)
				}
			})
		})
	}
}

// A list that is longer than a frame arrives whole.
func TestLongCalls(t *testing.T) {
	const size = 3000
	slots := make([]slot, size-1)
	for i := range slots {
		slots[i] = slot{rank: i + 1, addr: strings.Repeat("x", maxAddress), above: strings.Repeat("y", 20)}
	}
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		defer there.Close()
		writeCall(newConn(there), roll{notice: noticeMet, called: len(slots)}, slots)
	}()
	if _, got, err := readCall(newConn(here), size); err != nil || !slices.Equal(got, slots) {
		t.Errorf("readCall = %d slots, %v; want %d", len(got), err, len(slots))
	}
}

// Ranks that go while others wait can be replaced, and so can rank 0; a second
// process of a rank that is there is refused.
func TestSlotsAreFreed(t *testing.T) {
	t.Parallel()
	t.Run("of a rank", func(t *testing.T) {
		t.Parallel()
		cfg := crowdConfig(t, 4)
		cfg.interval = soon
		js := []*joining{joinLater(t, cfg, 0), joinLater(t, cfg, 1), joinLater(t, cfg, 2)}
		h := leaderOf(t, cfg)
		h.await(t, 1)
		h.await(t, 2)
		if err := h.come(2); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "rank 2 is already registered") {
			t.Errorf("a second rank 2: %v; want it to be refused", err)
		}
		js[1].cancel(errors.New("of no use"))
		if <-js[1].done; !errors.Is(js[1].err, context.Canceled) {
			t.Errorf("Join = %v; want %v", js[1].err, context.Canceled)
		}
		js[1] = joinLater(t, cfg, 1)
		js = append(js, joinLater(t, cfg, 3))
		meets(t, js...)
	})
	t.Run("of rank 0", func(t *testing.T) {
		t.Parallel()
		cfg := crowdConfig(t, 3)
		cfg.interval = soon
		h := leader(t, cfg)
		one := joinLater(t, cfg, 1)
		h.registered(t, 1)
		h.close() // it dies without a word
		meets(t, one, joinLater(t, cfg, 0), joinLater(t, cfg, 2))
	})
}

// A rank that did not hear that all have come asks again, and is told.
func TestRanksThatMissTheAnnouncement(t *testing.T) {
	t.Parallel()
	cfg := crowdConfig(t, 2)
	cfg.interval = soon
	h := leader(t, cfg)
	one := joinLater(t, cfg, 1)
	h.registered(t, 1)
	h.meeting.succeed(h.addr, 2)
	h.begin(terms{session: h.meeting.session, arity: 2, timeout: h.cfg.Timeout})
	shared := make(chan error, 1)
	go func() { shared <- h.share(limited(t)) }()
	<-one.done
	if err := errors.Join(one.err, <-shared); err != nil {
		t.Errorf("Join = %v; want no error", err)
	}
	stranger := &host{cfg: h.cfg, rank: 1, size: 2}
	_, err := stranger.dialAs(limited(t), toMeet, 0, h.addr, session{9})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "have met without") {
		t.Errorf("another process of that rank: %v; want it to be refused", err)
	}
}

// If a meeting ends before all ranks have come, the ranks that wait return at once.
func TestDismissal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newFakeNet().config(9)
		cfg.Arity = 2
		js := []*joining{joinFor(t, cfg, 0, 10*time.Second)}
		for _, r := range []int{1, 2, 4, 7} {
			js = append(js, joinFor(t, cfg, r, time.Hour))
		}
		start := time.Now()
		for _, j := range js {
			claims(t, j, []int{3, 5, 6, 8}, []string{"deadline exceeded"}, nil)
		}
		if waited := time.Since(start); waited > 11*time.Second {
			t.Errorf("the ranks have waited for %v; want no more than a moment after rank 0 has ended", waited)
		}
	})
}

// visitor is a process that looks at a meeting from outside.
type visitor struct {
	cfg  Config
	addr string
}

// leaderOf finds rank 0 of a meeting.
func leaderOf(t *testing.T, cfg Config) *visitor {
	t.Helper()
	cfg, err := cfg.withDefaults()
	must.Do(t, err)
	f := &File{Path: strings.TrimPrefix(cfg.Rendezvous, "file://")}
	v := &visitor{cfg: cfg}
	until(t, "rank 0 is there", func() bool {
		v.addr, err = f.Find(limited(t))
		return err == nil
	})
	return v
}

// come asks for the slot of a rank and goes away.
func (v *visitor) come(rank int) error {
	h := &host{cfg: v.cfg, rank: rank, size: v.cfg.Size}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	f, err := h.dialAs(ctx, toMeet, 0, v.addr, session{42})
	if err == nil {
		f.Close()
	}
	return err
}

// await waits until a rank has come.
func (v *visitor) await(t *testing.T, rank int) {
	t.Helper()
	until(t, fmt.Sprintf("rank %d has come", rank), func() bool { return v.come(rank) != nil })
}
