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
	// ErrNotFound reports a store that holds no part of a checkpoint.
	ErrNotFound = storage.ErrNotFound
	// ErrIncomplete reports a store that holds data files of a checkpoint but no
	// record: the save did not finish.
	ErrIncomplete = storage.ErrIncomplete
	// ErrUnderWay reports a store without a checkpoint to which a living process is
	// saving, such as the saver of a killed trainer. Wait until it is over; Latest
	// can do that. ErrUnderWay wraps ErrIncomplete.
	ErrUnderWay = storage.ErrUnderWay
	// ErrCorrupt reports bytes that differ from the bytes that were written.
	ErrCorrupt = storage.ErrCorrupt
	// ErrVersion reports a format version that this program cannot read.
	ErrVersion = storage.ErrVersion
	// ErrInUse reports a checkpoint that is not removed because a living process reads it.
	ErrInUse = storage.ErrInUse
	// ErrRemoving reports a checkpoint that a living process is removing. It wraps ErrInUse.
	ErrRemoving = storage.ErrRemoving
	// ErrExists reports a save onto a checkpoint that must not be replaced.
	ErrExists = storage.ErrExists
	// ErrUncertain reports that it is unknown whether the commit took place: check
	// with Open, or save again.
	ErrUncertain = storage.ErrUncertain
	// ErrChanged reports a checkpoint that was replaced while it was loaded or
	// open: open it again, or give every step a folder of its own. Save returns it if
	// another save has replaced the checkpoint since it began, in object storage.
	ErrChanged = storage.ErrChanged
	// ErrOptions reports options that contradict each other, or an option that the
	// format does not support. The store was neither read nor written.
	ErrOptions = storage.ErrOptions
	// ErrMismatch reports a state and a checkpoint that do not match.
	ErrMismatch = plan.ErrMismatch
	// ErrMissing reports a name that the checkpoint does not have.
	ErrMissing = plan.ErrMissing
	// ErrUnexpected reports a name that the state does not ask for.
	ErrUnexpected = plan.ErrUnexpected
	// ErrState reports a state that cannot be saved.
	ErrState = plan.ErrState
	// ErrProtocol reports that the Planner, Writer or Reader of the options breaks
	// the protocol.
	ErrProtocol = plan.ErrProtocol
)

// errNoStore reports a nil store.
var errNoStore = fmt.Errorf("%w: no store was given", fs.ErrInvalid)

// option is an option and a reason to refuse it. The reason applies if refused is
// set.
type option struct {
	name    string
	refused bool
	why     string
}

// refuse returns an error that wraps ErrOptions and names every refused option, or
// nil.
func refuse(all ...option) error {
	var errs []error
	for _, o := range all {
		errs = append(errs, storage.RefuseIf(o.refused, "%s %s", o.name, o.why))
	}
	return errors.Join(errs...)
}

// Error is the error of an operation on a checkpoint. Failures on other ranks
// are in the chain as a *group.StepError.
type Error struct {
	// Op is the operation: "save", "upload", "load", "open", "read", "verify", "latest",
	// or an operation of a Run: "run", "list", "note", "prune" or "sync".
	Op string
	// Where names the store of the checkpoint.
	Where string
	Err   error
}

// Error returns the operation, the store and the cause.
func (e *Error) Error() string { return fmt.Sprintf("%s %s: %v", e.Op, e.Where, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// wrap adds the operation and the store to err. It returns nil if err is nil.
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
