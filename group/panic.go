package group

import (
	"bytes"
	"errors"
	"fmt"
	"runtime/debug"
)

// ErrPanic reports a function that panicked, on this rank or on another one.
var ErrPanic = errors.New("panic")

// maxStack bounds the stack that a panicError keeps.
const maxStack = 8 << 10

// panicError is a panic turned into an error.
type panicError struct {
	value any    // the argument of panic
	stack []byte // from the function that panicked downwards, cut to a few KiB
}

// Error writes the value and the stack.
func (e *panicError) Error() string {
	return fmt.Sprintf("panic: %v\n%s", e.value, e.stack)
}

// Unwrap returns ErrPanic and the value if it is an error.
func (e *panicError) Unwrap() []error {
	if err, ok := e.value.(error); ok {
		return []error{ErrPanic, err}
	}
	return []error{ErrPanic}
}

// Catch calls fn and returns its error. If fn panics, the error wraps [ErrPanic], and
// the argument of panic if that is an error; its text has the stack.
func Catch(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{value: v, stack: panicStack(debug.Stack())}
		}
	}()
	return fn()
}

// panicStack cuts the frames of the recovery off a stack, which would hide the
// frame that matters behind three that do not.
func panicStack(s []byte) []byte {
	if i := bytes.Index(s, []byte("\npanic(")); i >= 0 {
		s = s[i+1:]
		for range 2 { // a frame is two lines
			_, s, _ = bytes.Cut(s, []byte("\n"))
		}
	}
	return bytes.TrimSpace(s[:min(len(s), maxStack)])
}
