package convert

import (
	"fmt"
	"strings"
)

// unnamedError is an error of a reader about a tensor that whoever asked for it
// names as well.
type unnamedError struct {
	err  error
	text string
}

func (e *unnamedError) Error() string { return e.text }
func (e *unnamedError) Unwrap() error { return e.err }

// withoutName returns err with that name of a tensor left out of its text.
func withoutName(err error, fqn string) error {
	text := err.Error()
	if short := strings.Replace(text, fmt.Sprintf("%q: ", fqn), "", 1); short != text {
		return &unnamedError{err, short}
	}
	return err
}
