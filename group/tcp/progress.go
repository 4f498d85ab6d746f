package tcp

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
)

const (
	// quietTime is how long a rank waits for the others before it logs that.
	quietTime = 5 * time.Second
	// maxQuiet bounds the pauses between two such messages, which grow.
	maxQuiet = time.Minute
)

// progress is how far a call of Join has come, for the log.
type progress struct {
	mu   sync.Mutex
	host *host  // nil: it is not known yet which rank this is; guarded by mu
	addr string // at which the ranks meet, once it is known; guarded by mu
	last error  // of the last attempt to reach rank 0, or nil; guarded by mu
}

// setHost sets the rank of this call.
func (p *progress) setHost(h *host) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.host = h
}

// setAddress sets the address at which the ranks meet.
func (p *progress) setAddress(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addr = addr
}

// setError sets the error of the last attempt to reach rank 0.
func (p *progress) setError(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = err
}

func (p *progress) address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.addr
}

// report logs the reason why the rank waits at intervals, until stop is called.
func (p *progress) report(ctx context.Context, cfg *Config) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		start := time.Now()
		for pause := quietTime; ; pause = min(2*pause, maxQuiet) {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
			text, attrs := p.describe()
			attrs = append(attrs, slog.String("job", cfg.Job), slog.Duration("waited", time.Since(start).Round(time.Millisecond)))
			cfg.Logger.LogAttrs(ctx, slog.LevelWarn, text, attrs...)
		}
	})

	return func() {
		cancel()
		wg.Wait()
	}
}

// describe returns the reason why the rank waits, as a message with attributes.
func (p *progress) describe() (string, []slog.Attr) {
	p.mu.Lock()
	h, addr, last := p.host, p.addr, p.last
	p.mu.Unlock()
	if h == nil {
		return "waiting for a rank from the rendezvous", nil
	}

	attrs := []slog.Attr{slog.Int("rank", h.rank), slog.Int("size", h.size)}
	if addr != "" {
		attrs = append(attrs, slog.String("address", addr))
	}

	if h.rank == 0 {
		e := h.meeting.missing(maxMissing, 0)
		return waitText(e, addr, append(attrs, slog.String("listen", h.addr)))
	}

	state := h.wait.state()
	if state.last.error != nil && last == nil {
		return waitText(state.last.error, addr, attrs)
	}
	if last != nil {
		attrs = append(attrs, slog.Any("error", last))
	}
	return "waiting for rank 0", attrs
}

// waitText describes the ranks of e, which are missing or do not answer. If there are none,
// the ranks connect to each other.
func waitText(e *group.Error, addr string, attrs []slog.Attr) (string, []slog.Attr) {
	if len(e.Ranks) == 0 {
		return "waiting until all ranks are connected", attrs
	}

	why, missing := strings.CutPrefix(e.Err.Error(), missingAt(addr).Error())
	key := "missing"
	if !missing {
		key = "ranks"
	}

	attrs = append(attrs, slog.String(key, group.RanksText(e.Ranks)))
	if why != "" {
		attrs = append(attrs, slog.String("why", strings.TrimSpace(why)))
	}
	return "waiting for other ranks", attrs
}
