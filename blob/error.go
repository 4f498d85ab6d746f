package blob

import (
	"errors"
	"fmt"
)

// Errors beyond those of package io/fs. A store reports a missing object with
// an error that wraps fs.ErrNotExist, a refused creation with fs.ErrExist and a
// refused access with fs.ErrPermission.
var (
	// ErrName reports a name that no store accepts; see [CheckName].
	ErrName = errors.New("invalid object name")
	// ErrNested reports a name below or above another object's, such as "a/b"
	// beside "a", in a store that cannot hold both.
	ErrNested = errors.New("name lies below or above another object's")
	// ErrRange reports a read beyond the end of an object or a write that
	// breaks the writer's rules.
	ErrRange = errors.New("range outside the object")
	// ErrClosed reports the use of a reader or writer after its end.
	ErrClosed = errors.New("already closed")
	// ErrTooLarge reports an object above the limit that its reader set.
	ErrTooLarge = errors.New("object is too large")
	// ErrLocked reports a lock whose holder is alive.
	ErrLocked = errors.New("locked by another process")
)

// Error says which operation on which object of which store went wrong.
type Error struct {
	// Op is the operation: create, write, commit, abort, open, read, stat,
	// list, remove, or that of a capability.
	Op string
	// Store is where the store is, as its String says. It may be empty.
	Store string
	// Name is the object's name, or the prefix of a list. It may be empty.
	Name string
	// Err is what went wrong.
	Err error
}

// Error returns all of it in a line.
func (e *Error) Error() string {
	s := e.Op
	if e.Name != "" {
		s += fmt.Sprintf(" %q", e.Name)
	}
	if e.Store != "" {
		s += " in " + e.Store
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns what went wrong.
func (e *Error) Unwrap() error { return e.Err }
