// Package run looks after a run: the checkpoints of one training, in folders below one folder
// or address, and perhaps a second time in another store. It lists them, notes tags and
// metrics, decides by a policy which ones are kept, removes the others, and uploads the ones
// that the second store lacks. It does not depend on how states are saved. The contract is at
// Apply and Prune; docs/runs.md describes how to use it.
package run

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// Run is a run in one or two places.
type Run struct {
	// Local is the place of its saves, of any kind.
	Local *Place
	// Remote is the place to which checkpoints are uploaded. Nil: there is none.
	Remote *Place
	// Stored means that a file in the folder of the run names Remote, and not the caller. Then
	// checkpoints there are removed and replaced only if the user has confirmed it; see Confirm.
	Stored bool

	mu   sync.Mutex
	seen map[string]*found // complete checkpoints by their addresses, for Newest; guarded by mu
}

// Open returns the run at an address: a path, or a URL with a registered scheme. The
// folder need not exist. remote is the address of the same run in another store; empty:
// there is none.
func Open(ctx context.Context, address, remote string) (*Run, error) {
	local, err := openPlace(ctx, address, false)
	if err != nil {
		return nil, err
	}
	r := &Run{Local: local}
	if remote == "" {
		return r, nil
	}
	if r.Remote, err = openPlace(ctx, remote, true); err != nil {
		return nil, err
	}
	return r, nil
}

// OpenSettings opens a run with the settings that it has, if they are not set in s. It
// returns the settings in effect.
func OpenSettings(ctx context.Context, address string, s Settings) (*Run, Settings, error) {
	local, err := openPlace(ctx, address, false)
	if err != nil {
		return nil, s, err
	}
	stored, err := ReadSettings(ctx, local.Store)
	if err != nil {
		return nil, s, err
	}
	named := s.Remote != ""
	s = s.or(stored)
	r, err := Open(ctx, address, s.Remote)
	if err != nil {
		return nil, s, err
	}
	r.Stored = !named
	return r, s, nil
}

// String returns the address of the run for messages.
func (r *Run) String() string { return r.Local.String() }

// places returns the one or two places.
func (r *Run) places() []*Place {
	if r.Remote == nil {
		return []*Place{r.Local}
	}
	return []*Place{r.Local, r.Remote}
}

// FolderName returns the name of the folder of a checkpoint of a step, in a run that
// chooses the names itself. In the order of names, later steps come last.
func FolderName(step int64) string { return fmt.Sprintf("step-%09d", step) }

// State is the state of a copy of a checkpoint.
type State string

// The states of a copy.
const (
	Complete   State = "complete"   // it can be opened, and all of its files exist
	Incomplete State = "incomplete" // a part, or damaged, or of a version that cairn cannot read; Copy.Problem says which
	UnderWay   State = "under way"  // a living process is saving it
)

// Copy is a copy of a checkpoint in one of the places of a run.
type Copy struct {
	// Path is the address of its folder.
	Path  string `json:"path"`
	State State  `json:"state"`
	// Problem says why the copy is not complete.
	Problem string `json:"problem,omitempty"`
	// SaveID identifies the save, if the format records it. Copies of one save have the
	// same.
	SaveID string `json:"save_id,omitempty"`
	// Bytes are the bytes of all files in the folder.
	Bytes int64 `json:"bytes"`

	found *found
}

