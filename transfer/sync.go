package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// The states of a checkpoint in Synced.
const (
	Copied     = "copied"
	Replaced   = "replaced" // it was copied, and has replaced another save; see Synced.Replaces
	Lacking    = "lacking"  // it would be copied, in a dry run
	Replacing  = "would replace"
	Present    = "present"    // the other side has it, complete
	Differs    = "differs"    // the other side has another checkpoint of that name
	Incomplete = "incomplete" // of the source, or damaged
	Failed     = "failed"
)

// Synced is the result of Sync for a folder.
type Synced struct {
	Folder string    `json:"folder"`
	State  string    `json:"state"`
	Step   *int64    `json:"step"`
	SaveID string    `json:"save_id,omitempty"`
	Time   time.Time `json:"time,omitzero"`
	// Problem says why a checkpoint was not copied.
	Problem string `json:"problem,omitempty"`
	// Replaces is the save of the other side that the copy has replaced, or would replace in a
	// dry run.
	Replaces *Other `json:"replaces,omitempty"`
	// Copy is the report of the copy.
	Copy *Report `json:"copy,omitempty"`

	version string // of the format
}

// Other is the checkpoint that the other side has under the same name.
type Other struct {
	SaveID string    `json:"save_id"`
	Step   *int64    `json:"step"`
	Time   time.Time `json:"time,omitzero"`
}

// SyncOptions change how Sync works. Nil means the defaults.
type SyncOptions struct {
	// DryRun copies no files.
	DryRun bool
	// Skip, if not nil, reports whether a folder is left out.
	Skip func(folder string) bool
	// Replace, if not nil, reports whether the checkpoint of a folder may replace the one that
	// dst has under the same name. If not, it also returns the reason, with advice. Nil: no
	// checkpoint is replaced.
	Replace func(folder string, other *Other) (ok bool, reason string)
	// Options returns the options for the copy of a folder. Nil: the defaults. Overwrite is
	// ignored.
	Options func(folder string) *Options
}

// Sync copies the complete checkpoints in the folders directly below src that dst lacks, the
// newest first: by step, or by time if they have no step. It leaves all other folders of both
// runs alone, and replaces a checkpoint of another save only if SyncOptions.Replace allows
// it: the old one stays complete until the new one is. An interrupted copy of a checkpoint is
// completed. A checkpoint that is damaged is skipped; the error lists all of them. Other
// errors end Sync.
func Sync(ctx context.Context, src, dst blob.Store, opts *SyncOptions) ([]Synced, error) {
	var o SyncOptions
	if opts != nil {
		o = *opts
	}

	folders, err := checkpoints(ctx, src, o.Skip)
	if err != nil {
		return nil, err
	}

	var errs []error
	for i := range folders {
		f := &folders[i]
		if f.State != "" {
			continue // incomplete
		}

		err := f.sync(ctx, src, dst, &o)
		if err == nil {
			continue
		}

		f.State, f.Problem = Failed, err.Error()
		errs = append(errs, fmt.Errorf("%s: %w", f.Folder, err))
		if !aboutOne(err) {
			return folders, errors.Join(errs...)
		}
	}

	return folders, errors.Join(errs...)
}

// aboutOne reports whether an error is about a single checkpoint.
func aboutOne(err error) bool {
	return slices.ContainsFunc([]error{storage.ErrCorrupt, blob.ErrChanged, blob.ErrLocked, storage.ErrUnderWay, storage.ErrInUse, ErrOccupied},
		func(target error) bool { return errors.Is(err, target) })
}

// checkpoints returns the folders of a run that hold a checkpoint or a part of one, the
// newest first, without the ones for which skip, if not nil, returns true.
func checkpoints(ctx context.Context, run blob.Store, skip func(folder string) bool) ([]Synced, error) {
	names, err := blob.Folders(ctx, run, "")
	if err != nil {
		return nil, err
	}

	out := []Synced{}
	for _, name := range names {
		if strings.HasPrefix(name, ".") || skip != nil && skip(name) {
			continue // with a dot: of cairn, or of a conversion
		}

		f := Synced{Folder: name}
		c, err := f.open(ctx, run)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, storage.ErrNotFound):
			continue // other files
		case errors.Is(err, storage.ErrIncomplete), errors.Is(err, storage.ErrCorrupt), errors.Is(err, storage.ErrUnderWay), errors.Is(err, storage.ErrVersion):
			f.State, f.Problem = Incomplete, err.Error()
		case err != nil:
			return nil, err
		}

		if c != nil {
			c.Close()
		}
		out = append(out, f)
	}

	slices.SortFunc(out, newer)
	return out, nil
}

