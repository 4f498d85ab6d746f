package reading

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// watchTries bounds how often a checkpoint may be replaced while it is described.
const watchTries = 10

// Watch calls describe, and calls it again if the checkpoint was replaced
// meanwhile. records are the names of the files whose replacement makes another
// checkpoint; they need not exist. A later error of the source wraps
// storage.ErrChanged if one of them has changed.
func Watch(ctx context.Context, store blob.Store, records []string, describe func(ctx context.Context) (*Source, error)) (*Source, error) {
	w := &watch{store: store, names: records}
	var err error
	if w.seen, err = w.look(ctx); err != nil {
		return nil, err
	}
	for range watchTries {
		src, err := describe(ctx)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		now, lookErr := w.look(ctx)
		if lookErr != nil {
			return nil, errors.Join(err, lookErr)
		}
		if slices.EqualFunc(w.seen, now, same) {
			if err == nil {
				src.Changed, src.records = w.changed, records
			}
			return src, err
		}
		w.seen = now
	}
	return nil, fmt.Errorf("%w: %s, again and again", storage.ErrChanged, store)
}

// watch remembers the records of a checkpoint as they were when it was opened.
type watch struct {
	store blob.Store
	names []string
	seen  []blob.Info
}

// look returns the current state of the records. A record that does not exist has
// no name.
func (w *watch) look(ctx context.Context) ([]blob.Info, error) {
	out := make([]blob.Info, len(w.names))
	for i, name := range w.names {
		info, err := w.store.Stat(ctx, name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		out[i] = info
	}
	return out, nil
}

func same(a, b blob.Info) bool {
	return a.Name == b.Name && a.Size == b.Size && a.ModTime.Equal(b.ModTime)
}

// changed reports whether the checkpoint was replaced.
func (w *watch) changed(ctx context.Context) bool {
	now, err := w.look(ctx)
	return err == nil && !slices.EqualFunc(w.seen, now, same)
}
