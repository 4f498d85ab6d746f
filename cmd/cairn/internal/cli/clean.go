package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// cleanResult is the output of 'cairn clean --json'.
type cleanResult struct {
	Path    string     `json:"path"`
	DryRun  bool       `json:"dry_run"`
	Bytes   int64      `json:"bytes"`
	Removed []leftover `json:"removed"`
	Kept    []leftover `json:"kept"`
	// Folders are the folders that were removed because they became empty.
	Folders []string `json:"folders,omitempty"`
	// Uncertain are the folders with a save that got no answer to its commit.
	Uncertain []string `json:"uncertain,omitempty"`
}

// leftover is a file that no checkpoint needs, or an unfinished conversion.
type leftover struct {
	Folder string `json:"folder"`
	commit.Leftover
	Saver string `json:"saver"`
	// Conversion is the target of the conversion.
	Conversion string `json:"conversion,omitempty"`
}

type leftoverSummary struct {
	Files       int `json:"files"`
	dead        int // files that clean removes without --older-than
	removed     int // of Files: of checkpoints with an interrupted removal
	removedSize int64
	Bytes       int64            `json:"bytes"`
	Conversions []conversionLeft `json:"conversions,omitempty"`
	// Uncertain means that another save here got no answer to its commit.
	Uncertain bool `json:"uncertain,omitempty"`
}

type conversionLeft struct {
	Target  string `json:"target"`
	Staging string `json:"staging"`
	Bytes   int64  `json:"bytes"`
	byAge   bool   // clean removes it with --older-than only
}

type cleanFlags struct {
	dryRun    bool
	force     bool
	olderThan time.Duration
}

// safeAge is the least age of --older-than without --force. A suspended process, or one
// that cannot reach the store, does not show that it is alive; its save has this time to go on.
const safeAge = 10 * time.Minute

func newCleanCmd() *cobra.Command {
	var f cleanFlags
	cmd := newCommand("clean", wantArgs(1, 1), completePaths(1), func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("older-than") && f.olderThan < 0 {
			return usagef(cmd, "--older-than must not be negative")
		}
		if cmd.Flags().Changed("older-than") && f.olderThan < safeAge && !f.force && !f.dryRun {
			return usagef(cmd, "--older-than %v may remove files of a save that is suspended or cannot reach the store: give at least %v, or --force if no job writes there",
				f.olderThan, safeAge)
		}
		return runClean(cmd, args[0], f)
	})
	cmd.Flags().BoolVarP(&f.dryRun, "dry-run", "n", false, "only show the files that would be removed")
	cmd.Flags().DurationVar(&f.olderThan, "older-than", -1, "also remove leftovers of unknown saves of at least this `age`, such as 24h")
	cmd.Flags().BoolVar(&f.force, "force", false, "allow an age of less than 10m")
	hideDefault(cmd.Flags(), "older-than")
	return cmd
}

func runClean(cmd *cobra.Command, address string, f cleanFlags) error {
	ctx := cmd.Context()
	path, local, err := file.LocalPath(address)
	if err != nil {
		return err
	}

	store, err := openStore(ctx, address)
	if _, single := store.(*blob.Single); single {
		dir, _ := blob.SplitAddress(path)
		err = withHint(fmt.Errorf("%s: %w: it is a file", blob.Redact(path), cairn.ErrNotFound),
			fmt.Sprintf("clean takes the folder that it is in: 'cairn clean %s'", quoteArg(blob.Redact(cmp.Or(strings.TrimSuffix(dir, "/"), ".")))))
	}

	var conversions []convert.Unfinished
	var convErr error
	if local {
		conversions, convErr = unfinished(ctx, path)
	}
	if err != nil && len(conversions) == 0 {
		return err
	}

	var dirs []folder
	if err == nil {
		if dirs, err = sweptFolders(ctx, path); err != nil {
			return err
		}
	}

	r := cleanResult{Path: blob.Redact(path), DryRun: f.dryRun, Removed: []leftover{}, Kept: []leftover{}}
	errs := []error{convErr}
	for _, dir := range dirs {
		errs = append(errs, r.clean(ctx, dir, f))
	}
	for i := range conversions {
		errs = append(errs, r.drop(&conversions[i], f))
	}
	for _, dir := range slices.Backward(dirs) { // folders below path come before it
		r.removeEmpty(dir.address)
	}

	o := outputOf(cmd)
	return errors.Join(o.result(r, func() { printCleaned(o, &r) }), joinDenied(errs))
}

