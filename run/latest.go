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
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
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
	// Damaged are the checkpoints of higher steps that Newest has passed over because they
	// are damaged: the highest first, and not more than the first 16.
	Damaged []Damaged `json:"-"`
}

// Skipped is a folder that Latest has not chosen.
type Skipped struct {
	Path     string `json:"path"`
	Problem  string `json:"problem"`
	UnderWay bool   `json:"under_way"` // a living process is saving to it
}

// Damaged is a checkpoint that cannot be opened, or of which a file is missing.
type Damaged struct {
	Name string // of its folder
	Step int64  // the one that it records if it can be opened, else the number in its name
	Err  error  // wraps storage.ErrCorrupt
}

// maxDamaged bounds Found.Damaged.
const maxDamaged = 16

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

// below returns the folders of all places, without the runs themselves.
func (r *Run) below(ctx context.Context) ([]folder, error) {
	dirs, err := r.both(ctx)
	return slices.DeleteFunc(dirs, func(d folder) bool { return d.name == "" }), err
}

// CheckIdle returns an error that wraps storage.ErrUnderWay if a save is under way in a
// folder of the run.
func (r *Run) CheckIdle(ctx context.Context) error {
	dirs, err := r.both(ctx)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := commit.CheckUnderWay(ctx, dir.store); err != nil {
			return err
		}
	}
	return nil
}

// Latest returns the newest complete checkpoint in the folder of the run or in a folder
// directly below it: the last commit or, if the run was rewound later, the checkpoint to which
// it was rewound. Of two copies, it returns the local one. Saves that do not record their commit
// are ordered by step, then by time. The error wraps storage.ErrNotFound if there is no
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
	parts := map[*Place]map[string]bool{}
	for _, f := range each {
		if f.err == nil && f.folder.name == "" {
			parts[f.folder.place] = f.folder.place.partsAt(ctx)
		}
	}

	c := choice{skipped: []Skipped{}}
	for _, f := range each {
		if parts[f.folder.place][f.folder.name] {
			continue
		}
		if err := c.add(f); err != nil {
			return nil, err
		}
	}
	rewound, unread, _ := r.rewound(ctx) // a damaged file must not end a training
	c.skipped = append(c.skipped, unread...)
	return c.result(len(dirs), rewound)
}

// choice are the complete checkpoints that were found, and the folders that are passed over.
type choice struct {
	complete []*found
	lost     []savedStep // damaged ones with a record that can be read
	problems []error
	skipped  []Skipped
	damaged  []Damaged
}

// add adds the result of a look at a folder. It returns an error that is not about the
// contents of the folder.
func (c *choice) add(f *found) error {
	switch err := f.err; {
	case err == nil:
		c.complete = append(c.complete, f)
	case errors.Is(err, storage.ErrIncomplete), errors.Is(err, storage.ErrCorrupt):
		c.skipped = append(c.skipped, Skipped{Path: f.folder.address, Problem: err.Error(), UnderWay: errors.Is(err, storage.ErrUnderWay)})
		c.problems = append(c.problems, err)
		c.lost = append(c.lost, f.commit())
		if f.step != nil && errors.Is(err, storage.ErrCorrupt) && !errors.Is(err, storage.ErrUnderWay) {
			c.damaged = append(c.damaged, Damaged{f.folder.name, *f.step, err})
		}
	case !errors.Is(err, storage.ErrNotFound):
		return err
	}
	return nil
}

// result returns the newest one of a number of folders.
func (c *choice) result(folders int, rewound *Rewound) (*Found, error) {
	if len(c.complete) == 0 {
		return nil, noneOf(c.problems, folders)
	}
	// Of equal copies, the last one is chosen: a local one.
	slices.SortStableFunc(c.complete, func(f, g *found) int {
		return cmp.Or(compareBool(g.folder.place.remote, f.folder.place.remote), strings.Compare(f.folder.address, g.folder.address))
	})
	commits := make([]savedStep, len(c.complete))
	for i, f := range c.complete {
		commits[i] = f.commit()
	}
	h := newHistory(commits, goneBack(c.lost, rewound))
	for i, f := range c.complete {
		if h.unplaced[i] && f.notesErr != nil {
			c.skipped = append(c.skipped, Skipped{Path: f.folder.address, Problem: "its place in the history is not known: " + f.notesErr.Error()})
		}
	}
	b := c.complete[h.head]
	return &Found{Path: b.folder.address, Step: b.step, SaveID: b.saveID, Time: b.time, Skipped: c.skipped}, nil
}

