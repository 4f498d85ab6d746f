// Package publish makes a new checkpoint visible in one atomic step. A Publisher gives
// the files of a save names of their own, replaces the record of the old checkpoint
// with that of the new one, and removes the files that no checkpoint needs any more. It
// does not depend on any format: a Format describes the names of the files and reads
// the existing checkpoint, and a DataFile describes the parts of a file. The contract is
// at Publisher, whose methods follow those of storage.Writer.
package publish

import (
	"bytes"
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

// Publisher carries out the saves of one rank at the root of a store, one after the
// other. The storage.Writer of a format calls SetUp, Prepare, NamePart, Write, and
// Commit or Abort. If the checkpoint is a single file, it calls WriteHeld and CommitHeld
// instead of NamePart, Write and Commit.
//
// The names of data files contain the id of their save, so a save does not touch
// the files of another save or program. The old checkpoint stays complete until the
// new record replaces the old one. If a save fails, it removes its files. If its process
// dies, the file of its lock remains, and the next save finds it and removes the files.
type Publisher struct {
	store blob.Store
	f     *Format
	opts  storage.WriteOptions
	sess  storage.Session
	// coordinates is set while this rank is the coordinator of a save with a group.
	coordinates bool
	noSweep     bool      // saves leave sweeps to the caller
	lock        *SaveLock // of the coordinator, while a save is under way
	held        *Held     // a file that is written but not committed
	// found are the versions of the records that existed when the coordinator began a
	// save, and "" for those that did not. Nil: the store has no versions.
	found map[string]string
	empty bool      // found says that there was no checkpoint at all
	old   *Existing // the checkpoint whose record has the version in found, or nil
	last  []string  // the files that the last commit has written, the record last

	mu    sync.Mutex
	names []string // files of this save that may exist; guarded by mu
	kept  bool     // these files may be part of a checkpoint and must stay; guarded by mu
}

// New returns a publisher at the root of store.
func New(store blob.Store, f *Format, o storage.WriteOptions) *Publisher {
	o = o.WithDefaults()
	p := &Publisher{store: store, f: f, opts: o}
	if _, expensive := blob.As[blob.GapReader](store); expensive {
		p.noSweep = o.SweepAfter <= 0
	}
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
func (p *Publisher) SetUp(_ context.Context, s storage.Session) error {
	p.release()
	p.drop()
	p.sess, p.coordinates, p.last = s, false, nil
	p.found, p.empty, p.old = nil, false, nil
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
func (p *Publisher) Published() []string { return p.last }

// Session returns the session that was passed to SetUp.
func (p *Publisher) Session() storage.Session { return p.sess }

// Prepare implements PrepareLocalPlan of storage.Writer. It calls check, if not nil, for
// each item of l, and returns l, or the errors of check. On the coordinator, it also
// returns an error if the existing checkpoint must not be replaced, or cannot be read.
// Otherwise it removes the files of dead saves and takes the lock of this save.
func (p *Publisher) Prepare(ctx context.Context, l *plan.SavePlan, check func(it *plan.WriteItem) error) (*plan.SavePlan, error) {
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
func (p *Publisher) begin(ctx context.Context) error {
	if p.opts.RankLocal {
		return p.checkFree(ctx)
	}
	if !p.sess.Coordinator {
		return nil
	}
	if err := p.checkReplaceable(ctx); err != nil {
		return err
	}
	p.coordinates = true
	p.sweep(ctx, -1)
	if p.sess.Journal != nil || p.lock != nil || p.f.OneFile { // with a journal, no other save uses the store
		return nil
	}
	var err error
	p.lock, err = LockSave(ctx, p.store, p.f.Name, p.sess.Storage.SaveID)
	return err
}

// checkFree returns an error if the store holds a checkpoint, a record of this rank, or
// a record of another save. It reads the records of rank 0 and of the two neighbours of
// this rank only. Readers compare the records of all ranks.
func (p *Publisher) checkFree(ctx context.Context) error {
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

// checkReplaceable returns an error if the existing checkpoint must not be replaced.
func (p *Publisher) checkReplaceable(ctx context.Context) error {
	if p.f.Check != nil {
		if err := p.f.Check(ctx, p.store); err != nil {
			return err
		}
	}
	old, err := p.f.Read(ctx, p.store)
	switch {
	case isAbsent(err):
		return p.find(ctx, nil, err)
	case errors.Is(err, storage.ErrVersion):
		return fmt.Errorf("the existing checkpoint cannot be replaced: %w", err)
	case err != nil && !errors.Is(err, storage.ErrCorrupt):
		return err
	case p.opts.FailIfExists && len(p.f.Records) > 1 && len(old.Replaced) > 0:
		return p.existsError(old.Replaced[0])
	case p.opts.FailIfExists:
		return p.existsError(p.f.Records[0])
	case err == nil && p.sess.Journal == nil && slices.ContainsFunc(old.Files, p.isOwn):
		return fmt.Errorf("%w: %s already holds save %s", storage.ErrExists, p.store, p.sess.Storage.SaveID)
	}
	return p.find(ctx, old, err)
}

// find sets p.found if the store has versions. old and err are the result of Format.Read.
// With a journal, no other save uses the store.
func (p *Publisher) find(ctx context.Context, old *Existing, err error) error {
	p.found, p.empty, p.old = nil, false, nil
	if p.sess.Journal != nil || !blob.HasVersions(p.store) {
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
func (p *Publisher) condition(name string) blob.CreateOptions {
	version, known := p.found[name]
	return blob.CreateOptions{IfAbsent: p.opts.FailIfExists || known && version == "", IfVersion: version}
}

func (p *Publisher) existsError(record string) error {
	return fmt.Errorf("%w: %s holds %s", storage.ErrExists, p.store, record)
}

// isOwn reports whether the name of a data file contains the id of this save.
func (p *Publisher) isOwn(name string) bool {
	if p.f.OneFile {
		return false
	}
	id, ok := p.f.Parse(name)
	return ok && id == p.sess.Storage.SaveID
}

func (p *Publisher) exists(ctx context.Context, name string) (bool, error) {
	_, err := p.store.Stat(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// NamePart returns the part of file names that distinguishes this save from other saves:
// its id. With a journal, no other save uses the store, so NamePart returns "" unless there
// is a checkpoint: the files then have the plain names of the format. Without a journal,
// NamePart also removes the files of an earlier attempt in this save.
func (p *Publisher) NamePart(ctx context.Context) (string, error) {
	id := p.sess.Storage.SaveID
	if p.sess.Journal == nil {
		return id, p.removeAttempt(ctx)
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
func (p *Publisher) removeAttempt(ctx context.Context) error {
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
func (p *Publisher) mayExist(names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names = append(p.names, names...)
}

// keep makes Abort keep the files of this save, because they may be part of a
// checkpoint.
func (p *Publisher) keep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = true
}

// take returns p.names and clears it. kept reports whether keep was called.
func (p *Publisher) take() (names []string, kept bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	names, p.names = p.names, nil
	return names, p.kept
}

// Write writes the data files of this rank. planned is the number of bytes of the
// plan's items, for the session's Progress.
func (p *Publisher) Write(ctx context.Context, files []*DataFile, data storage.Resolver, planned int64) (*storage.WriteResults, error) {
	w := &fileWriter{store: p.store, data: data, sess: p.sess, created: func(name string) { p.mayExist(name) }}
	return w.write(ctx, files, p.opts.FilesPerRank, p.opts.BufferBytes, planned)
}

// Held describes a file that is a whole checkpoint. By its description, a publisher can
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
func (p *Publisher) WriteHeld(ctx context.Context, file *DataFile, h *Held, data storage.Resolver, planned int64) (*storage.WriteResults, error) {
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
func (p *Publisher) drop() {
	if p.held != nil {
		p.held.w.Abort() // does nothing once committed
	}
	p.held = nil
}

// Locate calls storage.Locate. It also returns an error if the chunks of a tensor do not
// cover it exactly: a checkpoint that cannot be read must not replace one that can. If the rank
// saves without a group, its chunks need not cover whole tensors.
func (p *Publisher) Locate(md *meta.Metadata, results []*storage.WriteResults) ([]meta.Entry, error) {
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
func (p *Publisher) Ranks() int {
	if !p.opts.RankLocal {
		return 0
	}
	return p.sess.Size
}

// File is the name and content of a small file.
type File struct {
	Name string
	Data []byte
}

// Commit makes the checkpoint visible, which consists of rec, the files of before and
// the files of the results. It writes the files of before, and then the record rec, in
// one atomic step. After that it removes the files that no checkpoint needs. If Commit
// returns an error, the checkpoint is not visible, unless the error wraps
// storage.ErrUncertain. If the rank saves without a group, the name of the record is
// that of Format.RankRecord.
func (p *Publisher) Commit(ctx context.Context, rec File, results []*storage.WriteResults, before ...File) error {
	have, err := p.sizes(ctx)
	if err != nil {
		return err
	}
	seen := results
	if p.opts.Apart {
		seen = seenOf(have, results)
	}
	if err := CheckFiles(have, seen); err != nil {
		return err
	}
	for _, f := range before {
		p.mayExist(f.Name)
		if _, err := blob.WriteAll(ctx, p.store, f.Name, f.Data, &blob.CreateOptions{IfAbsent: true}); err != nil {
			return err
		}
	}
	cond := p.condition(rec.Name)
	if p.opts.RankLocal {
		rec.Name = p.f.RankRecord(p.sess.Rank)
		cond = blob.CreateOptions{IfAbsent: true}
	}
	c := &commit{Publisher: p, name: rec.Name, named: map[string]bool{rec.Name: true}}
	for _, f := range before {
		c.named[f.Name] = true
		c.order = append(c.order, f.Name)
	}
	c.order = append(c.order, rec.Name)
	for _, r := range results {
		for _, f := range r.Files {
			c.named[f.Name] = true
		}
	}
	c.write = func(ctx context.Context) error {
		_, err := blob.WriteAll(ctx, p.store, rec.Name, rec.Data, &cond)
		return err
	}
	c.isOurs = func(ctx context.Context) (bool, error) {
		now, err := blob.ReadAll(ctx, p.store, rec.Name, int64(len(rec.Data)))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, blob.ErrTooLarge) {
			return false, nil
		}
		return bytes.Equal(now, rec.Data), err
	}
	return c.run(ctx)
}

// CommitHeld makes the file of WriteHeld visible. Its errors are like those of Commit.
func (p *Publisher) CommitHeld(ctx context.Context) error {
	h := p.held
	if h == nil {
		return fmt.Errorf("%w: Finish before WriteData", plan.ErrProtocol)
	}
	defer p.drop()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	c := &commit{Publisher: p, name: h.Name, named: map[string]bool{h.Name: true}, order: []string{h.Name}}
	c.write = func(ctx context.Context) error {
		_, err := h.w.Commit(ctx)
		return err
	}
	c.isOurs = func(ctx context.Context) (bool, error) { return h.isAt(ctx, p.store) }
	return c.run(ctx)
}

// isAt reports whether the file in the store is the one that h describes.
func (h *Held) isAt(ctx context.Context, store blob.Store) (bool, error) {
	r, err := store.Open(ctx, h.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer r.Close()
	if r.Size() != h.Size {
		return false, nil
	}
	now := make([]byte, len(h.Sample))
	err = r.ReadAt(ctx, now, h.Offset)
	return bytes.Equal(now, h.Sample), err
}

// sizes returns the sizes of the data files in the store, by name. If the format has
// IDFirst, it returns only those whose names begin with the id of this save.
func (p *Publisher) sizes(ctx context.Context) (map[string]int64, error) {
	files, err := p.f.list(ctx, p.store, p.ownPrefix())
	out := make(map[string]int64, len(files))
	for _, f := range files {
		out[f.Name] = f.Size
	}
	return out, err
}

func (p *Publisher) ownPrefix() string {
	if p.f.IDFirst {
		return p.f.Prefix + p.sess.Storage.SaveID
	}
	return p.f.Prefix
}

// seenOf returns the results of the ranks that have written to the store of this rank: it
// has one of their files.
func seenOf(have map[string]int64, results []*storage.WriteResults) []*storage.WriteResults {
	return slices.DeleteFunc(slices.Clone(results), func(r *storage.WriteResults) bool {
		return !slices.ContainsFunc(r.Files, func(f storage.File) bool {
			_, ok := have[f.Name]
			return ok
		})
	})
}

// CheckFiles returns an error if a file that the ranks wrote is missing or has another
// size. So a record does not name a file that another program has removed. have maps
// the names of the existing files to their sizes.
func CheckFiles(have map[string]int64, results []*storage.WriteResults) error {
	for _, r := range results {
		for _, f := range r.Files {
			size, ok := have[f.Name]
			if !ok {
				return fmt.Errorf("%s, which a rank has just written, is not in the folder that rank 0 sees: %w", f.Name, fs.ErrNotExist)
			}
			if size != f.Size {
				return fmt.Errorf("%w: %s has %d bytes, its writer wrote %d", storage.ErrCorrupt, f.Name, size, f.Size)
			}
		}
	}
	return nil
}

// Abort removes the data files of this save. Each rank removes its own files. The
// coordinator removes those of all ranks, because the other ranks may have died. Abort
// keeps all files if a commit may have made them part of a checkpoint. It also keeps
// files that the current record names: a repair may have written that record.
func (p *Publisher) Abort(ctx context.Context) error {
	defer p.release()
	p.drop()
	names, kept := p.take()
	if kept {
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

// removeUnnamed removes those of the files that the current checkpoint does not need. It
// removes nothing if the store fails or the checkpoint has an unknown version. If the checkpoint is corrupt, it keeps only the files that
// Format.Read returned.
func (p *Publisher) removeUnnamed(ctx context.Context, names []string) error {
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
func (p *Publisher) removeAll(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	return blob.RemoveAll(ctx, p.store, names)
}

// sweep removes leftovers, see Sweep. It reports errors as warnings.
func (p *Publisher) sweep(ctx context.Context, olderThan time.Duration) {
	if p.noSweep || p.sess.Journal != nil || p.opts.SweepAfter < 0 || p.f.OneFile && olderThan < 0 {
		return
	}
	var err error
	if !p.f.OneFile {
		_, err = Sweep(ctx, p.store, p.f, olderThan, nil)
	} else if s, ok := blob.As[blob.Sweeper](p.store); ok {
		_, err = s.SweepTemp(ctx, "", olderThan)
	}
	p.warn(err)
}

// release releases the lock of the save.
func (p *Publisher) release() {
	p.warn(p.lock.Release())
	p.lock = nil
}

func (p *Publisher) warn(err error) {
	if err != nil && p.sess.Warn != nil {
		p.sess.Warn(err)
	}
}

// commit is the state of a call of Commit or CommitHeld.
type commit struct {
	*Publisher
	name   string                                  // of the new record
	named  map[string]bool                         // the files of the new checkpoint
	order  []string                                // the files of this commit, the record last
	write  func(ctx context.Context) error         // writes the record
	isOurs func(ctx context.Context) (bool, error) // reports whether the record is in the store
}

// run replaces the checkpoint and removes the files that no checkpoint needs any more.
func (c *commit) run(ctx context.Context) error {
	if c.opts.RankLocal {
		return c.writeRecord(ctx)
	}
	var err error
	if c.f.OneFile {
		err = c.writeRecord(ctx)
	} else {
		err = Locked(ctx, c.store, func() error { return c.replace(ctx) })
	}
	if err == nil {
		c.last = c.order
		c.sweep(ctx, c.opts.SweepAfter)
	}
	if err == nil || errors.Is(err, storage.ErrUncertain) {
		c.release()
	}
	return err
}

// replace replaces the existing checkpoint and removes its files.
func (c *commit) replace(ctx context.Context) error {
	hiding, err := c.hiding(ctx)
	if err != nil {
		return err
	}
	old := c.old
	var oldErr error
	if old == nil && !c.empty { // otherwise the condition of the record makes sure that it replaces old, or nothing
		old, oldErr = c.f.Read(ctx, c.store)
	}
	if old != nil {
		if err := c.lock.Replaces(old.Replaced); err != nil {
			return err
		}
	}
	if len(hiding) > 0 {
		err = c.commitByRemoval(ctx, hiding)
	} else {
		err = c.writeRecord(ctx)
	}
	if err != nil {
		return err
	}
	if old != nil {
		c.warn(c.removeAll(ctx, slices.DeleteFunc(slices.Clone(old.Replaced), func(n string) bool { return c.named[n] })))
	}
	if oldErr != nil && !isAbsent(oldErr) {
		c.warn(oldErr)
	}
	return nil
}

// hiding returns the records that exist and that readers prefer to the new one. If the
// store has versions and another record than the new one has changed since the save began,
// the error wraps storage.ErrChanged.
func (c *commit) hiding(ctx context.Context) ([]string, error) {
	if len(c.f.Records) == 1 {
		return nil, nil
	}
	var out []string
	before := true
	for _, name := range c.f.Records {
		before = before && name != c.name
		info, err := c.store.Stat(ctx, name)
		ok := err == nil
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil, err
		case c.found != nil && name != c.name && info.Version != c.found[name]:
			return nil, fmt.Errorf("%w: another save has committed since this one began: %s", storage.ErrChanged, name)
		case ok && c.opts.FailIfExists:
			return nil, c.existsError(name)
		case ok && before:
			out = append(out, name)
		}
	}
	return out, nil
}

// writeRecord writes the record, which is the commit. If the store returns an error,
// writeRecord reads the record. If there is no record or another one, the commit did
// not take effect. If it is the new record, the commit is visible, but may be lost if
// the power fails.
//
// A service may carry out a request that was cancelled, even after the record was read.
// So the write is not cancelled when ctx ends, or else only after recordTime, and then it
// is unknown whether it takes effect.
func (c *commit) writeRecord(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	writing, end := outlive(ctx, recordTime)
	defer end()
	if c.found == nil { // the store is no service
		writing = ctx
	}
	err := c.write(writing)
	if err == nil {
		c.keep()
		return nil
	}
	ours, readErr := c.isOurs(context.WithoutCancel(ctx))
	switch {
	case readErr == nil && ours:
		err = fmt.Errorf("%s exists, but may be lost if the power fails: %w", c.name, err)
	case readErr == nil && (c.found == nil || writing.Err() == nil):
		return refused(err)
	}
	c.keep()
	return fmt.Errorf("%w: %w", storage.ErrUncertain, err)
}

// recordTime is how long the write of a record may go on after its context has ended.
const recordTime = 20 * time.Second

// outlive returns a context that ends some time after ctx. The caller calls end.
func outlive(ctx context.Context, by time.Duration) (out context.Context, end func()) {
	out, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(by):
			cancel(context.Cause(ctx))
		case <-out.Done():
		}
	})
	return out, func() {
		stop()
		cancel(nil)
	}
}

// refused returns the error for a record that the store did not write because another
// save has written one.
func refused(err error) error {
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w: %w", storage.ErrExists, err)
	case errors.Is(err, blob.ErrChanged):
		return fmt.Errorf("%w: another save has committed since this one began: %w", storage.ErrChanged, err)
	}
	return err
}

// commitByRemoval writes the record and then removes the records in hiding, which
// readers prefer to it. The removal of the last of them is the commit: until then, Abort
// may remove the new record. The record that readers look for first is removed last, so
// at any time readers find the old checkpoint or the new one. Finally the record is
// written again, which makes the removal durable in a file system.
func (c *commit) commitByRemoval(ctx context.Context, hiding []string) error {
	if err := c.write(ctx); err != nil {
		if err := refused(err); errors.Is(err, storage.ErrExists) || errors.Is(err, storage.ErrChanged) {
			return err // the record is that of another save
		}
		c.mayExist(c.name)
		return err
	}
	c.mayExist(c.name)
	for i, name := range slices.Backward(hiding) {
		err := c.store.Remove(ctx, name)
		if err == nil {
			continue
		}
		if _, statErr := c.store.Stat(context.WithoutCancel(ctx), name); statErr != nil && i == 0 {
			c.keep()
			err = fmt.Errorf("%w: %w", storage.ErrUncertain, err)
		}
		return err
	}
	c.keep()
	if c.found != nil {
		return nil // stores with versions are not file systems
	}
	if err := c.write(ctx); err != nil {
		return fmt.Errorf("%w: %w", storage.ErrUncertain, err)
	}
	return nil
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
