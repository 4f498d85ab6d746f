package transfer

import (
	"context"
	"errors"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// Flatten makes the checkpoint at the root of store stand alone, if it refers to others. It
// copies the checkpoint onto itself, with all files stored whole, and then removes the files
// that are not needed any more, unless a process reads the checkpoint or another checkpoint
// refers to them: formats.CleanSave removes them later. Until the new record is written, the
// checkpoint is as it was, whatever happens. The store needs room for both forms meanwhile.
// Overwrite and As of the options have no effect.
func Flatten(ctx context.Context, store blob.Store, opts *Options) (*Report, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.Overwrite, o.As, o.keepOld = true, "", true
	rep, err := Copy(ctx, store, store, &o)
	if err != nil {
		if errors.Is(err, storage.ErrCorrupt) { // another attempt would fail too
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
