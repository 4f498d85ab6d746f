package storage

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// Errors that every format reports in the same way. They are wrapped with the
// file and the problem.
var (
	// ErrNotFound reports a place that holds no checkpoint at all.
	ErrNotFound = errors.New("no checkpoint here")
	// ErrIncomplete reports a place that holds the beginnings of a checkpoint
	// but no commit record: the save did not finish.
	ErrIncomplete = errors.New("checkpoint is incomplete")
	// ErrCorrupt reports bytes that are not what was written: a checksum that
	// does not match, a file that is cut short, contents that contradict
	// themselves.
	ErrCorrupt = errors.New("checkpoint is corrupt")
	// ErrVersion reports a checkpoint in a version of the format that this
	// program cannot read.
	ErrVersion = errors.New("unsupported format version")
	// ErrUncertain reports a commit that may or may not have taken place. No file
	// that the new checkpoint may need is removed.
	ErrUncertain = errors.New("commit is uncertain")
	// ErrChanged reports a checkpoint that was replaced while it was being
	// loaded. Loading again loads the new one.
	ErrChanged = errors.New("checkpoint was replaced meanwhile")
	// ErrExists reports a save onto a checkpoint that must not be overwritten.
	ErrExists = errors.New("checkpoint exists")
	// ErrOptions reports options that contradict each other, or an option that
	// the format cannot honour. Nothing was read or written.
	ErrOptions = errors.New("unusable options")
)

// RefuseIf returns an error that wraps ErrOptions if an option is set that cannot
// take effect. text names the option, and the one that excludes it.
func RefuseIf(set bool, text string, args ...any) error {
	if !set {
		return nil
	}
	return fmt.Errorf("%w: "+text, append([]any{ErrOptions}, args...)...)
}

// RanksError reports a checkpoint of ranks that saved without a group, if the
// metadata of some ranks is missing. It wraps ErrIncomplete.
type RanksError struct {
	// Where is the place of the checkpoint.
	Where string
	// Have is the number of ranks whose metadata is there, and Size the number of
	// ranks of the save, or 0 if it is unknown.
	Have, Size int
	// Missing are the missing ranks, at most the first 16 of them.
	Missing []int
}

// Error names the missing ranks.
func (e *RanksError) Error() string {
	of, noun := "", "rank"
	if e.Size > 0 {
		of = fmt.Sprintf(" of %d", e.Size)
	}
	if len(e.Missing) > 1 {
		noun = "ranks"
	}
	more := ""
	if n := e.Size - e.Have - len(e.Missing); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	names := strings.Trim(strings.ReplaceAll(fmt.Sprint(e.Missing), " ", ", "), "[]")
	return fmt.Sprintf("%v: %s has the metadata of %d%s ranks, but not of %s %s%s", ErrIncomplete, e.Where, e.Have, of, noun, names, more)
}

// Unwrap returns ErrIncomplete.
func (e *RanksError) Unwrap() error { return ErrIncomplete }

// FileError is what is wrong with one file of a checkpoint. Opening a checkpoint
// with several damaged files returns all of them, joined.
type FileError struct {
	File string
	Err  error
}

// Error names the file and the problem.
func (e *FileError) Error() string { return e.File + ": " + e.Err.Error() }

// Unwrap returns the problem.
func (e *FileError) Unwrap() error { return e.Err }

// Problem returns the problem without the file, for a VerifyReport.
func (e *FileError) Problem() VerifyProblem {
	return VerifyProblem{File: e.File, Text: strings.TrimPrefix(e.Err.Error(), ErrCorrupt.Error()+": ")}
}

// ErrNotRepresentable reports something that a format has no form for: an
// object, an element type, a name.
var ErrNotRepresentable = errors.New("the format cannot hold it")

// NotRepresentable is the error of one name that a format cannot hold. It wraps
// ErrNotRepresentable. Writers that find several return them joined.
type NotRepresentable struct {
	FQN string
	// Why names the thing that the format cannot hold.
	Why string
}

// Error returns the name and the reason.
func (e *NotRepresentable) Error() string {
	return fmt.Sprintf("%q: %v: %s", e.FQN, ErrNotRepresentable, e.Why)
}

// Unwrap returns ErrNotRepresentable.
func (e *NotRepresentable) Unwrap() error { return ErrNotRepresentable }

// ValueChecker is implemented by writers whose format cannot hold every value.
// PrepareLocalPlan refuses what can be seen in the plan. CheckValue looks at the
// value itself, before anything is written.
type ValueChecker interface {
	// CheckValue returns an error unless the value that data encodes can be
	// written: a *NotRepresentable if the format cannot hold it. It may be called at any time,
	// from several goroutines at once.
	CheckValue(it *plan.WriteItem, data []byte) error
}

// MetadataChecker is implemented by writers whose format cannot hold everything
// that metadata says about a checkpoint as a whole.
type MetadataChecker interface {
	// CheckMetadata returns an error that wraps ErrNotRepresentable if the
	// format has no place for something in md apart from its entries, such as
	// planner data. It is called on the coordinator before anything is written.
	CheckMetadata(md *meta.Metadata) error
}

// RefusePlannerData is the CheckMetadata of a format that has no place for
// planner data.
func RefusePlannerData(format string, md *meta.Metadata) error {
	if md.PlannerData == nil {
		return nil
	}
	return fmt.Errorf("planner data: %w: the format %s has no place for it", ErrNotRepresentable, format)
}
