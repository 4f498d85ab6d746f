package run

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Verdict is the decision of a policy on a checkpoint.
type Verdict struct {
	Checkpoint Checkpoint `json:"checkpoint"`
	Keep       bool       `json:"keep"`
	// Reasons say why: the rules that keep the checkpoint, "newest", "others refer to it",
	// "incomplete", "under way", "a link" (in a Pruned); or why no rule does.
	Reasons []string `json:"reasons"`
}

// The reasons of a Verdict that are not the text of a rule.
const (
	ReasonAll        = "all"                // the policy has no rules
	ReasonNewest     = "newest"             // it is the newest complete one
	ReasonReferred   = "others refer to it" // one that is kept needs it
	ReasonLink       = "a link"             // its folder is a link, perhaps to another run
	ReasonIncomplete = "incomplete"         // policies are about complete ones
	ReasonUnderWay   = "under way"
	ReasonParent     = "parent of the newest" // of the save that removes others
	ReasonTagged     = "tagged"               // and PruneOptions.KeepTagged is set
	ReasonExport     = "to be exported"
	ReasonUnknown    = "not all is known of it" // see Checkpoint.Problem
	ReasonMayRefer   = "others may refer to it" // a record beside it cannot be read
	ReasonNoRule     = "no rule keeps it"
)

// DefaultLeft is how long a policy without a rule Left keeps checkpoints on lines that were
// left.
const DefaultLeft = Left(48 * time.Hour)

// Apply returns the verdicts of a policy about the checkpoints of one place, in the order of
// all. It keeps the checkpoints that a rule keeps, and in any case the newest complete
// checkpoint, the ones to which a kept one refers, and all that are incomplete or under way.
// AtMost removes the oldest of the ones that rules keep, until the complete ones have no more
// bytes; it does not remove the newest, tagged ones that a rule keeps for their tags, and the
// ones to which a remaining one refers.
//
// Checkpoints on lines that were left (Checkpoint.Left) count as older than all others. Rules
// for a number of checkpoints choose from them only if the current line has too few, and
// DefaultLeft or the rule Left keeps all of them for a time.
//
// The two newest checkpoints whose exports are not done stay, unless these have begun ExportTries times; see Export.
//
// A checkpoint stays if its notes cannot be read, if a rule asks for a step or a time that it does
// not have, or if the record of another checkpoint, which may refer to it, cannot be read. All
// stay if the current line is not known: the notes of a checkpoint cannot be read, and it may be
// newer than the head.
//
// Apply is stable: applied at the same time to the checkpoints that it kept, it keeps them all.
func Apply(p Policy, all []Checkpoint, now time.Time) []Verdict {
	d := &decision{policy: p, why: make([][]string, len(all)), all: all, byName: map[string]int{}}
	for i := range all {
		d.byName[all[i].Name] = i
		if all[i].Complete() {
			d.order = append(d.order, i)
		}
	}

	commits := make([]savedStep, len(all))
	for i := range all {
		commits[i] = all[i].commit()
	}
	at := positions(commits)
	slices.SortStableFunc(d.order, func(i, j int) int { return cmp.Or(leftFirst(&all[i], &all[j]), at[i].compare(at[j])) })

	d.askRules(now)
	above := d.shrink()
	kept, referred := d.closure()

	out := make([]Verdict, len(all))
	for i := range all {
		v := Verdict{Checkpoint: all[i], Keep: kept[i], Reasons: d.why[i]}
		switch {
		case !all[i].Complete():
			v.Keep, v.Reasons = true, []string{all[i].lacks()}
		case kept[i] && referred[i]:
			v.Reasons = append(v.Reasons, ReasonReferred)
		case above[i]:
			v.Reasons = []string{"above " + bytesText(p.AtMost)}
		case !kept[i]:
			v.Reasons = []string{ReasonNoRule}
		}
		out[i] = v
	}
	return out
}

// here returns the checkpoints of a place, the oldest first.
func (p *pruning) here(place *Place) []Checkpoint {
	var here []Checkpoint
	for i := range p.all {
		if c, ok := p.all[i].in(place); ok {
			here = append(here, c)
		}
	}
	return here
}

