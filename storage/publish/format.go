package publish

import (
	"context"
	"errors"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// Format describes the files of a format, as far as a Publisher needs it.
type Format struct {
	// Name is the name of the format. Marks of different formats do not meet.
	Name string
	// Records are the names of the files that make a checkpoint of the data files.
	// One of them is the last file of a save. If several exist, readers use the
	// first one of this list, which hides the others.
	Records []string
	// Also are names of other files that show that there is a checkpoint.
	Also []string
	// OneFile means that a checkpoint is its record and nothing else. Saves in
	// such a format have no mark and take no lock.
	OneFile bool

	// Prefix begins the names of all data files, at the root of the store.
	Prefix string
	// IDFirst means that the id of the save follows the prefix in each name.
	IDFirst bool
	// Parse returns the id of the save from the name of a data file, or "" if the
	// name has no id. ok is false if the name is not that of a data file.
	Parse func(name string) (saveID string, ok bool)
	// Identify, if not nil, sets the ids of saves that are not in the names of the
	// files, and leaves out the files that cairn did not write. A record comes
	// before the files that it names, because it must be removed first.
	Identify func(ctx context.Context, store blob.Store, files []Leftover) ([]Leftover, error)

	// Read describes the checkpoint at the root of store. The error wraps
	// storage.ErrNotFound, ErrIncomplete, ErrCorrupt or ErrVersion, unless the
	// store failed. A description beside an error lists what is known. A format
	// with several records always returns a description, unless the store failed.
	Read func(ctx context.Context, store blob.Store) (*Existing, error)
	// Check, if not nil, returns an error if the place holds a checkpoint that a
	// new one would not replace.
	Check func(ctx context.Context, store blob.Store) error

	// RankRecord returns the name of the record of one rank that saves without the
	// other ranks, and ReadRank the id of the save of such a record, or "" if the
	// record does not have it. Nil: the format has no such records.
	RankRecord func(rank int) string
	ReadRank   func(ctx context.Context, store blob.Store, name string) (saveID string, err error)
}

// Existing is the checkpoint that is at a place.
type Existing struct {
	// Files are the files of the checkpoint that a sweep must spare.
	Files []string
	// Replaced are the files that a save removes once its own checkpoint has
	// replaced this one, records first. Those of the new checkpoint stay.
	Replaced []string
}

// isAbsent reports whether an error of Format.Read means that there is no complete
// checkpoint.
func isAbsent(err error) bool {
	return errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrIncomplete)
}

// current returns the files that a sweep must spare.
func (f *Format) current(ctx context.Context, store blob.Store) (map[string]bool, error) {
	old, err := f.Read(ctx, store)
	if isAbsent(err) {
		err = nil
	}
	named := map[string]bool{}
	if old != nil {
		for _, name := range old.Files {
			named[name] = true
		}
	}
	return named, err
}

// list returns the data files whose names begin with prefix. Files of formats with
// Identify have no save ids yet.
func (f *Format) list(ctx context.Context, store blob.Store, prefix string) ([]Leftover, error) {
	var out []Leftover
	for info, err := range store.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		if id, ok := f.Parse(info.Name); ok {
			out = append(out, Leftover{Name: info.Name, Size: info.Size, ModTime: info.ModTime, SaveID: id})
		}
	}
	return out, nil
}

// identified is list with the ids of saves.
func (f *Format) identified(ctx context.Context, store blob.Store, prefix string) ([]Leftover, error) {
	out, err := f.list(ctx, store, prefix)
	if err == nil && f.Identify != nil {
		out, err = f.Identify(ctx, store, out)
	}
	return out, err
}
