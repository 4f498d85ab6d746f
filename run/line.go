package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// Line is the place of a job in the history of a run: the checkpoint from which its next
// save goes on. Rank 0 keeps one for each run. The zero value is ready to use; its methods are
// safe for concurrent use.
type Line struct {
	mu      sync.Mutex
	parent  string // the identity of the checkpoint that was loaded or saved last; guarded by mu
	run     *Run   // of the last save, with the checkpoints that it has opened; guarded by mu
	largest int64  // the largest number of a commit; guarded by mu
}

// Loaded is a checkpoint that a job has loaded.
type Loaded struct {
	Folder string `json:"folder"`
	SaveID string `json:"save_id,omitempty"`
}

// Loaded says that the job goes on from a checkpoint of the run. The caller makes sure that no
// save is under way: see Member.Loaded.
func (l *Line) Loaded(folder, saveID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parent = identity(saveID, folder)
}

// open returns the run of a save.
func (l *Line) open(ctx context.Context, m *Member) (*Run, error) {
	l.mu.Lock()
	r := l.run
	l.mu.Unlock()
	if r != nil && (r.Remote == nil) == (m.Settings.Remote == "") {
		return r, nil
	}
	r, err := Open(ctx, m.Address, m.Settings.Remote)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.run = r
	return r, nil
}

// history returns the history of the run as it is now: another job may have saved meanwhile. In
// object storage, only new folders are opened.
func (r *Run) history(ctx context.Context) (*history, error) {
	dirs, err := r.below(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		if d.place.local { // it is cheap to open, and may have been replaced
			r.forget(d.address)
		}
	}
	all, err := r.remember(ctx, dirs)
	if err != nil {
		return nil, err
	}
	rewound, _, err := r.rewound(ctx)
	if err != nil && !isUnreadable(err) {
		return nil, err
	}

	var known, damaged []savedStep
	var unread []string
	for _, f := range all {
		switch {
		case f.err == nil:
			known = append(known, f.commit())
		case isAny(f.err, storage.ErrIncomplete, storage.ErrCorrupt):
			damaged = append(damaged, f.commit())
		case !errors.Is(f.err, storage.ErrNotFound):
			unread = append(unread, f.folder.name)
		}
	}
	h := newHistory(known, goneBack(damaged, rewound))
	h.damaged, h.unread = damaged, unread
	return h, nil
}

// GoOn makes the job go on from the checkpoint that it has loaded, if there is one. Begin calls
// it. If the save does not take place, rank 0 calls GoOn instead of Begin.
func (m *Member) GoOn() {
	if m.Line != nil && m.Loaded != nil {
		m.Line.Loaded(m.Loaded.Folder, m.Loaded.SaveID)
	}
}

// Begin sets Name to the folder of the next save of the job, and returns the place of the save in
// the history of the run. Rank 0 calls it right before the save, and Committed after it. The save
// goes on from the checkpoint that the job has loaded or saved last. If there is none, it goes on
// from the newest one of a smaller step. If the folder of its step belongs to another line, or has
// tags, the save gets a folder of its own.
//
// If the run leaves a line, Tend writes that into the settings too: if the record of the save is
// lost later, the run does not go back to the line that it has left.
//
// warn receives an error if the run leaves a line, or if the save goes to another folder. If the
// run cannot be read, warn receives the reason, and Begin returns nil: the save has no place in
// the history.
func (m *Member) Begin(ctx context.Context, step *int64, now time.Time, warn func(error)) *meta.Line {
	if m.Line == nil || step == nil {
		return nil
	}
	m.GoOn()
	r, err := m.Line.open(ctx, m)
	var h *history
	if err == nil {
		h, err = r.history(ctx)
	}
	if err != nil && r != nil && r.Remote != nil { // the remote place may not answer
		warn(err)
		h, err = (&Run{Local: r.Local}).history(ctx)
	}
	if err != nil {
		warn(fmt.Errorf("the run cannot be read, so the checkpoint of step %d has no place in its history: %w", *step, err))
		return nil
	}
	return m.Line.begin(ctx, m, r, h, *step, now, warn)
}