// joinDenied joins errors like errors.Join, but drops all but the first of the errors about
// missing permissions: one file or folder causes several, and the user does the same about
// all of them.
func joinDenied(errs []error) error {
	var out []error
	denied, first := 0, -1
	for _, err := range errs {
		if err == nil {
			continue
		}
		if errors.Is(err, fs.ErrPermission) {
			if denied++; denied > 1 {
				continue
			}
			first = len(out)
		}
		out = append(out, err)
	}
	if denied == 0 {
		return errors.Join(out...)
	}
	if denied > 1 {
		out[first] = fmt.Errorf("%w (and %d more for want of permission)", out[first], denied-1)
	}
	return withHint(errors.Join(out...), "run clean as the user who saved, or with credentials that may list and remove")
}

// removeEmpty removes a folder of this host if clean has removed all that was in it. A save
// that begins there meanwhile makes it again.
func (r *cleanResult) removeEmpty(dir string) {
	in := func(l leftover) bool { return filepath.Clean(l.Folder) == filepath.Clean(dir) }
	if r.DryRun || !isLocal(dir) || !slices.ContainsFunc(r.Removed, in) {
		return
	}
	if os.Remove(dir) == nil { // it fails if the folder is not empty
		r.Folders = append(r.Folders, dir)
	}
}

// sweptFolders returns the folders that clean looks at. They are the folders of foldersOf
// and, in object storage, the folders at any depth with unfinished uploads. Such a folder
// may have no objects.
func sweptFolders(ctx context.Context, address string) ([]folder, error) {
	dirs, err := foldersOf(ctx, address)
	if err != nil || isLocal(address) {
		return dirs, err
	}
	root := dirs[0].store
	finder, ok := blob.As[blob.TempFinder](root)
	if !ok {
		return dirs, nil
	}
	names, err := finder.TempFolders(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		dir := folder{address: blob.JoinAddress(address, name)}
		if slices.ContainsFunc(dirs, func(d folder) bool { return d.address == dir.address }) {
			continue
		}
		if dir.store, err = blob.NewSub(root, name); err != nil {
			return nil, err
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// unfinished returns the unfinished conversions to path, to paths in it, and to
// paths in the folders directly below it.
func unfinished(ctx context.Context, path string) ([]convert.Unfinished, error) {
	var out []convert.Unfinished
	u, err := convert.UnfinishedAt(path)
	if u != nil {
		out = append(out, *u)
	}
	errs := []error{err}
	if fi, err := os.Stat(path); err == nil && fi.IsDir() {
		dirs, err := foldersOf(ctx, path)
		errs = append(errs, err)
		for _, dir := range dirs {
			found, err := convert.FindUnfinished(dir.address)
			out, errs = append(out, found...), append(errs, err)
		}
	}
	errs = slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, fs.ErrNotExist) }) // removed meanwhile
	return out, errors.Join(errs...)
}

// add records a file or a conversion that was removed, or that stays.
func (r *cleanResult) add(l leftover, removed bool) {
	l.Saver = l.Owner.String()
	if l.Uncertain {
		l.Saver = "uncertain"
	}
	if !removed {
		r.Kept = append(r.Kept, l)
		return
	}
	r.Removed = append(r.Removed, l)
	r.Bytes += l.Size
}

// drop removes an unfinished conversion if its process has ended.
func (r *cleanResult) drop(u *convert.Unfinished, f cleanFlags) error {
	l := leftover{Folder: filepath.Dir(u.Staging), Conversion: u.Path}
	l.Leftover = commit.Leftover{Name: filepath.Base(u.Staging), Size: u.Bytes, ModTime: u.ModTime, Age: time.Since(u.ModTime), Owner: u.Owner}
	over, err := l.Removable(f.olderThan), error(nil)
	if over && !f.dryRun {
		err = (&convert.Place{Path: u.Path}).Drop()
	}
	r.add(l, over && err == nil)
	if errors.Is(err, convert.ErrBusy) { // it was started meanwhile
		return nil
	}
	return err
}

