package memory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/hosts"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// noteSums writes down the checksums of the files of a checkpoint that this host keeps, and forgets the
// sums of files that are gone. One rank of the host calls it.
func (j *Job) noteSums(ctx context.Context, folder string, all []offer, copies int) error {
	sums, err := j.Root.ReadSums(j.Run)
	if err != nil {
		sums = map[string]ram.Sum{} // it is damaged, or of another program
	}
	at := j.place(copies, keepersOf(all))
	for i, o := range all {
		files := o.Data
		if o.Host != j.Host && !slices.Contains(at.of(i), j.Host) {
			files = nil
		}
		if i == 0 {
			files = slices.Concat(files, o.Last) // all hosts have these
		}
		for _, f := range files {
			if f.Name == native.RecordName {
				continue // a later save may replace it, and a repair must not bring the old one back
			}
			sums[folder+"/"+f.Name] = ram.Sum{Size: f.Size, CRC32C: f.CRC32C}
		}
	}

	store, err := j.Root.OpenLocal(j.Run)
	if err != nil {
		return err
	}
	for name := range sums {
		if _, err := store.Stat(ctx, name); errors.Is(err, fs.ErrNotExist) {
			delete(sums, name)
		}
	}
	return j.Root.WriteSums(j.Run, sums)
}

// maxRepairs bounds the damaged files that wait for their repair. A file that finds no place there is
// repaired when it is read again.
const maxRepairs = 256

// repairs waits for reports of damaged files of this host, and repairs the files, one after another, until
// ctx ends.
func (j *Job) repairs(ctx context.Context, names <-chan string, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case name := <-names:
			done, err := j.repair(ctx, name)
			switch {
			case log == nil:
			case err != nil && ctx.Err() == nil:
				log.Warn("memory: a damaged file stays", "run", j.Run, "object", name, "error", err)
			case done:
				log.Info("memory: a damaged file was replaced by the copy of another host", "run", j.Run, "object", name)
			}
		}
	}
}

// repair fetches a file of this host again from another host if its bytes are not the ones that its saver
// wrote. The new file takes the place of the old one after its checksum was compared. It reports false if
// the file is not damaged.
func (j *Job) repair(ctx context.Context, name string) (bool, error) {
	sums, err := j.Root.ReadSums(j.Run)
	if err != nil {
		return false, err
	}
	want, known := sums[name]
	if !known {
		return false, errors.New("its checksum is not known on this host")
	}
	local, err := j.Root.OpenLocal(j.Run)
	if err != nil {
		return false, err
	}
	good, err := matches(ctx, local, name, want)
	if good || errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
		return false, nil
	}

	opened, err := j.Open(ctx)
	if err != nil {
		return false, err
	}
	store, ok := opened.(*hosts.Store)
	if !ok {
		return false, fmt.Errorf("%w: there is no other host", fs.ErrNotExist)
	}
	defer store.Close()
	if err := store.Refetch(ctx, name, want.Size, want.CRC32C); err != nil {
		return false, err
	}
	// If the checkpoint was removed meanwhile, its record went first, and nothing removes the new file.
	if _, err := local.Stat(ctx, path.Dir(name)+"/"+native.RecordName); errors.Is(err, fs.ErrNotExist) {
		return false, local.Remove(ctx, name)
	}
	return true, nil
}

// matches reports whether a file has the size and the checksum of a sum.
func matches(ctx context.Context, store blob.Store, name string, want ram.Sum) (bool, error) {
	in, err := store.Open(ctx, name)
	if err != nil {
		return false, err
	}
	defer in.Close()
	if in.Size() != want.Size {
		return false, nil
	}
	var crc uint32
	buf := make([]byte, min(want.Size, 1<<20))
	for at := int64(0); at < want.Size; at += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), want.Size-at)]
		if err := in.ReadAt(ctx, b, at); err != nil {
			return false, err
		}
		crc = crc32c.Update(crc, b)
	}
	return crc == want.CRC32C, nil
}
