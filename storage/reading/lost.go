package reading

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// Lost are the files that are missing or damaged, with the reasons, which wrap
// storage.ErrCorrupt.
type Lost map[string]error

// Damaged is the error of a file that is missing or damaged.
func Damaged(name, format string, args ...any) error {
	return &storage.FileError{File: name, Err: fmt.Errorf("%w: %w", storage.ErrCorrupt, fmt.Errorf(format, args...))}
}

// Err returns all reasons as one error.
func (l Lost) Err() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(l)) {
		errs = append(errs, l[name])
	}
	return errors.Join(errs...)
}

// Note puts the names that cannot be read into md, and returns what is wrong with
// the files: one problem for each lost file, with its names. Names without a file
// become a problem of the file listing, which lists the files. The error is not nil
// if md has nothing that can be read.
func (l Lost) Note(md *meta.Metadata, missing []meta.Missing, listing string) (problems []storage.VerifyProblem, err error) {
	slices.SortFunc(missing, func(a, b meta.Missing) int { return strings.Compare(a.FQN, b.FQN) })
	md.Missing = missing
	names := map[string][]string{} // by file
	for _, m := range missing {
		if _, ok := l[m.File]; ok || m.File == "" {
			names[m.File] = append(names[m.File], m.FQN)
			continue
		}
		problems = append(problems, storage.VerifyProblem{File: m.File, FQN: m.FQN, Text: problemOf(m.Err)})
	}
	for file, err := range l {
		problems = append(problems, storage.VerifyProblem{File: file, FQNs: names[file], Text: problemOf(err)})
	}
	if n := names[""]; len(n) > 0 {
		problems = append(problems, storage.VerifyProblem{File: listing, FQNs: n, Text: "files that it lists are missing or damaged"})
	}
	if len(missing) == 0 || len(md.Entries) > 0 {
		return problems, nil
	}
	errs := []error{l.Err()}
	for _, m := range missing {
		if m.File != "" && l[m.File] == nil {
			errs = append(errs, m.Err)
		}
	}
	return problems, errors.Join(errs...)
}

// problemOf returns what is wrong with a file, without its name.
func problemOf(err error) string {
	if f, ok := errors.AsType[*storage.FileError](err); ok {
		return f.Problem().Text
	}
	return err.Error()
}
