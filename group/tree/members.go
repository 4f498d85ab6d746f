package tree

import "slices"

// members are the ranks of a group by their numbers in the group of all ranks,
// whose own list is not kept: at ten thousand ranks that would be the largest
// thing a node holds.
type members struct {
	n    int
	list []int // nil: all ranks, each under its own number
}

func (m members) size() int { return m.n }

// outer returns the number of a member in the group of all ranks.
func (m members) outer(rank int) int {
	if m.list == nil {
		return rank
	}
	return m.list[rank]
}

// index returns the rank of the member with that number in the group of all
// ranks, or -1 where there is none.
func (m members) index(outer int) int {
	switch {
	case m.list != nil:
		return slices.Index(m.list, outer)
	case outer >= 0 && outer < m.n:
		return outer
	}
	return -1
}

// all returns the list, which is the caller's.
func (m members) all() []int {
	list := make([]int, m.n)
	for r := range list {
		list[r] = m.outer(r)
	}
	return list
}

// some returns the members of a group of some of these.
func (m members) some(ranks []int) members {
	list := make([]int, len(ranks))
	for i, r := range ranks {
		list[i] = m.outer(r)
	}
	return members{n: len(list), list: list}
}
