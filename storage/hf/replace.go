package hf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
)

// records are the files that make a checkpoint of data files, in the order in which a
// reader looks for them: the single file, the index, and the record of the
// distributed form.
var records = []string{bases[0] + suffix, bases[0] + indexSuffix, commitName}

// checkPlace returns an error that wraps storage.ErrExists if the folder holds a
// checkpoint under names that the writer does not use: a new one would not replace
// it.
func checkPlace(ctx context.Context, s blob.Store) error {
	dir, err := list(ctx, s)
	if err != nil {
		return err
	}
	if name := dir.stranger(len(dir.records()) > 0); name != "" {
		return fmt.Errorf("%w: %s holds %s, which a new checkpoint would not replace", storage.ErrExists, s, name)
	}
	return nil
}

// Files describes the files of this format that cairn writes.
func Files() *commit.Format {
	return &commit.Format{
		Name: Format{}.Name(), Records: records, Check: checkPlace, Read: readExisting, Identify: identify,
		Parse: func(name string) (string, bool) {
			return "", name == commitName || name == records[1] || isData(name) && numbered.MatchString(name)
		},
	}
}

// readExisting describes the checkpoint in the folder. It returns ErrNotFound if the
// folder holds only files that wait for a record.
func readExisting(ctx context.Context, s blob.Store) (*commit.Existing, error) {
	dir, err := list(ctx, s)
	if err != nil {
		return nil, err
	}
	e := &commit.Existing{Replaced: dir.replaced(ctx, s)}
	e.Files, err = dir.current(ctx, s)
	if err == nil && len(e.Files) == 0 {
		err = storage.ErrNotFound
	}
	return e, err
}

// identify returns the records and the numbered data files that cairn wrote, with
// the ids of their saves. The header of a data file has the id. A record is of the
// save of the files that it names.
func identify(ctx context.Context, s blob.Store, all []commit.Leftover) ([]commit.Leftover, error) {
	names := map[string][]string{} // by record
	c, err := readCommitFile(ctx, s)
	if err != nil && !isGoneOrBad(err) {
		return nil, err
	}
	if err == nil {
		names[commitName] = slices.Collect(maps.Keys(c.Files))
	}
	m, err := readIndex(ctx, s, records[1])
	if err != nil && !isGoneOrBad(err) {
		return nil, err
	}
	names[records[1]] = slices.Collect(maps.Values(m))
	var recs, data []commit.Leftover
	saves := map[string]string{} // of the data files
	for _, l := range all {
		if !isData(l.Name) {
			recs = append(recs, l)
		} else if of := saveOf(ctx, s, l.Name); of != nil {
			l.SaveID = of.SaveID
			saves[l.Name] = of.SaveID
			data = append(data, l)
		}
	}
	recs = slices.DeleteFunc(recs, func(l commit.Leftover) bool {
		return l.Name == records[1] && !slices.ContainsFunc(names[l.Name], func(f string) bool { return saves[f] != "" })
	})
	for i := range recs {
		for _, f := range names[recs[i].Name] {
			recs[i].SaveID = cmp.Or(saves[f], recs[i].SaveID)
		}
	}
	return append(recs, data...), nil
}

// isGoneOrBad reports whether err means that a file is missing or damaged.
func isGoneOrBad(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, storage.ErrCorrupt)
}

// saveOf returns the description of its save from a file, or nil if the file has no description.
func saveOf(ctx context.Context, s blob.Store, name string) *saved {
	f, err := readFile(ctx, s, name)
	if err != nil {
		return nil
	}
	of, _, err := savesOf([]*dataFile{f})
	if err != nil || len(of) == 0 {
		return nil
	}
	return &of[0]
}
