package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// exportResult is the output of 'cairn export --json'.
type exportResult struct {
	Path    string       `json:"path"`
	DryRun  bool         `json:"dry_run"`
	Exports []exportDone `json:"exports"`
}

// exportDone is an export that was carried out, or tried.
type exportDone struct {
	Name string `json:"name"` // of the checkpoint
	run.Exported
	Tensors int     `json:"tensors,omitempty"`
	Bytes   int64   `json:"bytes,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
}

type exportFlags struct {
	settingsFlags
	memory             sizeFlag
	dryRun, background bool
}

func newExportCmd() *cobra.Command {
	f := &exportFlags{memory: exportMemory}
	cmd := newCommand("export", wantArgs(1, 1), completePaths(1), func(cmd *cobra.Command, args []string) error {
		return f.run(cmd, args[0])
	})
	f.addRemote(cmd)
	cmd.Flags().BoolVarP(&f.dryRun, "dry-run", "n", false, "only list the exports that are not done")
	cmd.Flags().BoolVar(&f.background, "background", false, "give way to other processes, and leave out what another process exports")
	cmd.Flags().Var(&f.memory, "memory", "bound of the buffers")
	return cmd
}

// exportMemory bounds the buffers of an export: it may run beside a training job.
const exportMemory = 128 << 20

func (f *exportFlags) run(cmd *cobra.Command, address string) error {
	if f.background {
		saver.GiveWay()
	}
	x, err := f.open(cmd, address)
	if err != nil {
		return err
	}
	res := &exportResult{Path: blob.Redact(address), DryRun: f.dryRun, Exports: []exportDone{}}
	err = x.carryOutAll(cmd, res)
	o := outputOf(cmd)
	if err := o.result(res, func() { printExports(o, res) }); err != nil {
		return err
	}
	return withHint(err, fmt.Sprintf("'cairn export %s' tries again, and so does the next save of the run", quoteArg(res.Path)))
}

// exports are the exports of a run, or of one checkpoint, that are not done.
type exports struct {
	*exportFlags
	id      string // of the run; empty: it has none
	pending []run.PendingExport
	// change changes the notes of a checkpoint.
	change func(ctx context.Context, name string, change func(*run.Notes) error) error
}

// open finds the exports at an address that are not done.
func (f *exportFlags) open(cmd *cobra.Command, address string) (*exports, error) {
	ctx := cache.Without(cmd.Context())
	store, err := blob.OpenAddress(ctx, address)
	if err != nil {
		return nil, err
	}
	switch _, err := store.Stat(ctx, run.NotesFile); {
	case err == nil:
		return f.ofCheckpoint(ctx, store, address)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	r, _, err := f.openRun(cmd, address)
	if err != nil {
		return nil, err
	}
	return f.ofRun(ctx, r)
}

// ofRun returns the exports of a run.
func (f *exportFlags) ofRun(ctx context.Context, r *run.Run) (*exports, error) {
	all, err := r.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	s, err := run.ReadSettings(ctx, r.Local.Store)
	if err != nil {
		return nil, err
	}
	return &exports{
		exportFlags: f, id: s.ID, pending: run.PendingExports(all),
		change: func(ctx context.Context, name string, change func(*run.Notes) error) error {
			err := r.Note(ctx, name, change)
			local := slices.ContainsFunc(all, func(c run.Checkpoint) bool { return c.Name == name && c.Local.IsComplete() })
			if local && (errors.Is(err, run.ErrUnconfirmed) || errors.Is(err, run.ErrOtherRun)) {
				return nil // the local notes were changed
			}
			return err
		},
	}, nil
}

// ofCheckpoint returns the exports of one checkpoint.
func (f *exportFlags) ofCheckpoint(ctx context.Context, store blob.Store, address string) (*exports, error) {
	c, err := formats.Open(ctx, store, nil)
	if err != nil {
		return nil, err
	}
	saveID := c.Storage().SaveID
	if err := c.Close(); err != nil {
		return nil, err
	}
	n, err := run.ReadNotes(ctx, store, saveID)
	if err != nil {
		return nil, err
	}
	_, name := blob.SplitAddress(address)
	own := run.Checkpoint{Name: name, SaveID: saveID, Exports: n.Exports, Local: &run.Copy{Path: address, State: run.Complete, SaveID: saveID}}
	return &exports{
		exportFlags: f, pending: run.PendingExports([]run.Checkpoint{own}),
		change: func(ctx context.Context, _ string, change func(*run.Notes) error) error {
			return run.ChangeNotes(ctx, store, saveID, change)
		},
	}, nil
}

// carryOutAll carries out the exports, and adds them to the result. The error joins those of the exports.
func (x *exports) carryOutAll(cmd *cobra.Command, res *exportResult) error {
	var errs []error
	for i := range x.pending {
		p := &x.pending[i]
		done := exportDone{Name: p.Name, Exported: p.Exported}
		if !x.dryRun {
			if err := x.carryOut(cmd, p, &done); err != nil {
				errs = append(errs, fmt.Errorf("%s to %s: %w", p.Name, p.Export.To, err))
			}
		}
		res.Exports = append(res.Exports, done)
		if cmd.Context().Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// exportWait is how long an export waits before it looks again whether another one to the same place is over.
const exportWait = time.Second

// carryOut carries out an export, and notes its outcome.
func (x *exports) carryOut(cmd *cobra.Command, p *run.PendingExport, done *exportDone) error {
	ctx := cmd.Context()
	after := context.WithoutCancel(ctx) // Ctrl-C must not leave notes that do not say what has happened
	note := func(change func(*run.Notes)) error {
		return x.change(after, p.Name, func(n *run.Notes) error {
			change(n)
			if i := slices.IndexFunc(n.Exports, func(e run.Exported) bool { return e.Export == p.Export && e.ID == p.ID }); i >= 0 {
				done.Exported = n.Exports[i]
			}
			return nil
		})
	}
	if err := note(func(n *run.Notes) { n.BeginExport(&p.Exported) }); err != nil {
		return err
	}

	start := time.Now()
	r, err := x.convert(cmd, p)
	for waits := 0; errors.Is(err, convert.ErrBusy) && !x.background && ctx.Err() == nil; waits++ {
		if waits == 0 {
			outputOf(cmd).warn("%s: another process exports it: waiting for that", clean(p.Name))
		}
		select {
		case <-time.After(exportWait):
			r, err = x.convert(cmd, p)
		case <-ctx.Done():
		}
	}

	switch {
	case errors.Is(err, convert.ErrBusy) && ctx.Err() == nil: // it has not failed: the other process notes its outcome
		return note(func(n *run.Notes) { n.CancelExport(&p.Exported) })
	case err != nil && ctx.Err() != nil:
		return errors.Join(err, note(func(n *run.Notes) { n.CancelExport(&p.Exported) }))
	}
	err = errors.Join(err, note(func(n *run.Notes) { n.EndExport(&p.Exported, err, time.Now()) }))
	if r != nil {
		done.Tensors, done.Bytes, done.Seconds = r.Tensors, r.Bytes, time.Since(start).Seconds()
	}
	return err
}

// convert converts a checkpoint as an export asks for. The result is nil if it is there already.
func (x *exports) convert(cmd *cobra.Command, p *run.PendingExport) (*conversionResult, error) {
	ctx := cmd.Context()
	c := &conversionFlags{Options: convert.Options{Memory: int64(x.memory), Parallel: 2, SkipObjects: true}, limit: work.Limiter{Rate: p.Export.Rate}}
	c.recipe.Recipe, c.recipe.Config = recipeOf(p.Export.Form), p.Export.Model
	if c.recipe.format("") == "" { // of a file
		c.to = formats.HF
	}
	c.export.Export = p.Export.String()
	if x.id != "" {
		c.export.Of = x.id + "/" + p.Name
	}
	target, err := blob.OpenAddress(ctx, p.Export.To)
	if err != nil {
		return nil, err
	}
	done, ours, err := x.there(ctx, target, p, c.export.Of)
	if done || err != nil {
		return nil, err
	}
	c.overwrite = ours
	if blob.Scheme(p.Export.To) != "file" && (ours || !opens(ctx, target)) { // the checkpoint appears there before its manifest
		begun := c.export
		begun.Cairn, begun.Source, begun.SaveID, begun.Unfinished = cairn.Version, blob.Redact(p.Path), p.SaveID, true
		text, err := json.MarshalIndent(&begun, "", "  ")
		if err == nil {
			_, err = blob.WriteAll(ctx, target, manifestName, append(text, '\n'), nil)
		}
		if err != nil {
			return nil, err
		}
	}

	store, err := blob.OpenAddress(ctx, p.Path)
	if err != nil {
		return nil, err
	}
	release, err := formats.Reading(ctx, store) // prune leaves it
	if err != nil {
		return nil, err
	}
	defer release()
	r, err := c.convert(cmd, p.Path, p.Export.To, nil)
	if errors.Is(err, storage.ErrExists) {
		err = fmt.Errorf("%w; %w", err, notOurs(p))
	}
	return r, err
}

// notOurs reports that the checkpoint at the address of an export is not an earlier result of it.
func notOurs(p *run.PendingExport) error {
	return fmt.Errorf("it is no export of %s in this run, or was changed since: move it, or export to another address", p.Name)
}

// there reports whether the result of an export is there already, and otherwise whether what is there may be replaced:
// an export of this checkpoint's folder that is as it was written. of names the folder; empty: the run has no id.
// The error is about anything else that is there, and says that its manifest makes no sense.
func (x *exports) there(ctx context.Context, target blob.Store, p *run.PendingExport, of string) (done, ours bool, err error) {
	old, err := manifestAt(ctx, target)
	if old == nil || err != nil {
		return false, false, err
	}
	same := p.SaveID != "" && old.SaveID == p.SaveID && old.Export == p.Export.String()
	ours = of != "" && old.Of == of || same
	if !ours {
		return false, false, fmt.Errorf("%w: %s: %w", storage.ErrExists, blob.Redact(p.Export.To), notOurs(p))
	}
	if old.Unfinished {
		return false, true, nil
	}
	c, err := formats.Open(ctx, target, nil)
	if errors.Is(err, storage.ErrNotFound) {
		return false, true, nil
	}
	if err != nil {
		return false, false, err
	}
	defer c.Close()
	problems, err := convert.CheckDigests(ctx, c, old.Digests, nil)
	if err == nil && len(problems) > 0 {
		err = fmt.Errorf("%w: %s: %w", storage.ErrExists, blob.Redact(p.Export.To), notOurs(p))
	}
	return same && err == nil, err == nil, err
}

// opens reports whether there is a checkpoint in a store.
func opens(ctx context.Context, store blob.Store) bool {
	c, err := formats.Open(ctx, store, nil)
	return !errors.Is(err, storage.ErrNotFound) && (err != nil || c.Close() == nil)
}

// recipeOf returns the recipe for a form: to-hf/llama for hf/llama.
func recipeOf(form string) string {
	if form == formats.HF || strings.HasPrefix(form, formats.HF+"/") {
		return "to-" + form
	}
	return form
}

// manifestAt returns the manifest at the root of a store, or nil if there is none.
func manifestAt(ctx context.Context, store blob.Store) (*manifest, error) {
	text, err := blob.ReadAll(ctx, store, manifestName, maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("%w: the manifest at %s cannot be read: %w", cairn.ErrCorrupt, store, err)
	}
	return &m, nil
}

func printExports(o *output, r *exportResult) {
	if len(r.Exports) == 0 {
		o.remark("%s: no export is left to do\n", clean(r.Path))
		return
	}
	t := newRows("CHECKPOINT", "EXPORT", "STATE", ">TRIES", ">SIZE")
	for i := range r.Exports {
		e := &r.Exports[i]
		bytes := ""
		if e.Bytes > 0 {
			bytes = formatBytes(e.Bytes)
		}
		t.add(clean(e.Name), clean(e.Export.String()), string(e.State), fmt.Sprint(e.Tries), bytes)
	}
	o.table(t)
}
