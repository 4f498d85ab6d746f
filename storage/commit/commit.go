package commit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// File is the name and content of a small file.
type File struct {
	Name string
	Data []byte
}

// Commit makes the checkpoint visible, which consists of rec, the files of before and
// the files of the results. It writes the files of before, and then the record rec, in
// one atomic step. After that it removes the files that no checkpoint needs. If Commit
// returns an error, the checkpoint is not visible, unless the error wraps
// storage.ErrUncertain. If the rank saves without a group, Format.RankRecord
// returns the name of the record.
func (p *Committer) Commit(ctx context.Context, rec File, results []*storage.WriteResults, before ...File) error {
	for _, f := range before {
		p.mayExist(f.Name)
		if _, err := blob.WriteAll(ctx, p.store, f.Name, f.Data, &blob.CreateOptions{IfAbsent: p.sess.Journal == nil}); err != nil {
			return err
		}
	}

	if err := p.checkFiles(ctx, results); err != nil {
		return err
	}

	cond := p.condition(rec.Name)
	if p.opts.RankLocal {
		rec.Name = p.f.RankRecord(p.sess.Rank)
		cond = blob.CreateOptions{IfAbsent: true}
	}

	c := &commit{Committer: p, name: rec.Name, named: map[string]bool{rec.Name: true}}
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

	c.cond = cond
	c.write = func(ctx context.Context, cond blob.CreateOptions) (blob.Info, error) {
		return blob.WriteAll(ctx, p.store, rec.Name, rec.Data, &cond)
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

// CommitFiles ends a save without a record: its files have been visible since they were written.
func (p *Committer) CommitFiles(ctx context.Context, results []*storage.WriteResults) error {
	if err := p.checkFiles(ctx, results); err != nil {
		return err
	}
	p.keep()
	p.release()
	return nil
}

// checkFiles returns an error if a file of the results is missing, right before the record
// is written.
func (p *Committer) checkFiles(ctx context.Context, results []*storage.WriteResults) error {
	if err := p.lock.Confirm(ctx); err != nil {
		return err
	}

	have, old, err := p.sizes(ctx)
	if err == nil && old && !p.sess.Private {
		// An earlier attempt of this save has written files. If it has finished, its
		// checkpoint may be being removed.
		if err = CheckNoRemoval(ctx, p.store); err == nil {
			have, _, err = p.sizes(ctx)
		}
	}
	if err != nil {
		return err
	}

	if p.opts.Apart {
		results = seenOf(have, results)
	}
	return CheckFiles(have, results)
}

// CommitHeld makes the file of WriteHeld visible. It returns errors as Commit does.
func (p *Committer) CommitHeld(ctx context.Context) error {
	h := p.held
	if h == nil {
		return fmt.Errorf("%w: Finish before WriteData", plan.ErrProtocol)
	}

	defer p.drop()

	if err := context.Cause(ctx); err != nil {
		return err
	}

	c := &commit{Committer: p, name: h.Name, named: map[string]bool{h.Name: true}, order: []string{h.Name}}
	c.write = func(ctx context.Context, _ blob.CreateOptions) (blob.Info, error) { return h.w.Commit(ctx) } // WriteHeld has set the condition
	c.isOurs = func(ctx context.Context) (bool, error) { return h.isAt(ctx, p.store) }
	err := c.run(ctx)
	if err == nil || errors.Is(err, storage.ErrUncertain) {
		Remember(p.store, h.Name, p.sess.Storage.SaveID)
	}
	return err
}

// remembered has the ids of saves that do not put their ids into file names, by the locations of
// the files. A save that waited for another one learns from it that the other one has succeeded.
// The trainer, which may be another process, keeps the ids of the saves that it may replace:
// storage.WriteOptions.Replaces.
var (
	remembered   = map[string]string{} // guarded by rememberedMu
	rememberedMu sync.Mutex
)

// maxRemembered bounds remembered.
const maxRemembered = 1024

// Remember notes which save of this process has written a file.
func Remember(store blob.Store, name, saveID string) {
	rememberedMu.Lock()
	defer rememberedMu.Unlock()
	if len(remembered) >= maxRemembered {
		clear(remembered)
	}
	remembered[store.String()+"/"+name] = saveID
}

// Remembered returns the save of this process that has written a file last, or "".
func Remembered(store blob.Store, name string) string {
	rememberedMu.Lock()
	defer rememberedMu.Unlock()
	return remembered[store.String()+"/"+name]
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

// sizes returns the sizes of the data files in the store, by name. If the format has IDFirst,
// it returns only names that begin with the id of this save. old reports whether a save with
// a journal has found files that are older than itself.
func (p *Committer) sizes(ctx context.Context) (out map[string]int64, old bool, err error) {
	files, err := p.f.list(ctx, p.store, p.ownPrefix())
	out = make(map[string]int64, len(files))
	for _, f := range files {
		out[f.Name] = f.Size
		old = old || p.sess.Journal != nil && blob.Age(p.store, f.ModTime) > time.Since(p.began)+timeSlack
	}
	return out, old, err
}

// timeSlack is how far the times of files and of this host may be apart: services return whole
// seconds.
const timeSlack = 5 * time.Second

func (p *Committer) ownPrefix() string {
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

// commit is the state of a call of Commit or CommitHeld.
type commit struct {
	*Committer
	name  string             // of the new record
	named map[string]bool    // the files of the new checkpoint
	order []string           // the files of this commit, the record last
	cond  blob.CreateOptions // the condition of the record
	// write writes the record, and isOurs reports whether the record is in the store.
	write  func(ctx context.Context, cond blob.CreateOptions) (blob.Info, error)
	isOurs func(ctx context.Context) (bool, error)
}

// run replaces the checkpoint and removes the files that no checkpoint needs any more.
func (c *commit) run(ctx context.Context) error {
	if c.opts.RankLocal {
		return c.writeRecord(ctx)
	}

	var err error
	if c.f.OneFile {
		if err = c.checkUnhidden(ctx); err == nil {
			err = c.writeRecord(ctx)
		}
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

// checkUnhidden returns an error if the store holds files of a checkpoint in another
// format, which a save has written since this one began, and which must stay or would be
// opened instead of the new one.
func (c *commit) checkUnhidden(ctx context.Context) error {
	if c.f.First && !c.opts.FailIfExists {
		return nil
	}
	_, err := c.checkOthers(ctx, func(name string) bool { return c.named[name] && name != c.name })
	return err
}

// replace replaces the existing checkpoint and removes its files.
func (c *commit) replace(ctx context.Context) error {
	if err := c.checkUnhidden(ctx); err != nil {
		return err
	}

	hiding, err := c.hiding(ctx)
	if err != nil {
		return err
	}

	old := c.old
	var oldErr error
	if old == nil && !c.empty { // otherwise the condition of the record makes sure that it replaces old, or no record
		old, oldErr = c.f.Read(ctx, c.store)
	}
	if old != nil || oldErr != nil {
		if err := c.checkOurs(ctx, old, oldErr); err != nil { // another job may have saved since this save began
			return err
		}
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
		c.warn(c.removeReplaced(ctx, old))
	}
	if oldErr != nil && !isAbsent(oldErr) {
		c.warn(oldErr)
	}
	return nil
}

// removeReplaced removes the files of the old checkpoint, apart from those that the new one
// or checkpoints beside it use.
func (c *commit) removeReplaced(ctx context.Context, old *Existing) error {
	var needed map[string]bool
	if old.Referable && c.f.Needed != nil {
		var err error
		if needed, err = c.f.Needed(ctx, c.store); err != nil {
			return err
		}
	}
	return c.removeAll(ctx, slices.DeleteFunc(slices.Clone(old.Replaced), func(n string) bool { return c.named[n] || needed[n] }))
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
		case ok && c.opts.FailIfExists && !c.again:
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
// A service may carry out a request that got no answer or was cancelled, even after the
// record was read. So the write is not cancelled when ctx ends, or else only after
// recordTime. If its fate is unknown then, all files stay, and so does the lock of the
// save: it tells other processes why.
func (c *commit) writeRecord(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}

	writing, end := outlive(ctx, recordTime)
	defer end()

	if !c.service {
		writing = ctx
	}

	_, err := c.write(writing, c.cond)
	if err == nil {
		c.keep()
		return nil
	}

	after := context.WithoutCancel(ctx)
	ours, readErr := c.isOurs(after)
	switch {
	case readErr == nil && ours && c.service:
		c.keep()
		return nil
	case readErr == nil && ours:
		err = fmt.Errorf("%s exists, but may be lost if the power fails: %w", c.name, err)
	case errors.Is(err, blob.ErrUncertain) || c.service && writing.Err() != nil:
		if markErr := c.lock.LeaveUncertain(after, c.name, c.cond.IfVersion); markErr != nil {
			c.warn(fmt.Errorf("do not clean %s within a day: the commit is uncertain, and this could not be noted there: %w", c.store, markErr))
		}
	case readErr == nil:
		return c.refused(err)
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
func (c *commit) refused(err error) error {
	switch {
	case errors.Is(err, fs.ErrExist) && (c.opts.FailIfExists || c.opts.RankLocal):
		return fmt.Errorf("%w: %w", storage.ErrExists, err)
	case errors.Is(err, fs.ErrExist), errors.Is(err, blob.ErrChanged):
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
	info, err := c.write(ctx, c.cond)
	if err != nil {
		if err := c.refused(err); errors.Is(err, storage.ErrExists) || errors.Is(err, storage.ErrChanged) {
			return err // the record belongs to another save
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
	if c.service {
		return nil // services are not file systems
	}

	if _, err := c.write(ctx, blob.CreateOptions{IfVersion: info.Version}); err != nil {
		return fmt.Errorf("%w: %w", storage.ErrUncertain, err)
	}
	return nil
}
