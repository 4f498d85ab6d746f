package tree

// The ranks of a group of n stand in a heap of arity k: rank 0 on top, and below
// rank r the ranks from k*r+1 to k*r+k.

// parent returns the rank above r, or -1 above rank 0.
func parent(r, k int) int {
	if r == 0 {
		return -1
	}
	return (r - 1) / k
}

// children returns the first rank below r, and the first that is not.
func children(r, n, k int) (from, to int) {
	from = min(k*r+1, n)
	return from, min(k*r+k+1, n)
}

// towards returns the neighbour of r on the way to the rank dst, which is not r.
func towards(r, dst, k int) int {
	if b := branch(r, dst, k); b >= 0 {
		return b
	}
	return parent(r, k)
}

// branch returns the child of r above or at dst, or -1 where dst is not below r.
func branch(r, dst, k int) int {
	for dst > r {
		up := parent(dst, k)
		if up == r {
			return dst
		}
		dst = up
	}
	return -1
}