func (l *Line) begin(ctx context.Context, m *Member, r *Run, h *history, step int64, now time.Time, warn func(error)) *meta.Line {
	l.mu.Lock()
	parent := l.parent
	l.largest = max(l.largest+1, h.largest()+1, now.UnixMilli())
	line := &meta.Line{Commit: l.largest, Parent: parent}
	l.mu.Unlock()
	p := h.find(parent)
	if p < 0 {
		p = h.assume(step)
	}
	if p >= 0 && line.Parent == "" {
		line.Parent = h.all[p].id
	}

	name, replaced := chooseFolder(ctx, m, r, h, p, step, warn)
	line.Left = h.leftBy(p, now)
	if replaced { // the parent goes, and its own parent stays
		line.Parent = ""
		if own := h.all[p].line; own != nil {
			line.Parent = own.Parent
		}
	}
	warnLeft(h, p, line.Left, now, warn)
	if leaves := slices.ContainsFunc(line.Left, func(l meta.Left) bool { return l.Since.Equal(now) }); leaves && line.Parent != "" {
		m.Settings.Rewound = &Rewound{To: line.Parent, Commit: line.Commit - 1, Time: now, Left: line.Left}
	}

	m.Name = name
	if i := h.find(line.Parent); i >= 0 {
		m.parent = h.all[i].name
	}
	return line
}

// largest returns the largest number of a commit, or of a rewind.
func (h *history) largest() (n int64) {
	if h.rewound != nil {
		n = h.rewound.Commit
	}
	for i := range h.all {
		if l := h.all[i].line; l != nil {
			n = max(n, l.Commit)
		}
	}
	return n
}

// assume returns the number of the commit from which a save of a step goes on if the job has
// loaded none: the newest one of the current line with a smaller step. -1: there is none.
func (h *history) assume(step int64) int {
	for _, i := range slices.Backward(h.order) {
		if _, left := h.left[i]; !left && stepOf(h.all[i].step) < step {
			return i
		}
	}
	return -1
}

// leftBy returns meta.Line.Left of a save that goes on from the commit p: the commits that p
// has left and that still exist, and the ones after p.
func (h *history) leftBy(p int, now time.Time) []meta.Left {
	var out []meta.Left
	listed := map[string]bool{}
	add := func(since time.Time, ids []string) {
		l := meta.Left{Since: since}
		for _, id := range ids {
			if h.find(id) >= 0 && !listed[id] {
				listed[id] = true
				l.Saves = append(l.Saves, id)
			}
		}
		if len(l.Saves) > 0 {
			out = append(out, l)
		}
	}
	if p < 0 {
		var all []string
		for _, i := range h.order {
			all = append(all, h.all[i].id)
		}
		add(now, all)
		return out
	}
	for _, l := range h.lineOf(p) {
		add(l.Since, l.Saves)
	}
	add(now, h.after(p))
	return out
}

// warnLeft says which checkpoints a save leaves behind.
func warnLeft(h *history, p int, left []meta.Left, now time.Time, warn func(error)) {
	for _, l := range left {
		if !l.Since.Equal(now) {
			continue
		}
		last := h.all[h.find(l.Saves[len(l.Saves)-1])]
		from := "the beginning"
		if p >= 0 {
			from = h.all[p].name
		}
		warn(fmt.Errorf("the run goes on from %s, and leaves a line of %d checkpoints up to %s behind: 'cairn log' shows both lines, and policies keep the old one for a time",
			from, len(l.Saves), last.name))
	}
}

// chooseFolder returns the folder of a save of a step that goes on from the commit p, and whether
// the save replaces p. A damaged checkpoint is replaced too, unless it has tags. A folder that cannot
// be read stays, such as one with a checkpoint of a newer cairn.
func chooseFolder(ctx context.Context, m *Member, r *Run, h *history, p int, step int64, warn func(error)) (name string, replaced bool) {
	occupant := func(name string) *savedStep {
		if i := slices.IndexFunc(h.all, func(c savedStep) bool { return c.name == name }); i >= 0 {
			return &h.all[i]
		}
		return nil
	}
	stays := func(name string) bool {
		return slices.Contains(h.unread, name) || slices.ContainsFunc(h.damaged, func(c savedStep) bool { return c.name == name }) && r.hasTags(ctx, name, name)
	}
	plain := m.Name
	if p >= 0 && !m.Exclusive && withoutAgain(h.all[p].name) == plain && !r.hasTags(ctx, h.all[p].name, h.all[p].id) {
		return h.all[p].name, true
	}
	there := occupant(plain)
	if m.Exclusive || there == nil && !stays(plain) || there != nil && h.precedes(there, p, step) && !r.hasTags(ctx, plain, there.id) {
		return plain, false
	}
	for n := 2; ; n++ {
		name = plain + again + strconv.Itoa(n)
		if occupant(name) == nil && !stays(name) {
			warn(fmt.Errorf("%s has a checkpoint that this save must not replace: it goes to %s", plain, name))
			return name, false
		}
	}
}

