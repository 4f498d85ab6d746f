package tree

// span is a subtree: the ranks from first to end-1, with first on top. The ranks below first
// are cut into as many ranges as the arity, or one for each rank if there are fewer. The
// lengths of the ranges differ by at most one. Each range is a subtree.
type span struct{ first, end int }

// size returns the number of ranks of the subtree.
func (s span) size() int { return s.end - s.first }

// contains reports whether rank is in the subtree.
func (s span) contains(rank int) bool { return s.first <= rank && rank < s.end }

// fanout returns the number of subtrees below the top of s in a tree of arity k.
func (s span) fanout(k int) int { return min(k, s.size()-1) }

// child returns subtree i of those below the top of s.
func (s span) child(i, k int) span {
	n := s.fanout(k)
	base, extra := (s.size()-1)/n, (s.size()-1)%n
	first := s.first + 1 + i*base + min(i, extra)
	end := first + base
	if i < extra {
		end++
	}
	return span{first, end}
}

// branch returns which subtree below the top of s contains rank, or -1 if no
// subtree does.
func (s span) branch(rank, k int) int {
	if !s.contains(rank) || rank == s.first {
		return -1
	}
	n, off := s.fanout(k), rank-s.first-1
	base, extra := (s.size()-1)/n, (s.size()-1)%n
	if long := extra * (base + 1); off >= long {
		return extra + (off-long)/base
	}
	return off / (base + 1)
}

// locate returns the subtree with rank on top in a tree of n ranks and arity k, and the rank
// above, which is -1 for rank 0.
func locate(rank, n, k int) (s span, above int) {
	s, above = span{0, n}, -1
	for s.first != rank {
		above = s.first
		s = s.child(s.branch(rank, k), k)
	}
	return s, above
}

// Parent returns the rank above rank in a tree of size ranks, or -1 for rank 0.
// Rank and size must be valid; arity must be at least 1.
func Parent(rank, size, arity int) int {
	_, above := locate(rank, size, arity)
	return above
}
