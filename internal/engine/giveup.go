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
// with err, also where it was cancelled. It returns the error, which wraps
// storage.ErrUncertain where a checkpoint may need what was written: then that
// stays.
func (s *saveRun) giveUp(ctx context.Context, err error) error {
	s.forget()
	if s.lost(err) {
		err = fmt.Errorf("%w: %w", storage.ErrUncertain, err)
	}
	if !s.begun || errors.Is(err, storage.ErrUncertain) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
	defer cancel()
	abortErr := group.Catch(func() error { return s.Writer.Abort(ctx) })
	if abortErr != nil && s.Warned != nil {
		s.Warned(fmt.Errorf("removing what was written: %w", abortErr))
	}
	return err
}

// lost reports whether this rank has handed its results over and then lost sight
// of the coordinator, which may have committed since. The coordinator itself
// knows whether it has, and its Abort is for the files of all ranks.
func (s *saveRun) lost(err error) bool {
	return s.Group.Rank() != 0 && s.wrote && errors.Is(err, group.ErrGone) && !errors.Is(err, storage.ErrUncertain)
}

func (s *saveRun) forget() {
	if s.Cache != nil {
		s.Cache.Forget()
	}
}