// Checkpoint is a checkpoint of a run, in one or both of its places.
type Checkpoint struct {
	// Name is the name of its folder.
	Name string `json:"name"`
	// Step is the step that the checkpoint records or, if it does not record one, the
	// number at the end of its name. Nil: it has neither.
	Step *int64 `json:"step"`
	// Time is when its save began or, if the format does not record it, when its newest
	// file was written.
	Time time.Time `json:"time,omitzero"`
	// Bytes are the bytes of all files of a copy.
	Bytes  int64  `json:"bytes"`
	SaveID string `json:"save_id,omitempty"`
	Format string `json:"format,omitempty"`
	// Metrics and Tags are from the notes of the checkpoint; see Notes.
	Metrics Metrics  `json:"metrics,omitempty"`
	Tags    []string `json:"tags,omitempty"`
	// Exports are from the notes, too.
	Exports []Exported `json:"exports,omitempty"`
	// Bases are the names of the checkpoints of the run that have bytes of this one.
	Bases []string `json:"bases,omitempty"`
	// Local and Remote are the copies. Nil: there is no copy in that place.
	Local  *Copy `json:"local,omitempty"`
	Remote *Copy `json:"remote,omitempty"`
	// Commit is the place in the order of commits; see meta.Line. Zero: the save does not
	// record it. Parent is the checkpoint that the job loaded or saved before: the id of its
	// save, or its folder if the format records no id.
	Commit int64  `json:"commit,omitempty"`
	Parent string `json:"parent,omitempty"`
	// Head is set for the newest checkpoint of the current line: the next save goes on from
	// it. Left is set for checkpoints on a line that the run has left, at the time LeftSince;
	// zero: unknown.
	Head      bool      `json:"head,omitempty"`
	Left      bool      `json:"left,omitempty"`
	LeftSince time.Time `json:"left_since,omitzero"`
	// Problem says why no policy removes the checkpoint: its notes cannot be read, or it
	// has no place in the history.
	Problem string `json:"problem,omitempty"`
}

// at returns the copy in a place, or nil.
func (c *Checkpoint) at(p *Place) *Copy {
	if p.remote {
		return c.Remote
	}
	return c.Local
}

// Complete reports whether a copy is complete.
func (c *Checkpoint) Complete() bool { return c.Local.IsComplete() || c.Remote.IsComplete() }

// IsComplete reports whether there is a copy, and it is complete.
func (c *Copy) IsComplete() bool { return c != nil && c.State == Complete }

// bases returns the names of the folders beside the copy to which it refers.
func (c *Copy) bases() []string {
	if c == nil || c.found == nil {
		return nil
	}
	return c.found.bases
}

// mayRefer reports whether a copy may refer to checkpoints that are not known, because its record
// cannot be read.
func (c *Checkpoint) mayRefer() bool {
	return slices.ContainsFunc([]*Copy{c.Local, c.Remote}, func(copied *Copy) bool {
		return copied != nil && copied.found != nil && copied.found.mayRefer
	})
}

// mayLead reports whether the checkpoint may be the head, because the notes that have its place in
// the history cannot be read.
func (c *Checkpoint) mayLead() bool {
	f := c.best()
	return f != nil && f.mayLead
}

// Path returns the address of a complete copy of the save that the checkpoint describes: of two
// copies, the local one. It is empty if there is none.
func (c *Checkpoint) Path() string {
	for _, copied := range []*Copy{c.Local, c.Remote} {
		if copied.IsComplete() && copied.SaveID == c.SaveID {
			return copied.Path
		}
	}
	return ""
}

// Uploaded reports whether the remote copy is complete and of the same save as the local one.
func (c *Checkpoint) Uploaded() bool {
	return c.Remote.IsComplete() && (!c.Local.IsComplete() || c.Local.SaveID == c.Remote.SaveID)
}

// Copies returns "local", "remote", "both", or "" if no copy is complete. Two copies of
// different saves are "differ".
func (c *Checkpoint) Copies() string {
	switch l, r := c.Local.IsComplete(), c.Remote.IsComplete(); {
	case l && r && c.Local.SaveID != c.Remote.SaveID:
		return "differ"
	case l && r:
		return "both"
	case l:
		return "local"
	case r:
		return "remote"
	}
	return ""
}

// lacks returns the reason for which a policy does not judge a checkpoint.
func (c *Checkpoint) lacks() string {
	for _, copied := range []*Copy{c.Local, c.Remote} {
		if copied != nil && copied.State == UnderWay {
			return ReasonUnderWay
		}
	}
	return ReasonIncomplete
}

