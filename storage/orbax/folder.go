package orbax

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/orbax/ocdbt"
	"github.com/cairn-ckpt/cairn/storage/orbax/zarr"
)

// kind is the kind of a folder, by the names of its files.
type kind int

const (
	other kind = iota
	treeItem
	jsonItem
	arrayItem // an array by itself, in the folder checkpoint
	partial   // Orbax has not finished it
)

// processManifest matches the manifest of the database of a process.
var processManifest = regexp.MustCompile(`^ocdbt\.process_[0-9]+/manifest\.ocdbt$`)

// isMetadata reports whether a file is the metadata of an array.
func isMetadata(name string) bool {
	base := path.Base(name)
	return base == zarr.Metadata2 || base == zarr.Metadata3
}

// marks reports whether a file of that name makes the folder around it an item with a tree.
func marks(name string) bool {
	return name == treeFile || name == ocdbt.Manifest || processManifest.MatchString(name)
}

// kindOf returns the kind of an item by the names of its files, relative to its folder.
func kindOf(folder string, names []string) kind {
	has := func(name string) bool { return slices.Contains(names, name) }
	switch {
	case strings.Contains(folder, unfinished):
		return partial
	case slices.ContainsFunc(names, marks):
		return treeItem
	case has(msgpackFile + "/" + zarr.Metadata2), has(msgpackFile + "/" + zarr.Metadata3):
		return arrayItem
	case slices.ContainsFunc(names, isMetadata):
		return treeItem
	case jsonFile(names) != "":
		return jsonItem
	}
	return other
}

// jsonFile returns the file of an item of JSON, or "".
func jsonFile(names []string) string {
	for _, name := range []string{"metadata", "metrics"} {
		if slices.Contains(names, name) {
			return name
		}
	}
	return ""
}

// below divides names by the folder that they begin with. Files that are in no folder are in "".
func below(names []string) map[string][]string {
	out := map[string][]string{}
	for _, name := range names {
		dir, rest, ok := strings.Cut(name, "/")
		if !ok {
			dir, rest = "", name
		}
		out[dir] = append(out[dir], rest)
	}
	return out
}

// onlyDigits matches the names of steps that are no names of items.
var onlyDigits = regexp.MustCompile(`^[0-9]+$`)

// items returns the items of a step by the names of its files, with the kind of each. If the folder
// is an item itself, the only item is "". It returns nil if the names are no step, such as a folder of steps.
func items(names []string) map[string]kind {
	if slices.ContainsFunc(names, marks) {
		return map[string]kind{"": treeItem}
	}

	out := map[string]kind{}
	dirs := below(names)
	found := slices.Contains(names, stepFile)
	arrays := false // a folder is an array, not an item
	for dir, files := range dirs {
		if dir == "" {
			continue
		}
		if onlyDigits.MatchString(dir) && slices.ContainsFunc(files, marks) || slices.Contains(files, stepFile) {
			return nil
		}
		out[dir] = kindOf(dir, files)
		found = found || slices.ContainsFunc(files, marks)
		arrays = arrays || slices.Contains(files, zarr.Metadata2) || slices.Contains(files, zarr.Metadata3)
	}

	// Folders of arrays without _METADATA, which may have been lost.
	if arrays && !slices.ContainsFunc(names, func(name string) bool { dir, file, ok := strings.Cut(name, "/"); return ok && dir != "" && marks(file) }) {
		return map[string]kind{"": treeItem}
	}
	if slices.Contains(names, zarr.Metadata2) || slices.Contains(names, zarr.Metadata3) {
		return map[string]kind{"": treeItem} // an array without a name
	}
	for _, k := range out {
		found = found || k == arrayItem
	}
	if !found {
		return nil
	}
	return out
}

// Recognize reports whether the files of a folder, by their names relative to it, are a step or an item. The
// folder above several steps is neither.
func Recognize(names []string) bool {
	for _, k := range items(names) {
		if k != other && k != jsonItem {
			return true
		}
	}
	return slices.Contains(names, stepFile)
}

// RecognizeFile reports whether a file of that name at the root of a store describes a checkpoint of this
// format, or holds data of one. Most names are known only together: see Recognize.
func RecognizeFile(name string) (describes, holds bool) {
	return name == stepFile || name == treeFile || name == ocdbt.Manifest, processManifest.MatchString(name)
}