// rewound returns the checkpoint to which the run was rewound, or nil. Settings that cannot be read
// do not count: unread names them, and the error joins the reasons.
func (r *Run) rewound(ctx context.Context) (out *Rewound, unread []Skipped, err error) {
	var errs []error
	for _, p := range r.places() {
		s, err := ReadSettings(ctx, p.Store)
		if err != nil {
			unread, errs = append(unread, Skipped{Path: p.AddressOf(SettingsFile), Problem: err.Error()}), append(errs, err)
		}
		if s.Rewound.after(out) {
			out = s.Rewound
		}
	}
	return out, unread, errors.Join(errs...)
}

// isUnreadable reports whether an error is about the contents of a file.
func isUnreadable(err error) bool {
	return isAny(err, storage.ErrCorrupt, storage.ErrVersion, ErrPolicy)
}

// Bounds limit the checkpoints that Newest returns. The zero value has no limits.
type Bounds struct {
	// After and Before bound the step: it is above After and below Before. Nil: no bound.
	After, Before *int64
	// Format opens the checkpoints. Nil: their formats are detected, and opened with Options.
	Format  storage.Format
	Options *formats.Options
}

func (w *Bounds) holds(step int64) bool {
	return (w.After == nil || step > *w.After) && (w.Before == nil || step < *w.Before)
}

// Newest returns the newest complete checkpoint within bounds, in a folder directly below
// the run, in the order of Latest. A checkpoint without a step is not within bounds. A process
// can call it often: it remembers the checkpoints that it has opened, and then opens only new
// ones, and the one that it returns. Latest describes the errors.
func (r *Run) Newest(ctx context.Context, w Bounds) (*Found, error) {
	dirs, err := r.below(ctx)
	if err != nil {
		return nil, err
	}
	for i := range dirs {
		dirs[i].format, dirs[i].options = w.Format, w.Options
	}
	seen, err := r.remember(ctx, dirs)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(seen, func(f, g *found) int { return cmp.Compare(stepOf(g.step), stepOf(f.step)) })
	rewound, _, _ := r.rewound(ctx) // a damaged file must not end a server

	c := choice{skipped: []Skipped{}}
	var known []*found // complete when they were opened, and within bounds
	for _, f := range seen {
		switch {
		case f.err != nil && f.step != nil && !w.holds(*f.step):
		case f.err != nil:
			err = c.add(f)
		case f.step != nil && w.holds(*f.step):
			known = append(known, f)
		}
		if err != nil {
			return nil, err
		}
	}
	for len(known) > 0 {
		c.complete = known
		newest, err := c.result(len(dirs), rewound)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(known, func(f *found) bool { return f.folder.address == newest.Path })
		f := look(ctx, known[i].folder, false)
		if f.err == nil && f.saveID == newest.SaveID {
			newest.Damaged = c.damagedAfter(newest, &w)
			return newest, nil
		}
		r.forget(f.folder.address)
		if f.err == nil { // it was replaced
			known[i] = f
			if f.step == nil || !w.holds(*f.step) {
				known = slices.Delete(known, i, i+1)
			}
			continue
		}
		known = slices.Delete(known, i, i+1)
		if err := c.add(f); err != nil {
			return nil, err
		}
	}
	return nil, noneOf(c.problems, len(dirs))
}

// damagedAfter returns the damaged checkpoints of higher steps than the newest one.
func (c *choice) damagedAfter(newest *Found, w *Bounds) []Damaged {
	out := slices.DeleteFunc(c.damaged, func(d Damaged) bool { return d.Step <= *newest.Step || !w.holds(d.Step) })
	slices.SortStableFunc(out, func(a, b Damaged) int { return cmp.Compare(b.Step, a.Step) })
	return out[:min(len(out), maxDamaged)]
}

// remember opens the folders that were not complete when they were opened last, and returns
// the descriptions of all of them.
func (r *Run) remember(ctx context.Context, dirs []folder) ([]*found, error) {
	out := make([]*found, len(dirs))
	r.mu.Lock()
	for i := range dirs {
		if f := r.seen[dirs[i].address]; f != nil {
			known := *f
			known.folder = &dirs[i]
			out[i] = &known
		}
	}
	r.mu.Unlock()
	err := work.Each(ctx, len(dirs), parallelFolders, func(ctx context.Context, i int) error {
		if out[i] == nil {
			out[i] = look(ctx, &dirs[i], false)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = make(map[string]*found, len(dirs))
	for i, f := range out {
		if f.err == nil {
			r.seen[dirs[i].address] = f
		}
	}
	return out, nil
}

// forget makes Newest open a folder again.
func (r *Run) forget(address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.seen, address)
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

// Nearest returns the first of the stores with a complete checkpoint at the root, as for
// Latest, unless a later one holds a newer save: one with a later commit or, if a save does not
// record it, with a higher step, or with the same step and a later time. A nil store is passed
// over, and its error is in errs. If there is no complete checkpoint, at is the number of the
// store that the error is about.
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
