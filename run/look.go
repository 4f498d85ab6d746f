package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// found is the result of a look at a folder.
type found struct {
	folder *folder
	err    error // why it is not complete

	step     *int64
	time     time.Time // recorded
	written  time.Time // of the newest file
	bytes    int64
	whole    int64 // bytes if it stood alone; 0: bytes
	stale    bool  // the folder has files of the save that the checkpoint does not name
	saveID   string
	line     *meta.Line // nil: the save does not record its place in the history
	format   string
	notes    Notes
	notesErr error
	missing  []string
	mayLead  bool     // it may be the head: the notes that have its line cannot be read
	mayRefer bool     // it has a record that cannot be read, so its bases are not known
	bases    []string // names of folders beside it, to which it refers
	baseErr  error    // a file there is gone
}

// state returns the state of the copy.
func (f *found) state() State {
	switch {
	case f.err == nil:
		return Complete
	case errors.Is(f.err, storage.ErrUnderWay):
		return UnderWay
	}
	return Incomplete
}

// compare orders two saves: by commit, or else by step and by the time that is recorded.
func (f *found) compare(g *found) int {
	if f.line != nil && g.line != nil {
		return cmp.Compare(f.line.Commit, g.line.Commit)
	}
	return cmp.Or(cmp.Compare(stepOf(f.step), stepOf(g.step)), f.time.Compare(g.time))
}

// commit returns the save for the history of the run.
func (f *found) commit() savedStep {
	c := savedStep{name: f.folder.name, id: identity(f.saveID, f.folder.name), step: f.step, time: f.time, line: f.line}
	if c.time.IsZero() {
		c.time = f.written
	}
	return c
}

