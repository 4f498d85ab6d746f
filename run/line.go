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

	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// Line is the place of a job in the history of a run: the checkpoint from which its next
// save goes on. Rank 0 keeps one for each run. The zero value is ready to use; its methods are
// safe for concurrent use.
type Line struct {
	mu      sync.Mutex
	parent  string   // the identity of the checkpoint that was loaded or saved last; guarded by mu
	looked  bool     // known was filled; guarded by mu
	known   []commit // complete checkpoints, as far as this process knows; guarded by mu
	rewound *Rewound // guarded by mu
	largest int64    // the largest number of a commit; guarded by mu
	pending *pending // the save that has begun; guarded by mu
}

// Loaded is a checkpoint that a job has loaded.
type Loaded struct {
	Folder string `json:"folder"`
	SaveID string `json:"save_id,omitempty"`
}

// pending is a save that has begun.
type pending struct {
	commit commit
	parent string // the folder of the parent
}

// Loaded says that the job goes on from a checkpoint of the run. The caller makes sure that no
// save is under way: see Member.Loaded.
func (l *Line) Loaded(folder, saveID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parent = identity(saveID, folder)
}

// learn notes the checkpoints that a listing has found.
func (l *Line) learn(all []Checkpoint) {
	if l == nil {
		return
	}
	var known []commit
	for i := range all {
		if all[i].Complete() {
			known = append(known, all[i].commit())
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(known)
}

// set replaces the checkpoints that are known. The caller holds mu.
func (l *Line) set(known []commit) {
	l.looked, l.known = true, known
	for _, c := range known {
		if c.line != nil {
			l.largest = max(l.largest, c.line.Commit)
		}
	}
}

// look lists the run, unless this process has done so, and reads whether it was rewound. A save
// after a rewind has a larger number, also if the clock of its job is late.
func (l *Line) look(ctx context.Context, r *Run) error {
	rewound, err := r.rewound(ctx)
	l.mu.Lock()
	looked := l.looked
	if err != nil && looked {
		rewound, err = l.rewound, nil
	}
	l.mu.Unlock()
	var known []commit
	if err == nil && !looked {
		known, err = r.commits(ctx)
	}
	if err != nil {
		return err
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if !looked {
		l.set(known)
	}
	if l.rewound = rewound; rewound != nil {
		l.largest = max(l.largest, rewound.Commit)
	}
	return nil
}

// commits returns the complete checkpoints of the run.
func (r *Run) commits(ctx context.Context) ([]commit, error) {
	dirs, err := r.both(ctx)
	if err != nil {
		return nil, err
	}
	each := make([]*found, len(dirs))
	err = work.Each(ctx, len(dirs), parallelFolders, func(ctx context.Context, i int) error {
		each[i] = look(ctx, &dirs[i], false)
		return nil
	})
	var out []commit
	for _, f := range each {
		if err == nil && f.err == nil && f.folder.name != "" {
			out = append(out, f.commit())
		}
	}
	return out, err
}

// GoOn makes the job go on from the checkpoint that it has loaded, if there is one. Begin does
// so too. Rank 0 calls it in the place of Begin if the save does not take place.
func (m *Member) GoOn() {
	if m.Line != nil && m.Loaded != nil {
		m.Line.Loaded(m.Loaded.Folder, m.Loaded.SaveID)
	}
}

// Begin decides where the next save of the job goes: into which folder, which it sets in
// Name, and to which place in the history of the run. Rank 0 calls it right before the save,
// and Committed after it. The save goes on from the checkpoint that the job has loaded or saved
// last. If there is none, it goes on from the newest one of a smaller step. If the folder of
// its step belongs to another line, or has tags, the save gets a folder of its own.
//
// warn receives what a person should know: that the run leaves a line, or that the run cannot be
// read, so that the save has no place in the history.
func (m *Member) Begin(ctx context.Context, step *int64, now time.Time, warn func(error)) *meta.Line {
	if m.Line == nil || step == nil {
		return nil
	}
	m.GoOn()
	r, err := Open(ctx, m.Address, m.Settings.Remote)
	if err == nil {
		err = m.Line.look(ctx, r)
	}
	if err != nil {
		warn(fmt.Errorf("the run cannot be read, so the checkpoint of step %d has no place in its history: %w", *step, err))
		return nil
	}
	return m.Line.begin(ctx, m, r, *step, now, warn)
}

func (l *Line) begin(ctx context.Context, m *Member, r *Run, step int64, now time.Time, warn func(error)) *meta.Line {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := newHistory(l.known, l.rewound)
	p := h.find(l.parent)
	if l.parent == "" || p < 0 {
		p = h.assume(step)
	}
	line := &meta.Line{Commit: max(l.largest+1, now.UnixMilli()), Parent: l.parent}
	if p >= 0 && line.Parent == "" {
		line.Parent = h.all[p].id
	}

	name, replaced := l.place(ctx, m, r, h, p, step, warn)
	line.Left = h.leftBy(p, now)
	if replaced { // the parent goes, and its own parent stays
		line.Parent = ""
		if own := h.all[p].line; own != nil {
			line.Parent = own.Parent
		}
	}
	warnLeft(h, p, line.Left, now, warn)
	m.Name = name
	l.pending = &pending{commit: commit{name: name, step: &step, time: now, line: line}}
	if i := h.find(line.Parent); i >= 0 && line.Parent != "" {
		l.pending.parent = h.all[i].name
	}
	return line
}

// assume returns the number of the commit from which a save of a step goes on if the job has
// loaded none: the head if it has the same step, else the newest one of the current line with
// a smaller step. -1: there is none.
func (h *history) assume(step int64) int {
	if h.head < 0 || stepOf(h.all[h.head].step) == step {
		return h.head
	}
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

// place returns the folder of a save of a step that goes on from the commit p, and whether it replaces
// p, which is of the same step. The caller holds mu.
func (l *Line) place(ctx context.Context, m *Member, r *Run, h *history, p int, step int64, warn func(error)) (name string, replaced bool) {
	occupant := func(name string) *commit {
		if i := slices.IndexFunc(l.known, func(c commit) bool { return c.name == name }); i >= 0 {
			return &l.known[i]
		}
		if f := r.Local.look(ctx, name); f.err == nil {
			c := f.commit()
			return &c
		}
		return nil
	}
	plain := m.Name
	if p >= 0 && !m.Exclusive && withoutAgain(h.all[p].name) == plain && !r.hasTags(ctx, h.all[p].name, h.all[p].id) {
		return h.all[p].name, true
	}
	there := occupant(plain)
	if m.Exclusive || there == nil || h.precedes(there, p, step) && !r.hasTags(ctx, plain, there.id) {
		return plain, false
	}
	for n := 2; ; n++ {
		name = plain + again + strconv.Itoa(n)
		if occupant(name) == nil {
			warn(fmt.Errorf("%s has a checkpoint that this save must not replace: it goes to %s", plain, name))
			return name, false
		}
	}
}

// precedes reports whether c is a known commit of a smaller step on the line of the commit p.
// A save of a step that goes on from p replaces it if both have the same folder, such as last.ckpt.
func (h *history) precedes(c *commit, p int, step int64) bool {
	if p < 0 || h.find(c.id) < 0 || stepOf(c.step) >= step {
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
	p := l.pending
	if p == nil || p.commit.name != m.Name {
		l.parent = identity(saveID, m.Name)
		return
	}
	p.commit.id = identity(saveID, m.Name)
	l.parent, m.parent = p.commit.id, p.parent
	known := slices.DeleteFunc(slices.Clone(l.known), func(c commit) bool { return c.name == m.Name })
	l.set(append(known, p.commit))
	l.pending = nil
}

// Rewind makes the run go on from an older checkpoint: Latest returns it, and policies count
// the later ones as left behind. The next save goes on from there. It returns the
// checkpoint. The error wraps storage.ErrNotFound if the run has no such checkpoint; see
// Find.
func (r *Run) Rewind(ctx context.Context, name string) (*Checkpoint, error) {
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
	now := time.Now().UTC()
	rewound := &Rewound{To: identity(c.SaveID, c.Name), Commit: now.UnixMilli(), Time: now}
	for i := range all {
		rewound.Commit = max(rewound.Commit, all[i].Commit+1)
	}

	var errs []error
	for _, p := range r.places() {
		errs = append(errs, changeSettings(ctx, p.Store, func(s Settings) (Settings, error) {
			s.Rewound = rewound
			return s, nil
		}))
	}
	return c, errors.Join(errs...)
}
