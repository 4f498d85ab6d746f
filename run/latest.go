package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

// Found is the newest checkpoint of a run; see Run.Latest.
type Found struct {
	// Path is the folder of the checkpoint: a path or a URL, as the address of the run is.
	Path string `json:"path"`
	// Step is the step that the checkpoint records or, if it does not record one, the
	// number at the end of the name of a folder below the run. Nil: it has neither.
	Step *int64 `json:"step"`
	// SaveID and Time describe the save, if the format records them.
	SaveID string    `json:"save_id,omitempty"`
	Time   time.Time `json:"time,omitzero"`
	// Skipped are the folders with a part of a checkpoint or with a damaged one.
	Skipped []Skipped `json:"skipped"`
}

// Skipped is a folder that Latest has not chosen.
type Skipped struct {
	Path     string `json:"path"`
	Problem  string `json:"problem"`
	UnderWay bool   `json:"under_way"` // a living process is saving to it
}

// both returns the folders of all places, with the runs themselves.
func (r *Run) both(ctx context.Context) ([]folder, error) {
	var out []folder
	for _, p := range r.places() {
		dirs, err := p.folders(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, dirs...)
	}
	return out, nil
}

// CheckIdle returns an error that wraps storage.ErrUnderWay if a save is under way in a
// folder of the run.
func (r *Run) CheckIdle(ctx context.Context) error {
	dirs, err := r.both(ctx)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := publish.CheckUnderWay(ctx, dir.store); err != nil {
			return err
		}
	}
	return nil
}

// Latest returns the newest complete checkpoint in the folder of the run or in a folder
// directly below it: the one with the highest step, of equal steps the one that was saved
// last, and of two copies the local one. The error wraps storage.ErrNotFound if there is no
// checkpoint, storage.ErrUnderWay if there is no complete one yet, storage.ErrUncertain if
// the only save got no answer to its commit, and storage.ErrCorrupt if there are only
// damaged ones.
func (r *Run) Latest(ctx context.Context) (*Found, error) {
	dirs, err := r.both(ctx)
	if err != nil {
		return nil, err
	}
	each := make([]*found, len(dirs))
	err = work.Each(ctx, len(dirs), parallelFolders, func(ctx context.Context, i int) error {
		each[i] = look(ctx, &dirs[i], false)
		return nil
	})
	if err != nil {
		return nil, err
	}
	var best *found
	var problems []error
	skipped := []Skipped{}
	parts := map[*Place]map[string]bool{}
	for _, f := range each {
		if f.err == nil && f.folder.name == "" {
			parts[f.folder.place] = f.folder.place.partsAt(ctx)
		}
	}
	for _, f := range each {
		if parts[f.folder.place][f.folder.name] {
			continue
		}
		switch err := f.err; {
		case err == nil:
			if best == nil || f.preferred(best) > 0 {
				best = f
			}
		case errors.Is(err, storage.ErrIncomplete), errors.Is(err, storage.ErrCorrupt):
			skipped = append(skipped, Skipped{Path: f.folder.address, Problem: err.Error(), UnderWay: errors.Is(err, storage.ErrUnderWay)})
			problems = append(problems, err)
		case !errors.Is(err, storage.ErrNotFound):
			return nil, err
		}
	}
	if best == nil {
		return nil, noneOf(problems, len(dirs))
	}
	return &Found{Path: best.folder.address, Step: best.step, SaveID: best.saveID, Time: best.time, Skipped: skipped}, nil
}

// preferred orders what was found: the newer one comes last. Of equal ones, a remote one
// comes first, and then the names decide.
func (f *found) preferred(g *found) int {
	tier := func(f *found) int {
		if f.folder.place.remote {
			return -1
		}
		return 0
	}
	return cmp.Or(f.compare(g), cmp.Compare(tier(f), tier(g)), strings.Compare(f.folder.address, g.folder.address))
}

// noneOf returns the error for folders without a complete checkpoint.
func noneOf(problems []error, folders int) error {
	for _, kind := range []error{storage.ErrUnderWay, storage.ErrUncertain, storage.ErrCorrupt} {
		if i := slices.IndexFunc(problems, func(err error) bool { return errors.Is(err, kind) }); i >= 0 {
			return fmt.Errorf("no complete checkpoint (folders searched: %d): %w", folders, problems[i])
		}
	}
	if len(problems) > 0 { // their saves are over and will never be complete
		return fmt.Errorf("%w (folders searched: %d, with a part of a checkpoint: %d): %v", storage.ErrNotFound, folders, len(problems), problems[0])
	}
	if folders == 0 {
		return fmt.Errorf("%w: there is no such folder", storage.ErrNotFound)
	}
	return fmt.Errorf("%w (folders searched: %d)", storage.ErrNotFound, folders)
}

// Nearest returns the first of the stores at whose root the checkpoint is complete, as for
// Latest, unless a later one holds a newer save: one with a higher step or, if the steps are
// equal, a later time. A nil store is passed over, and its error is in errs. If there is no
// complete checkpoint, at is the number of the store that the error is about.
func Nearest(ctx context.Context, stores []blob.Store, errs []error) (at int, err error) {
	each := make([]*found, len(stores))
	err = work.Each(ctx, len(stores), parallelFolders, func(ctx context.Context, i int) error {
		if stores[i] == nil {
			each[i] = &found{err: errs[i]}
			return nil
		}
		each[i] = look(ctx, &folder{address: stores[i].String(), store: stores[i]}, false)
		return nil
	})
	if err != nil {
		return -1, err
	}
	best := -1
	for i, f := range each {
		if f.err == nil && (best < 0 || f.compare(each[best]) > 0) {
			best = i
		}
	}
	if best >= 0 {
		return best, nil
	}
	for _, absent := range []bool{false, true} { // other errors are more important
		for i, f := range each {
			if absent == errors.Is(f.err, storage.ErrNotFound) {
				return i, f.err
			}
		}
	}
	return -1, fmt.Errorf("%w: no store was given", fs.ErrInvalid)
}