// commit returns the checkpoint for the history of its run.
func (c *Checkpoint) commit() savedStep {
	out := savedStep{name: c.Name, id: identity(c.SaveID, c.Name), step: c.Step, time: c.Time}
	if c.Commit > 0 {
		out.line = &meta.Line{Commit: c.Commit, Parent: c.Parent}
		if f := c.best(); f != nil && f.line != nil {
			out.line = f.line
		}
	}
	return out
}

// best returns the description of the copy that the checkpoint shows, or nil.
func (c *Checkpoint) best() *found {
	for _, copied := range []*Copy{c.Local, c.Remote} {
		if copied != nil && copied.found != nil && copied.SaveID == c.SaveID {
			return copied.found
		}
	}
	return nil
}

// arrange sorts checkpoints, the oldest commit first, and marks the head and the checkpoints
// that were left behind. Incomplete ones have no part in the history. They stand where their
// steps and times put them.
func arrange(all []Checkpoint, rewound *Rewound) {
	commits := make([]savedStep, len(all))
	for i := range all {
		commits[i] = all[i].commit()
	}
	at := positions(commits)
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return at[i].compare(at[j]) })

	sorted := make([]Checkpoint, 0, len(all))
	complete, where := []savedStep{}, []int{}
	var damaged []savedStep
	for _, i := range order {
		if all[i].Complete() {
			complete, where = append(complete, commits[i]), append(where, len(sorted))
		} else {
			damaged = append(damaged, commits[i])
		}
		sorted = append(sorted, all[i])
	}
	copy(all, sorted)

	h := newHistory(complete, goneBack(damaged, rewound))
	for i := range complete {
		c := &all[where[i]]
		c.Head = i == h.head
		c.LeftSince, c.Left = h.left[i]
		if f := c.best(); f != nil && (h.unplaced[i] || c.Head && f.line == nil) {
			f.mayLead = f.notesErr != nil && f.format != formats.Native
		}
		if h.unplaced[i] && c.Problem == "" {
			c.Problem = "its save does not say where it belongs in the history of the run"
		}
	}
}

// parallelFolders is how many folders of a run are opened at the same time.
const parallelFolders = 8

