package run

import (
	"context"
	"slices"
	"syscall"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// Verified is the report of Verify about one checkpoint.
type Verified struct {
	Name string `json:"name"`
	*storage.VerifyReport
}

// Verify reads every byte of all checkpoints in the local place. It reads each file once, also
// if several checkpoints refer to it. If a file is damaged, or no record describes it, it
// verifies the checkpoints that refer to it one by one, to find their damaged tensors.
// progress, if not nil, receives the number of bytes that were read since the last call.
// Checkpoints that are being saved, removed or replaced are left out. If a checkpoint cannot be
// opened, or its notes are damaged, its report says why. VerifySettings checks the file of the run.
func (r *Run) Verify(ctx context.Context, progress func(bytes int64)) ([]Verified, error) {
	all, err := r.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}

	var out []Verified
	var own []*formats.Own
	saves := map[string]string{}         // ids by the names of folders
	good := map[storage.Reference]bool{} // without sizes

	for i := range all {
		c, ok := all[i].in(r.Local)
		if !ok || c.Local.State == UnderWay {
			continue
		}
		o, err := r.verifyOwn(ctx, &c, progress)
		if err != nil {
			return nil, err
		}
		for _, name := range o.Files {
			good[storage.Reference{Folder: c.Name, Name: name}] = !slices.ContainsFunc(o.Problems, func(p storage.VerifyProblem) bool { return p.File == name })
		}
		saves[c.Name] = c.SaveID
		own, out = append(own, o), append(out, Verified{c.Name, o.VerifyReport})
	}

	for i, o := range own {
		store, err := r.Local.StoreOf(out[i].Name)
		if err != nil {
			return nil, err
		}
		notes, err := VerifyNotes(ctx, store, saves[out[i].Name])
		if err != nil {
			return nil, err
		}
		bad := func(f storage.Reference) bool { f.Size = 0; return !good[f] }
		if slices.ContainsFunc(o.Refers, bad) {
			if out[i].VerifyReport, err = r.verifyWhole(ctx, out[i].Name, progress); err != nil {
				return nil, err
			}
		}
		out[i].Problems = append(out[i].Problems, notes...)
	}

	return slices.DeleteFunc(out, func(v Verified) bool {
		return len(v.Problems) > 0 && r.hasChanged(ctx, v.Name, saves[v.Name])
	}), nil
}

// VerifyNotes returns a problem if the notes of the checkpoint at the root of store are damaged.
// saveID is the id of its save.
func VerifyNotes(ctx context.Context, store blob.Store, saveID string) ([]storage.VerifyProblem, error) {
	_, err := ReadNotes(ctx, store, saveID)
	return problemOf(NotesFile, err)
}

// VerifySettings returns a problem if the settings in the local place are damaged.
func (r *Run) VerifySettings(ctx context.Context) ([]storage.VerifyProblem, error) {
	_, err := ReadSettings(ctx, r.Local.Store)
	return problemOf(SettingsFile, err)
}

// problemOf returns the problem of a file, or err if that does not mean that the file is damaged.
func problemOf(name string, err error) ([]storage.VerifyProblem, error) {
	if !isAny(err, storage.ErrCorrupt, storage.ErrVersion, ErrPolicy, syscall.EIO) {
		return nil, err
	}
	return []storage.VerifyProblem{{File: name, Text: err.Error()}}, nil
}

// hasChanged reports whether the checkpoint of a save was removed or replaced.
func (r *Run) hasChanged(ctx context.Context, name, saveID string) bool {
	f := r.Local.look(ctx, name)
	if f.err == nil {
		return f.saveID != saveID
	}
	return isAny(f.err, storage.ErrNotFound, storage.ErrRemoving)
}

// verifyOwn verifies the files in the folder of a checkpoint.
func (r *Run) verifyOwn(ctx context.Context, c *Checkpoint, progress func(int64)) (*formats.Own, error) {
	store, err := r.Local.StoreOf(c.Name)
	if err != nil {
		return nil, err
	}
	o, err := formats.VerifyOwn(ctx, store, progress)
	if err != nil {
		rep, err := unopened(ctx, err)
		return &formats.Own{VerifyReport: rep}, err
	}
	return o, nil
}

// verifyWhole verifies a checkpoint with the files of others.
func (r *Run) verifyWhole(ctx context.Context, name string, progress func(int64)) (*storage.VerifyReport, error) {
	store, err := r.Local.StoreOf(name)
	if err != nil {
		return nil, err
	}
	c, err := formats.Open(ctx, store, nil)
	if err != nil {
		return unopened(ctx, err)
	}
	defer c.Close()
	rep, err := c.Verify(ctx, progress)
	if err != nil {
		return unopened(ctx, err)
	}
	return rep, nil
}

// unopened returns the report of a checkpoint that is damaged so much that it cannot be
// verified, or err if that is not the reason.
func unopened(ctx context.Context, err error) (*storage.VerifyReport, error) {
	if ctx.Err() != nil || !isAny(err, storage.ErrCorrupt, storage.ErrIncomplete, storage.ErrVersion, storage.ErrNotFound, storage.ErrChanged, syscall.EIO) {
		return nil, err
	}
	return &storage.VerifyReport{Problems: []storage.VerifyProblem{{Text: err.Error()}}}, nil
}
