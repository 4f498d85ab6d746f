// Package commit makes a new checkpoint visible in one atomic step. A Committer gives the
// files of a save names of their own, replaces the record of the old checkpoint with the
// record of the new one, and removes the files that no checkpoint needs any more. It does not
// depend on any format: a Format describes the names of the files and reads the existing
// checkpoint, and a DataFile describes the parts of a file. The contract is at Committer; its
// methods follow storage.Writer.
package commit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// Committer carries out the saves of one rank at the root of a store, one after the
// other. The storage.Writer of a format calls SetUp, Prepare, NamePart, Write, and
// Commit or Abort. If the checkpoint is a single file, it calls WriteHeld and CommitHeld
// instead of NamePart, Write and Commit.
//
// The names of data files contain the id of their save, so a save does not touch
// the files of another save or program. The old checkpoint stays complete until the
// new record replaces the old one. If a save fails, it removes its files. If its process
// dies, the file of its lock remains, and the next save finds it and removes the files.
type Committer struct {
	store blob.Store
	f     *Format
	opts  storage.WriteOptions
	sess  storage.Session
	// coordinates is set while this rank is the coordinator of a save with a group.
	coordinates bool
	service     bool      // requests to the store are expensive: it is a service
	noSweep     bool      // saves leave sweeps to the caller
	lock        *SaveLock // of the coordinator, while a save is under way
	held        *Held     // a file that is written but not committed
	// found are the versions of the records that existed when the coordinator began a
	// save, and "" for records that did not. Nil: the store has no versions.
	found map[string]string
	empty bool      // found says that there was no checkpoint at all
	again bool      // the checkpoint belongs to this save; only its commit is repeated
	old   *Existing // the checkpoint of the record with the version in found, or nil
	last  []string  // the files that the last commit has written, the record last
	began time.Time // when SetUp was called

	mu    sync.Mutex
	names []string // files of this save that may exist; guarded by mu
	kept  bool     // these files may be part of a checkpoint and must stay; guarded by mu
}

// New returns a committer at the root of store.
func New(store blob.Store, f *Format, o storage.WriteOptions) *Committer {
	o = o.WithDefaults()
	p := &Committer{store: store, f: f, opts: o}
	_, p.service = blob.As[blob.GapReader](store)
	p.noSweep = p.service && o.SweepAfter <= 0
	if o.SweepAfter == 0 {
		p.opts.SweepAfter = sweepAfter
	}
	return p
}

// sweepAfter is the default of WriteOptions.SweepAfter.
const sweepAfter = 24 * time.Hour

// maxSaveID bounds the length of a save's id, so that file names do not exceed the
// limits of file systems.
const maxSaveID = 64

