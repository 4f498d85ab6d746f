package storage

import (
	"errors"
	"io/fs"
	"slices"
)

// Verdict is the meaning of an error for a process that follows the checkpoints of others,
// which may be replaced or removed at any time. Judge returns it.
type Verdict uint8

// The verdicts.
const (
	// Fine: there is no error.
	Fine Verdict = iota
	// Gone: the checkpoint was replaced or removed meanwhile, or is not complete yet. That is
	// normal: look again which checkpoints there are.
	Gone
	// Damaged: the checkpoint cannot be read, and will not become better. Read another one.
	Damaged
	// Failed: the error is not about the contents of a place, so the next checkpoint fails too.
	Failed
)

// Judge returns the verdict for an error of opening or reading a checkpoint, or of looking for
// one.
func Judge(err error) Verdict {
	is := func(kinds ...error) bool {
		return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
	}
	switch {
	case err == nil:
		return Fine
	case is(ErrChanged, ErrRemoving, ErrUnderWay): // then damage is not certain
		return Gone
	case is(ErrCorrupt):
		return Damaged
	case is(ErrNotFound, ErrIncomplete, fs.ErrNotExist):
		return Gone
	}
	return Failed
}

// settleTries bounds Settle. Each look has to meet another save.
const settleTries = 16

// Settle calls look again if a checkpoint was replaced or removed while it looked, that is, if
// the error wraps ErrChanged. It calls look at most 16 times.
func Settle[T any](look func() (T, error)) (v T, err error) {
	for range settleTries {
		if v, err = look(); !errors.Is(err, ErrChanged) {
			break
		}
	}
	return v, err
}