// precedes reports whether the commit c has a smaller step than a save that goes on from the
// commit p, and is on the line of p. The save replaces c if both have the same folder, such as
// last.ckpt.
func (h *history) precedes(c *savedStep, p int, step int64) bool {
	if p < 0 || stepOf(c.step) >= step {
		return false
	}
	return !slices.ContainsFunc(h.leftBy(p, time.Time{}), func(l meta.Left) bool { return slices.Contains(l.Saves, c.id) })
}

// again separates the name of a folder from the number of the save of the same step: step-000000100~2.
const again = "~"

// withoutAgain returns a name without the number of a save of the same step.
func withoutAgain(name string) string {
	plain, n, ok := strings.Cut(name, again)
	if _, err := strconv.ParseUint(n, 10, 31); !ok || err != nil {
		return name
	}
	return plain
}

// hasTags reports whether a checkpoint has tags in one of its places, or may have.
func (r *Run) hasTags(ctx context.Context, name, id string) bool {
	for _, p := range r.places() {
		store, err := p.StoreOf(name)
		if err != nil {
			return true
		}
		saveID := id
		if id == name {
			saveID = ""
		}
		if n, err := ReadNotes(ctx, store, saveID); err != nil || len(n.Tags) > 0 {
			return true
		}
	}
	return false
}

// Committed says that the save that has begun is complete. The next one goes on from it.
func (m *Member) Committed(saveID string) {
	l := m.Line
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parent = identity(saveID, m.Name)
	if l.run == nil {
		return
	}
	for _, place := range l.run.places() { // the save may have replaced a checkpoint
		l.run.forget(place.AddressOf(m.Name))
	}
}

// Rewind makes the run go on from an older checkpoint: Latest returns it, and policies count
// the later ones as left behind. The next save goes on from there. It returns the
// checkpoint. The error wraps storage.ErrNotFound if the run has no such checkpoint; see
// Find.
func (r *Run) Rewind(ctx context.Context, name string) (*Checkpoint, error) {
	return r.rewind(ctx, name, time.Now().UTC())
}

// rewind is Rewind at a time.
func (r *Run) rewind(ctx context.Context, name string, now time.Time) (*Checkpoint, error) {
	all, err := r.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	c, err := r.find(all, name)
	if err != nil {
		return nil, err
	}
	if !c.Complete() {
		return nil, fmt.Errorf("%w: %s is %s", storage.ErrIncomplete, c.Name, c.lacks())
	}
	if r.Remote != nil { // another run is not rewound
		if err := r.Join(ctx); err != nil {
			return nil, err
		}
	}

	rewound := rewindTo(all, c, now)
	var errs []error
	for _, p := range r.places() {
		errs = append(errs, changeSettings(ctx, p.Store, func(s Settings) (Settings, error) {
			s.Rewound = rewound
			return s, nil
		}))
	}
	return c, errors.Join(errs...)
}

// rewindTo returns the decision to go back to the checkpoint c.
func rewindTo(all []Checkpoint, c *Checkpoint, now time.Time) *Rewound {
	out := &Rewound{To: identity(c.SaveID, c.Name), Commit: now.UnixMilli(), Time: now}
	var complete []savedStep
	for i := range all {
		out.Commit = max(out.Commit, all[i].Commit+1)
		if all[i].Complete() {
			complete = append(complete, all[i].commit())
		}
	}
	h := newHistory(complete, nil)
	out.Left = h.leftBy(h.find(out.To), now)
	return out
}
