package group

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

var (
	// ErrDisagree reports ranks that made different calls although all must make the same one,
	// or a message of a length that the receiver did not expect.
	ErrDisagree = errors.New("ranks made different calls")
	// ErrInvalid reports an argument that a group cannot serve: a root or rank
	// out of range, a rank listed twice, the wrong number of values.
	ErrInvalid = errors.New("invalid argument")
	// ErrGone reports a rank that has left the group for good.
	ErrGone = errors.New("rank has left the group")
	// ErrDiffers reports a rank that has something else than rank 0 although all ranks must
	// have the same, such as arguments or files. [Agree] compares them.
	ErrDiffers = errors.New("ranks differ")
	// ErrLeft is the ErrGone of a rank that has closed its end, rather than being lost: its
	// earlier messages have been sent.
	ErrLeft = fmt.Errorf("%w", ErrGone)
)

// Error reports a collective call that failed. Every rank of the call gets one
// with the same text.
type Error struct {
	// Op is the call that failed.
	Op Op
	// Ranks are the ranks at fault, numbered as in the group of the call,
	// ascending.
	Ranks []int
	// Err is their error.
	Err error
}

// Error names the call, the ranks and their error.
func (e *Error) Error() string {
	if len(e.Ranks) == 0 {
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", e.Op, RanksText(e.Ranks), e.Err)
}

// Unwrap returns the error of the ranks.
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

// StepError reports a step that failed. Every rank of the step returns one with
// the same text and the same failed ranks.
type StepError struct {
	// Step is the name of the step.
	Step string
	// Failures has the errors of the failed ranks, by their numbers in the step's group. Errors
	// from other ranks are of type [*RemoteError].
	Failures map[int]error
	// Alone means that the group of the step has one rank. The text does not name it.
	Alone bool
}

// Ranks returns the failed ranks, ascending.
func (e *StepError) Ranks() []int { return slices.Sorted(maps.Keys(e.Failures)) }

// Error names the step and the failed ranks in ascending order, those with the
// same text together. It spells out two dozen texts at most. A rank that is alone is
// not named.
func (e *StepError) Error() string {
	var b strings.Builder
	b.WriteString(e.Step)
	sep := ": "
	told := 0
	for i, ranks := range e.byText() {
		if i == maxSpelled {
			fmt.Fprintf(&b, "%sand %d more ranks", sep, len(e.Failures)-told)
			break
		}

		b.WriteString(sep)
		if !e.Alone {
			fmt.Fprintf(&b, "%s: ", RanksText(ranks))
		}

		fmt.Fprint(&b, e.Failures[ranks[0]])
		told += len(ranks)
		sep = "; "
	}

	return b.String()
}

// byText returns the failed ranks in groups of one text, by their first rank.
func (e *StepError) byText() [][]int {
	var groups [][]int
	at := make(map[string]int)
	for _, rank := range e.Ranks() {
		text := fmt.Sprint(e.Failures[rank])
		i, ok := at[text]
		if !ok {
			i = len(groups)
			at[text] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], rank)
	}

	return groups
}

// Unwrap returns the failures in the order of their ranks.
func (e *StepError) Unwrap() []error {
	errs := make([]error, 0, len(e.Failures))
	for _, rank := range e.Ranks() {
		errs = append(errs, e.Failures[rank])
	}
	return errs
}

// Ranks returns the ranks that err names as those at fault: of the first
// [*StepError] in it, or else of the first [*Error]. It is nil if err has
// neither.
func Ranks(err error) []int {
	if e, ok := errors.AsType[*StepError](err); ok {
		return e.Ranks()
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Ranks
	}
	return nil
}

// maxSpelled bounds how many runs of ranks, and how many failures, an error's
// text spells out.
const maxSpelled = 24

// RanksText returns ascending ranks as text, as in "rank 3" or "ranks 0-4, 7",
// runs joined, at most maxSpelled of them.
func RanksText(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}

	var runs []string
	for i, n := 0, 0; i < len(ranks); i += n {
		if len(runs) == maxSpelled {
			return fmt.Sprintf("ranks %s and %d more", strings.Join(runs, ", "), len(ranks)-i)
		}

		for n = 1; i+n < len(ranks) && ranks[i+n] == ranks[i]+n; {
			n++
		}

		switch first, last := ranks[i], ranks[i]+n-1; n {
		case 1:
			runs = append(runs, fmt.Sprint(first))
		case 2:
			runs = append(runs, fmt.Sprintf("%d, %d", first, last))
		default:
			runs = append(runs, fmt.Sprintf("%d-%d", first, last))
		}
	}

	return strings.TrimSpace("ranks " + strings.Join(runs, ", "))
}