// stepName matches the name of a step: a number, perhaps behind a prefix such as "checkpoint_".
var stepName = regexp.MustCompile(`^(?:.*[_-])?([0-9]+)$`)

// stepNumber returns the number of a step by the name of its folder.
func stepNumber(name string) (int64, bool) {
	m := stepName.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	return n, err == nil
}

const (
	// maxSought bounds the number of steps that Newest looks at, and maxSeen the number of
	// files of each. After maxStrangers folders of other programs the run is not one of Orbax: to look at
	// all checkpoints of a long run would take long.
	maxSought    = 100
	maxSeen      = 20_000
	maxStrangers = 3
)

// Newest returns the name of the folder of the newest finished step in a run, the folder of a
// CheckpointManager: the one with the highest number. It returns "" if the folder is no such run. The error wraps
// storage.ErrIncomplete if no step is finished.
func Newest(ctx context.Context, store blob.Store) (string, error) {
	dirs, err := blob.Folders(ctx, store, "")
	if err != nil {
		return "", err
	}

	var steps, open []string
	for _, dir := range dirs {
		if !fs.ValidPath(dir) {
			continue // another program has made it
		}
		if before, _, ok := strings.Cut(dir, unfinished); ok {
			if _, ok := stepNumber(before); ok {
				open = append(open, dir)
			}
		} else if _, ok := stepNumber(dir); ok {
			steps = append(steps, dir)
		}
	}
	slices.SortStableFunc(steps, func(a, b string) int {
		x, _ := stepNumber(a)
		y, _ := stepNumber(b)
		switch {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})

	strangers := 0
	for i, dir := range steps {
		if i == maxSought || strangers == maxStrangers {
			break
		}
		step, finished, err := lookAt(ctx, store, dir)
		if err != nil || finished {
			return dir, err
		}
		if step {
			open = append(open, dir)
		} else {
			strangers++
		}
	}
	if len(open) > 0 {
		return "", fmt.Errorf("%w: Orbax has finished no step of %s, only begun %.200q", storage.ErrIncomplete, store, open)
	}
	return "", nil
}

// lookAt reports whether a folder is a step, and whether it is finished.
func lookAt(ctx context.Context, store blob.Store, dir string) (step, finished bool, err error) {
	sub, err := blob.NewSub(store, dir)
	if err != nil {
		return false, false, err
	}
	var names []string
	for info, err := range sub.List(ctx, "") {
		if err != nil {
			return false, false, err
		}
		if names = append(names, info.Name); len(names) == maxSeen {
			break
		}
	}

	if !Recognize(names) {
		return false, false, nil
	}
	s, err := readStep(ctx, sub)
	if errors.Is(err, storage.ErrCorrupt) {
		return true, true, nil // opening it says so
	}
	return true, err == nil && s.finished(slices.Contains(names, commitFile)), err
}

// step is the content of _CHECKPOINT_METADATA.
type step struct {
	Init   *int64 `json:"init_timestamp_nsecs"`
	Commit *int64 `json:"commit_timestamp_nsecs"`
	there  bool
}

// readStep reads _CHECKPOINT_METADATA, which may be missing.
func readStep(ctx context.Context, store blob.Store) (*step, error) {
	s := &step{}
	b, err := blob.ReadAll(ctx, store, stepFile, maxJSON)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case errors.Is(err, blob.ErrTooLarge):
		return s, damagedJSON(stepFile, err)
	case err != nil:
		return nil, err
	}
	if err := json.Unmarshal(b, s); err != nil {
		return s, damagedJSON(stepFile, err)
	}
	s.there = true
	return s, nil
}

// finished reports whether Orbax has finished the step. In object storage, unfinished steps do not have other
// names. committed means that commit_success.txt is there.
func (s *step) finished(committed bool) bool {
	return committed || !s.there || s.Init == nil || s.Commit != nil
}

// time returns when the save began.
func (s *step) time() time.Time {
	if s.Init == nil || *s.Init <= 0 {
		return time.Time{}
	}
	return time.Unix(0, *s.Init).UTC()
}
