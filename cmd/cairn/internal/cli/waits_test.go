package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// A request that is repeated for seconds is announced without --verbose, but not each time.
func TestRetriesAreAnnounced(t *testing.T) {
	var got []string
	h := &waits{say: func(format string, args ...any) { got = append(got, fmt.Sprintf(format, args...)) }}
	start := time.Now()
	for _, c := range []struct{ at, elapsed time.Duration }{
		{0, time.Second}, {4 * time.Second, 4 * time.Second}, {8 * time.Second, 8 * time.Second}, {15 * time.Second, 15 * time.Second},
	} {
		r := slog.NewRecord(start.Add(c.at), slog.LevelWarn, "request is repeated", 0)
		r.AddAttrs(slog.String("key", "run/x"), slog.Any("error", errors.New("no\nanswer")), slog.Duration("elapsed", c.elapsed))
		must.Do(t, h.Handle(t.Context(), r))
	}
	slog.New(h).LogAttrs(context.Background(), slog.LevelWarn, "something else", slog.String("key", "x"))
	want := []string{"waiting for 4s, request is repeated: run/x: no; answer", "waiting for 15s, request is repeated: run/x: no; answer"}
	if !slices.Equal(got, want) {
		t.Errorf("printed %q; want %q", got, want)
	}
}

// locking is a store that has locks, as the stores of object storage do.
type locking struct{ *mem.Store }

func (locking) TryLock(context.Context, string, []byte) (blob.HeldLock, error) {
	return nil, errors.ErrUnsupported
}
func (locking) Locks(context.Context, string) ([]blob.Lock, error) { return nil, nil }

// A store without locks cannot show saves that are under way, and latest says so.
func TestLatestSaysThatItCannotWait(t *testing.T) {
	blob.Register("locking", func(context.Context, string) (blob.Store, error) { return locking{new(mem.Store)}, nil })
	for address, want := range map[string]string{
		"mem://waits/run": "warning: waiting has no effect: mem://waits/run has no locks\n",
		"locking://x":     "warning: there is no waiting for a save to locking://x that began less than 10s ago, ",
		t.TempDir():       "",
	} {
		code, _, stderr := execute(t, "latest", address, "--wait")
		if code != 3 || !strings.Contains(stderr, want) || want == "" && strings.Contains(stderr, "--wait") {
			t.Errorf("cairn latest %s --wait = %d, printed %q; want %q", address, code, stderr, want)
		}
	}
}
