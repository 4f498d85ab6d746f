package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// ValueSum identifies the content of a value under a name.
type ValueSum struct {
	FQN string
	Sum uint64
}

// sumValue identifies bytes; it is never zero.
func sumValue(b []byte) uint64 {
	h := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(h[:]) | 1
}

// WithValueSums returns p with the sums of its items' values in Values, to be
// compared by [CheckValues].
func WithValueSums(p *SavePlan) *SavePlan {
	q := *p
	q.Values = nil
	for i := range p.Items {
		if it := &p.Items[i]; it.Kind == KindBytes && it.Sum != 0 {
			q.Values = append(q.Values, ValueSum{it.FQN(), it.Sum})
		}
	}
	return &q
}

// lowestValues returns the plans without the values that a lower rank has too.
func lowestValues(plans []*SavePlan) []*SavePlan {
	out := slices.Clone(plans)
	seen := map[string]bool{}
	for r, p := range plans {
		if p == nil || p.Unchanged {
			continue // Global refuses it
		}
		q := *p
		q.Items = make([]WriteItem, 0, len(p.Items))
		for _, it := range p.Items {
			if it.Info != nil && it.Kind == KindBytes {
				if seen[it.FQN()] {
					continue
				}
				seen[it.FQN()] = true
			}
			q.Items = append(q.Items, it)
		}
		out[r] = &q
	}
	return out
}

// CheckValues returns an error of type [Problems] where ranks hold different
// values under one name. Only one of them would be saved, and the others lost
// without a word.
func CheckValues(plans []*SavePlan) error {
	type holder struct {
		rank int
		sum  uint64
	}
	first := map[string]holder{}
	var found Problems
	said := map[string]bool{}
	for rank, p := range plans {
		for _, v := range p.Values {
			h, ok := first[v.FQN]
			if !ok {
				first[v.FQN] = holder{rank, v.Sum}
				continue
			}
			if h.sum != v.Sum && !said[v.FQN] {
				said[v.FQN] = true
				found = append(found, Problem{v.FQN, ProblemDisagree, fmt.Sprintf(
					"ranks %d and %d hold different values, of which one would be lost; give each rank's value its own name, or set ValuesMayDiffer of the planner", h.rank, rank)})
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	slices.SortFunc(found, func(a, b Problem) int { return strings.Compare(a.FQN, b.FQN) })
	return found
}
