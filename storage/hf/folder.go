package hf

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// folder lists the files at the root of a store that matter to the format, with
// their sizes.
type folder struct {
	where string
	data  map[string]int64 // safetensors files
	index map[string]int64
	other map[string]int64 // config.json and cairn-save.json
}

func list(ctx context.Context, store blob.Store) (*folder, error) {
	f := &folder{where: store.String(), data: map[string]int64{}, index: map[string]int64{}, other: map[string]int64{}}
	for info, err := range store.List(ctx, "") {
		switch {
		case err != nil:
			return nil, err
		case isData(info.Name):
			f.data[info.Name] = info.Size
		case isIndex(info.Name):
			f.index[info.Name] = info.Size
		case info.Name == configName, info.Name == commitName:
			f.other[info.Name] = info.Size
		}
	}

	return f, nil
}

// choose returns the index of the checkpoint, or its data files if it has no index. want
// is the name of the index or data file to open, or empty.
func (f *folder) choose(want string) (index string, files []string, err error) {
	if _, ok := f.index[want]; ok {
		return want, nil, nil
	}
	if _, ok := f.data[want]; ok {
		return "", []string{want}, nil
	}

	if want != "" {
		return "", nil, fmt.Errorf("%w: %s holds no %s", storage.ErrNotFound, f.where, want)
	}
	if _, saved := f.other[commitName]; len(f.data) == 0 && len(f.index) == 0 && !saved {
		return "", nil, fmt.Errorf("%w: %s holds no safetensors", storage.ErrNotFound, f.where)
	}

	for _, base := range bases {
		if _, ok := f.data[base+suffix]; ok {
			return "", []string{base + suffix}, nil
		}
		if _, ok := f.index[base+indexSuffix]; ok {
			return base + indexSuffix, nil, nil
		}
	}

	switch names := slices.Sorted(maps.Keys(f.index)); len(names) {
	case 0:
		return f.withoutIndex()
	case 1:
		return names[0], nil, nil
	default:
		return "", nil, fmt.Errorf("%w: %s holds %s and %s", ErrAmbiguous, f.where, names[0], names[1])
	}
}

// onlyOne matches the names of files that are the first of one.
var onlyOne = regexp.MustCompile(`-0*1-of-0*1\.safetensors$`)

// withoutIndex returns all data files: a single one, or the files of a distributed
// save. If there is a cairn-save.json, files of other names are not part of the
// save.
func (f *folder) withoutIndex() (string, []string, error) {
	files := slices.Sorted(maps.Keys(f.data))
	if _, ok := f.other[commitName]; ok {
		return "", slices.DeleteFunc(files, func(name string) bool { return !sharded.MatchString(name) }), nil
	}

	sets := slices.DeleteFunc(slices.Clone(files), func(name string) bool {
		return !numbered.MatchString(name) || sharded.MatchString(name) || onlyOne.MatchString(name)
	})
	if len(sets) > 0 {
		return "", nil, fmt.Errorf("%w: %s holds %s but no index: the save did not finish, or the index was lost", storage.ErrIncomplete, f.where, strings.Join(sets, ", "))
	}
	return "", files, nil
}

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

// stranger returns the name of a file that a reader could choose instead of the new
// checkpoint, or that is a checkpoint under a name that cairn does not use. If the
// folder has a record that cairn wrote, other files of tensors are not a checkpoint.
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

// replaced returns the files of the checkpoints in the folder that a save removes once it has
// replaced them, records first. It leaves out files that it cannot read.
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

// current returns the files that a reader takes for the checkpoint, and the files of
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
