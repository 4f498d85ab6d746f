// Package publish is what formats have in common when they are written: data
// files that go where a save is given up and are there whole where it is not,
// and, for the formats of others, files that never touch those of the checkpoint
// before, a record that takes the place of the old one in one atomic step, and
// the removal of what nobody needs any more. It knows no format: each describes
// its names as a Format. The contract is at Place, whose methods follow
// storage.Writer's, and at Written for formats with a protocol of their own.
package publish

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// Format is how the files of a format are called.
type Format struct {
	// Name is the name of the format.
	Name string
	// Record is the file whose appearance is the commit.
	Record string
	// Also are other files that show that a checkpoint is there.
	Also []string
	// Prefix begins the names of all data files, at the root of the store.
	Prefix string
	// Parse returns of the name of a data file its rank and the id of the save
	// that it is of, empty where the name has none; or false where it is no such
	// name.
	Parse func(name string) (rank int, saveID string, ok bool)
	// Read tells of the checkpoint that is there. Its errors are those of
	// opening one: storage.ErrNotFound, ErrIncomplete, ErrCorrupt, ErrVersion.
	Read func(ctx context.Context, store blob.Store) (*Existing, error)
	// RankRecord returns the name of the record of one rank that saves without the
	// other ranks, and ReadRank the id of the save of such a record, or "" if the
	// record does not have it. Nil: the format has no such records.
	RankRecord func(rank int) string
	ReadRank   func(ctx context.Context, store blob.Store, name string) (saveID string, err error)
}

// Existing is a checkpoint that is there.
type Existing struct {
	// Files are those that are the format's by name, and may be removed once the
	// checkpoint is replaced. The record need not be among them.
	Files []string
}

// Options change how a checkpoint is replaced.
type Options struct {
	// FailIfExists refuses to replace a checkpoint, also one that appears while
	// the new one is written.
	FailIfExists bool
	// SweepAfter is the age from which data files that no record names are
	// removed after the commit, if it is unknown whether their save is over.
	// Files of saves whose process ran on this host and is dead are removed at
	// once. Zero: 24 hours. Negative: neither is removed.
	SweepAfter time.Duration
	// RankLocal makes the record of this rank alone the commit. Such a save never
	// replaces a checkpoint, because the ranks cannot replace it in one step, and
	// removes nothing but the rank's own files.
	RankLocal bool
}

// Place is where one rank saves, again and again.
//
// The files of a save have its id in their names, so that they are never taken
// for those of another save or of another program, and no old file is touched
// until the new record has replaced the old one.
type Place struct {
	store blob.Store
	f     Format
	opts  Options
	sess  storage.Session
	// coordinates is set while this rank is the coordinator of a save with a group.
	coordinates bool
	mark        *Mark // of the coordinator, while a save is under way
	written     Written
}

// New returns the place at the root of store.
func New(store blob.Store, f Format, o Options) *Place {
	if o.SweepAfter == 0 {
		o.SweepAfter = 24 * time.Hour
	}
	return &Place{store: store, f: f, opts: o}
}

// maxSaveID bounds a save's id, so that file names stay short of what file
// systems allow.
const maxSaveID = 64