// Checkpoints returns the checkpoints of the run in all formats that cairn reads, the oldest
// commit first, also incomplete ones. It opens each, and lists its files, but does not read their
// contents. Folders without a checkpoint, the folder of the run itself, and folders of other
// runs below it are left out.
func (r *Run) Checkpoints(ctx context.Context) ([]Checkpoint, error) {
	dirs, err := r.below(ctx)
	if err != nil {
		return nil, err
	}

	each := make([]*found, len(dirs))
	err = work.Each(ctx, len(dirs), parallelFolders, func(ctx context.Context, i int) (err error) {
		each[i], err = describe(ctx, &dirs[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	dropParts(ctx, r.places(), dirs, each)

	byName := map[string]*Checkpoint{}
	for i, f := range each {
		if f == nil {
			continue
		}
		c := byName[dirs[i].name]
		if c == nil {
			c = &Checkpoint{Name: dirs[i].name}
			byName[c.Name] = c
		}
		c.add(f, dirs[i].place.remote)
	}

	out := []Checkpoint{}
	for _, c := range byName {
		c.summarize()
		out = append(out, *c)
	}

	rewound, _, err := r.rewound(ctx)
	if err != nil && !isUnreadable(err) { // which Prune refuses
		return nil, err
	}
	arrange(out, rewound)
	return out, nil
}

// Find returns the checkpoint in the folder name. If there is none and name is a number, it returns
// the newest checkpoint of that step, on the current line if possible. The error wraps
// storage.ErrNotFound if the run has no such checkpoint.
func (r *Run) Find(ctx context.Context, name string) (*Checkpoint, error) {
	all, err := r.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	return r.find(all, name)
}

// find is Find in a list of the checkpoints.
func (r *Run) find(all []Checkpoint, name string) (*Checkpoint, error) {
	if i := slices.IndexFunc(all, func(c Checkpoint) bool { return c.Name == name }); i >= 0 {
		return &all[i], nil
	}
	if step, err := strconv.ParseInt(name, 10, 64); err == nil {
		var out *Checkpoint
		for i := range all {
			if c := &all[i]; c.Step != nil && *c.Step == step && (out == nil || c.preferred(out)) {
				out = c
			}
		}
		if out != nil {
			return out, nil
		}
	}
	return nil, fmt.Errorf("%w: %s has no checkpoint %q", storage.ErrNotFound, r, name)
}

// preferred reports whether c, which is newer than d, is the better one of two checkpoints of a
// step: a complete one, and one of the current line.
func (c *Checkpoint) preferred(d *Checkpoint) bool {
	if c.Complete() != d.Complete() {
		return c.Complete()
	}
	return !c.Left || d.Left
}

// add adds a copy.
func (c *Checkpoint) add(f *found, remote bool) {
	copied := &Copy{Path: f.folder.address, State: f.state(), SaveID: f.saveID, Bytes: f.bytes, found: f}
	if f.err != nil {
		copied.Problem = f.err.Error()
	}
	if remote {
		c.Remote = copied
	} else {
		c.Local = copied
	}
}

// summarize describes the checkpoint by its best copy: a complete one, of complete ones of
// different saves the newer, and otherwise the local one.
func (c *Checkpoint) summarize() {
	best, other := c.Local, c.Remote
	switch {
	case best == nil, other.IsComplete() && !best.IsComplete():
		best, other = other, best
	case other.IsComplete() && best.SaveID != other.SaveID && other.found.compare(best.found) > 0:
		best, other = other, best
	}
	c.describe(best.found)
	if other.IsComplete() && other.SaveID == best.SaveID {
		n := Notes{Tags: c.Tags, Metrics: c.Metrics, Exports: c.Exports}
		n.join(&other.found.notes)
		c.Tags, c.Metrics, c.Exports = n.Tags, n.Metrics, n.Exports
		if other.found.notesErr != nil && c.Problem == "" {
			c.Problem = other.found.notesErr.Error()
		}
	}
}

// describe fills in the result of a look at a copy.
func (c *Checkpoint) describe(f *found) {
	c.Step, c.Time, c.Bytes, c.SaveID, c.Format, c.Bases = f.step, f.time, f.bytes, f.saveID, f.format, f.bases
	if c.Time.IsZero() {
		c.Time = f.written
	}
	c.Tags, c.Metrics, c.Exports = slices.Clone(f.notes.Tags), maps.Clone(f.notes.Metrics), slices.Clone(f.notes.Exports)
	c.Commit, c.Parent = 0, ""
	if f.line != nil {
		c.Commit, c.Parent = f.line.Commit, f.line.Parent
	}
	c.Problem = ""
	if f.notesErr != nil {
		c.Problem = f.notesErr.Error()
	}
}

// hides returns an error if the checkpoint may have a metric in notes that cannot be read.
func (c *Checkpoint) hides(metric string) error {
	if _, ok := c.Metrics[metric]; ok {
		return nil
	}
	for _, copied := range []*Copy{c.Local, c.Remote} {
		if copied.IsComplete() && copied.SaveID == c.SaveID && copied.found != nil && copied.found.notesErr != nil {
			return copied.found.notesErr
		}
	}
	return nil
}

// in returns the checkpoint as it is in one place. ok is false if it is not there.
func (c *Checkpoint) in(p *Place) (_ Checkpoint, ok bool) {
	out, copied := *c, c.at(p)
	if p.remote {
		out.Local = nil
	} else {
		out.Remote = nil
	}
	if copied == nil {
		return out, false
	}
	if copied.SaveID != c.SaveID || !copied.IsComplete() {
		out.describe(copied.found)
	}
	out.Bytes, out.Bases = copied.Bytes, copied.bases() // uploads stand alone
	return out, true
}

// whole returns the bytes of the checkpoint if it stood alone. The checkpoint is in one place.
func (c *Checkpoint) whole() int64 {
	for _, copied := range []*Copy{c.Local, c.Remote} {
		if copied != nil && copied.found != nil && copied.found.whole > 0 {
			return copied.found.whole
		}
	}
	return c.Bytes
}
