package hf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

// The records that make files a checkpoint, in the order in which a reader looks
// for them: the single file, the index, and the commit of the distributed form.
var records = []string{bases[0] + suffix, bases[0] + indexSuffix, commitName}

// has reports whether a file of that name is in the folder.
func (f *folder) has(name string) bool {
	for _, m := range []map[string]int64{f.data, f.index, f.other} {
		if _, ok := m[name]; ok {
			return true
		}
	}
	return false
}

// records returns the records that are in the folder, the one that a reader
// chooses first.
func (f *folder) records() []string {
	return slices.DeleteFunc(slices.Clone(records), func(name string) bool { return !f.has(name) })
}

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

// stranger returns the name of a file that a reader could choose instead of the new
// checkpoint, or that is a checkpoint under a name that cairn does not use. If the
// folder has a record of ours, other files of tensors are not a checkpoint.
func (f *folder) stranger(recorded bool) string {
	for name := range f.index {
		if name != records[1] {
			return name
		}
	}
	for name := range f.data {
		for _, base := range bases[1:] {
			if name == base+suffix {
				return name
			}
		}
		if !recorded && !numbered.MatchString(name) {
			return name
		}
	}
	return ""
}

// ofPyTorch are the names that PyTorch gives to the files of the distributed form,
// which has no record.
var ofPyTorch = regexp.MustCompile(`^shard-\d{5,}-model-\d{5,}-of-\d{5,}\.safetensors$`)

// replaced returns the files of the checkpoints in the folder that a save removes
// once it has replaced them, records first. It leaves out what it cannot read.
func (f *folder) replaced(ctx context.Context, s blob.Store) []string {
	out := f.records()
	var data []string
	for _, name := range out {
		switch name {
		case commitName:
			if c, err := readCommitFile(ctx, s); err == nil {
				data = slices.AppendSeq(data, maps.Keys(c.Files))
			}
		case records[1]:
			if m, err := readIndex(ctx, s, name); err == nil {
				data = slices.AppendSeq(data, maps.Values(m))
			}
		}
	}
	if !f.has(records[0]) && !f.has(records[1]) {
		for name := range f.data {
			if ofPyTorch.MatchString(name) {
				data = append(data, name)
			}
		}
	}
	slices.Sort(data)
	for _, name := range slices.Compact(data) {
		if numbered.MatchString(name) && isData(name) { // the others are not for us to remove
			out = append(out, name)
		}
	}
	return out
}

// Files describes the files of this format that cairn writes.
func Files() *publish.Format {
	return &publish.Format{
		Name: Format{}.Name(), Records: records, Check: checkPlace, Read: readExisting, Identify: identify,
		Parse: func(name string) (string, bool) {
			return "", name == commitName || name == records[1] || isData(name) && numbered.MatchString(name)
		},
	}
}

// readExisting describes the checkpoint in the folder. It returns ErrNotFound if the
// folder holds only files that wait for a record.
func readExisting(ctx context.Context, s blob.Store) (*publish.Existing, error) {
	dir, err := list(ctx, s)
	if err != nil {
		return nil, err
	}
	e := &publish.Existing{Replaced: dir.replaced(ctx, s)}
	e.Files, err = dir.current(ctx, s)
	if err == nil && len(e.Files) == 0 {
		err = storage.ErrNotFound
	}
	return e, err
}

// identify returns the records and the numbered data files that cairn wrote, with
// the ids of their saves. The header of a data file has the id. A record is of the
// save of the files that it names.
func identify(ctx context.Context, s blob.Store, all []publish.Leftover) ([]publish.Leftover, error) {
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
	var recs, data []publish.Leftover
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
	recs = slices.DeleteFunc(recs, func(l publish.Leftover) bool {
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

// saveOf returns the description of its save from a file, or nil if it has none.
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

// current returns the files that a reader takes for the checkpoint, and those of
// indexes with other names. Files that wait for a record are not among them.
func (f *folder) current(ctx context.Context, s blob.Store) ([]string, error) {
	index, names, err := f.choose("")
	if err != nil {
		return nil, err
	}
	var out []string
	for name := range f.index {
		if name != index && name == records[1] { // hidden by another record
			continue
		}
		m, err := readIndex(ctx, s, name)
		if err != nil {
			return nil, err
		}
		out = slices.AppendSeq(append(out, name), maps.Values(m))
	}
	if index != "" {
		return out, nil
	}
	if _, ok := f.other[commitName]; !ok || len(names) > 0 && !sharded.MatchString(names[0]) {
		return append(out, slices.DeleteFunc(names, func(name string) bool {
			of := saveOf(ctx, s, name)
			return of != nil && of.Commit != ""
		})...), nil
	}
	c, err := readCommitFile(ctx, s)
	if err != nil {
		return nil, err
	}
	if c.lists() {
		names = slices.Collect(maps.Keys(c.Files))
	}
	return append(append(out, commitName), names...), nil
}