// storedConversion is a conversion that has not finished in object storage: its journal and
// the files of its save are in the folder of its target. It is removed as a whole. A nil
// storedConversion has no files.
type storedConversion struct {
	leftover
	files []string // of its save, without the journal
}

// conversionIn returns the unfinished conversion to a folder that is not in a file system, or
// nil. Its age is the age of the newest of its files.
func conversionIn(ctx context.Context, dir folder) (*storedConversion, error) {
	if isLocal(dir.address) {
		return nil, nil
	}
	u, err := convert.UnfinishedIn(ctx, dir.store)
	if u == nil || err != nil {
		return nil, err
	}

	shown := blob.Redact(dir.address)
	c := &storedConversion{leftover: leftover{Folder: shown, Conversion: shown}}
	c.Leftover = commit.Leftover{Name: convert.JournalFolder, Size: u.Bytes, ModTime: u.ModTime, SaveID: u.SaveID, Owner: u.Owner}

	// The lock is read last: whoever goes on with the conversion meanwhile is seen.
	left, err := leftoversOf(ctx, dir.store, u.SaveID)
	if err != nil {
		return nil, err
	}
	for _, l := range left {
		c.files = append(c.files, l.Name)
		c.Size += l.Size
		if l.ModTime.After(c.ModTime) {
			c.ModTime = l.ModTime
		}
	}

	if u.SaveID != "" {
		owner, uncertain, err := commit.OwnerOf(ctx, dir.store, u.SaveID)
		if err != nil {
			return nil, err
		}
		c.Uncertain = uncertain
		if owner == blob.OwnerAlive {
			c.Owner = owner
		}
	}

	c.Age = blob.Age(dir.store, c.ModTime)
	return c, nil
}

// saveID returns the id of the save of the conversion, or "".
func (c *storedConversion) saveID() string {
	if c == nil {
		return ""
	}
	return c.SaveID
}

// has reports whether a file belongs to the conversion.
func (c *storedConversion) has(l *commit.Leftover) bool {
	return c.saveID() != "" && l.SaveID == c.SaveID
}

// drop removes the conversion, the journal last, so that an interrupted drop is repeated. It
// removes nothing if a process has gone on with the conversion since conversionIn.
func (c *storedConversion) drop(ctx context.Context, dir folder) error {
	store := dir.store
	if now, err := conversionIn(ctx, dir); err != nil || now == nil || now.SaveID != c.SaveID || now.Owner != c.Owner || !now.ModTime.Equal(c.ModTime) {
		return cmp.Or(err, fmt.Errorf("%s: %w", c.Conversion, convert.ErrBusy))
	}
	if len(c.files) > 0 {
		if err := blob.RemoveAll(ctx, store, c.files); err != nil {
			return err
		}
	}
	return convert.DropIn(ctx, store)
}

// folder is a folder with its store.
type folder struct {
	address string // a path or a URL
	store   blob.Store
}

// foldersOf returns a folder and those directly below it, except for links and folders of
// conversions.
func foldersOf(ctx context.Context, address string) ([]folder, error) {
	path, local, err := file.LocalPath(address)
	if err != nil {
		return nil, err
	}
	if local {
		return localFolders(path)
	}
	store, err := blob.OpenAddress(ctx, address)
	if err != nil {
		return nil, err
	}
	names, err := blob.Folders(ctx, store, "")
	if err != nil {
		return nil, err
	}
	out := []folder{{address, store}}
	for _, name := range names {
		if name == convert.JournalFolder {
			continue
		}
		sub, err := blob.NewSub(store, name)
		if err != nil {
			return nil, err
		}
		out = append(out, folder{blob.JoinAddress(address, name), sub})
	}
	return out, nil
}

