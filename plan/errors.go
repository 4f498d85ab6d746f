package plan

import (
	"errors"
	"fmt"
	"strings"
)

// Errors of planning. Each is wrapped with the name and the problem.
var (
	// ErrState reports a state that cannot be saved or filled: a value of no
	// known kind, two values under one name, a contradiction between ranks.
	ErrState = errors.New("invalid state")
	// ErrProtocol reports a planner, writer or reader that breaks the protocol:
	// it returns nothing and no error, a plan without what the protocol demands,
	// or is called in the wrong order. It is a mistake of a program, not of a
	// state.
	ErrProtocol = errors.New("protocol violation")
	// ErrMismatch reports a state and a checkpoint that do not fit: another
	// shape, a forbidden dtype, a tensor where a value is.
	ErrMismatch = errors.New("checkpoint and state do not match")
	// ErrMissing reports a name that the checkpoint does not have. It is also
	// an ErrMismatch.
	ErrMissing = errors.New("not in the checkpoint")
	// ErrUnexpected reports a name of the checkpoint that the state does not
	// ask for, where that was forbidden. It is also an ErrMismatch.
	ErrUnexpected = errors.New("not asked for by the state")
)

// maxSpelled bounds how many problems an error message spells out.
const maxSpelled = 20

// errorList is several errors at once. Its text spells out so many as a person
// reads; it wraps all of them.
type errorList []error

// Error lists the errors, one a line.
func (l errorList) Error() string {
	var b strings.Builder
	for i, err := range l {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == maxSpelled {
			fmt.Fprintf(&b, "and %d more", len(l)-i)
			break
		}
		b.WriteString(err.Error())
	}
	return b.String()
}

// Unwrap returns all errors.
func (l errorList) Unwrap() []error { return l }
