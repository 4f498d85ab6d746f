package hf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// RepairOptions change the behaviour of Repair. Nil means the defaults.
type RepairOptions struct {
	// DryRun makes Repair write no files. The report is the same as without it.
	DryRun bool
	// Force rebuilds an index even if it is intact.
	Force bool
}

// RepairReport is the result of Repair.
type RepairReport struct {
	SaveID string
	// Rebuilt means that the index was written, or would be without DryRun.
	// False: the checkpoint was intact.
	Rebuilt bool
	// Indexed means that the checkpoint has an index and needs it.
	Indexed bool
	// Files counts the data files; Tensors and Bytes count their contents.
	Files   int
	Tensors int64
	Bytes   int64
}

func (r *RepairReport) count(s *source, files int) {
	r.SaveID, r.Files = s.md.Storage.SaveID, files
	for i := range s.md.Entries {
		r.Tensors++
		r.Bytes += s.md.Entries[i].NumBytes()
	}
}

// Repair rebuilds a lost or damaged index from the headers of its files. Their
// names, such as model-00002-of-00005, contain the number of files. Unless all of
// them are present and intact, the error wraps storage.ErrIncomplete or ErrCorrupt.
// Repair does not change data files. It cannot rebuild the commit of the
// distributed form, because the names of its files do not contain their number.
//
// It refuses with blob.ErrLocked while a save is under way there, as far as the
// store can tell.
func Repair(ctx context.Context, store blob.Store, o *RepairOptions) (*RepairReport, error) {
	if o == nil {
		o = &RepairOptions{}
	}

	dir, err := list(ctx, store)
	if err != nil {
		return nil, err
	}

	s := &source{store: store, payload: map[string]int64{}}
	files, err := s.read(ctx, dir, "")
	switch broken := errors.Is(err, storage.ErrCorrupt) || errors.Is(err, storage.ErrIncomplete) || len(s.problems) > 0; {
	case err != nil && !broken:
		return nil, err
	case !broken && (len(dir.index) == 0 || !o.Force):
		index, _, err := dir.choose("")
		if err != nil {
			return nil, err
		}
		rep := &RepairReport{Indexed: index != ""}
		rep.count(s, len(files))
		return rep, nil
	}

	name, set, setErr := dir.numberedSet()
	if setErr != nil {
		if err == nil {
			for _, p := range s.problems {
				err = errors.Join(err, reading.Damaged(p.File, "%s", p.Text))
			}
		}
		if !errors.Is(err, storage.ErrIncomplete) && !errors.Is(setErr, ErrAmbiguous) {
			setErr = fmt.Errorf("%w: %w", storage.ErrIncomplete, setErr)
		}
		return nil, errors.Join(err, setErr)
	}
	return rebuildIndex(ctx, store, name, set, o.DryRun)
}

// rebuildIndex writes the index of that name for files.
func rebuildIndex(ctx context.Context, store blob.Store, name string, names []string, dryRun bool) (*RepairReport, error) {
	files, l, err := readFiles(ctx, store, names)
	if err != nil {
		return nil, err
	}
	if len(l) > 0 {
		return nil, l.Err()
	}

	s := &source{store: store}
	where := weightMap{}
	for _, f := range files {
		for i := range f.header.Entries {
			n := f.header.Entries[i].Name
			if other, twice := where[n]; twice {
				return nil, reading.Damaged(f.name, "%w: %q is in %s too", ErrIndex, n, other)
			}
			where[n] = f.name
		}
	}

	if err := errors.Join(s.describe(files, nil), s.gatherIndexed(files, where, nil)); err != nil {
		return nil, err
	}

	if name == bases[0]+"-"+s.md.Storage.SaveID+indexSuffix {
		name = bases[0] + indexSuffix // the names of files that cairn wrote may contain the id of their save
	}

	text, err := encodeJSON(indexOf(s.md.Entries))
	if err != nil {
		return nil, err
	}

	rep := &RepairReport{Rebuilt: true, Indexed: true}
	rep.count(s, len(files))
	if dryRun {
		return rep, commit.CheckIdle(ctx, store, Format{}.Name())
	}

	return rep, commit.Locked(ctx, store, func() error {
		if err := commit.CheckIdle(ctx, store, Format{}.Name()); err != nil {
			return err
		}
		_, err := blob.WriteAll(ctx, store, name, text, nil)
		return err
	})
}

// ofSet matches the names of files behind an index: the base name, with the id of
// the save if cairn wrote it, the number of the file, and the number of files.
var ofSet = regexp.MustCompile(`^(.+)-(\d{5,})-of-(\d{5,})\.safetensors$`)

// numberedSet returns the files of the one set of numbered files that is complete,
// and the name of its index.
func (f *folder) numberedSet() (index string, files []string, err error) {
	sets := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(f.data)) {
		if m := ofSet.FindStringSubmatch(name); m != nil && !sharded.MatchString(name) {
			key := m[1] + "-of-" + m[3]
			sets[key] = append(sets[key], name)
		}
	}

	if len(sets) == 0 {
		return "", nil, fmt.Errorf("only the index of numbered files can be rebuilt, and %s holds no such files", f.where)
	}

	var errs []error
	for _, key := range slices.Sorted(maps.Keys(sets)) {
		names := sets[key]
		m := ofSet.FindStringSubmatch(names[0])
		if n, err := strconv.Atoi(m[3]); err != nil || n != len(names) {
			errs = append(errs, fmt.Errorf("only %d of the %d files of %s exist", len(names), n, m[1]))
			continue
		}

		if files != nil {
			return "", nil, fmt.Errorf("%w: the files %s and %s", ErrAmbiguous, files[0], names[0])
		}
		index, files = m[1]+indexSuffix, names
	}

	if files == nil {
		return "", nil, errors.Join(errs...)
	}
	return index, files, nil
}
