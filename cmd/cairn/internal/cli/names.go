package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
)

// selectNames returns the entries of the checkpoint at path that are at or below
// each of the names. Each must have at least one.
func selectNames(path string, md *meta.Metadata, names []string) ([]*meta.Entry, error) {
	for _, n := range names {
		if len(inspect.Select(md, n)) == 0 {
			return nil, missing(path, md, n)
		}
	}
	return inspect.Select(md, names...), nil
}

// missing is the error of a name that the checkpoint at path does not have.
func missing(path string, md *meta.Metadata, name string) error {
	if err := md.CheckWhole(func(fqn string) bool { return inspect.Below(fqn, name) }); err != nil {
		return err
	}
	err := fmt.Errorf("%q is %w", name, cairn.ErrMissing)
	var near []string
	for _, n := range md.Names() {
		if strings.Contains(strings.ToLower(n), strings.ToLower(strings.Trim(name, "."))) {
			near = append(near, clean(n))
		}
	}
	switch {
	case strings.ContainsAny(name, "*?["):
		return withHint(err, fmt.Sprintf("it is a pattern: 'cairn ls %s --select %s' lists the names that match", quoteArg(path), quoteArg(name)))
	case len(near) == 0:
		return withHint(err, listHint(path))
	}
	return withHint(err, "did you mean "+strings.Join(near[:min(len(near), 3)], " or ")+"?")
}

// listHint says where to see the names of a checkpoint.
func listHint(path string) string {
	return fmt.Sprintf("'cairn ls %s' lists all names", quoteArg(path))
}

// newFilter is inspect.NewFilter with a hint.
func newFilter(selected, excluded []string) (*inspect.Filter, error) {
	f, err := inspect.NewFilter(selected, excluded)
	return f, withHint(err, "'cairn help patterns' explains patterns")
}

// keepNames returns the entries of the checkpoint at path that the filter keeps.
// Each of its patterns must match, and something must be left of what there was.
func keepNames(path string, entries []*meta.Entry, f *inspect.Filter) ([]*meta.Entry, error) {
	had := len(entries)
	entries = slices.DeleteFunc(entries, func(e *meta.Entry) bool { return !f.Keep(e.FQN) })
	err := f.Check()
	if err == nil && had > 0 && len(entries) == 0 {
		err = convert.ErrEmpty
	}
	return entries, withHint(err, listHint(path))
}
