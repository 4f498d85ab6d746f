package meta

import (
	"fmt"
	"time"
	"unicode/utf8"
)

// Line is the place of a save in the history of its run.
type Line struct {
	// Commit orders the saves of a run: a later save has a larger number. It is positive.
	Commit int64 `json:"commit"`
	// Parent is the checkpoint that the job loaded or saved before: the id of its save or,
	// if its format does not record one, the name of its folder. Empty: the save has no
	// parent in the run.
	Parent string `json:"parent,omitempty"`
	// Left are the checkpoints that the run had, and that are not ancestors of this one: the
	// job, or one before it, has gone back behind them.
	Left []Left `json:"left,omitempty"`
}

// Left are checkpoints of a line that was left at the same time.
type Left struct {
	Since time.Time `json:"since"`
	// Saves name the checkpoints as Line.Parent does.
	Saves []string `json:"saves"`
}

// The bounds of a Line.
const (
	// MaxLeft bounds the checkpoints in Line.Left.
	MaxLeft = 100_000
	maxName = 1024 // bytes of a save's id or of a folder's name
)

// Check returns an error that wraps ErrInvalid if the fields are out of bounds.
func (l *Line) Check() error {
	if l.Commit < 1 {
		return fmt.Errorf("%w: commit %d is not positive", ErrInvalid, l.Commit)
	}

	names, n := []string{l.Parent}, 0
	for _, left := range l.Left {
		names = append(names, left.Saves...)
		n += len(left.Saves)
	}
	if n > MaxLeft {
		return fmt.Errorf("%w: %d checkpoints were left, at most %d are possible", ErrInvalid, n, MaxLeft)
	}

	for _, name := range names {
		if len(name) > maxName || !utf8.ValidString(name) {
			return fmt.Errorf("%w: %.40q is not a save or a folder", ErrInvalid, name)
		}
	}
	return nil
}
