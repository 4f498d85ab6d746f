package hf

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// folder is what lies at the root of a store, as far as it is of interest: the
// names with the sizes.
type folder struct {
	where string
	data  map[string]int64 // safetensors files
	index map[string]int64
	other map[string]int64 // config.json and the commit
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

// choose returns the index of the checkpoint, or its data files where it has
// none.
func (f *folder) choose(want string) (index string, files []string, err error) {
	if want != "" {
		return f.named(want)
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
	names := slices.Sorted(maps.Keys(f.index))
	switch len(names) {
	case 0:
		return f.withoutIndex()
	case 1:
		return names[0], nil, nil
	}
	return "", nil, fmt.Errorf("%w: %s holds %s and %s", ErrAmbiguous, f.where, names[0], names[1])
}

// named returns the index or file that the caller asked for.
func (f *folder) named(want string) (index string, files []string, err error) {
	if _, ok := f.index[want]; ok {
		return want, nil, nil
	}
	if _, ok := f.data[want]; ok {
		return "", []string{want}, nil
	}
	return "", nil, fmt.Errorf("%w: %s holds no %s", storage.ErrNotFound, f.where, want)
}

// withoutIndex returns all data files: a single one, or those of a distributed
// save. Beside the commit of one, files of other names are not part of it.
func (f *folder) withoutIndex() (string, []string, error) {
	files := slices.Sorted(maps.Keys(f.data))
	if _, ok := f.other[commitName]; ok {
		return "", slices.DeleteFunc(files, func(name string) bool { return !sharded.MatchString(name) }), nil
	}
	sets := slices.DeleteFunc(slices.Clone(files), func(name string) bool { return !numbered.MatchString(name) || sharded.MatchString(name) })
	if len(sets) > 0 {
		return "", nil, fmt.Errorf("%w: %s holds %s but no index: the save did not finish, or the index was lost", storage.ErrIncomplete, f.where, strings.Join(sets, ", "))
	}
	return "", files, nil
}
