package commit

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// Format describes the files of a format, as far as a Committer needs it.
type Format struct {
	// Name is the name of the format. It is part of the names of locks, so the locks
	// of different formats are distinct.
	Name string
	// Records are the possible names of the record. A save writes one of them, as its
	// last file. If several exist, readers use the one that comes first in this list,
	// so it hides the others.
	Records []string
	// Also are the names of other files that only exist in a checkpoint.
	Also []string
	// First means that readers open a checkpoint of this format even if the store also
	// holds files of other formats.
	First bool
	// OneFile means that a checkpoint consists of its record only. Saves in such a
	// format take no locks.
	OneFile bool

	// Prefix is the prefix of the names of all data files.
	Prefix string
	// IDFirst means that the id of the save follows Prefix in the name of each data
	// file.
	IDFirst bool
	// FixedNames means that the names of data files do not contain the id of the save: a file
	// replaces an older one of the same name.
	FixedNames bool
	// Parse returns the id of the save from the name of a data file, or "" if the name
	// does not contain an id. ok is false if name is not the name of a data file.
	Parse func(name string) (saveID string, ok bool)
	// Identify, if not nil, completes the result of Parse. It leaves out files
	// that cairn did not write, and sets the ids of saves that the names do not
	// contain. A record comes before the files that it names, because it must be
	// removed first.
	Identify func(ctx context.Context, store blob.Store, files []Leftover) ([]Leftover, error)

	// Read describes the checkpoint at the root of store. The error wraps
	// storage.ErrNotFound, ErrIncomplete, ErrCorrupt or ErrVersion, unless the store
	// failed. If Read returns both an error and a description, the description lists
	// the files that are known. A format with several records always returns a
	// description, unless the store failed.
	Read func(ctx context.Context, store blob.Store) (*Existing, error)
	// Needed, if not nil, returns the names of files at the root of a store to which
	// checkpoints in the folders beside it refer. They are not removed.
	Needed func(ctx context.Context, store blob.Store) (map[string]bool, error)
	// Check, if not nil, returns an error if the store holds a checkpoint that would
	// not be replaced by a new one.
	Check func(ctx context.Context, store blob.Store) error

	// RankRecord returns the name of the record of one rank that saves without a
	// group. ReadRank reads such a record and returns the id of its save, or "" if the
	// record does not contain it. Nil: the format does not support such saves.
	RankRecord func(rank int) string
	ReadRank   func(ctx context.Context, store blob.Store, name string) (saveID string, err error)
}

// Existing describes the checkpoint that is in a store.
type Existing struct {
	// SaveID is the id of the save. Empty: the names or the contents of Files have it, if it is known.
	SaveID string
	// Files are the files of the checkpoint, which a sweep must not remove.
	Files []string
	// Replaced are the files that a save removes after its checkpoint has replaced
	// this one, records first. Files that the new checkpoint uses too are kept.
	Replaced []string
	// Referable means that other checkpoints may refer to the files; see Format.Needed.
	Referable bool
	// Version is the version of the record that Read has read, if the format has one
	// record, or "" if it is unknown.
	Version string
	// Time and Step are when the save was asked for and its step. Zero and nil: the
	// checkpoint does not have them.
	Time time.Time
	Step *int64
	// Line is its place in the history of its run. Nil: unknown.
	Line *meta.Line
}

// newer reports whether the checkpoint is of a later save than s: it has a later commit or, if
// one of them does not record it, it was asked for later and does not have a lower step. A
// process that was suspended may carry out its saves after the saves of the process that has
// taken its place.
func (e *Existing) newer(s *meta.Storage) bool {
	if e.Line != nil && s.Line != nil {
		return e.Line.Commit > s.Line.Commit
	}
	return e.Time.After(s.Time) && !s.Time.IsZero() && (e.Step == nil || s.Step == nil || *e.Step >= *s.Step)
}

// isAbsent reports whether an error of Format.Read means that there is no complete
// checkpoint.
func isAbsent(err error) bool {
	return errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrIncomplete)
}

// current returns the names of the files that the checkpoint in store needs. If there
// is no complete checkpoint, this is not an error.
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

// savesOf returns the ids of the saves of a checkpoint, or one empty id if they are unknown.
func (f *Format) savesOf(ctx context.Context, store blob.Store, e *Existing) ([]string, error) {
	if e.SaveID != "" {
		return []string{e.SaveID}, nil
	}
	if f.Parse == nil {
		return []string{"", Remembered(store, f.Records[0])}, nil
	}

	found, err := f.identified(ctx, store, f.Prefix)
	var ids []string
	for _, l := range found {
		if l.SaveID != "" && slices.Contains(e.Files, l.Name) && !slices.Contains(ids, l.SaveID) {
			ids = append(ids, l.SaveID)
		}
	}

	if len(ids) == 0 {
		ids = []string{""}
	}
	return ids, err
}

// list returns the data files with names that begin with prefix. Files of formats with
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

// identified is like list, but also calls Identify.
func (f *Format) identified(ctx context.Context, store blob.Store, prefix string) ([]Leftover, error) {
	out, err := f.list(ctx, store, prefix)
	if err == nil && f.Identify != nil {
		out, err = f.Identify(ctx, store, out)
	}
	return out, err
}
