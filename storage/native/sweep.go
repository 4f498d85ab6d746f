package native

import (
	"context"
	"errors"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

// sweep removes what no record names any more, now that rec is the one: the
// files of old, the record it replaced, and what dead saves left behind. Nothing
// of it can harm the checkpoint, so it only warns.
func (w *Writer) sweep(ctx context.Context, rec, old *record, oldErr error) {
	switch {
	case oldErr == nil:
		w.warn(removeFiles(ctx, w.store, old, rec))
	case !errors.Is(oldErr, storage.ErrNotFound) && !errors.Is(oldErr, storage.ErrIncomplete):
		w.warn(oldErr)
	}
	if w.opts.SweepAfter < 0 {
		return
	}
	w.warn(sweepAbandoned(ctx, w.store, rec, w.opts.SweepAfter))
	w.warn(publish.SweepTemp(ctx, w.store, w.opts.SweepAfter))
}

// removeFiles removes the files of old's save. Whatever else it may name is not
// ours to remove.
func removeFiles(ctx context.Context, s blob.Store, old, rec *record) error {
	if old.SaveID == rec.SaveID {
		return nil
	}
	var errs []error
	for _, f := range old.Files {
		if isOf(f.Name, old.SaveID) {
			errs = append(errs, s.Remove(ctx, f.Name))
		}
	}
	return errors.Join(errs...)
}

// sweepAbandoned removes files of our making that rec does not name and nobody
// has touched for so long that no save can be writing them.
func sweepAbandoned(ctx context.Context, s blob.Store, rec *record, age time.Duration) error {
	named := map[string]bool{}
	for _, f := range rec.Files {
		named[f.Name] = true
	}
	var errs []error
	for info, err := range s.List(ctx, "") {
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		if isOurs(info.Name) && !named[info.Name] && time.Since(info.ModTime) > age {
			errs = append(errs, s.Remove(ctx, info.Name))
		}
	}
	return errors.Join(errs...)
}