var saveIDs = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]*$`)

// SetUp begins a save. It returns an error if the id of the save cannot be part of file
// names.
func (p *Committer) SetUp(_ context.Context, s storage.Session) error {
	p.release()
	p.drop()
	p.sess, p.coordinates, p.last, p.began = s, false, nil, time.Now()
	p.found, p.empty, p.old, p.again = nil, false, nil, false
	p.mu.Lock()
	p.names, p.kept = nil, false
	p.mu.Unlock()

	if p.f.OneFile {
		return nil
	}
	return checkSaveID(s.Storage.SaveID)
}

// checkSaveID returns an error if the id of a save cannot be part of file names.
func checkSaveID(id string) error {
	if len(id) > maxSaveID || !saveIDs.MatchString(id) {
		return fmt.Errorf("%w: save id %q: want 1 to %d letters, digits and dashes", blob.ErrName, id, maxSaveID)
	}
	return nil
}

// Published implements storage.Publisher.
func (p *Committer) Published() []string { return p.last }

// Session returns the session that was passed to SetUp.
func (p *Committer) Session() storage.Session { return p.sess }

// Prepare implements PrepareLocalPlan of storage.Writer. It calls check, if not nil, for
// each item of l, and returns l, or the errors of check. On the coordinator, it also
// returns an error if the existing checkpoint must not be replaced, or cannot be read.
// Otherwise it removes the files of dead saves and takes the lock of this save.
func (p *Committer) Prepare(ctx context.Context, l *plan.SavePlan, check func(it *plan.WriteItem) error) (*plan.SavePlan, error) {
	var refused []error
	for i := range l.Items {
		if check != nil {
			refused = append(refused, check(&l.Items[i]))
		}
	}

	if err := errors.Join(refused...); err != nil {
		return nil, err
	}
	return l, p.begin(ctx)
}

// begin is Prepare without the plan.
func (p *Committer) begin(ctx context.Context) error {
	if p.opts.RankLocal {
		return p.checkFree(ctx)
	}
	if !p.sess.Coordinator {
		return nil
	}

	err := p.checkReplaceable(ctx)
	if err != nil && !p.sess.Private {
		// The files that are in the way may be leftovers of a removal.
		if finished, finishErr := FinishRemovals(ctx, p.store, p.recorded); finishErr == nil && len(finished) > 0 {
			err = p.checkReplaceable(ctx)
		}
	}
	if err != nil {
		return err
	}

	p.coordinates = true
	if p.sweep(ctx, -1) > 0 { // it may have removed a record that a dead save has left
		if err := p.checkReplaceable(ctx); err != nil {
			return err
		}
	}

	if p.sess.Private || p.lock != nil || p.f.OneFile {
		return nil
	}

	p.lock, err = LockSave(ctx, p.store, p.f.Name, p.sess.Storage.SaveID)
	return err
}

// checkFree returns an error if the store holds a checkpoint, a record of this rank, or
// a record of another save. It reads the records of rank 0 and of the two neighbours of
// this rank only. Readers compare the records of all ranks.
func (p *Committer) checkFree(ctx context.Context) error {
	if _, err := p.checkOthers(ctx, nil); err != nil {
		return err
	}

	for _, name := range []string{p.f.Records[0], p.f.RankRecord(p.sess.Rank)} {
		if ok, err := p.exists(ctx, name); err != nil {
			return err
		} else if ok {
			return fmt.Errorf("%w: %s holds %s, and a rank that saves without a group cannot replace a checkpoint", storage.ErrExists, p.store, name)
		}
	}

	for _, rank := range []int{0, p.sess.Rank - 1, p.sess.Rank + 1} {
		if rank < 0 {
			continue
		}

		name := p.f.RankRecord(rank)
		id, err := p.f.ReadRank(ctx, p.store, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case id != p.sess.Storage.SaveID:
			return fmt.Errorf("%w: %s of %s belongs to save %q", storage.ErrExists, name, p.store, id)
		}
	}

	return nil
}

// checkOthers returns an error if the store holds files of a checkpoint in another format,
// apart from own files, see storage.WriteOptions.Others. empty means that it holds no files
// of any format.
func (p *Committer) checkOthers(ctx context.Context, own func(name string) bool) (empty bool, err error) {
	if p.opts.Others == nil || p.sess.Private {
		return false, nil
	}
	return p.opts.Others(ctx, p.store, p.f.Name, own)
}

// checkReplaceable returns an error if the existing checkpoint must not be replaced.
func (p *Committer) checkReplaceable(ctx context.Context) error {
	// If the format is First, Read shows whether there is a checkpoint that readers open. In
	// a service, most saves go to an empty place, and the list makes Read unnecessary there.
	if !p.f.First || p.service {
		empty, err := p.checkOthers(ctx, nil)
		if err != nil {
			return err
		}
		if empty && p.f.First {
			return p.find(ctx, nil, storage.ErrNotFound)
		}
	}

	if p.f.Check != nil {
		if err := p.f.Check(ctx, p.store); err != nil {
			return err
		}
	}

	old, err := p.f.Read(ctx, p.store)
	own := false
	if err == nil {
		own, err = p.owns(ctx, old)
	}
	p.again = own && p.sess.Journal != nil

	switch {
	case isAbsent(err):
		if p.f.First && !p.service {
			if _, err := p.checkOthers(ctx, nil); err != nil {
				return err
			}
		}
		return p.find(ctx, nil, err)
	case errors.Is(err, storage.ErrVersion):
		return fmt.Errorf("the existing checkpoint cannot be replaced: %w", err)
	case err != nil && !errors.Is(err, storage.ErrCorrupt):
		return err
	case p.again: // it was interrupted after its commit
	case p.opts.FailIfExists && len(p.f.Records) > 1 && len(old.Replaced) > 0:
		return p.existsError(old.Replaced[0])
	case p.opts.FailIfExists:
		return p.existsError(p.f.Records[0])
	case own:
		return fmt.Errorf("%w: %s already holds save %s", storage.ErrExists, p.store, p.sess.Storage.SaveID)
	default:
		if err == nil && !p.sess.Private && old.newer(&p.sess.Storage) {
			if err := p.checkOvertaken(ctx, old); err != nil {
				return err
			}
		}
		if err := p.checkOurs(ctx, old, err); err != nil {
			return err
		}
	}

	return p.find(ctx, old, err)
}

// checkOurs returns an error if the options do not allow the save to replace a checkpoint. old and
// err are the result of Format.Read. The save of a damaged record is unknown, so it stays.
func (p *Committer) checkOurs(ctx context.Context, old *Existing, err error) error {
	if p.opts.Replaces == nil || p.sess.Private || isAbsent(err) {
		return nil
	}
	if err != nil {
		return storage.NotOurs(p.store.String(), err)
	}

	ids, err := p.f.savesOf(ctx, p.store, old)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(ids, func(id string) bool { return storage.MayReplace(p.opts.Replaces, id) }) {
		return nil
	}
	return storage.NotOurs(p.store.String(), nil)
}

// checkOvertaken returns an error if old, which seems to be of a later save than this one, was
// saved while this save waited for its turn. A clock that was set back, or is behind the clock of
// another host, is no reason to refuse the save: then old seems to come from the future, and the
// record must have been written since the save was asked for.
func (p *Committer) checkOvertaken(ctx context.Context, old *Existing) error {
	asked, now := p.sess.Storage.Time, time.Now()
	if recorded := old.Line != nil && p.sess.Storage.Line != nil; old.Time.After(now) && !recorded {
		info, err := p.store.Stat(ctx, p.f.Records[0])
		if age := blob.Age(p.store, info.ModTime); err != nil || age < 0 || age >= now.Sub(asked) {
			return nil
		}
	}

	return fmt.Errorf("%w: %s holds a save of %s, and this one was asked for before, at %s: another process has saved there meanwhile; "+
		"if that is not so, a clock was changed while this save waited: save again", storage.ErrChanged, p.store,
		old.Time.UTC().Format(time.RFC3339), asked.UTC().Format(time.RFC3339))
}

// find sets p.found if the store has versions. old and err are the result of Format.Read.
func (p *Committer) find(ctx context.Context, old *Existing, err error) error {
	p.found, p.empty, p.old = nil, false, nil
	if p.sess.Private || !blob.HasVersions(p.store) {
		return nil
	}

	p.found = map[string]string{}
	if errors.Is(err, storage.ErrNotFound) && len(p.f.Records) == 1 {
		p.found[p.f.Records[0]], p.empty = "", true
		return nil
	}
	if err == nil && old.Version != "" {
		p.found[p.f.Records[0]], p.old = old.Version, old
		return nil
	}

	for _, name := range p.f.Records {
		info, err := p.store.Stat(ctx, name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		p.found[name] = info.Version
	}

	return nil
}

// condition returns the condition of a record: it must not replace a file if the options
// say so. If the store has versions, the record that it replaces must be the one that the
// save found at its beginning. So one of several saves at the same time succeeds.
func (p *Committer) condition(name string) blob.CreateOptions {
	version, known := p.found[name]
	return blob.CreateOptions{IfAbsent: p.opts.FailIfExists && !p.again || known && version == "", IfVersion: version}
}

func (p *Committer) existsError(record string) error {
	return fmt.Errorf("%w: %s holds %s: save to another folder, or allow the save to replace it", storage.ErrExists, p.store, record)
}

// isOwn reports whether the name of a data file contains the id of this save.
func (p *Committer) isOwn(name string) bool {
	if p.f.OneFile {
		return false
	}
	id, ok := p.f.Parse(name)
	return ok && id == p.sess.Storage.SaveID
}

// owns reports whether a checkpoint is the result of this save.
func (p *Committer) owns(ctx context.Context, e *Existing) (bool, error) {
	if slices.ContainsFunc(e.Files, p.isOwn) {
		return true, nil
	}
	if p.sess.Journal == nil || p.sess.Private || p.f.Identify == nil {
		return false, nil
	}

	found, err := p.f.identified(ctx, p.store, p.ownPrefix())
	return slices.ContainsFunc(found, func(l Leftover) bool {
		return l.SaveID == p.sess.Storage.SaveID && slices.Contains(e.Files, l.Name)
	}), err
}

func (p *Committer) exists(ctx context.Context, name string) (bool, error) {
	_, err := p.store.Stat(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// MakeRoom implements storage.RoomMaker.
func (p *Committer) MakeRoom(ctx context.Context, bytes int64) (done func()) {
	if r, ok := blob.As[blob.Reclaimer](p.store); ok {
		return r.DeferReclaim(ctx, bytes)
	}
	return func() {}
}

// NamePart returns the part of file names that distinguishes this save from other saves:
// its id. If the store is private, NamePart returns "" unless there is a checkpoint: the files
// then have the plain names of the format. Without a journal, NamePart also removes the files
// of an earlier attempt in this save.
func (p *Committer) NamePart(ctx context.Context) (string, error) {
	id := p.sess.Storage.SaveID
	if p.sess.Journal == nil {
		if err := p.removeAttempt(ctx); err != nil {
			return id, err
		}
	}
	if !p.sess.Private {
		return id, nil
	}

	for _, name := range slices.Concat(p.f.Records, p.f.Also) {
		if ok, err := p.exists(ctx, name); ok || err != nil {
			return id, err
		}
	}

	return "", nil
}

// removeAttempt removes the files in p.names from the store and from p.names, unless
// keep was called.
func (p *Committer) removeAttempt(ctx context.Context) error {
	names, kept := p.take()
	if kept {
		return nil
	}
	err := p.removeAll(ctx, names)
	if err != nil {
		p.mayExist(names...)
	}
	return err
}

// mayExist adds files that may exist from now on to p.names, so that Abort removes them.
func (p *Committer) mayExist(names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names = append(p.names, names...)
}

// keep makes Abort keep the files of this save, because they may be part of a
// checkpoint.
func (p *Committer) keep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = true
}

// take returns p.names and clears it. kept reports whether keep was called.
func (p *Committer) take() (names []string, kept bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	names, p.names = p.names, nil
	return names, p.kept
}

// Write writes the data files of this rank. planned is the number of bytes of the
// plan's items, for the session's Progress.
func (p *Committer) Write(ctx context.Context, files []*DataFile, data storage.Resolver, planned int64) (*storage.WriteResults, error) {
	defer p.MakeRoom(ctx, planned)()
	w := &fileWriter{store: p.store, data: data, sess: p.sess, created: func(name string) { p.mayExist(name) }}
	if p.f.FixedNames {
		w.condition = func(string) blob.CreateOptions { return blob.CreateOptions{} }
	}
	return w.write(ctx, files, p.opts.FilesPerRank, p.opts.BufferBytes, planned)
}

// Held describes a file that is a whole checkpoint. By its description, a committer can
// distinguish it from other files of the same name.
type Held struct {
	Name string
	Size int64
	// Sample are bytes of the file, from Offset on, that differ in every other file.
	// They may be filled in until the file is written.
	Offset int64
	Sample []byte

	w blob.Writer
}

// WriteHeld writes the file that is the whole checkpoint. h describes it. The file
// becomes visible in CommitHeld.
func (p *Committer) WriteHeld(ctx context.Context, file *DataFile, h *Held, data storage.Resolver, planned int64) (*storage.WriteResults, error) {
	defer p.MakeRoom(ctx, planned)()
	p.drop()
	w := &fileWriter{store: p.store, data: data, sess: p.sess, condition: p.condition}
	w.hold = func(bw blob.Writer) { h.w = bw }
	r, err := w.write(ctx, []*DataFile{file}, 1, p.opts.BufferBytes, planned)
	if h.w != nil {
		p.held = h
	}
	return r, err
}

// drop aborts the file that is written but not committed, if there is one.
func (p *Committer) drop() {
	if p.held != nil {
		p.held.w.Abort() // does nothing once committed
	}
	p.held = nil
}

// Locate calls storage.Locate. It also returns an error if the chunks of a tensor do not
// cover it exactly: a checkpoint that cannot be read must not replace one that can. If the rank
// saves without a group, its chunks need not cover whole tensors.
func (p *Committer) Locate(md *meta.Metadata, results []*storage.WriteResults) ([]meta.Entry, error) {
	entries, err := storage.Locate(md, results)
	if err != nil || p.opts.RankLocal {
		return entries, err
	}

	for i := range entries {
		e := &entries[i]
		if e.Tensor == nil {
			continue
		}
		if p := plan.CheckCoverage(e.Tensor.Shape, e.Tensor.Chunks); len(p) > 0 {
			return nil, fmt.Errorf("%w: %q: %s: %s", meta.ErrInvalid, e.FQN, p[0].Kind, p[0].Text)
		}
	}

	return entries, nil
}

// Ranks returns the number of ranks if they save without a group, and 0 otherwise.
func (p *Committer) Ranks() int {
	if !p.opts.RankLocal {
		return 0
	}
	return p.sess.Size
}

// Abort removes the data files of this save. Each rank removes its own files. The
// coordinator removes the files of all ranks, because the other ranks may have died. Abort
// keeps all files if a commit may have made them part of a checkpoint, or if the save may go
// on later, because the journal lists a file. It also keeps
// files that the current record names: a repair may have written that record.
func (p *Committer) Abort(ctx context.Context) error {
	defer p.release()

	p.drop()
	names, kept := p.take()
	if kept || p.sess.Journal != nil && p.sess.Journal.Begun(ctx) {
		return nil
	}

	var err error
	if p.coordinates && !p.f.OneFile {
		var found []Leftover
		found, err = p.f.identified(ctx, p.store, p.ownPrefix())
		for _, l := range found {
			if l.SaveID == p.sess.Storage.SaveID {
				names = append(names, l.Name)
			}
		}
	}

	slices.Sort(names)
	return errors.Join(err, p.removeUnnamed(ctx, slices.Compact(names)))
}

// removeUnnamed removes the files that the current checkpoint does not need. It removes no files if
// the store fails or the checkpoint has an unknown version. If the checkpoint is corrupt, it keeps
// only the files that Format.Read returned.
func (p *Committer) removeUnnamed(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	return Locked(ctx, p.store, func() error {
		current, err := p.f.current(ctx, p.store)
		if err != nil && !errors.Is(err, storage.ErrCorrupt) {
			return err
		}
		return p.removeAll(ctx, slices.DeleteFunc(names, func(n string) bool { return current[n] }))
	})
}

// removeAll removes files. If a file cannot be removed, it continues with the rest.
func (p *Committer) removeAll(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	return blob.RemoveAll(ctx, p.store, names)
}

// sweep removes leftovers, see Sweep, and returns their number. It reports errors as
// warnings.
func (p *Committer) sweep(ctx context.Context, olderThan time.Duration) (n int) {
	if p.noSweep || p.sess.Private || p.opts.SweepAfter < 0 || p.f.OneFile && olderThan < 0 {
		return 0
	}

	finished, err := FinishRemovals(ctx, p.store, p.recorded)
	p.warn(err)
	n = len(finished)
	if !p.f.OneFile {
		var removed []Leftover
		removed, err = Sweep(ctx, p.store, p.f, olderThan, nil)
		n += len(removed)
	} else if s, ok := blob.As[blob.Sweeper](p.store); ok {
		n, err = s.SweepTemp(ctx, "", olderThan)
	}

	p.warn(err)
	return n
}

// recorded returns the files of the checkpoint in the store, if it has a record. Files
// without a record may be leftovers of a removal.
func (p *Committer) recorded(ctx context.Context) (map[string]bool, error) {
	for _, name := range p.f.Records {
		if ok, err := p.exists(ctx, name); err != nil {
			return nil, err
		} else if ok && p.f.Read != nil {
			return p.f.current(ctx, p.store)
		}
	}
	return nil, nil
}

// release releases the lock of the save.
func (p *Committer) release() {
	p.warn(p.lock.Release())
	p.lock = nil
}

func (p *Committer) warn(err error) {
	if err != nil && p.sess.Warn != nil {
		p.sess.Warn(err)
	}
}

// WithStorageData returns copies of the plans with v, encoded as JSON, as their storage
// data. In this way the coordinator sends v to all ranks. ps is not changed.
func WithStorageData(ps []*plan.SavePlan, v any) ([]*plan.SavePlan, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}

	out := make([]*plan.SavePlan, len(ps))
	for r, p := range ps {
		q := *p
		q.StorageData = b
		out[r] = &q
	}

	return out, nil
}
