package work

// Divide divides a row of things with these sizes into at most parts pieces of neighbours, so
// that the largest piece is as small as possible, and the other ones are about equal. It
// returns the number of the piece of each thing; the numbers ascend. It depends only on its
// arguments, so processes that call it with the same ones agree.
func Divide(sizes []int64, parts int) []int {
	out := make([]int, len(sizes))
	if parts < 2 {
		return out
	}

	var least, left int64
	for _, n := range sizes {
		least, left = max(least, n), left+n
	}

	limit := left
	for least < limit { // the smallest limit for which the pieces suffice, by bisection
		if mid := least + (limit-least)/2; pieces(sizes, mid)[0] <= parts {
			limit = mid
		} else {
			least = mid + 1
		}
	}

	need := pieces(sizes, limit)
	piece, sum := 0, int64(0)
	for i, n := range sizes {
		// A piece ends if it is full, or if it has its share of the remaining things and the other
		// pieces suffice for the rest.
		others := parts - 1 - piece
		share := left / int64(others+1)
		if sum > 0 && (n > limit-sum || need[i] <= others && n > 0 && sum+n/2 >= share) {
			left -= sum
			piece, sum = piece+1, 0
		}

		sum += n
		out[i] = piece
	}

	return out
}

// pieces returns for each i how many pieces of at most limit suffice for the things from i on.
func pieces(sizes []int64, limit int64) []int {
	out := make([]int, len(sizes)+1)
	end, sum := len(sizes), int64(0) // of the largest piece that begins with i
	for i := len(sizes) - 1; i >= 0; i-- {
		for sum += sizes[i]; sum > limit; {
			end--
			sum -= sizes[end]
		}
		out[i] = out[end] + 1
	}

	return out
}
