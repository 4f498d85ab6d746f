package convert

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// seenFile is a file of the source as it was when the conversion was planned.
type seenFile struct {
	name string
	size int64
	time time.Time
}

// look returns what is to be seen of the source's files. Nothing is without a
// store.
func look(ctx context.Context, s blob.Store, files []storage.File) ([]seenFile, error) {
	if s == nil {
		return nil, nil
	}
	out := make([]seenFile, len(files))
	for i, f := range files {
		info, err := s.Stat(ctx, f.Name)
		if errors.Is(err, fs.ErrNotExist) {
			err = &storage.FileError{File: f.Name, Err: fmt.Errorf("%w: the file is missing", storage.ErrCorrupt)}
		}
		if err != nil {
			return nil, err
		}
		out[i] = seenFile{f.Name, info.Size, info.ModTime}
	}
	return out, nil
}

// unchanged returns an error that wraps storage.ErrChanged unless the source's
// files are still as they were: of a format that overwrites its files nobody
// else would notice.
func (j *Job) unchanged(ctx context.Context) error {
	for _, f := range j.seen {
		info, err := j.opts.Source.Stat(ctx, f.name)
		if err != nil {
			return fmt.Errorf("%w: %w", storage.ErrChanged, err)
		}
		if info.Size != f.size || !info.ModTime.Equal(f.time) {
			return fmt.Errorf("%w: %s of %s was written at %v", storage.ErrChanged, f.name, j.opts.Source, info.ModTime)
		}
	}
	return nil
}
