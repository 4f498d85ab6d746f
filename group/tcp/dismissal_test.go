package tcp

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
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

// A rank that registers while rank 0 gives up receives the dismissal too.
func TestDismissalOfARankThatRegisters(t *testing.T) {
	t.Parallel()
	cfg := crowdConfig(t, 3)
	cfg.parting = time.Minute
	h := leader(t, cfg)
	one := follower(t, cfg, 1)
	f, err := one.dialAs(limited(t), toMeet, 0, h.addr, one.process)
	must.Do(t, err)
	defer f.Close()
	must.Do(t, one.startListening(limited(t), "127.0.0.1:0", f.Conn))
	ended, cancel := context.WithCancel(limited(t))
	cancel()
	dismissed := make(chan error, 1)
	go func() { dismissed <- h.dismiss(ended, nil) }()
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
}

// once is a rendezvous that finds rank 0 once, and then waits for it as etcd does.
type once struct {
	File
	found bool
}

func (o *once) Find(ctx context.Context) (string, error) {
	if o.found {
		<-ctx.Done()
		return "", group.ContextError(ctx)
	}
	o.found = true
	return o.File.Find(ctx)
}

// If rank 0 ends without a message, the other ranks give up by themselves, and name
// rank 0 and the ranks that were missing.
func TestRanksGiveUpIfRankZeroIsLost(t *testing.T) {
	t.Parallel()
	for claim, meet := range map[string]func(path, addr string) Rendezvous{
		"by a file": func(path, _ string) Rendezvous { return &File{Path: path} },
		"by the environment": func(_, addr string) Rendezvous {
			host, port, _ := net.SplitHostPort(addr)
			return &Env{Port: port, Getenv: func(string) string { return host }}
		},
		"by one that waits": func(path, _ string) Rendezvous { return &once{File: File{Path: path}} },
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			cfg := crowdConfig(t, 4)
			cfg.search, cfg.interval = 50*time.Millisecond, soon
			h := leader(t, cfg)
			cfg.Meet = meet(strings.TrimPrefix(cfg.Rendezvous, "file://"), h.addr)
			one := joinLater(t, cfg, 1)
			h.registered(t, 1)
			h.close()
			<-one.done
			names(t, one.err, 0)
			if !strings.Contains(one.err.Error(), "ranks 2, 3: missing") || !errors.Is(one.err, errForgotten) || errors.Is(one.err, context.DeadlineExceeded) {
				t.Errorf("Join = %v; want %v, before the context ends, and which ranks were missing", one.err, errForgotten)
			}
		})
	}
}

// A rank whose context ends names the ranks that are missing at that time. If no rank is
// known to be missing, it names the rank whose context has ended.
func TestErrorsNameTheMissingRanks(t *testing.T) {
	t.Parallel()
	gone := errors.New("of no use")
	for claim, c := range map[string]struct {
		meanwhile func(h *host, one *joining)
		want      int
	}{
		"a rank that was here": {func(h *host, one *joining) {
			one.cancel(nil)
			<-one.done
			h.meeting.lose([]absence{{1, true, "it was cut off"}})
		}, 1},
		"rank 0": {func(h *host, _ *joining) { h.close() }, 0},
		"itself": {func(*host, *joining) {}, 2},
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			cfg := crowdConfig(t, 3)
			h := leader(t, cfg)
			one := joinLater(t, cfg, 1)
			h.registered(t, 1)
			two := joinLater(t, cfg, 2) // it hears that no rank is missing
			h.registered(t, 2)
			c.meanwhile(h, one)
			two.cancel(gone)
			<-two.done
			if names(t, two.err, c.want); !errors.Is(two.err, gone) {
				t.Errorf("Join = %v; want the cause, %v", two.err, gone)
			}
		})
	}
}

// If the context of rank 0 ends while it calls the roll, all ranks name the one
// that does not answer, and not ranks that rank 0 could not call because of it.
func TestRankThatDoesNotAnswerIsNamed(t *testing.T) {
	t.Parallel()
	cfg := crowdConfig(t, 4)
	cfg.Arity, cfg.parting = 1, time.Minute
	h := leader(t, cfg)
	js := []*joining{joinLater(t, cfg, 2), joinLater(t, cfg, 3)}
	h.registered(t, 2)
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	defer mute.Close()
	if _, err := h.meeting.assign(1, session{7}, mute.Addr().String()); err != nil {
		t.Fatal(err)
	}
	h.meeting.confirm(1, session{7})
	ctx, cancel := context.WithCancel(limited(t))
	defer cancel()
	go func() {
		if c, err := mute.Accept(); err == nil {
			defer c.Close()
			cancel() // rank 0 is calling
			<-limited(t).Done()
		}
	}()
	names(t, h.gather(ctx), 1)
	for _, j := range js {
		<-j.done
		names(t, j.err, 1)
	}
}

// If all ranks have come when the context of rank 0 ends, all ranks return an error
// that names the end of that context.
func TestTimeoutOfRankZeroReachesAllRanks(t *testing.T) {
	t.Parallel()
	cfg := crowdConfig(t, 2)
	cfg.parting = time.Minute
	h := leader(t, cfg)
	one := joinLater(t, cfg, 1)
	h.registered(t, 1)
	ctx, cancel := context.WithCancel(limited(t))
	cancel()
	names(t, h.dismiss(ctx, nil), 0)
	<-one.done
	names(t, one.err, 0)
	if !errors.Is(one.err, context.Canceled) || errors.Is(one.err, errMissing) {
		t.Errorf("Join = %v; want %v and no missing rank", one.err, context.Canceled)
	}
}
