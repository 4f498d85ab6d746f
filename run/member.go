package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/transfer"
)

// Member is a checkpoint that a process saves to a run, with the settings for the work on
// the run after the save.
type Member struct {
	// Address is the address of the run.
	Address string
	// Settings are the settings of the run. The process writes them into its folder, where
	// settings stay that it does not have.
	Settings Settings
	// Name is the name of the folder of the checkpoint.
	Name string
	// Refer means that a Chain chooses the base of the save.
	Refer bool
	// Remember means that the process keeps the saved bytes in memory, for the next save.
	Remember bool
	// Exclusive means that the save fails if its folder has a checkpoint.
	Exclusive bool
	// Line is the place of the job in the history of the run. Nil: saves record none.
	Line *Line
	// Chain chooses the bases of the saves of this rank. Nil: they have none.
	Chain *Chain
	// Loaded is the checkpoint of the run that the job has loaded since the save before this
	// one: the save goes on from it. Nil: it goes on from the save before it.
	Loaded *Loaded
	// Exporting says whether the checkpoint is exported. Nil: it is not.
	Exporting *Exporting

	parent string // the folder of the parent of the save; set by Begin
}

// Move says that the save goes to another folder of the run, which is the base of the next save.
func (m *Member) Move(folder string) {
	m.Name = folder
	if m.Chain != nil {
		m.Chain.Loaded(folder)
	}
}

// TendOptions change how Member.Tend works. Nil means the defaults.
type TendOptions struct {
	// Skip, if not nil, reports whether a checkpoint is not uploaded now, because another
	// upload of it is under way or has just failed.
	Skip func(name string) bool
}

// Tended describes the work of Member.Tend.
type Tended struct {
	// Uploaded are the checkpoints that the remote place lacked.
	Uploaded []transfer.Synced
	// Pruned is the report of Prune.
	Pruned *Report
}

// Attrs describe this work, for a log. They are empty if there was none.
func (t *Tended) Attrs() []slog.Attr {
	if t == nil {
		return nil
	}

	var out []slog.Attr
	var uploaded, replaced []string
	for _, s := range t.Uploaded {
		switch s.State {
		case transfer.Copied:
			uploaded = append(uploaded, s.Folder)
		case transfer.Replaced:
			replaced = append(replaced, s.Folder+" (save "+s.Replaces.SaveID+")")
		}
	}

	if len(uploaded) > 0 {
		out = append(out, slog.Any("uploaded", uploaded))
	}
	if t.Pruned != nil && len(t.Pruned.Flattened) > 0 {
		out = append(out, slog.Any("flattened", t.Pruned.Flattened))
	}
	if len(replaced) > 0 {
		out = append(out, slog.Any("replaced_remote", replaced))
	}

	if t.Pruned == nil || t.Pruned.Count == 0 {
		return out
	}

	for _, place := range []struct {
		key  string
		list []Pruned
	}{{"removed", t.Pruned.Local}, {"removed_remote", t.Pruned.Remote}} {
		if names := removedOf(place.list); len(names) > 0 {
			out = append(out, slog.Any(place.key, names))
		}
	}
	return append(out, slog.Int64("removed_bytes", t.Pruned.Bytes))
}

// removedOf returns the names of the checkpoints that were removed.
func removedOf(list []Pruned) []string {
	var out []string
	for _, p := range list {
		if p.Outcome == Removed {
			out = append(out, p.Name)
		}
	}
	return out
}

// Tend keeps the run in order after a save: it writes the settings, uploads checkpoints that
// the remote place lacks, such as those of an interrupted upload, and removes checkpoints that
// the policies do not keep. It does not remove checkpoints from a folder while this process
// writes a save; see Saving. The caller makes sure that one process of a job calls it.
//
// If the remote place does not answer, Tend does not remove any checkpoint: it cannot
// find out which ones are uploaded.
func (m *Member) Tend(ctx context.Context, opts *TendOptions) (*Tended, error) {
	var o TendOptions
	if opts != nil {
		o = *opts
	}

	r, err := Open(ctx, m.Address, m.Settings.Remote)
	if err != nil {
		return nil, err
	}

	out := &Tended{}
	if m.Settings.isZero() && m.Exporting == nil { // exports need the id of the run
		return out, nil
	}

	if err := r.Claim(ctx, m.Settings); err != nil {
		return out, fmt.Errorf("run %s: %w", r, err)
	}
	all, err := r.Checkpoints(ctx)
	if err != nil {
		return out, fmt.Errorf("run %s: %w", r, err)
	}

	var errs []error
	if r.Remote != nil {
		out.Uploaded, err = r.sync(ctx, all, &SyncOptions{KeepRemote: m.Settings.KeepRemote, Skip: o.Skip})
		errs = append(errs, err)
		if slices.ContainsFunc(out.Uploaded, func(s transfer.Synced) bool { return s.State == transfer.Copied || s.State == transfer.Replaced }) {
			if all, err = r.Checkpoints(ctx); err != nil {
				return out, errors.Join(append(errs, err)...)
			}
		}
	}

	if !m.Settings.Keep.KeepsAll() || !m.Settings.KeepRemote.KeepsAll() {
		out.Pruned, err = r.prune(ctx, all, &PruneOptions{Keep: m.Settings.Keep, KeepRemote: m.Settings.KeepRemote, Turn: Turn, protect: m.protected(all)})
		errs = append(errs, err)
	}

	if err := errors.Join(errs...); err != nil {
		return out, fmt.Errorf("run %s: %w", r, err)
	}
	return out, nil
}