// describe looks at a folder of a run. It returns nil if the folder is not a checkpoint.
func describe(ctx context.Context, dir *folder) (*found, error) {
	f := look(ctx, dir, true)
	if f.err == nil {
		return f, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	switch {
	case isAny(f.err, storage.ErrIncomplete, storage.ErrCorrupt, storage.ErrVersion, storage.ErrUncertain):
		return f, nil
	case errors.Is(f.err, storage.ErrNotFound):
		return nil, nil
	case dir.place.local && errors.Is(f.err, fs.ErrPermission): // such as lost+found
		return f, nil
	}
	return nil, f.err
}

// isAny reports whether err wraps one of some errors.
func isAny(err error, kinds ...error) bool {
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}

// look describes the checkpoint in a folder. Files of a checkpoint may be missing because
// a save has replaced it since it was opened. So look looks again, until the same save has
// missing files twice. whole also finds out its bytes, its format and its notes.
func look(ctx context.Context, dir *folder, whole bool) *found {
	var last *found
	for {
		f := lookOnce(ctx, dir, whole)
		if f.err != nil || !f.damaged() {
			return f
		}
		if last != nil && last.saveID == f.saveID && last.time.Equal(f.time) {
			f.err = f.baseErr
			if len(f.missing) > 0 {
				f.err = fmt.Errorf("%s: %w: %s", dir.shown(), storage.ErrCorrupt, missingText(f.missing))
			}
			return f
		}
		last = f
	}
}

// look describes the checkpoint in a folder of the place: whether it is complete.
func (p *Place) look(ctx context.Context, name string) *found { return p.lookAt(ctx, name, false) }

// lookWhole is look that also compares the sizes of files.
func (p *Place) lookWhole(ctx context.Context, name string) *found { return p.lookAt(ctx, name, true) }

func (p *Place) lookAt(ctx context.Context, name string, whole bool) *found {
	store, err := p.StoreOf(name)
	if err != nil {
		return &found{err: err}
	}
	return look(ctx, &folder{place: p, name: name, address: p.AddressOf(name), store: store}, whole)
}

// missingText names a file that is missing, and says how many there are.
func missingText(names []string) string {
	if len(names) == 1 {
		return names[0] + " is missing"
	}
	return fmt.Sprintf("%d files are missing, such as %s", len(names), names[0])
}

// damaged reports whether the checkpoint can be opened, although files are missing.
func (f *found) damaged() bool { return len(f.missing) > 0 || f.baseErr != nil }

// nativeVersion begins meta.Storage.Version of the native format. It has the line of a save in
// the record; other formats have it in the notes.
const nativeVersion = "cairn "

// lostAndFound is a folder of file systems, which has no checkpoints.
const lostAndFound = "lost+found"

// lookOnce opens the checkpoint in a folder and finds out which of its files are missing.
func lookOnce(ctx context.Context, dir *folder, whole bool) *found {
	f := &found{folder: dir}
	if dir.name != "" { // the name of a run has no step
		f.step = numberOf(dir.name)
	}

	c, at, err := dir.open(ctx)
	if err != nil {
		f.err = fmt.Errorf("open %s: %w", dir.store, err)
		if whole && !errors.Is(err, storage.ErrNotFound) && ctx.Err() == nil {
			have, err := f.measure(ctx, dir.store)
			f.mayRefer = (err != nil || hasRecord(have)) && dir.name != lostAndFound
		}
		return f
	}
	defer c.Close()

	if whole && at.String() != dir.store.String() {
		f.err = fmt.Errorf("%w: %s is a run of its own", storage.ErrNotFound, dir.shown())
		return f
	}

	s := c.Storage()
	f.saveID, f.time, f.bases, f.line = s.SaveID, s.Time, s.Bases, s.Line
	if s.Step != nil {
		f.step = s.Step
	}

	if !whole {
		if f.missing, err = storage.MissingFiles(ctx, at, c.Files()); err != nil {
			f.err = fmt.Errorf("read %s: %w", at, err)
		}
		if f.time.IsZero() && f.err == nil { // the order of commits depends on the time of its files
			_, f.err = f.measure(ctx, at)
		}
		if f.line == nil && !strings.HasPrefix(s.Version, nativeVersion) {
			f.notes, f.notesErr = ReadNotes(ctx, at, f.saveID)
		}
	} else {
		f.err = f.examine(ctx, at, c)
		if s.StoredBytes > 0 {
			f.whole, f.bytes = bytesOf(c.Files()), s.StoredBytes
		}
	}

	if f.line == nil {
		f.line = f.notes.Line
	}
	if f.err == nil && !strings.HasPrefix(s.Version, nativeVersion) { // its record names all files
		if err := lostPart(ctx, c); err != nil {
			f.err = fmt.Errorf("open %s: %w", at, err)
		}
	}
	if f.err == nil && len(f.missing) == 0 && len(f.bases) > 0 {
		f.checkBases(ctx, c)
	}
	return f
}

// lostPart returns an error if a part of the checkpoint cannot be read, because a file is missing or damaged: such
// a checkpoint opens, and is not complete. Names that the format cannot know are no damage.
func lostPart(ctx context.Context, c storage.Checkpoint) error {
	md, err := c.Metadata(ctx)
	if errors.Is(err, storage.ErrOptions) { // only with an option could more be read, such as the base of a version
		return nil
	}
	if err != nil {
		return err
	}
	for i := range md.Missing {
		if m := &md.Missing[i]; m.File != "" || errors.Is(m.Err, storage.ErrCorrupt) {
			return fmt.Errorf("%w: %q cannot be read: %v", storage.ErrCorrupt, m, m.Err)
		}
	}
	return nil
}

// bytesOf returns the bytes of files.
func bytesOf(files []storage.File) (n int64) {
	for _, f := range files {
		n += f.Size
	}
	return n
}

// open opens the checkpoint in the folder, and returns the store that has it at its root.
func (f *folder) open(ctx context.Context) (storage.Checkpoint, blob.Store, error) {
	if f.format == nil {
		return formats.OpenLocated(ctx, f.store, f.options)
	}
	c, err := f.format.Open(ctx, f.store)
	return c, f.store, commit.Explain(ctx, f.store, err)
}

// checkBases finds out whether the files to which the checkpoint refers exist.
func (f *found) checkBases(ctx context.Context, c storage.Checkpoint) {
	err := c.CheckFiles(ctx)
	if errors.Is(err, fs.ErrNotExist) { // another process makes the checkpoint stand alone
		err = fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	if isAny(err, storage.ErrCorrupt, storage.ErrChanged) { // look looks again
		f.baseErr = err
	} else {
		f.err = err
	}
}

// examine finds out the bytes, the format and the notes of a checkpoint, and which of its
// files are missing.
func (f *found) examine(ctx context.Context, store blob.Store, c storage.Checkpoint) error {
	have, err := f.measure(ctx, store)
	if err != nil {
		return err
	}
	f.missing = lacking(have, c.Files())
	f.stale = f.hasStale(have, c)
	f.format = formats.Native
	if !hasRecord(have) {
		if f.format, err = formats.Detect(ctx, store); err != nil {
			return err
		}
	}
	if _, ok := have[NotesFile]; ok {
		f.notes, f.notesErr = ReadNotes(ctx, store, f.saveID)
	}
	return nil
}

// hasStale reports whether a folder has files of the save that the checkpoint does not name,
// such as the files of a checkpoint before it was made to stand alone.
func (f *found) hasStale(have map[string]blob.Info, c storage.Checkpoint) bool {
	if f.saveID == "" {
		return false
	}
	named := map[string]bool{}
	for _, name := range storage.StoredFiles(c) {
		named[name] = true
	}
	for _, file := range c.Files() {
		named[file.Name] = true
	}
	for name := range have {
		if strings.HasPrefix(name, f.saveID) && !named[name] {
			return true
		}
	}
	return false
}

// hasRecord reports whether the files of a folder have the record of cairn's own format.
func hasRecord(have map[string]blob.Info) bool {
	for name := range have {
		if formats.WriteOrder(formats.Native, name) > 1 {
			return true
		}
	}
	return false
}

// measure lists the files of a folder.
func (f *found) measure(ctx context.Context, store blob.Store) (map[string]blob.Info, error) {
	have := map[string]blob.Info{}
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		have[info.Name] = info
		f.bytes += info.Size
		if info.ModTime.After(f.written) && info.Name != NotesFile {
			f.written = info.ModTime
		}
	}
	return have, nil
}

// lacking returns the files of a checkpoint that do not exist, or have another size.
func lacking(have map[string]blob.Info, files []storage.File) []string {
	var out []string
	for _, f := range files {
		if info, ok := have[f.Name]; !ok || info.Size != f.Size {
			out = append(out, f.Name)
		}
	}
	return out
}

// numberOf returns the number at the end of a folder's name, or nil.
func numberOf(name string) *int64 {
	name = withoutAgain(name)
	n, err := strconv.ParseInt(name[len(strings.TrimRight(name, "0123456789")):], 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// partsAt returns the names of the folders that hold files of a checkpoint in the folder of the
// run itself, as the folders of ranks in torch_checkpointing do. They look like checkpoints
// and are not. If that checkpoint cannot be opened, its parts are unknown.
func (p *Place) partsAt(ctx context.Context) map[string]bool {
	c, at, err := formats.OpenLocated(ctx, p.Store, nil)
	if err != nil {
		return nil
	}
	defer c.Close()
	if at.String() != p.Store.String() { // a file names the newest checkpoint of the run
		return nil
	}
	out := map[string]bool{}
	for _, f := range c.Files() {
		if dir, _, ok := strings.Cut(f.Name, "/"); ok {
			out[dir] = true
		}
	}
	return out
}

// dropParts forgets folders that are parts of another checkpoint, such as the rank folders
// of torch_checkpointing: it sets their results to nil. It looks only if a folder has a
// format in which a file alone can be a checkpoint.
func dropParts(ctx context.Context, places []*Place, dirs []folder, each []*found) {
	alone := func(f *found) bool { return f != nil && (f.format == formats.Torch || f.format == formats.HF) }
	for _, p := range places {
		if !slices.ContainsFunc(each, func(f *found) bool { return alone(f) && f.folder.place == p }) {
			continue
		}
		parts := p.partsAt(ctx)
		for i := range each {
			if dirs[i].place == p && parts[dirs[i].name] {
				each[i] = nil
			}
		}
	}
}
