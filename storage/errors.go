package storage

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// Errors that all formats share. The errors that wrap them name the file and the
// problem.
var (
	// ErrNotFound reports a place without a checkpoint.
	ErrNotFound = errors.New("no checkpoint here")
	// ErrIncomplete reports a place that holds files of a checkpoint but no commit
	// record: the save did not finish.
	ErrIncomplete = errors.New("checkpoint is incomplete")
	// ErrUnderWay reports a place without a checkpoint to which a living process is
	// saving. It wraps ErrIncomplete.
	ErrUnderWay = fmt.Errorf("%w: a save is under way", ErrIncomplete)
	// ErrCorrupt reports bytes that differ from the bytes that were written: a checksum
	// does not match, a file is truncated, or the contents contradict each other.
	ErrCorrupt = errors.New("checkpoint is corrupt")
	// ErrBaseGone reports a checkpoint that refers to a file of another one, which is not there or not
	// whole: for example, its folder was copied without the others. It wraps ErrCorrupt.
	ErrBaseGone = fmt.Errorf("%w: if its folder was copied, copy it with 'cairn cp' instead, which makes it stand alone; "+
		"if the other folder was removed, bring that back, and run 'cairn flatten' on this one before you remove it", ErrCorrupt)
	// ErrVersion reports a checkpoint in a version of the format that this
	// program cannot read.
	ErrVersion = errors.New("unsupported format version")
	// ErrUncertain reports a commit that may or may not have taken effect. The files
	// that the new checkpoint would need are kept.
	ErrUncertain = errors.New("commit is uncertain")
	// ErrChanged reports a checkpoint that was replaced or removed while it was being
	// loaded. Loading again loads the new one, if there is one. A save returns it if another save has
	// replaced the checkpoint since it began, in stores with versions.
	ErrChanged = errors.New("checkpoint was replaced meanwhile")
	// ErrInUse reports a checkpoint that is not removed because a living process reads it.
	ErrInUse = errors.New("checkpoint is in use")
	// ErrRemoving reports a checkpoint that a living process is removing. It wraps ErrInUse.
	ErrRemoving = fmt.Errorf("%w: it is being removed", ErrInUse)
	// ErrExists reports a save onto a checkpoint that must not be overwritten.
	ErrExists = errors.New("checkpoint exists")
	// ErrOptions reports options that contradict each other, or an option that the format cannot
	// honour. No file was read or written.
	ErrOptions = errors.New("unusable options")
)

// NotOurs returns the error of a save to a place with a checkpoint that its job has neither saved nor
// loaded. It wraps ErrExists. why is the reason if that is unknown, or nil.
func NotOurs(where string, why error) error {
	if why != nil {
		return fmt.Errorf("%w: %s: it cannot be read, so it is unknown whether this job has saved it: repair it with 'cairn repair', or %s: %w", ErrExists, where, overwrite, why)
	}
	return fmt.Errorf("%w: %s: this job has neither saved nor loaded it: save to another folder, load it first, or %s", ErrExists, where, overwrite)
}

const overwrite = "overwrite it with its tags and metrics (overwrite=True in Python, SaveOptions.Overwrite in Go)"

// OtherFormatError reports a place with a checkpoint, or files of one, in another format
// than a new checkpoint. The new one would not replace it in one atomic step. It wraps
// ErrExists.
type OtherFormatError struct {
	// Where is the place, Found the name of the format there, and Format the name of the
	// format of the new checkpoint.
	Where, Found, Format string
}

// Error names both formats and a remedy.
func (e *OtherFormatError) Error() string {
	return fmt.Sprintf("%v: %s holds files of a checkpoint in the format %s, which one in the format %s does not replace: use another folder, or remove these files first",
		ErrExists, e.Where, e.Found, e.Format)
}

// Unwrap returns ErrExists.
func (e *OtherFormatError) Unwrap() error { return ErrExists }

// RefuseIf returns an error that wraps ErrOptions if set is true. text and args name
// the option and the reason why it cannot take effect.
func RefuseIf(set bool, text string, args ...any) error {
	if !set {
		return nil
	}
	return fmt.Errorf("%w: "+text, append([]any{ErrOptions}, args...)...)
}

// RanksError reports that the metadata of some ranks is missing, in a checkpoint that ranks
// saved without a group. It wraps ErrIncomplete.
type RanksError struct {
	// Where is the place of the checkpoint.
	Where string
	// Have is the number of ranks with metadata. Size is the number of ranks of the save, or 0
	// if it is unknown.
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

// FileError is an error about one file of a checkpoint. If several files are
// damaged, opening the checkpoint returns all of these errors, joined.
type FileError struct {
	File string
	Err  error
}

// Error names the file and the problem.
func (e *FileError) Error() string { return e.File + ": " + e.Err.Error() }

// Unwrap returns the problem.
func (e *FileError) Unwrap() error { return e.Err }

// Problem returns e in the form of a VerifyReport. Its text does not repeat the name
// of the file.
func (e *FileError) Problem() VerifyProblem {
	return VerifyProblem{File: e.File, Text: strings.TrimPrefix(e.Err.Error(), ErrCorrupt.Error()+": ")}
}

// ErrNotRepresentable reports something that a format cannot store: an object, an
// element type, a name.
var ErrNotRepresentable = errors.New("the format cannot hold it")

// NotRepresentable is the error for one name that a format cannot store. It wraps
// ErrNotRepresentable. A writer that finds several of them returns them joined.
type NotRepresentable struct {
	FQN string
	// Why names the thing that the format cannot store.
	Why string
}

// Error returns the name and the reason.
func (e *NotRepresentable) Error() string {
	return fmt.Sprintf("%q: %v: %s", e.FQN, ErrNotRepresentable, e.Why)
}

// Unwrap returns ErrNotRepresentable.
func (e *NotRepresentable) Unwrap() error { return ErrNotRepresentable }

// ValueChecker is implemented by writers of formats that cannot store every value.
// PrepareLocalPlan sees only the plan and refuses items by their description. CheckValue sees
// the value itself, before the first write.
type ValueChecker interface {
	// CheckValue returns an error if the value that data encodes cannot be written.
	// The error is a *NotRepresentable if the format cannot store the value.
	// CheckValue may be called at any time, from several goroutines at once.
	CheckValue(it *plan.WriteItem, data []byte) error
}

// MetadataChecker is implemented by writers of formats that cannot store all parts of
// meta.Metadata.
type MetadataChecker interface {
	// CheckMetadata returns an error that wraps ErrNotRepresentable if the format
	// cannot store a part of md other than its entries, such as planner data. It is
	// called on the coordinator before anything is written.
	CheckMetadata(md *meta.Metadata) error
}

// RefusePlannerData implements CheckMetadata for a format that cannot store planner
// data.
func RefusePlannerData(format string, md *meta.Metadata) error {
	if md.PlannerData == nil {
		return nil
	}
	return fmt.Errorf("planner data: %w: the format %s has no place for it", ErrNotRepresentable, format)
}

// RefuseStorageData returns an error that wraps ErrNotRepresentable if a result has
// storage data. Formats that cannot store it call it in Finish.
func RefuseStorageData(format string, results []*WriteResults) error {
	for _, r := range results {
		for i := range r.Items {
			if it := &r.Items[i]; len(it.Loc.StorageData()) > 0 {
				return &NotRepresentable{it.Index.FQN, fmt.Sprintf("the format %s has no place for storage data", format)}
			}
		}
	}
	return nil
}
