package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/alike"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/slime"
)

// recordName is the native format's commit record.
const recordName = "cairn.json"

// piecesRecord is the record of a checkpoint in the distributed form of hf.
const piecesRecord = "cairn-save.json"

// openCheckpoint opens the checkpoint at an address for reading.
func openCheckpoint(ctx context.Context, address string) (*cairn.Checkpoint, error) {
	store, at, c, err := openLocated(ctx, address)
	if err != nil {
		return nil, err
	}
	return throughRecipe(ctx, store, at, c)
}

// openLocated opens the checkpoint at an address. It returns the store of the address, the
// store that has the checkpoint in its root, and the checkpoint as it is stored.
func openLocated(ctx context.Context, address string) (store, at blob.Store, c storage.Checkpoint, err error) {
	if store, err = openStore(ctx, checkpointAddress(ctx, address)); err != nil {
		return nil, nil, nil, err
	}
	if c, at, err = formats.OpenLocated(ctx, store, openOptions(ctx)); err != nil {
		return nil, nil, nil, openError(ctx, store, address, err)
	}
	return store, at, c, nil
}

// openError returns the error of opening the checkpoint at an address.
func openError(ctx context.Context, store blob.Store, address string, err error) error {
	return withHint(&cairn.Error{Op: "open", Where: store.String(), Err: err}, openHint(ctx, address, err))
}

// openStore opens the store at an address for reading. A path must exist.
func openStore(ctx context.Context, address string) (blob.Store, error) {
	if path, local, err := file.LocalPath(address); err == nil && local {
		if _, err := os.Stat(path); err != nil {
			if e, ok := errors.AsType[*fs.PathError](err); ok {
				err = e.Err
			}
			return nil, withHint(fmt.Errorf("%s: %w", address, err), missingHint(ctx, path, err))
		}
	}
	return blob.OpenAddress(ctx, address)
}

// missingHint returns advice on a path that cannot be found, such as a step of a run.
// hintOf has the advice about permissions.
func missingHint(ctx context.Context, path string, err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return ""
	}
	if dir := filepath.Dir(path); dir != "." && len(checkpointsBelow(ctx, dir)) > 0 {
		return fmt.Sprintf("'cairn log %s' lists the checkpoints of that folder", quoteArg(dir))
	}
	return "check the path"
}

// checkpointAddress returns the address of the checkpoint if address is the file
// that describes it, or a data file that is not a checkpoint by itself.
func checkpointAddress(ctx context.Context, address string) string {
	dir, name := blob.SplitAddress(filepath.ToSlash(address))
	dir = cmp.Or(dir, ".")
	if !describes(name) && !partOf.MatchString(name) {
		return address
	}
	s, err := blob.OpenAddress(ctx, dir)
	if err != nil {
		return address
	}
	if _, err := s.Stat(ctx, name); err != nil {
		return address
	}
	if strings.HasSuffix(name, hfSuffix) && formatOf(ctx, dir) != formats.Hyper {
		return address
	}
	return dir
}

// describes reports whether a file with that name makes the files beside it a
// checkpoint.
func describes(name string) bool {
	return name == recordName || name == piecesRecord || strings.HasSuffix(name, ".metadata") || strings.HasSuffix(name, "_metadata") || strings.HasSuffix(name, ".index.json")
}

// partOf matches the data files of torchdcp and hyper.
var partOf = regexp.MustCompile(`^(__[0-9]+_.*\.distcp|_rank[0-9]+_.*\.(safetensors|bytes))$`)

// withMetadata opens a checkpoint, reads its whole index and calls fn. It refuses
// a checkpoint with names that cannot be read.
func withMetadata(ctx context.Context, address string, fn func(c *cairn.Checkpoint, md *meta.Metadata) error) error {
	return withPart(ctx, address, func(c *cairn.Checkpoint, md *meta.Metadata) error {
		if err := md.CheckWhole(nil); err != nil {
			err = fmt.Errorf("%s: %w", address, err)
			return withHint(err, "'cairn verify' lists all that is missing or damaged, 'cairn ls' and 'cairn cat' show the rest")
		}
		return fn(c, md)
	})
}

