package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
)

// neededBeside returns the names of files in the folder of a checkpoint with the record rec
// to which checkpoints beside it refer. It looks for them only if there can be any.
func neededBeside(ctx context.Context, store blob.Store, rec *record) (map[string]bool, error) {
	possible := len(rec.Coded)+len(rec.Hashes) > 0
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		id, ours := saveOf(info.Name)
		if possible = possible || ours && (id != rec.SaveID || strings.HasSuffix(info.Name, deltaSuffix)); possible {
			return referred(ctx, store)
		}
	}

	return nil, nil
}

// refuseDeltas returns an error if a store holds a data file in the form of a delta file. A
// repair would leave it out.
func refuseDeltas(ctx context.Context, store blob.Store) error {
	infos := map[string]bool{}
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return err
		}
		infos[info.Name] = true
	}

	for name := range infos {
		stem, ok := strings.CutSuffix(name, deltaSuffix)
		if _, ours := parseDataOrDelta(name); ok && ours && !infos[stem+dataSuffix] {
			return fmt.Errorf("%w: %s of %s stores a data file that refers to other checkpoints, and its record or index cannot be rebuilt", errors.ErrUnsupported, name, store)
		}
	}

	return nil
}

// Needed returns the names of files at the root of a store to which checkpoints in the
// folders beside it refer. They are not removed when the checkpoint there is replaced.
func Needed(ctx context.Context, store blob.Store) (map[string]bool, error) {
	rec, err := readRecordOnly(ctx, store)
	switch {
	case err == nil:
		return neededBeside(ctx, store, rec)
	case errors.Is(err, storage.ErrNotFound), errors.Is(err, storage.ErrCorrupt), errors.Is(err, storage.ErrVersion):
		return neededBeside(ctx, store, &record{}) // the files may still be there
	}
	return nil, err
}

// StoredFile returns the size and the checksum of a file according to the record in its store. ok is
// false if there is no record, or if it does not name the file.
func StoredFile(ctx context.Context, store blob.Store, name string) (f storage.File, ok bool, err error) {
	rec, err := readRecordOnly(ctx, store)
	if errors.Is(err, storage.ErrNotFound) {
		return f, false, nil
	}
	if err != nil {
		return f, false, err
	}

	i := slices.IndexFunc(rec.Files, func(f storage.File) bool { return f.Name == name })
	if i < 0 {
		return f, false, nil
	}
	return rec.Files[i], true, nil
}

// Stored returns the data files of the checkpoint in a store that are stored as delta files,
// by the names that readers see, and the files in other folders to which these refer.
func Stored(ctx context.Context, store blob.Store) (delta map[string]storage.File, refers []storage.Reference, err error) {
	rec, err := readRecordOnly(ctx, store)
	if err != nil {
		return nil, nil, err
	}

	files := map[string]storage.File{}
	for _, f := range rec.Files {
		files[f.Name] = f
	}

	delta = map[string]storage.File{}
	for _, c := range rec.Coded {
		delta[c.Name] = files[c.Stored]
	}

	for _, b := range rec.Bases {
		refers = append(refers, b.Files...)
	}

	return delta, refers, nil
}

// CheckUnreferred returns an error that wraps storage.ErrInUse if a checkpoint in a folder
// beside the store refers to the checkpoint in it.
func CheckUnreferred(ctx context.Context, store blob.Store) error {
	names, err := Needed(ctx, store)
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("%w: other checkpoints of the run refer to %s; 'cairn flatten' makes them stand alone", storage.ErrInUse, store)
	}
	return err
}

// neededForSweeps is referred without the folders that this process may not read. A folder of
// checkpoints may be beside private folders of others, such as in /tmp.
func neededForSweeps(ctx context.Context, store blob.Store) (map[string]bool, error) {
	return referredBy(ctx, store, func(err error) bool { return errors.Is(err, fs.ErrPermission) })
}

// referred returns the names of files in the folder of a checkpoint to which checkpoints in
// the folders beside it refer.
func referred(ctx context.Context, store blob.Store) (map[string]bool, error) {
	return referredBy(ctx, store, func(error) bool { return false })
}

// referredBy is referred without folders with a record that cannot be read for a reason that
// skip accepts.
func referredBy(ctx context.Context, store blob.Store, skip func(error) bool) (map[string]bool, error) {
	parent, own, err := blob.Parent(store)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, nil // the store has no folders beside it
	}
	if err != nil {
		return nil, err
	}

	folders, err := blob.Folders(ctx, parent, "")
	if err != nil {
		return nil, err
	}

	out := map[string]bool{}
	soon, err := commit.Referring(ctx, store)
	if err != nil {
		return nil, err
	}

	if soon { // a save is about to refer to some of the files
		for info, err := range store.List(ctx, "") {
			if err != nil {
				return nil, err
			}
			out[info.Name] = true
		}
	}

	for _, name := range folders {
		if name == own || blob.CheckName(name) != nil {
			continue
		}

		at, err := blob.NewSub(parent, name)
		if err != nil {
			return nil, err
		}

		rec, err := readRecordOnly(ctx, at)
		if errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrCorrupt) || err != nil && skip(err) {
			continue
		}
		if err != nil { // a record of a later version may refer to anything
			return nil, err
		}

		for _, b := range rec.Bases {
			for _, f := range b.Files {
				if b.Folder == own {
					out[f.Name] = true
				}
			}
		}
	}

	return out, nil
}

// checkBases returns an error that wraps storage.ErrBaseGone if a file to which the
// checkpoint in store refers is gone or has another size.
func checkBases(ctx context.Context, store blob.Store, bases []baseFolder) error {
	type file struct {
		at blob.Store
		storage.Reference
	}
	var all []file
	for _, b := range bases {
		at, err := blob.Beside(store, b.Folder)
		if err != nil {
			return fmt.Errorf("%s refers to the folder %s beside it: %w", store, b.Folder, err)
		}
		for _, f := range b.Files {
			all = append(all, file{at, f})
		}
	}

	return work.Each(ctx, len(all), parallelBases, func(ctx context.Context, i int) error {
		f := &all[i]
		info, err := f.at.Stat(ctx, f.Name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s refers to %s of %s, which is gone: %w (%w)", store, f.Name, f.at, storage.ErrBaseGone, err)
		case err != nil:
			return err
		case info.Size != f.Size:
			return fmt.Errorf("%s refers to %s of %s, which has %d bytes instead of %d: %w", store, f.Name, f.at, info.Size, f.Size, storage.ErrBaseGone)
		}

		return nil
	})
}