func localFolders(path string) ([]folder, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	paths := []string{path}
	for _, e := range entries {
		if e.IsDir() && !convert.IsStaging(e.Name()) {
			paths = append(paths, filepath.Join(path, e.Name()))
		}
	}
	out := make([]folder, len(paths))
	for i, p := range paths {
		s, err := file.Open(p, nil)
		if err != nil {
			return nil, err
		}
		out[i] = folder{p, s}
	}
	return out, nil
}

func (r *cleanResult) clean(ctx context.Context, dir folder, f cleanFlags) error {
	s, shown := dir.store, blob.Redact(dir.address)
	if f.olderThan >= 0 {
		f.olderThan = max(f.olderThan, commit.LeastAge(s))
	}

	conv, err := conversionIn(ctx, dir)
	if err != nil {
		return fmt.Errorf("%s: %w", shown, err)
	}
	var convErr error
	if conv != nil {
		over := conv.Removable(f.olderThan)
		if over && !f.dryRun {
			convErr = conv.drop(ctx, dir)
		}
		r.add(conv.leftover, over && convErr == nil)
		if errors.Is(convErr, convert.ErrBusy) { // it was started meanwhile
			convErr = nil
		}
	}

	var removed []commit.Leftover
	if !f.dryRun {
		removed, err = formats.CleanExcept(ctx, s, f.olderThan, conv.saveID())
	}
	for _, l := range removed {
		r.add(leftover{Folder: shown, Leftover: l}, true)
	}

	left, leftErr := formats.Leftovers(ctx, s)
	for _, l := range left {
		if !conv.has(&l) {
			r.add(leftover{Folder: shown, Leftover: l}, f.dryRun && formats.Removable(&l, f.olderThan))
		}
	}
	if slices.ContainsFunc(left, func(l commit.Leftover) bool { return l.Uncertain }) {
		r.Uncertain = append(r.Uncertain, shown)
	}

	if err = cmp.Or(err, leftErr, convErr); err != nil {
		return fmt.Errorf("%s: %w", shown, err)
	}
	return nil
}

// pathOf returns the path or the URL of a file in a folder.
func pathOf(dir, name string) string {
	if isLocal(dir) {
		return filepath.Join(dir, name)
	}
	return blob.JoinAddress(dir, name)
}

func printCleaned(o *output, r *cleanResult) {
	t := newRows("FILE", ">SIZE", "SAVER", "ACTION")
	word := "removed"
	if r.DryRun {
		word = "would be removed"
	}

	files := 0
	for i, l := range slices.Concat(r.Removed, r.Kept) {
		action := word
		if i >= len(r.Removed) {
			action = "kept"
		}
		if l.Conversion != "" {
			action += ", an unfinished conversion"
		} else if i < len(r.Removed) {
			files++
		}
		if l.Leftover.Removed {
			action += ", of a checkpoint whose removal was interrupted"
		}
		t.add(clean(pathOf(l.Folder, l.Name)), formatBytes(l.Size), l.Saver, action)
	}

	if len(r.Removed)+len(r.Kept) > 0 {
		o.table(t)
	}

	what := plural(files, "file")
	if n := len(r.Removed) - files; n > 0 {
		what += " and " + plural(n, "conversion")
	}
	o.remark("%s: %s %s, %s\n", clean(r.Path), what, word, formatBytes(r.Bytes))

	for _, dir := range r.Folders {
		o.remark("%s: the folder was empty, and is removed\n", clean(dir))
	}
	for _, dir := range r.Uncertain {
		o.remark("%s: %s\n", clean(dir), uncertainText)
	}
	if slices.ContainsFunc(r.Kept, func(l leftover) bool { return l.Owner == blob.OwnerUnknown && !l.Uncertain }) {
		o.remark("it is unknown whether the saves of kept files are over: --older-than removes them by age\n")
	}
}

// uncertainText explains an uncertain save, with advice.
const uncertainText = "another save here got no answer to its commit, and the service may still carry it out: save here again, which settles it, or wait a day and use 'cairn clean --older-than 24h'"