// withPart is withMetadata for commands that show the readable part of a damaged checkpoint.
func withPart(ctx context.Context, address string, fn func(c *cairn.Checkpoint, md *meta.Metadata) error) error {
	c, err := openCheckpoint(ctx, address)
	if err != nil {
		return err
	}
	defer c.Close()
	md, err := c.Metadata(ctx)
	if err != nil {
		return withHint(err, openHint(ctx, address, err))
	}
	return fn(c, md)
}

func openHint(ctx context.Context, address string, err error) string {
	switch _, lacksRanks := errors.AsType[*storage.RanksError](err); {
	case errors.Is(err, cairn.ErrVersion):
		return "" // the general hint applies
	case errors.Is(err, slime.ErrBase):
		return "--base gives its path"
	case lacksRanks:
		return "the checkpoint is complete once every rank has saved; if a rank is lost, save again into another folder"
	case errors.Is(err, cairn.ErrUnderWay):
		return fmt.Sprintf("'cairn latest %s --wait' waits until the save is over", quoteArg(address))
	case errors.Is(err, cairn.ErrCorrupt), errors.Is(err, cairn.ErrIncomplete):
		lostIndex := errors.Is(err, hf.ErrIndex) || errors.Is(err, cairn.ErrIncomplete) && formatOf(ctx, address) == formats.HF
		if hint := baseHint(ctx, address); hint != "" {
			return hint
		}
		if !isNative(ctx, address) && !lostIndex {
			return "it has to come from another copy, or be saved again"
		}
		return fmt.Sprintf("'cairn repair --dry-run %s' says whether it can be rebuilt from the data files", quoteArg(address))
	case errors.Is(err, cairn.ErrNotFound):
		if e, ok := errors.AsType[*formats.UnsupportedError](err); ok {
			return e.Hint
		}
		if l := leftoversAt(ctx, address); l != nil && len(checkpointsBelow(ctx, address)) == 0 {
			return strings.Join(l.lines(address), "; ")
		}
		return placeHint(ctx, address)
	}
	return ""
}

// isNative reports whether the checkpoint at an address has cairn's own format.
func isNative(ctx context.Context, address string) bool {
	return formatOf(ctx, checkpointAddress(ctx, address)) == formats.Native
}

// formatOf returns the format of the checkpoint at an address, or "".
func formatOf(ctx context.Context, address string) string {
	store, err := blob.OpenAddress(ctx, address)
	if err != nil {
		return ""
	}
	name, err := formats.Detect(ctx, store)
	if err != nil {
		return ""
	}
	return name
}

// placeHint describes the content of a path that is not a checkpoint.
func placeHint(ctx context.Context, address string) string {
	store, err := blob.OpenAddress(ctx, address)
	if err != nil {
		return ""
	}
	if _, single := store.(*blob.Single); single {
		return "a file by itself can be one of torch.save or safetensors"
	}
	inside := checkpointsBelow(ctx, address)
	if len(inside) == 0 {
		return "see 'cairn help paths' for what a checkpoint can be"
	}
	return fmt.Sprintf("%s below it; the last is %s; 'cairn log %s' lists them",
		plural(len(inside), "checkpoint"), quoteArg(blob.Redact(inside[len(inside)-1])), quoteArg(blob.Redact(address)))
}

// maxBelow and maxBelowURL bound the number of folders that are searched for a hint.
const (
	maxBelow    = 1000
	maxBelowURL = 50
)

// checkpointsBelow returns the folders directly below an address that hold
// checkpoints, ordered by the number at the end of their names: step-2 before
// step-10.
func checkpointsBelow(ctx context.Context, address string) []string {
	dirs, err := foldersOf(ctx, address)
	if err != nil {
		return nil
	}
	most := maxBelow
	if !isLocal(address) {
		most = maxBelowURL
	}
	var out []string
	for _, dir := range dirs[1:min(len(dirs), most+1)] {
		if name, err := formats.Detect(ctx, dir.store); err == nil && name != "" {
			out = append(out, dir.address)
		}
	}
	slices.SortFunc(out, func(a, b string) int {
		x, y := strings.TrimRight(a, digits), strings.TrimRight(b, digits)
		m, n := strings.TrimLeft(a[len(x):], "0"), strings.TrimLeft(b[len(y):], "0")
		return cmp.Or(strings.Compare(x, y), cmp.Compare(len(m), len(n)), strings.Compare(m, n))
	})
	return out
}

