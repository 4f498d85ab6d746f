package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// Flatten makes the checkpoint at the root of store stand alone, if it refers to others. It
// copies the checkpoint onto itself, with all files stored whole, and then removes the files
// that are not needed any more, unless a process reads the checkpoint or another checkpoint
// refers to them: formats.CleanSave removes them later. Until the new record is written, the
// checkpoint is as it was, whatever happens. The store needs room for both forms meanwhile.
// Overwrite and As of the options have no effect. The error wraps storage.ErrInUse if a process
// reads the checkpoint, if a save that is under way has it as its base, or if another process
// copies it.
func Flatten(ctx context.Context, store blob.Store, opts *Options) (*Report, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.Overwrite, o.As, o.keepOld = true, "", true
	rep, err := Copy(ctx, store, store, &o)
	if errors.Is(err, blob.ErrLocked) {
		err = fmt.Errorf("%w: %w", storage.ErrInUse, err)
	}
	if err != nil {
		if errors.Is(err, storage.ErrCorrupt) || blob.IsFull(err) { // another attempt would fail too, and a save needs the room
			if c, openErr := formats.Open(ctx, store, nil); openErr == nil {
				id := c.Storage().SaveID
				err = errors.Join(err, c.Close(), formats.CleanSave(ctx, store, id))
			}
		}
		return nil, err
	}
	switch err := formats.CleanSave(ctx, store, rep.SaveID); {
	case errors.Is(err, storage.ErrInUse), errors.Is(err, storage.ErrUnderWay):
	case err != nil:
		return rep, err
	}
	return rep, nil
}

// checkUnread returns an error that wraps storage.ErrInUse if another reader has the checkpoint
// open, or a save has it as its base. They may need all to which the checkpoint refers, which
// would be removed if it stood alone. The copy has read all that it needs.
func (j *job) checkUnread(ctx context.Context) error {
	j.release()
	j.release = func() {}
	return commit.CheckUnread(ctx, j.dst)
}

// discard removes the data files that the copy has written.
func (j *job) discard(ctx context.Context) error {
	var errs []error
	for _, it := range j.items {
		if _, had := j.have[it.to]; !had && it.stage == 0 {
			errs = append(errs, j.dst.Remove(ctx, it.to))
		}
	}
	return errors.Join(errs...)
}
