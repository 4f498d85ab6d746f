package storage

import (
	"context"
	"errors"
	"io/fs"

	"github.com/cairn-ckpt/cairn/blob"
)

// NotesFile is the name of a file in the folder of a checkpoint with notes about it, such as
// tags; see package run. It belongs to no format, and formats ignore it.
const NotesFile = "cairn-notes.json"

// MissingFiles returns the names of the files of a checkpoint that do not exist in store. If
// requests are expensive, it lists all objects instead of a request for each.
func MissingFiles(ctx context.Context, store blob.Store, files []File) ([]string, error) {
	var out []string
	if _, expensive := blob.As[blob.GapReader](store); expensive && len(files) > 1 {
		have := map[string]bool{}
		for info, err := range store.List(ctx, "") {
			if err != nil {
				return nil, err
			}
			have[info.Name] = true
		}

		for _, f := range files {
			if !have[f.Name] {
				out = append(out, f.Name)
			}
		}

		return out, nil
	}

	for _, f := range files {
		_, err := store.Stat(ctx, f.Name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			out = append(out, f.Name)
		case err != nil:
			return nil, err
		}
	}

	return out, nil
}