// open opens the checkpoint of the folder in a run and describes it. The checkpoint
// is complete unless there is an error.
func (f *Synced) open(ctx context.Context, run blob.Store) (storage.Checkpoint, error) {
	store, err := blob.NewSub(run, f.Folder)
	if err != nil {
		return nil, err
	}

	c, err := formats.Open(ctx, store, nil)
	if err != nil {
		return nil, err
	}

	s := c.Storage()
	f.Step, f.SaveID, f.Time, f.version = s.Step, s.SaveID, s.Time, s.Version
	return c, c.CheckFiles(ctx)
}

// newer orders checkpoints, the newest first.
func newer(a, b Synced) int {
	if (a.Step == nil) != (b.Step == nil) {
		if a.Step != nil {
			return -1
		}
		return 1
	}

	var steps int
	if a.Step != nil {
		steps = cmp.Compare(*b.Step, *a.Step)
	}
	return cmp.Or(steps, b.Time.Compare(a.Time), cmp.Compare(len(b.Folder), len(a.Folder)), strings.Compare(b.Folder, a.Folder))
}

// sync copies the folder if the target lacks it.
func (f *Synced) sync(ctx context.Context, src, dst blob.Store, o *SyncOptions) error {
	there := Synced{Folder: f.Folder}
	c, err := there.open(ctx, dst)
	if c != nil {
		defer c.Close()
	}

	switch {
	case err == nil && !sameFormat(there.version, f.version): // checkpoints of some formats have no id
		f.State, f.Problem = Differs, fmt.Sprintf("the other side has a checkpoint of %s, not of %s", there.version, f.version)
		return nil
	case err == nil && there.SaveID == f.SaveID:
		f.State = Present
		return nil
	case err == nil && !f.mayReplace(&there, o):
		return nil
	case ctx.Err() != nil:
		return err
	case o.DryRun && f.Replaces != nil:
		f.State = Replacing
		return nil
	case o.DryRun:
		f.State = Lacking
		return nil
	}

	return f.copy(ctx, src, dst, o)
}

// sameFormat reports whether two versions are of one format. A native checkpoint has another
// version once it stands alone.
func sameFormat(a, b string) bool {
	return a == b || strings.HasPrefix(a, nativeVersion) && strings.HasPrefix(b, nativeVersion)
}

// nativeVersion begins the version of each native checkpoint, such as "cairn 1".
const nativeVersion = "cairn "

// mayReplace reports whether the folder may replace the save that the target has there. It notes
// that save, or the reason why not.
func (f *Synced) mayReplace(there *Synced, o *SyncOptions) bool {
	f.State, f.Problem = Differs, fmt.Sprintf("the other side has the save %s, not %s", cmp.Or(there.SaveID, "of another program"), f.SaveID)
	if o.Replace == nil || there.SaveID == "" {
		return false
	}

	other := &Other{SaveID: there.SaveID, Step: there.Step, Time: there.Time}
	ok, reason := o.Replace(f.Folder, other)
	if !ok {
		f.Problem += ": " + reason
		return false
	}

	f.State, f.Problem, f.Replaces = "", "", other
	return true
}

// copy copies the folder to the target.
func (f *Synced) copy(ctx context.Context, src, dst blob.Store, o *SyncOptions) error {
	from, err := blob.NewSub(src, f.Folder)
	if err != nil {
		return err
	}

	to, err := blob.NewSub(dst, f.Folder)
	if err != nil {
		return err
	}

	var opts Options
	if o.Options != nil {
		opts = *o.Options(f.Folder)
	}

	opts.Overwrite, opts.Replaces = f.Replaces != nil, ""
	if f.Replaces != nil {
		opts.Replaces = f.Replaces.SaveID
	}

	f.Copy, err = Copy(ctx, from, to, &opts)
	switch {
	case errors.Is(err, storage.ErrExists), errors.Is(err, storage.ErrChanged):
		f.State, f.Problem, f.Replaces = Differs, err.Error(), nil
		return nil
	case err != nil:
		f.Replaces = nil
	case f.Replaces != nil:
		f.State = Replaced
	default:
		f.State = Copied
	}

	return err
}