const digits = "0123456789"

// quoteArg returns s as a word for a shell. It uses double quotes, because hints have
// command lines in single quotes.
func quoteArg(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-:@%+=,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return `"` + inDoubleQuotes.Replace(s) + `"`
}

// inDoubleQuotes escapes the characters that a shell treats specially inside of double quotes.
var inDoubleQuotes = strings.NewReplacer("`", "\\`", `"`, `\"`, "$", `\$`, `\`, `\\`, "!", `"\!"`)

// selectNames returns the entries of the checkpoint at path that are at or below
// each of the names. Each name must match an entry.
func selectNames(path string, md *meta.Metadata, names []string) ([]*meta.Entry, error) {
	for _, n := range names {
		if len(inspect.Select(md, n)) == 0 {
			return nil, missing(path, md, n)
		}
	}
	return inspect.Select(md, names...), nil
}

// missing returns the error for a name that the checkpoint at path does not have.
func missing(path string, md *meta.Metadata, name string) error {
	if err := md.CheckWhole(func(fqn string) bool { return inspect.Below(fqn, name) }); err != nil {
		return err
	}
	err := fmt.Errorf("%q is %w", name, cairn.ErrMissing)
	near := containing(md, name)
	if len(near) == 0 {
		for _, n := range alike.Nearest(name, parts(md, strings.Count(name, ".")+1)) {
			if len(inspect.Select(md, n)) > 0 {
				near = append(near, clean(n))
			} else {
				near = append(near, containing(md, n)...)
			}
		}
	}
	switch {
	case matchesAny(md, name):
		return withHint(err, fmt.Sprintf("it is a pattern: 'cairn ls %s --select %s' lists the names that match", quoteArg(path), quoteArg(name)))
	case len(near) == 0:
		return withHint(err, listHint(path))
	}
	return withHint(err, "did you mean "+strings.Join(near[:min(len(near), 3)], " or ")+"?")
}

// containing returns the names of a checkpoint that contain a text.
func containing(md *meta.Metadata, text string) []string {
	var out []string
	for _, n := range md.Names() {
		if strings.Contains(strings.ToLower(n), strings.ToLower(strings.Trim(text, "."))) {
			out = append(out, clean(n))
		}
	}
	return out
}

// parts returns the names of a checkpoint, and the beginnings and ends of names that have n parts.
func parts(md *meta.Metadata, n int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, name := range md.Names() {
			begin, end := 0, len(name)
			for range n {
				if at := strings.IndexByte(name[min(begin, len(name)):], '.'); at >= 0 {
					begin += at + 1
				} else {
					begin = len(name) + 1
				}
				end = strings.LastIndexByte(name[:max(end, 0)], '.')
			}
			if !yield(name[:begin-1]) || !yield(name[end+1:]) {
				return
			}
		}
	}
}

// matchesAny reports whether a name is a pattern that matches a name of the checkpoint.
func matchesAny(md *meta.Metadata, name string) bool {
	match, err := inspect.Glob(name)
	return err == nil && strings.ContainsAny(name, "*?[") && slices.ContainsFunc(md.Names(), match)
}

const patternHint = "'cairn help patterns' explains patterns"

func listHint(path string) string {
	return fmt.Sprintf("'cairn ls %s' lists all names", quoteArg(path))
}

// nameFlags are the flags that select names by patterns.
type nameFlags struct{ selected, excluded []string }

func (f *nameFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.selected, "select", nil, "take only names that match this `pattern`; may be repeated")
	cmd.Flags().StringArrayVar(&f.excluded, "exclude", nil, "leave out names that match this `pattern`; may be repeated")
	completeFlag(cmd, completeFlagNames, "select", "exclude")
}

func (f *nameFlags) filter() (*inspect.Filter, error) {
	filter, err := inspect.NewFilter(f.selected, f.excluded)
	return filter, withHint(err, patternHint)
}

// withEntries calls fn for the checkpoint args[0] as withMetadata does, with the
// entries that the names and patterns in the other arguments pick, and that the flags
// select.
func (f *nameFlags) withEntries(ctx context.Context, args []string, fn func(c *cairn.Checkpoint, md *meta.Metadata, entries []*meta.Entry) error) error {
	filter, err := f.filter()
	if err != nil {
		return err
	}
	return withMetadata(ctx, args[0], func(c *cairn.Checkpoint, md *meta.Metadata) error {
		entries, err := keepNames(args[0], md, args[1:], filter)
		if err != nil {
			return err
		}
		return fn(c, md, entries)
	})
}

// pickNames returns a function that reports whether a name is at or below one of names, or
// matches one of them that is a pattern. A name with the characters of a pattern that the
// checkpoint has is not a pattern. Each name must match an entry.
func pickNames(path string, md *meta.Metadata, names []string) (func(fqn string) bool, error) {
	if len(names) == 0 {
		return func(string) bool { return true }, nil
	}
	picks := make([]func(string) bool, len(names))
	for i, n := range names {
		picks[i] = func(fqn string) bool { return inspect.Below(fqn, n) }
		if strings.ContainsAny(n, "*?[") && len(inspect.Select(md, n)) == 0 {
			match, err := inspect.Glob(n)
			if err != nil {
				return nil, withHint(err, patternHint)
			}
			picks[i] = match
		}
		if !slices.ContainsFunc(md.Entries, func(e meta.Entry) bool { return picks[i](e.FQN) }) {
			return nil, missing(path, md, n)
		}
	}
	return func(fqn string) bool {
		return slices.ContainsFunc(picks, func(pick func(string) bool) bool { return pick(fqn) })
	}, nil
}

// keepNames returns the entries that pickNames picks and a filter keeps. Each pattern of
// the filter must match, and at least one entry must remain.
func keepNames(path string, md *meta.Metadata, names []string, f *inspect.Filter) ([]*meta.Entry, error) {
	pick, err := pickNames(path, md, names)
	if err != nil {
		return nil, err
	}
	entries := slices.DeleteFunc(inspect.Select(md), func(e *meta.Entry) bool { return !pick(e.FQN) })
	had := len(entries)
	entries = slices.DeleteFunc(entries, func(e *meta.Entry) bool { return !f.Keep(e.FQN) })
	if err = f.Check(); err == nil && had > 0 && len(entries) == 0 {
		err = convert.ErrEmpty
	}
	return entries, withHint(err, listHint(path))
}

// The bounds for reading objects that are not part of the index: for one object,
// and for all together.
const (
	maxShown    = 64 << 10
	maxShownAll = 16 << 20
)

// readObjects sets the types and values of the items within the bounds, or the
// reason why they cannot be read.
func readObjects(ctx context.Context, c *cairn.Checkpoint, md *meta.Metadata, items []*inspect.Item) error {
	left := int64(maxShownAll)
	for _, it := range items {
		e, ok := md.Find(it.FQN)
		if !ok || !it.Unread() || it.NumBytes > min(maxShown, left) {
			continue
		}
		left -= it.NumBytes
		codec, data, err := c.ReadBytes(ctx, e)
		switch {
		case err == nil:
			it.Decode(codec, data)
		case ctx.Err() != nil:
			return err
		default:
			it.Problem = oneLine(err.Error())
		}
	}
	return nil
}

// shownValue returns the beginning of an object's value.
func shownValue(it *inspect.Item) string {
	if it.Problem != "" {
		return "(unreadable)"
	}
	if it.Tied != "" {
		return "tied to " + clean(it.Tied)
	}
	return shorten(it.Repr, 40)
}
