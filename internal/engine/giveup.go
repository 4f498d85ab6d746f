package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/storage"
)

// abortTime bounds how long a failed save may take to remove what it wrote. The
// next save's sweep finds what is left.
const abortTime = 2 * time.Minute

// giveUp forgets the plans and removes what was written of a save that failed
// with err, also where it was cancelled.
func (s *saveRun) giveUp(ctx context.Context, err error) {
	s.forget()
	if !s.begun || s.needed(err) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
	defer cancel()
	err = group.Catch(func() error { return s.Writer.Abort(ctx) })
	if err != nil && s.Warned != nil {
		s.Warned(fmt.Errorf("removing what was written: %w", err))
	}
}

// needed reports whether a checkpoint may need what this rank wrote: the commit
// is uncertain, or the rank has handed its results over and then lost sight of
// the others. A coordinator that did not come to commit knows better, and its
// Abort is for the files of all ranks.
func (s *saveRun) needed(err error) bool {
	if errors.Is(err, storage.ErrUncertain) {
		return true
	}
	return s.Group.Rank() != 0 && s.wrote && errors.Is(err, group.ErrGone)
}

func (s *saveRun) forget() {
	if s.Cache != nil {
		s.Cache.Forget()
	}
}
