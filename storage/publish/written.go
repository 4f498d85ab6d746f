package publish

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// Written are the data files that a rank has begun in a save, which must go where
// it is given up. Its methods are safe for concurrent use.
type Written struct {
	mu    sync.Mutex
	names []string // of files that may be there; guarded by mu
	kept  bool     // none of them may be removed; guarded by mu
}

// Reset forgets all names, as a save begins. kept is as Keep says.
func (w *Written) Reset(kept bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names, w.kept = nil, kept
}

// Note remembers a file that may be there from now on. It is
// datafile.Options.Created.
func (w *Written) Note(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names = append(w.names, name)
}

// Keep says whether the files must stay from now on, since they may be part of a
// checkpoint.
func (w *Written) Keep(kept bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = kept
}

// Take returns the names and forgets them, and whether the files must stay.
func (w *Written) Take() (names []string, kept bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	names, w.names = w.names, nil
	return names, w.kept
}

// Remove removes the files, unless they must stay, and forgets those that are
// gone.
func (w *Written) Remove(ctx context.Context, store blob.Store) error {
	names, kept := w.Take()
	if kept {
		return nil
	}
	for i, name := range names {
		if err := store.Remove(ctx, name); err != nil {
			for _, left := range names[i:] {
				w.Note(left)
			}
			return err
		}
	}
	return nil
}

// RemoveAll removes files, and goes on where one cannot be removed.
func RemoveAll(ctx context.Context, store blob.Store, names []string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, store.Remove(ctx, name))
	}
	return errors.Join(errs...)
}

// CheckFiles looks whether every file that the ranks wrote is there, whole, so
// that no commit names what another program has removed. have are the files that
// are there, with their sizes.
func CheckFiles(have map[string]int64, results []*storage.WriteResults) error {
	for _, r := range results {
		for _, f := range r.Files {
			size, ok := have[f.Name]
			if !ok {
				return fmt.Errorf("%s, which a rank has just written: %w", f.Name, fs.ErrNotExist)
			}
			if size != f.Size {
				return fmt.Errorf("%w: %s has %d bytes, its writer wrote %d", storage.ErrCorrupt, f.Name, size, f.Size)
			}
		}
	}
	return nil
}
