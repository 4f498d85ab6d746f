package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestRanksText(t *testing.T) {
	odd := make([]int, 100)
	for i := range odd {
		odd[i] = 2*i + 1
	}
	for _, c := range []struct {
		ranks []int
		want  string
	}{
		{[]int{3}, "rank 3"},
		{[]int{0, 1}, "ranks 0, 1"},
		{[]int{0, 1, 2}, "ranks 0-2"},
		{[]int{0, 2, 3, 4, 9}, "ranks 0, 2-4, 9"},
		{[]int{4, 3, 1}, "ranks 4, 3, 1"},
		{nil, "ranks"},
		{odd[:26], "ranks 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47 and 2 more"},
	} {
		if got := RanksText(c.ranks); got != c.want {
			t.Errorf("RanksText(%v) = %q; want %q", c.ranks, got, c.want)
		}
	}
}

func TestErrorText(t *testing.T) {
	gather, list := Call{Op: OpGather, Root: 3}, Call{Op: OpSub, Ranks: []int{1, 2, 3}}
	err := Mismatch(5, list, 2, gather)
	const want = "gather: ranks 2, 5: rank 2 called gather(root 3), rank 5 called sub(ranks 1-3): ranks made different calls"
	if err.Error() != want || !errors.Is(err, ErrDisagree) {
		t.Errorf("Mismatch = %q; want %q", err, want)
	}
}

func TestContextError(t *testing.T) {
	if err := ContextError(t.Context()); err != nil {
		t.Errorf("ContextError of a live context = %v; want nil", err)
	}
	cause := errors.New("node is going down")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	err := ContextError(ctx)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || err.Error() != "context canceled: node is going down" {
		t.Errorf("ContextError = %v; want both error and cause", err)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	cancel(nil)
	if err := ContextError(ctx); err != context.Canceled {
		t.Errorf("ContextError without a cause = %v; want %v", err, context.Canceled)
	}
}

func TestStepErrorText(t *testing.T) {
	disk, net := errors.New("disk on fire"), errors.New("no route")
	many := make(map[int]error)
	for r := range 100 {
		many[r] = fmt.Errorf("error %d", r)
	}
	for _, c := range []struct {
		failures map[int]error
		want     string
	}{
		{map[int]error{3: disk}, "write: rank 3: disk on fire"},
		{map[int]error{2: net, 10: disk, 0: disk}, "write: ranks 0, 10: disk on fire; rank 2: no route"},
		{map[int]error{5: disk, 4: disk, 6: disk}, "write: ranks 4-6: disk on fire"},
		{nil, "write"},
	} {
		err := &StepError{Step: "write", Failures: c.failures}
		if err.Error() != c.want {
			t.Errorf("Error() = %q; want %q", err, c.want)
		}
	}
	text := (&StepError{Step: "write", Failures: many}).Error()
	if !strings.HasPrefix(text, "write: rank 0: error 0; rank 1: error 1; ") || !strings.HasSuffix(text, "; and 76 more ranks") {
		t.Errorf("Error() of 100 ranks = %q; want the first in order and the number of the rest", text)
	}
}

func TestStepErrorUnwrapsInOrder(t *testing.T) {
	a, b := errors.New("a"), errors.New("b")
	got := (&StepError{Failures: map[int]error{9: b, 1: a}}).Unwrap()
	if len(got) != 2 || got[0] != a || got[1] != b {
		t.Errorf("Unwrap = %v; want [a b]", got)
	}
}

func TestCatchKeepsTheStackOfThePanic(t *testing.T) {
	err := Catch(func() error {
		var m map[string]int
		//lint:ignore SA5000 the test wants this panic
		m["x"] = 1
		return nil
	})
	pe, ok := errors.AsType[*panicError](err)
	if !ok || !errors.Is(err, ErrPanic) {
		t.Fatalf("Catch = %v; want a *panicError", err)
	}
	if !strings.HasPrefix(err.Error(), "panic: assignment to entry in nil map\n") {
		t.Errorf("Catch = %q; want the value first", err)
	}
	if s := string(pe.stack); !strings.HasPrefix(s, "github.com/cairn-ckpt/cairn/group.TestCatch") || len(s) > maxStack {
		t.Errorf("stack begins with %.80q; want the function that panicked", s)
	}
	if err := Catch(func() error { return ErrGone }); err != ErrGone {
		t.Errorf("Catch = %v; want fn's error", err)
	}
}

func TestRanksOfAnError(t *testing.T) {
	step := &StepError{Step: "work", Failures: map[int]error{4: errors.New("x"), 2: errors.New("y")}}
	call := &Error{Op: OpBarrier, Ranks: []int{3}, Err: ErrGone}
	for claim, c := range map[string]struct {
		err  error
		want []int
	}{
		"of a step":               {fmt.Errorf("save: %w", step), []int{2, 4}},
		"of a call":               {fmt.Errorf("join: %w", call), []int{3}},
		"of a step with a call":   {&StepError{Failures: map[int]error{1: call}}, []int{1}},
		"of an error without any": {errors.New("x"), nil},
		"of none":                 {nil, nil},
	} {
		if got := Ranks(c.err); !slices.Equal(got, c.want) {
			t.Errorf("%s: Ranks = %v; want %v", claim, got, c.want)
		}
	}
}

func TestStepErrorOfOneRankDoesNotNameIt(t *testing.T) {
	broken := errors.New("broken")
	for what, step := range map[string]func(g Group) error{
		"Each": func(g Group) error {
			return Each(t.Context(), g, "write", func(context.Context) error { return broken })
		},
		"Broadcast": func(g Group) error {
			_, err := Broadcast(t.Context(), g, "write", 0, Bytes{}, func(context.Context) ([]byte, error) { return nil, broken })
			return err
		},
	} {
		err := step(Solo())
		if err == nil || err.Error() != "write: broken" || !errors.Is(err, broken) {
			t.Errorf("%s = %v; want write: broken", what, err)
		}
		if got := Ranks(err); !slices.Equal(got, []int{0}) {
			t.Errorf("Ranks of %s = %v; want 0", what, got)
		}
	}
}
