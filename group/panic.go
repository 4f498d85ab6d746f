package group

import (
	"bytes"
	"errors"
	"fmt"
	"runtime/debug"
)

// ErrPanic is wrapped by the error that a panic was turned into, on every rank.
var ErrPanic = errors.New("panic")

// maxStack bounds the stack that a PanicError keeps.
const maxStack = 8 << 10

// PanicError is a panic turned into an error. It wraps [ErrPanic], and the
// panic's value if that is an error.
type PanicError struct {
	// Value is what was given to panic.
	Value any
	// Stack is the goroutine's stack from the function that panicked
	// downwards, cut to a few KiB.
	Stack []byte
}

// Error writes the value and the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack)
}

// Unwrap returns ErrPanic and the value if it is an error.
func (e *PanicError) Unwrap() []error {
	if err, ok := e.Value.(error); ok {
		return []error{ErrPanic, err}
	}
	return []error{ErrPanic}
}

// Catch calls fn and returns its error, or a [*PanicError] if fn panics.
func Catch(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: panicStack(debug.Stack())}
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