var saveIDs = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]*$`)

// CheckSaveID refuses an id that cannot stand in the names of files.
func CheckSaveID(id string) error {
	if len(id) > maxSaveID || !saveIDs.MatchString(id) {
		return fmt.Errorf("%w: save id %q: want 1 to %d letters, digits and dashes", blob.ErrName, id, maxSaveID)
	}
	return nil
}

// SetUp begins a save. It refuses an id that cannot stand in the names of files.
func (p *Place) SetUp(s storage.Session) error {
	err := CheckSaveID(s.Storage.SaveID)
	p.release()
	p.sess, p.coordinates = s, false
	p.written.Reset(err != nil) // what is there is of the save before
	return err
}

// Ranks returns the number of ranks of a save without a group, or 0.
func (p *Place) Ranks() int {
	if !p.opts.RankLocal {
		return 0
	}
	return p.sess.Size
}

// record returns the name of the file whose appearance is the commit, and
// whether it may replace another one.
func (p *Place) record() (name string, ifAbsent bool) {
	if p.opts.RankLocal {
		return p.f.RankRecord(p.sess.Rank), true
	}
	return p.f.Record, p.opts.FailIfExists
}

// Locate is the function Locate. The chunks of a rank that saves without the
// other ranks need not cover whole tensors.
func (p *Place) Locate(md *meta.Metadata, results []*storage.WriteResults) ([]meta.Entry, error) {
	if p.opts.RankLocal {
		return storage.Locate(md, results)
	}
	return Locate(md, results)
}

// Session returns the session that SetUp was given.
func (p *Place) Session() storage.Session { return p.sess }

// Begin is for PrepareLocalPlan. The coordinator looks whether there is a
// checkpoint that must stay, and does not go on where it cannot tell.
func (p *Place) Begin(ctx context.Context) error {
	if p.opts.RankLocal {
		return p.checkFree(ctx)
	}
	if !p.sess.Coordinator {
		return nil
	}
	if err := p.checkReplaceable(ctx); err != nil {
		return err
	}
	p.coordinates = true
	p.sweep(ctx, -1)
	if p.sess.Journal != nil || p.mark != nil { // with a journal, the place is this save's alone
		return nil
	}
	var err error
	p.mark, err = NewMark(ctx, p.store, p.f.Name, p.sess.Storage.SaveID)
	return err
}

// release ends the mark of the save.
func (p *Place) release() {
	p.warn(p.mark.Release())
	p.mark = nil
}

// Files returns the description of the format for Sweep and Leftovers.
func (f *Format) Files() Files {
	return Files{
		Format: f.Name,
		Data: func(ctx context.Context, store blob.Store) ([]Leftover, error) {
			return List(ctx, store, f.Prefix, func(name string) (string, bool) {
				_, id, ok := f.Parse(name)
				return id, ok
			})
		},
		Current: f.current,
	}
}

// current returns the files of the checkpoint at the place. If the checkpoint is
// incomplete, they are the files of ranks that saved without a group and have
// written their record.
func (f *Format) current(ctx context.Context, store blob.Store) ([]string, error) {
	old, err := f.Read(ctx, store)
	if err == nil {
		return old.Files, nil
	}
	if f.RankRecord == nil || !errors.Is(err, storage.ErrIncomplete) {
		return nil, err
	}
	var out []string
	for info, err := range store.List(ctx, f.Prefix) {
		if err != nil {
			return nil, err
		}
		rank, _, ok := f.Parse(info.Name)
		if !ok {
			continue
		}
		switch _, err := store.Stat(ctx, f.RankRecord(rank)); {
		case err == nil:
			out = append(out, info.Name)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return out, nil
}

// checkFree refuses a place with a checkpoint, or with the record of a rank of
// another save. It looks at one record of another rank: readers compare all of them.
func (p *Place) checkFree(ctx context.Context) error {
	own, _ := p.record()
	for _, name := range []string{p.f.Record, own} {
		_, err := p.store.Stat(ctx, name)
		if err == nil {
			return fmt.Errorf("%w: %s holds %s, and a rank alone cannot replace a checkpoint", storage.ErrExists, p.store, name)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, rank := range []int{0, p.sess.Rank - 1, p.sess.Rank + 1} {
		if rank < 0 {
			continue
		}
		name := p.f.RankRecord(rank)
		id, err := p.f.ReadRank(ctx, p.store, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case id != p.sess.Storage.SaveID:
			return fmt.Errorf("%w: %s of %s is of save %q", storage.ErrExists, name, p.store, id)
		}
	}
	return nil
}

// checkReplaceable returns an error where the checkpoint that is there must
// stay.
func (p *Place) checkReplaceable(ctx context.Context) error {
	old, err := p.f.Read(ctx, p.store)
	switch {
	case errors.Is(err, storage.ErrNotFound), errors.Is(err, storage.ErrIncomplete):
		return nil
	case errors.Is(err, storage.ErrVersion):
		return fmt.Errorf("will not replace it: %w", err)
	case err != nil && !errors.Is(err, storage.ErrCorrupt):
		return err
	case p.opts.FailIfExists:
		return fmt.Errorf("%w: %s holds %s", storage.ErrExists, p.store, p.f.Record)
	case err == nil && slices.ContainsFunc(old.Files, p.hasID):
		return fmt.Errorf("%w: %s holds save %s already", storage.ErrExists, p.store, p.sess.Storage.SaveID)
	}
	return nil
}

// hasID reports whether a data file of that name has this save's id.
func (p *Place) hasID(name string) bool {
	_, id, ok := p.f.Parse(name)
	return ok && id == p.sess.Storage.SaveID
}

// dataFiles returns the data files that are there, with their sizes.
func (p *Place) dataFiles(ctx context.Context) (map[string]int64, error) {
	out := map[string]int64{}
	for info, err := range p.store.List(ctx, p.f.Prefix) {
		if err != nil {
			return nil, err
		}
		if _, _, ok := p.f.Parse(info.Name); ok {
			out[info.Name] = info.Size
		}
	}
	return out, nil
}

// Infix returns the part of the names of this rank's files that tells saves apart:
// the save's id. A save with a journal, which no other save or program disturbs,
// uses the plain names of the format unless there is a checkpoint. Infix removes
// the files of an earlier attempt in this save, unless a journal lists them.
func (p *Place) Infix(ctx context.Context) (string, error) {
	id := p.sess.Storage.SaveID
	if p.sess.Journal == nil {
		return id, p.written.Remove(ctx, p.store)
	}
	for _, name := range append([]string{p.f.Record}, p.f.Also...) {
		_, err := p.store.Stat(ctx, name)
		if err == nil {
			return id, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", nil
}

// Note remembers a file that may be there from now on, for Abort. It is
// datafile.Options.Created.
func (p *Place) Note(name string) { p.written.Note(name) }

// Abort removes the data files of this save: a rank its own, the coordinator
// those of all ranks, because the others may be gone. It does nothing once Commit
// may have made them part of a checkpoint, and spares files that the current
// record names, even if a repair wrote it.
func (p *Place) Abort(ctx context.Context) error {
	defer p.release()
	names, kept := p.written.Take()
	if kept {
		return nil
	}
	var err error
	if p.coordinates {
		var now map[string]int64
		now, err = p.dataFiles(ctx)
		for name := range now {
			if p.hasID(name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return errors.Join(err, RemoveUnnamed(ctx, p.store, p.f.Files(), names))
}

func (p *Place) warn(err error) {
	if err != nil && p.sess.Warn != nil {
		p.sess.Warn(err)
	}
}
