package saver

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
)

// claim is an interval of the arena that is in use.
type claim struct {
	lo, hi int64
	owner  any // the unit or the load that uses it
}

// claims are the intervals of the arena that staged units and loads use. No two of them
// overlap: a load must not write over a staged unit, and a unit must not be staged over
// another one that is still to be read.
type claims struct {
	mu     sync.Mutex
	sorted []claim // by lo
}

// add claims an interval for a unit.
func (c *claims) add(n claim) error {
	if n.lo >= n.hi {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i, _ := slices.BinarySearchFunc(c.sorted, n.lo, func(x claim, lo int64) int { return cmp.Compare(x.lo, lo) })
	for _, j := range []int{i - 1, i} {
		if j >= 0 && j < len(c.sorted) {
			if x := c.sorted[j]; x.lo < n.hi && n.lo < x.hi {
				return overlap(x, n)
			}
		}
	}
	c.sorted = slices.Insert(c.sorted, i, n)
	return nil
}

// addAll claims all intervals of a load. If one is in use, it claims no interval.
func (c *claims) addAll(all []claim) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	merged := slices.Concat(c.sorted, all)
	slices.SortFunc(merged, func(a, b claim) int { return cmp.Compare(a.lo, b.lo) })
	for i := 1; i < len(merged); i++ {
		if a, b := merged[i-1], merged[i]; b.lo < a.hi {
			return overlap(a, b)
		}
	}
	c.sorted = merged
	return nil
}

func overlap(a, b claim) error {
	return fmt.Errorf("%w: the arena from %d to %d is in use, and is used again from %d to %d", ErrMessage, a.lo, a.hi, b.lo, b.hi)
}

// remove gives up the interval of a unit.
func (c *claims) remove(n claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, ok := slices.BinarySearchFunc(c.sorted, n.lo, func(x claim, lo int64) int { return cmp.Compare(x.lo, lo) })
	if ok && c.sorted[i].owner == n.owner {
		c.sorted = slices.Delete(c.sorted, i, i+1)
	}
}

// removeAll gives up all intervals of an owner.
func (c *claims) removeAll(owner any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sorted = slices.DeleteFunc(c.sorted, func(x claim) bool { return x.owner == owner })
}