// leftoversAt counts the files that no checkpoint in a folder needs, and
// unfinished conversions, except for running conversions. It returns nil if there
// are none. It ignores errors, because only a remark depends on it.
func leftoversAt(ctx context.Context, address string) *leftoverSummary {
	path, local, err := file.LocalPath(address)
	if err != nil {
		return nil
	}
	var out leftoverSummary
	var conversions []convert.Unfinished
	if local {
		conversions, _ = unfinished(ctx, path)
	}
	for _, u := range conversions {
		if u.Owner != blob.OwnerAlive {
			out.Conversions = append(out.Conversions, conversionLeft{u.Path, u.Staging, u.Bytes, false})
		}
	}
	if s, err := blob.OpenAddress(ctx, address); err == nil {
		if _, single := s.(*blob.Single); !single {
			out.count(ctx, folder{address, s})
		}
	}
	if out.Files == 0 && !out.Uncertain && len(out.Conversions) == 0 {
		return nil
	}
	return &out
}

// count adds the files in a folder that no checkpoint needs, and the conversion that has not
// finished in it, unless the folder is in a file system.
func (l *leftoverSummary) count(ctx context.Context, dir folder) {
	conv, _ := conversionIn(ctx, dir)
	if conv != nil && conv.Owner != blob.OwnerAlive {
		l.Conversions = append(l.Conversions, conversionLeft{
			conv.Conversion, blob.JoinAddress(conv.Conversion, convert.JournalFolder), conv.Size, conv.Owner != blob.OwnerDead})
	}
	left, _ := formats.Leftovers(ctx, dir.store)
	for _, f := range left {
		switch {
		case conv.has(&f):
		case f.Uncertain:
			l.Uncertain = true
		case f.Owner != blob.OwnerAlive:
			l.Files++
			l.Bytes += f.Size
			if f.Removed {
				l.removed++
				l.removedSize += f.Size
			}
			if f.Owner == blob.OwnerDead {
				l.dead++
			}
		}
	}
}

// leftoversOfRun is leftoversAt for all folders that clean looks at.
func leftoversOfRun(ctx context.Context, address string) *leftoverSummary {
	var out leftoverSummary
	dirs, _ := sweptFolders(ctx, address)
	for _, dir := range dirs[:min(len(dirs), maxBelow)] {
		out.count(ctx, dir)
	}
	if out.Files == 0 && len(out.Conversions) == 0 {
		return nil
	}
	return &out
}

func printLeftovers(o *output, path string, l *leftoverSummary) {
	if l != nil {
		for _, line := range l.lines(path) {
			o.remark("%s\n", line)
		}
	}
}

func (l *leftoverSummary) lines(path string) []string {
	var out []string
	for _, c := range l.Conversions {
		remove := fmt.Sprintf("'cairn clean %s' removes it", quoteArg(c.Target))
		if c.byAge {
			remove = fmt.Sprintf("'cairn clean %s --older-than 24h' removes it if it is a day old", quoteArg(c.Target))
		}
		out = append(out, fmt.Sprintf("a conversion to %s did not finish, %s in %s: the same 'cairn convert' continues it, %s",
			clean(c.Target), formatBytes(c.Bytes), clean(c.Staging), remove))
	}
	if l.Uncertain {
		out = append(out, uncertainText)
	}
	if l.removed > 0 {
		out = append(out, fmt.Sprintf("%s, %s, of a checkpoint whose removal was interrupted; 'cairn clean %s' removes them",
			plural(l.removed, "file"), formatBytes(l.removedSize), quoteArg(path)))
	}
	if files := l.Files - l.removed; files > 0 {
		what := fmt.Sprintf("'cairn clean %s' removes files of saves that are certainly over", quoteArg(path))
		if l.dead == l.removed {
			what = fmt.Sprintf("'cairn clean %s --older-than 24h' removes them if they are a day old", quoteArg(path))
		}
		out = append(out, fmt.Sprintf("%s, %s, left by saves that did not finish; %s", plural(files, "file"), formatBytes(l.Bytes-l.removedSize), what))
	}
	return out
}
