package group

import (
	"fmt"
	"strconv"
	"strings"
)

// maxSpelled bounds how many runs of ranks, and how many failures, an error's
// text spells out.
const maxSpelled = 24

// ranksText writes ranks as in "rank 3" or "ranks 0-4, 7", runs joined, at most
// maxSpelled of them.
func ranksText(ranks []int) string {
	if len(ranks) == 1 {
		return "rank " + strconv.Itoa(ranks[0])
	}
	var b strings.Builder
	b.WriteString("ranks")
	for i, runs := 0, 0; i < len(ranks); runs++ {
		if runs == maxSpelled {
			fmt.Fprintf(&b, " and %d more", len(ranks)-i)
			break
		}
		if runs > 0 {
			b.WriteByte(',')
		}
		n := runLen(ranks[i:])
		b.WriteByte(' ')
		b.WriteString(runText(ranks[i], n))
		i += n
	}
	return b.String()
}

// runLen returns how many of the first ranks follow each other without a gap.
func runLen(ranks []int) int {
	n := 1
	for n < len(ranks) && ranks[n] == ranks[n-1]+1 {
		n++
	}
	return n
}

func runText(first, n int) string {
	switch n {
	case 1:
		return strconv.Itoa(first)
	case 2:
		return fmt.Sprintf("%d, %d", first, first+1)
	}
	return fmt.Sprintf("%d-%d", first, first+n-1)
}