// protected returns the folders that the save does not remove, with the reasons: its own and its
// parent's, and those of the newest checkpoint, if a later save is complete already.
func (m *Member) protected(all []Checkpoint) map[string]string {
	out := map[string]string{}
	head := slices.IndexFunc(all, func(c Checkpoint) bool { return c.Head })
	if head >= 0 && all[head].Parent != "" {
		for i := range all {
			if identity(all[i].SaveID, all[i].Name) == all[head].Parent {
				out[all[i].Name] = ReasonParent
			}
		}
	}
	if m.parent != "" {
		out[m.parent] = ReasonParent
	}
	if blob.Scheme(m.Address) == "memory" { // which has no room for a second one
		clear(out)
	}
	out[m.Name] = ReasonNewest

	return out
}

// NoteExports adds the exports of the save to notes, and those that Exporting asks for.
func (m *Member) NoteExports(ctx context.Context, step *int64, notes *Notes) error {
	all, err := m.Exporting.of(ctx, m.Name, step)
	for _, e := range all {
		notes.AskExport(e)
	}
	return err
}

// Claim makes sure, before an upload, that the remote place belongs to the run; see Run.Claim.
func (m *Member) Claim(ctx context.Context) error {
	if m.Settings.Remote == "" {
		return nil
	}
	r, err := Open(ctx, m.Address, m.Settings.Remote)
	if err != nil {
		return err
	}
	return r.Claim(ctx, m.Settings)
}

// CopyNotes adds the notes of the copy of a save in one store to the copy in another.
func CopyNotes(ctx context.Context, from, to blob.Store, saveID string) error {
	n, err := ReadNotes(ctx, from, saveID)
	if err != nil || n.isEmpty() {
		return err
	}
	return ChangeNotes(ctx, to, saveID, func(have *Notes) error {
		have.join(&n)
		return nil
	})
}

// NoteSave adds notes to a save that is over. Their line is left out if the format records it.
func NoteSave(ctx context.Context, store blob.Store, saveID, format string, add *Notes) error {
	line := add.Line
	if format == formats.Native {
		line = nil
	}
	if len(add.Metrics) == 0 && line == nil && len(add.Exports) == 0 {
		return nil
	}
	return changeNotes(ctx, store, saveID, true, func(n *Notes) error {
		for name, v := range add.Metrics {
			n.SetMetric(name, v)
		}
		if line != nil {
			n.Line = line
		}
		n.joinExports(add.Exports)
		return nil
	})
}

// TendWait is how long a process that ends waits for a Tender. The next save, or 'cairn
// sync' and 'cairn prune', complete interrupted work.
const TendWait = 2 * time.Minute

// Tender tends runs in the background, one at a time. If several saves are over meanwhile, it
// tends the run once for all of them. The zero value is ready to use.
type Tender struct{ latest work.Latest }

// Tend calls Member.Tend in the background. done receives its results, unless a later
// call replaces this one before it begins.
func (t *Tender) Tend(ctx context.Context, m *Member, opts *TendOptions, done func(*Tended, error)) {
	t.latest.Do(func() {
		var out *Tended
		err := group.Catch(func() (err error) { // a panic of a store must not end the process
			out, err = m.Tend(ctx, opts)
			return err
		})
		done(out, err)
	})
}

// Wait waits until the Tender is idle. It returns false if ctx ends first.
func (t *Tender) Wait(ctx context.Context) bool { return t.latest.Wait(ctx) }
