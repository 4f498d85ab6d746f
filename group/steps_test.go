package group_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
)

// onRanks runs fn on n ranks in a bubble and returns their errors.
func onRanks(t *testing.T, n int, fn func(ctx context.Context, g group.Group) error) []error {
	t.Helper()
	errs := make([]error, n)
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		for r, g := range inproc.New(n) {
			wg.Go(func() { errs[r] = fn(t.Context(), g) })
		}
		wg.Wait()
	})
	return errs
}

func TestPanicReachesAllRanksWithItsStack(t *testing.T) {
	errs := onRanks(t, 3, func(ctx context.Context, g group.Group) error {
		return group.Each(ctx, g, "write", func(context.Context) error {
			if g.Rank() == 1 {
				panic("boom")
			}
			return nil
		})
	})
	for r, err := range errs {
		if !errors.Is(err, group.ErrPanic) || !strings.HasPrefix(err.Error(), "write: rank 1: panic: boom\n") ||
			!strings.Contains(err.Error(), "steps_test.go:") {
			t.Errorf("rank %d got %v; want the panic and its stack", r, err)
		}
	}
}

func TestStepSkipsWorkIfContextHasEnded(t *testing.T) {
	errs := onRanks(t, 2, func(ctx context.Context, g group.Group) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if g.Rank() == 1 {
			cancel()
		}
		return group.Each(ctx, g, "write", func(context.Context) error {
			if g.Rank() == 1 {
				t.Error("fn ran with a context that had ended")
			}
			return nil
		})
	})
	for r, err := range errs {
		if want := "write: rank 1: context canceled"; err == nil || err.Error() != want {
			t.Errorf("rank %d got %v; want %s", r, err, want)
		}
	}
}

func TestStepsOfDifferentKindsFailTogether(t *testing.T) {
	errs := onRanks(t, 2, func(ctx context.Context, g group.Group) error {
		if g.Rank() == 0 {
			return group.Each(ctx, g, "write", func(context.Context) error { return nil })
		}
		_, err := group.Broadcast(ctx, g, "write", 0, group.Bytes{}, func(context.Context) ([]byte, error) { return nil, nil })
		return err
	})
	const want = "write: ranks 0, 1: rank 0 called gather(root 0), rank 1 called broadcast(root 0): ranks made different calls"
	for r, err := range errs {
		if err == nil || err.Error() != want || !errors.Is(err, group.ErrDisagree) {
			t.Errorf("rank %d got %v; want %s", r, err, want)
		}
	}
}

func TestBroadcastFromInvalidRoot(t *testing.T) {
	errs := onRanks(t, 2, func(ctx context.Context, g group.Group) error {
		_, err := group.Broadcast(ctx, g, "read", 2, group.Bytes{}, func(context.Context) ([]byte, error) { return nil, nil })
		return err
	})
	for r, err := range errs {
		if _, ok := errors.AsType[*group.StepError](err); !ok || !errors.Is(err, group.ErrInvalid) {
			t.Errorf("rank %d got %v; want a *group.StepError that wraps %v", r, err, group.ErrInvalid)
		}
	}
}

// Values that begin like the marks of a message must come through.
func TestBytesCodecKeepsBytes(t *testing.T) {
	for _, v := range [][]byte{nil, {0xFF}, {0xFE}, {0xFF, 0, 1}, {0}, bytes.Repeat([]byte{0xFE}, 1<<20)} {
		errs := onRanks(t, 3, func(ctx context.Context, g group.Group) error {
			got, err := group.Assign(ctx, g, "plan", group.Bytes{}, group.Bytes{},
				func(context.Context) ([]byte, error) { return v, nil },
				func(_ context.Context, vs [][]byte) ([][]byte, error) { return vs, nil })
			if err == nil && !bytes.Equal(got, v) {
				t.Errorf("Assign of %.8x = %.8x", v, got)
			}
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("Assign of %.8x = %v", v, err)
		}
	}
}

func TestJSONRefusesWhatItCannotHold(t *testing.T) {
	if _, err := group.JSON[float64]().Encode(math.NaN()); err == nil {
		t.Error("Encode(NaN) = nil; want an error")
	}
	if _, err := group.JSON[int]().Decode([]byte("1 2")); err == nil {
		t.Error("Decode of two values = nil; want an error")
	}
}

// brokenGroup is a group with errors that do not name the rank at fault.
type brokenGroup struct{ group.Group }

var errWire = errors.New("connection reset")

func (brokenGroup) Gather(context.Context, int, []byte) ([][]byte, error)  { return nil, errWire }
func (brokenGroup) Broadcast(context.Context, int, []byte) ([]byte, error) { return nil, errWire }

func TestStepErrorOfOtherErrors(t *testing.T) {
	err := group.Each(t.Context(), brokenGroup{group.Solo()}, "write", func(context.Context) error { return nil })
	if want := "write: connection reset"; err == nil || err.Error() != want || !errors.Is(err, errWire) {
		t.Errorf("Each = %v; want %s", err, want)
	}
}

func TestAgreeNamesTheRanksThatDiffer(t *testing.T) {
	errOther := errors.New("other")
	for _, same := range []bool{true, false} {
		errs := onRanks(t, 4, func(ctx context.Context, g group.Group) error {
			v := []byte("v")
			if !same && g.Rank()%2 == 1 {
				v = []byte("w")
			}
			return group.Agree(ctx, g, "compare", v, func(zero []byte) error {
				if string(zero) != "v" {
					t.Errorf("differs received %q", zero)
				}
				return errOther
			})
		})
		for r, err := range errs {
			if want := "compare: ranks 1, 3: other"; same && err != nil || !same && (err == nil || err.Error() != want) {
				t.Errorf("same %v: rank %d got %v; want %s", same, r, err, want)
			}
		}
	}
}
