package cairn

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// The errors that callers act on, to be tested with errors.Is. errors.Is gives the
// same answer on every rank, whichever rank failed.
var (
	// ErrNotFound reports a place that holds no checkpoint at all.
	ErrNotFound = storage.ErrNotFound
	// ErrIncomplete reports a place that holds the beginnings of a checkpoint
	// but no commit record: the save did not finish.
	ErrIncomplete = storage.ErrIncomplete
	// ErrCorrupt reports bytes that are not what was written.
	ErrCorrupt = storage.ErrCorrupt
	// ErrVersion reports a format version that this program cannot read.
	ErrVersion = storage.ErrVersion
	// ErrExists reports a save onto a checkpoint that must not be replaced.
	ErrExists = storage.ErrExists
	// ErrUncertain reports that it is unknown whether the commit took place: check
	// with Open, or save again.
	ErrUncertain = storage.ErrUncertain
	// ErrChanged reports a checkpoint that was replaced while it was loaded or
	// open: open it again, or give every step a folder of its own.
	ErrChanged = storage.ErrChanged
	// ErrOptions reports options that contradict each other, or an option that the
	// format does not support. Nothing was read or written.
	ErrOptions = storage.ErrOptions
	// ErrMismatch reports a state and a checkpoint that do not match.
	ErrMismatch = plan.ErrMismatch
	// ErrMissing reports a name that the checkpoint does not have.
	ErrMissing = plan.ErrMissing
	// ErrUnexpected reports a name that the state does not ask for.
	ErrUnexpected = plan.ErrUnexpected
	// ErrState reports a state that cannot be saved.
	ErrState = plan.ErrState
	// ErrProtocol reports a Planner, Writer or Reader of the caller's that breaks
	// the protocol.
	ErrProtocol = plan.ErrProtocol
)

// errNoStore reports a nil store.
var errNoStore = fmt.Errorf("%w: no store was given", fs.ErrInvalid)

// option is an option that would have no effect if the caller had set it.
type option struct {
	name string
	set  bool
	why  string
}

// refuse returns an error that wraps ErrOptions and names every option that is
// set, or nil.
func refuse(all ...option) error {
	var errs []error
	for _, o := range all {
		errs = append(errs, storage.RefuseIf(o.set, "%s %s", o.name, o.why))
	}
	return errors.Join(errs...)
}

// Error is the error of an operation on a checkpoint. Failures on other ranks
// are in the chain as a *group.StepError.
type Error struct {
	// Op is what was being done: "save", "load", "open", "read" or "verify".
	Op string
	// Where names the store of the checkpoint.
	Where string
	Err   error
}

// Error returns operation, place and cause.
func (e *Error) Error() string { return fmt.Sprintf("%s %s: %v", e.Op, e.Where, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// wrap names operation and place; a nil error stays nil.
func wrap(op string, where fmt.Stringer, err error) error {
	if err == nil {
		return nil
	}
	e := &Error{Op: op, Where: "nowhere", Err: err}
	if where != nil {
		e.Where = where.String()
	}
	return e
}
