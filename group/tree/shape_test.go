package tree

import "testing"

// optimum returns the depth of the flattest tree of n ranks and arity k.
func optimum(n, k int) int {
	depth := 0
	for level, room := 1, 1; room < n; depth++ {
		level *= k
		room += level
	}
	return depth
}

// TestTreeIsBalanced checks for many sizes and arities that every rank but 0 has
// one parent, that sibling subtrees differ by at most one rank, and that no tree of
// the arity is flatter.
func TestTreeIsBalanced(t *testing.T) {
	for _, k := range []int{1, 2, 3, 8, 16} {
		for _, n := range []int{1, 2, 3, 7, 8, 9, 10, 64, 73, 74, 100, 585, 586, 1000} {
			depth := make([]int, n)
			for r := range n {
				s, above := locate(r, n, k)
				if r == 0 {
					if above != -1 || s != (span{0, n}) {
						t.Fatalf("arity %d, %d ranks: rank 0 is on top of %v below %d", k, n, s, above)
					}
				} else {
					depth[r] = depth[above] + 1
				}
				next := r + 1
				for i := range s.fanout(k) {
					c := s.child(i, k)
					if c.first != next || Parent(c.first, n, k) != r {
						t.Errorf("arity %d, %d ranks: subtree %d of rank %d is %v, its parent is %d", k, n, i, r, c, Parent(c.first, n, k))
					}
					if first := s.child(0, k); first.size()-c.size() > 1 || c.size() > first.size() {
						t.Errorf("arity %d, %d ranks: subtrees of rank %d have %d and %d ranks", k, n, r, first.size(), c.size())
					}
					for at := c.first; at < c.end; at++ {
						if got := s.branch(at, k); got != i {
							t.Errorf("arity %d, %d ranks: branch(%d) of rank %d = %d; want %d", k, n, at, r, got, i)
						}
					}
					next = c.end
				}
				if next != s.end || s.branch(r, k) != -1 || s.branch(s.end, k) != -1 {
					t.Errorf("arity %d, %d ranks: subtrees of rank %d end at %d; want %d", k, n, r, next, s.end)
				}
				if depth[r] > optimum(n, k) {
					t.Errorf("arity %d, %d ranks: rank %d is at depth %d; want at most %d", k, n, r, depth[r], optimum(n, k))
				}
			}
		}
	}
}
