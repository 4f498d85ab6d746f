package native

import (
	"context"
	"errors"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

// markFormat is the name of the format in the marks of saves.
const markFormat = "native"

// Files tells which files of a place are of this format.
func Files() publish.Files {
	return publish.Files{
		Format: markFormat,
		Data: func(ctx context.Context, s blob.Store) ([]publish.Leftover, error) {
			return publish.List(ctx, s, "", saveOf)
		},
		Current: func(ctx context.Context, s blob.Store) ([]string, error) {
			rec, err := readRecord(ctx, s)
			if err != nil {
				return nil, err
			}
			return rec.names(), nil
		},
	}
}

// names returns the names of the files that the record names.
func (r *record) names() []string {
	out := make([]string, len(r.Files))
	for i, f := range r.Files {
		out[i] = f.Name
	}
	return out
}

// removeOld removes the files of old, the record that rec has replaced. Errors are
// only warnings, because the new checkpoint is complete.
func (w *Writer) removeOld(ctx context.Context, rec, old *record, oldErr error) {
	switch {
	case oldErr == nil:
		w.warn(removeFiles(ctx, w.store, old, rec))
	case !errors.Is(oldErr, storage.ErrNotFound) && !errors.Is(oldErr, storage.ErrIncomplete):
		w.warn(oldErr)
	}
}

// sweep removes the files of saves that are over. Errors are only warnings.
func (w *Writer) sweep(ctx context.Context, olderThan time.Duration) {
	if w.sess.Journal != nil || w.opts.SweepAfter < 0 {
		return
	}
	_, err := publish.Sweep(ctx, w.store, Files(), olderThan, nil)
	w.warn(err)
}

// removeFiles removes the files of old's save. It keeps files of other saves that
// old names.
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
