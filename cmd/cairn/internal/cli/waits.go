package cli

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// patience is how long a command waits before it says that it waits.
	patience = 3 * time.Second
	// waitPause is the least time between two such lines.
	waitPause = 10 * time.Second
)

// waits is a handler of log records that shows the records about long waits, such as
// requests that are repeated for seconds: those with an attribute "elapsed". It drops all
// other records, which --verbose shows.
type waits struct {
	say func(format string, args ...any)

	mu   sync.Mutex
	last time.Time // when a record was shown; guarded by mu
}

var _ slog.Handler = (*waits)(nil)

// Enabled implements [slog.Handler].
func (w *waits) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// WithAttrs implements [slog.Handler]. Errors name the store, so that no attribute of all
// records is needed.
func (w *waits) WithAttrs([]slog.Attr) slog.Handler { return w }

// WithGroup implements [slog.Handler].
func (w *waits) WithGroup(string) slog.Handler { return w }

// Handle implements [slog.Handler].
func (w *waits) Handle(_ context.Context, r slog.Record) error {
	var elapsed time.Duration
	var key, problem string
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "elapsed":
			elapsed = a.Value.Duration()
		case "key":
			key = a.Value.String()
		case "error":
			problem = a.Value.String()
		}
		return true
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if elapsed < patience || !w.last.IsZero() && r.Time.Sub(w.last) < waitPause {
		return nil
	}
	w.last = r.Time
	w.say("waiting for %v, %s: %s: %s", elapsed.Round(time.Second), r.Message, clean(key), clean(oneLine(problem)))
	return nil
}
