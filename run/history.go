package run

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
)

// savedStep is a complete save of a run, as far as the history of the run depends on it.
type savedStep struct {
	name string // of the folder
	id   string // see identity
	step *int64
	time time.Time
	line *meta.Line // nil: the save does not record its place
}

// identity returns the name of a save in a meta.Line: its id, or its folder if the format
// does not record an id.
func identity(saveID, folder string) string { return cmp.Or(saveID, folder) }

// position is the place of a commit in the order of a run.
type position struct {
	number int64 // meta.Line.Commit; without one, the number of the commit that it follows
	placed bool  // the number is not its own
	step   int64
	time   time.Time
	name   string
}

func (p position) compare(q position) int {
	return cmp.Or(
		cmp.Compare(p.number, q.number), compareBool(p.placed, q.placed), cmp.Compare(p.step, q.step), p.time.Compare(q.time),
		cmp.Compare(len(p.name), len(q.name)), strings.Compare(p.name, q.name))
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// positions returns the places of commits. A commit that does not record its place, such as
// one of another program, follows the last commit with a smaller step and an earlier time.
// Among each other, such commits are ordered by step, then by time, then by name.
func positions(all []savedStep) []position {
	out := make([]position, len(all))
	for i := range all {
		c := &all[i]
		out[i] = position{step: stepOf(c.step), time: c.time, name: c.name}
		if c.line != nil {
			out[i].number = c.line.Commit
			continue
		}
		out[i].placed = true
		for j := range all {
			if before := &all[j]; before.line != nil && c.follows(before) {
				out[i].number = max(out[i].number, before.line.Commit)
			}
		}
	}
	return out
}

// follows reports whether c has a larger step and a later time than b. A step or a time that one
// of them lacks is not compared.
func (c *savedStep) follows(b *savedStep) bool {
	byStep, byTime := c.step != nil && b.step != nil, !c.time.IsZero() && !b.time.IsZero()
	return (byStep || byTime) && (!byStep || *c.step > *b.step) && (!byTime || c.time.After(b.time))
}

// stepOf returns a step, or -1 if it is unknown.
func stepOf(p *int64) int64 {
	if p == nil {
		return -1
	}
	return *p
}

// Rewound says that a run goes on from an older checkpoint; see Run.Rewind.
type Rewound struct {
	// To is the checkpoint, named as in meta.Line.Parent.
	To string `json:"to"`
	// Commit is the place of the decision in the order of commits: later saves count more.
	Commit int64     `json:"commit"`
	Time   time.Time `json:"time"`
	// Left are all checkpoints except To and its ancestors.
	Left []meta.Left `json:"left,omitempty"`
}

// after reports whether w is a later decision than other. Nil means that there is no decision.
func (w *Rewound) after(other *Rewound) bool {
	return w != nil && (other == nil || w.Commit > other.Commit)
}

// history is the order of the commits of a run, and which of them were left behind.
type history struct {
	all   []savedStep
	order []int // numbers in all, the oldest first
	head  int   // the number of the newest commit of the current line; -1: there is none
	// left are the commits that are not on the line of the head, with the time at which the
	// run went back behind them. The zero time: unknown.
	left map[int]time.Time
	// unplaced are commits that were made after the head, but do not record where they
	// belong.
	unplaced map[int]bool
	rewound  *Rewound    // nil: the run was never rewound
	damaged  []savedStep // folders without a complete commit; the step, the time and the line may be unknown
	unread   []string    // folders that could not be read; they may have a complete commit
}

// goneBack returns the decision from which line the run goes on: rewound or, if a damaged commit is
// newer, the line in its record. The run goes on from the newest complete commit of that line.
func goneBack(damaged []savedStep, rewound *Rewound) *Rewound {
	for _, c := range damaged {
		if l := c.line; l != nil && (rewound == nil || l.Commit > rewound.Commit) {
			rewound = &Rewound{To: l.Parent, Commit: l.Commit, Time: c.time, Left: l.Left}
		}
	}
	return rewound
}

// newHistory returns the history of complete commits. rewound may be nil.
func newHistory(all []savedStep, rewound *Rewound) *history {
	h := &history{all: all, order: make([]int, len(all)), head: -1, left: map[int]time.Time{}, unplaced: map[int]bool{}, rewound: rewound}
	at := positions(all)
	for i := range h.order {
		h.order[i] = i
	}
	slices.SortStableFunc(h.order, func(i, j int) int { return at[i].compare(at[j]) })
	if len(all) == 0 {
		return h
	}

	h.head = h.order[len(h.order)-1]
	if newest := at[h.head]; rewound == nil || newest.number > rewound.Commit || newest.placed && newest.time.After(rewound.Time) {
		h.leave(h.lineOf(h.head))
	} else {
		h.rewind()
	}
	for i := range all {
		_, left := h.left[i]
		older := at[i].compare(at[h.head]) < 0
		h.unplaced[i] = i != h.head && (older || !left) && all[i].line == nil && all[h.head].line != nil && all[i].time.After(all[h.head].time)
	}
	return h
}

// rewind makes the commit to which the run was rewound the head. If that is gone, it is the newest
// commit that was not left.
func (h *history) rewind() {
	newest := h.head
	h.head = -1
	h.leave(h.rewound.Left)
	to := h.find(h.rewound.To)
	for _, i := range slices.Backward(h.order) {
		if _, left := h.left[i]; !left && (to < 0 || i == to) {
			h.head = i
			return
		}
	}
	h.head = newest
	delete(h.left, newest)
}

// find returns the number of the newest commit that an identity names, or -1.
func (h *history) find(id string) int {
	for _, i := range slices.Backward(h.order) {
		if h.all[i].id == id {
			return i
		}
	}
	return -1
}

// after returns the identities of the commits after one. A save that does not record its place,
// and was made later, is not an ancestor either, also if its step is smaller.
func (h *history) after(i int) []string {
	var out []string
	at := slices.Index(h.order, i)
	for k, j := range h.order {
		c := &h.all[j]
		later := k > at || c.line == nil && c.id != c.name && c.time.After(h.all[i].time)
		if later && c.id != h.all[i].id { // another copy
			out = append(out, c.id)
		}
	}
	return out
}

// lineOf returns the commits that are not ancestors of one. A commit that does not record
// its place continues the line of the commit before it.
func (h *history) lineOf(i int) []meta.Left {
	for _, j := range slices.Backward(h.order[:slices.Index(h.order, i)+1]) {
		if l := h.all[j].line; l != nil {
			return slices.Clone(l.Left)
		}
	}
	return nil
}

// leave marks the commits that were left, and the commits that continue them.
func (h *history) leave(left []meta.Left) {
	since := map[string]time.Time{}
	for _, l := range left {
		for _, id := range l.Saves {
			if _, ok := since[id]; !ok {
				since[id] = l.Since
			}
		}
	}
	for _, i := range h.order {
		c := &h.all[i]
		t, ok := since[c.id]
		if !ok && c.line != nil && c.line.Parent != "" && i != h.head {
			t, ok = since[c.line.Parent]
		}
		if !ok {
			continue
		}
		since[c.id] = t
		if !t.IsZero() && c.time.After(t) { // the clock of the job that left it was late
			t = c.time
		}
		h.left[i] = t
	}
}