// decide applies the policy of a place to its checkpoints, the oldest first.
func (p *pruning) decide(place *Place, policy Policy) []Pruned {
	var out []Pruned
	for _, v := range Apply(policy, p.here(place), p.opts.Now) {
		c := v.Checkpoint
		x := Pruned{Name: c.Name, Step: c.Step, Path: place.AddressOf(c.Name), Bytes: c.Bytes, Outcome: Kept, Reasons: v.Reasons, saveID: c.SaveID, bases: c.Bases}
		if !v.Keep && place.isLink(c.Name) {
			x.Reasons = []string{ReasonLink}
		} else if !v.Keep {
			x.Outcome = WouldRemove
		}
		out = append(out, x)
	}
	return out
}

// decision is a policy, applied to checkpoints, and its reasons to keep them.
type decision struct {
	policy Policy
	all    []Checkpoint
	byName map[string]int // numbers in all
	order  []int          // numbers of complete ones in all, the oldest first
	why    [][]string     // for each of all: the reasons for which it is kept by itself
}

// askRules asks each rule, and adds the reasons that are not a rule.
func (d *decision) askRules(now time.Time) {
	sorted := make([]Checkpoint, len(d.order))
	for k, i := range d.order {
		sorted[k] = d.all[i]
	}
	for _, r := range d.policy.rules() {
		for _, k := range r.keeps(sorted, now) {
			d.why[d.order[k]] = append(d.why[d.order[k]], r.String())
		}
	}

	waiting := d.waiting()
	mayRefer := slices.ContainsFunc(d.all, func(c Checkpoint) bool { return c.mayRefer() })
	mayLead := slices.ContainsFunc(d.all, func(c Checkpoint) bool { return c.mayLead() })
	for _, i := range d.order {
		c := &d.all[i]
		for _, also := range []struct {
			keep   bool
			reason string
		}{
			{len(d.policy.Rules) == 0, ReasonAll},
			{d.policy.keepTagged && len(c.Tags) > 0, ReasonTagged},
			{waiting[i], ReasonExport},
			{c.Problem != "" || mayLead, ReasonUnknown},
			{mayRefer, ReasonMayRefer},
		} {
			if also.keep && !slices.Contains(d.why[i], also.reason) {
				d.why[i] = append(d.why[i], also.reason)
			}
		}
	}

	if n := len(d.order); n > 0 {
		newest := d.order[n-1]
		d.why[newest] = append(d.why[newest], ReasonNewest)
	}

	for _, i := range d.order {
		if why := d.policy.protect[d.all[i].Name]; why != "" && len(d.why[i]) == 0 {
			d.why[i] = []string{why}
		}
	}
}

// waiting returns the newest checkpoints whose exports are not done: only a few, because exports that are slower
// than saves must not fill the store.
func (d *decision) waiting() map[int]bool {
	out := map[int]bool{}
	for _, i := range slices.Backward(d.order) {
		if d.all[i].waitsForExport() && len(out) < maxWaiting {
			out[i] = true
		}
	}
	return out
}

// closure returns the checkpoints that are kept for a reason of their own, or because a kept
// or an incomplete one refers to them, and the ones to which a kept one refers.
func (d *decision) closure() (kept, referred []bool) {
	kept, referred = make([]bool, len(d.all)), make([]bool, len(d.all))
	var keep func(i int)
	keep = func(i int) {
		if kept[i] {
			return
		}
		kept[i] = true
		for _, base := range d.all[i].Bases {
			if j, ok := d.byName[base]; ok && j != i {
				referred[j] = true
				keep(j)
			}
		}
	}
	for i := range d.all {
		if len(d.why[i]) > 0 || !d.all[i].Complete() {
			keep(i)
		}
	}
	return kept, referred
}

