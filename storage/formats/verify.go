package formats

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// Own is the report of VerifyOwn about a checkpoint.
type Own struct {
	*storage.VerifyReport
	// Files are the files in the folder that were read.
	Files []string
	// Refers are the files in other folders to which the checkpoint refers. If they are as the
	// records of their folders say, the checkpoint is whole.
	Refers []storage.Reference
}

// VerifyOwn verifies the checkpoint at the root of store as storage.Checkpoint.Verify does, but
// of a checkpoint that refers to others it reads only the files in its own folder.
func VerifyOwn(ctx context.Context, store blob.Store, progress func(bytes int64)) (*Own, error) {
	c, err := Open(ctx, store, nil)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	delta, refers, err := native.Stored(ctx, store)
	if err != nil && !errors.Is(err, storage.ErrNotFound) { // in another format
		return nil, err
	}
	out := &Own{Files: storage.StoredFiles(c), Refers: refers}
	parts, ok := c.(storage.PartVerifier)
	if len(delta) == 0 || !ok {
		out.VerifyReport, err = c.Verify(ctx, progress)
		return out, err
	}
	rep, err := parts.VerifyPart(ctx, func(name string) bool { _, stored := delta[name]; return !stored }, true, progress)
	for _, f := range delta {
		if err == nil {
			err = verifyStored(ctx, store, f, rep, progress)
		}
	}
	if err != nil {
		return nil, err
	}
	storage.SortProblems(rep.Problems)
	out.VerifyReport = rep
	return out, nil
}

// verifyStored compares a file with its checksum.
func verifyStored(ctx context.Context, store blob.Store, want storage.File, rep *storage.VerifyReport, progress func(bytes int64)) error {
	var crc uint32
	size, err := reading.Scan(ctx, store, want.Name, func(p []byte, _ int64) {
		crc = crc32c.Update(crc, p)
		if progress != nil {
			progress(int64(len(p)))
		}
	})
	text := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		text = "the file is gone"
	case err != nil:
		return err
	case size != want.Size:
		text = fmt.Sprintf("it has %d bytes, the record says %d", size, want.Size)
	case crc != want.CRC32C:
		text = fmt.Sprintf("its checksum is %08x, the record says %08x", crc, want.CRC32C)
	}
	if text != "" {
		rep.Problems = append(rep.Problems, storage.VerifyProblem{File: want.Name, Text: text})
	}
	rep.Files++
	rep.Bytes += size
	return nil
}
