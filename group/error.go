package group

import (
	"context"
	"errors"
	"fmt"
)

var (
	// ErrDisagree reports ranks that made different calls although all must make
	// the same one, or a message whose length the receiver did not expect.
	ErrDisagree = errors.New("ranks made different calls")
	// ErrInvalid reports an argument that a group cannot serve: a root or rank
	// out of range, a rank listed twice, the wrong number of values.
	ErrInvalid = errors.New("invalid argument")
	// ErrGone reports a rank that has left the group for good.
	ErrGone = errors.New("rank has left the group")
	// ErrLeft is the ErrGone of a rank that has closed its end, rather than being
	// lost: what it sent before has been sent.
	ErrLeft error = left{}
)

// left is [ErrGone] by another name.
type left struct{}

func (left) Error() string { return ErrGone.Error() }

func (left) Unwrap() error { return ErrGone }

// Error reports a collective call that failed. Every rank of the call gets one
// with the same text.
type Error struct {
	// Op is the call that failed.
	Op Op
	// Ranks are the ranks at fault, numbered as in the group of the call,
	// ascending.
	Ranks []int
	// Err says what was wrong with them.
	Err error
}

// Error names the call, the ranks and what was wrong with them.
func (e *Error) Error() string {
	if len(e.Ranks) == 0 {
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", e.Op, ranksText(e.Ranks), e.Err)
}

// Unwrap returns what was wrong.
func (e *Error) Unwrap() error { return e.Err }

// ContextError returns an error that wraps both ctx.Err and context.Cause, or
// nil while ctx has not ended.
func ContextError(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