// shrink takes the reasons of the oldest checkpoints away until the kept ones fit below
// the ceiling. It returns which ones lost their reasons.
func (d *decision) shrink() []bool {
	above := make([]bool, len(d.all))
	for d.policy.AtMost > 0 && len(d.order) > 0 {
		kept, referred := d.closure()
		total, oldest := int64(0), -1
		for k, i := range d.order {
			if !kept[i] {
				continue
			}
			total = addBytes(total, d.all[i].Bytes)
			if oldest < 0 && k < len(d.order)-1 && !d.policy.hasTag(&d.all[i]) && !referred[i] && !d.mustStay(i) && d.policy.protect[d.all[i].Name] != ReasonNewest {
				oldest = i
			}
		}
		if total <= d.policy.AtMost || oldest < 0 {
			break
		}
		d.why[oldest], above[oldest] = nil, true
	}
	return above
}

// mustStay reports whether a checkpoint stays despite a ceiling, because not enough is known to
// remove it.
func (d *decision) mustStay(i int) bool {
	return slices.Contains(d.why[i], ReasonUnknown) || slices.Contains(d.why[i], ReasonMayRefer)
}

// leftFirst puts checkpoints on lines that were left before the others.
func leftFirst(c, d *Checkpoint) int { return compareBool(d.Left, c.Left) }

// rules returns the rules of a policy, with the default for lines that were left.
func (p Policy) rules() []Rule {
	isLeft := func(r Rule) bool { _, ok := r.(Left); return ok }
	if len(p.Rules) == 0 || slices.ContainsFunc(p.Rules, isLeft) {
		return p.Rules
	}
	return append(slices.Clone(p.Rules), DefaultLeft)
}

// addBytes adds sizes that may come from a damaged list.
func addBytes(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + max(b, 0)
}

func (r Last) keeps(all []Checkpoint, _ time.Time) []int {
	return span(max(0, len(all)-int(r)), len(all))
}

// span returns the numbers from a to b-1.
func span(a, b int) []int {
	var out []int
	for i := a; i < b; i++ {
		out = append(out, i)
	}
	return out
}

func (r EverySteps) keeps(all []Checkpoint, _ time.Time) []int {
	return firsts(all, func(c *Checkpoint) (n int64, ok, known bool) {
		if c.Step == nil {
			return 0, false, false
		}
		n = *c.Step / int64(r)
		return n, n > 0 || *c.Step == 0, true
	})
}

func (r Every) keeps(all []Checkpoint, _ time.Time) []int {
	return firsts(all, func(c *Checkpoint) (_ int64, ok, known bool) {
		if c.Time.IsZero() {
			return 0, false, false
		}
		length, t := int64(time.Duration(r)/time.Second), c.Time.Unix()
		n := t / length
		if t%length < 0 { // before 1970
			n--
		}
		return n, true, true
	})
}

// firsts returns the oldest checkpoint of each period, on the current line if it has one
// there. period returns the number of the period of a checkpoint; ok is false if it has none.
// It also returns the checkpoints without a known period.
func firsts(all []Checkpoint, period func(*Checkpoint) (n int64, ok, known bool)) []int {
	var out []int
	seen := map[int64]bool{}
	for _, left := range []bool{false, true} {
		for i := range all {
			if all[i].Left != left {
				continue
			}
			n, ok, known := period(&all[i])
			if !known || ok && !seen[n] {
				seen[n] = seen[n] || known
				out = append(out, i)
			}
		}
	}
	return out
}

func (r Tagged) keeps(all []Checkpoint, _ time.Time) []int {
	var out []int
	for i := range all {
		if r.matches(&all[i]) {
			out = append(out, i)
		}
	}
	return out
}

func (r Tagged) matches(c *Checkpoint) bool {
	if r == "" {
		return len(c.Tags) > 0
	}
	return slices.Contains(c.Tags, string(r))
}

func (r Within) keeps(all []Checkpoint, now time.Time) []int {
	var out []int
	for i := range all {
		if all[i].Time.IsZero() || now.Sub(all[i].Time) <= time.Duration(r) {
			out = append(out, i)
		}
	}
	return out
}

func (r Left) keeps(all []Checkpoint, now time.Time) []int {
	var out []int
	for i := range all {
		if c := &all[i]; c.Left && (c.LeftSince.IsZero() || now.Sub(c.LeftSince) <= time.Duration(r)) {
			out = append(out, i)
		}
	}
	return out
}
