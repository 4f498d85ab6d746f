package run

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Verdict is what a policy says about a checkpoint.
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
	ReasonNoRule     = "no rule keeps it"
)

// Apply returns the verdicts of a policy about the checkpoints of one place, in the order of
// all. It keeps what a rule keeps, and in any case the newest complete checkpoint, the ones to
// which a kept one refers, and what is incomplete or under way. AtMost removes the oldest of
// the ones that rules keep, until the complete ones have no more bytes; it does not remove the
// newest, tagged ones that a rule keeps for their tags, and the ones to which a remaining one
// refers.
//
// What Apply keeps, it also keeps when it is applied again to the kept ones at the same time.
func Apply(p Policy, all []Checkpoint, now time.Time) []Verdict {
	a := &applied{policy: p, why: make([][]string, len(all)), all: all, byName: map[string]int{}}
	for i := range all {
		a.byName[all[i].Name] = i
		if all[i].Complete() {
			a.order = append(a.order, i)
		}
	}
	slices.SortStableFunc(a.order, func(i, j int) int { return all[i].Compare(&all[j]) })
	a.judge(now)
	above := a.shrink()
	kept, referred := a.closure()
	out := make([]Verdict, len(all))
	for i := range all {
		v := Verdict{Checkpoint: all[i], Keep: kept[i], Reasons: a.why[i]}
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

// applied is a policy and what it says about checkpoints.
type applied struct {
	policy Policy
	all    []Checkpoint
	byName map[string]int // numbers in all
	order  []int          // numbers of complete ones in all, the oldest first
	why    [][]string     // for each of all: the reasons for which it is kept by itself
}

// judge asks each rule.
func (a *applied) judge(now time.Time) {
	sorted := make([]Checkpoint, len(a.order))
	for k, i := range a.order {
		sorted[k] = a.all[i]
	}
	for _, r := range a.policy.Rules {
		for _, k := range r.keeps(sorted, now) {
			a.why[a.order[k]] = append(a.why[a.order[k]], r.String())
		}
	}
	for _, i := range a.order {
		if len(a.policy.Rules) == 0 {
			a.why[i] = append(a.why[i], ReasonAll)
		}
	}
	if n := len(a.order); n > 0 {
		newest := a.order[n-1]
		a.why[newest] = append(a.why[newest], ReasonNewest)
	}
}

// closure returns the checkpoints that are kept for a reason of their own, or because a kept
// or an incomplete one refers to them, and the ones to which a kept one refers.
func (a *applied) closure() (kept, referred []bool) {
	kept, referred = make([]bool, len(a.all)), make([]bool, len(a.all))
	var keep func(i int)
	keep = func(i int) {
		if kept[i] {
			return
		}
		kept[i] = true
		for _, base := range a.all[i].Bases {
			if j, ok := a.byName[base]; ok && j != i {
				referred[j] = true
				keep(j)
			}
		}
	}
	for i := range a.all {
		if len(a.why[i]) > 0 || !a.all[i].Complete() {
			keep(i)
		}
	}
	return kept, referred
}

// shrink takes the reasons of the oldest checkpoints away until the kept ones fit below
// the ceiling. It returns which ones lost their reasons.
func (a *applied) shrink() []bool {
	above := make([]bool, len(a.all))
	for a.policy.AtMost > 0 && len(a.order) > 0 {
		kept, referred := a.closure()
		total, oldest := int64(0), -1
		for k, i := range a.order {
			if !kept[i] {
				continue
			}
			total = addBytes(total, a.all[i].Bytes)
			if oldest < 0 && k < len(a.order)-1 && !a.policy.hasTag(&a.all[i]) && !referred[i] {
				oldest = i
			}
		}
		if total <= a.policy.AtMost || oldest < 0 {
			break
		}
		a.why[oldest], above[oldest] = nil, true
	}
	return above
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
	return firsts(all, func(c *Checkpoint) (int64, bool) {
		if c.Step == nil || *c.Step < 0 {
			return 0, false
		}
		n := *c.Step / int64(r)
		return n, n > 0 || *c.Step == 0
	})
}

func (r Every) keeps(all []Checkpoint, _ time.Time) []int {
	return firsts(all, func(c *Checkpoint) (int64, bool) {
		if c.Time.IsZero() {
			return 0, false
		}
		length, t := int64(time.Duration(r)/time.Second), c.Time.Unix()
		n := t / length
		if t%length < 0 { // before 1970
			n--
		}
		return n, true
	})
}

// firsts returns the oldest checkpoint of each period. period returns the number of the
// period of a checkpoint, or false if it has none.
func firsts(all []Checkpoint, period func(*Checkpoint) (int64, bool)) []int {
	var out []int
	seen := map[int64]bool{}
	for i := range all {
		if n, ok := period(&all[i]); ok && !seen[n] {
			seen[n] = true
			out = append(out, i)
		}
	}
	return out
}

func (r Best) keeps(all []Checkpoint, _ time.Time) []int {
	var out []int
	for i := range all {
		if v, ok := all[i].Metrics[r.By]; ok && !math.IsNaN(v) {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(i, j int) int {
		byValue := cmp.Compare(all[i].Metrics[r.By], all[j].Metrics[r.By])
		if r.Highest {
			byValue = -byValue
		}
		return cmp.Or(byValue, j-i)
	})
	return out[:min(r.N, len(out))]
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
		if !all[i].Time.IsZero() && now.Sub(all[i].Time) <= time.Duration(r) {
			out = append(out, i)
		}
	}
	return out
}
