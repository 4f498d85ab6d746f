// Package alike finds texts that a person may have meant. It does not depend on the meaning
// of the texts.
package alike

import (
	"cmp"
	"iter"
	"slices"
)

const (
	// maxText bounds the bytes of a text that is compared, and maxWork the pairs of bytes
	// for one question.
	maxText = 256
	maxWork = 1 << 28
	// most is the number of texts that Nearest returns.
	most = 3
)

// Nearest returns up to three of all texts that differ from text in a few characters, the
// nearest first.
func Nearest(text string, all iter.Seq[string]) []string {
	type near struct {
		text string
		far  int
	}

	limit := min(max(1, len(text)/3), 4)
	var found []near
	work := 0
	for s := range all {
		if abs(len(s)-len(text)) > limit || max(len(s), len(text)) > maxText {
			continue
		}
		if work += len(s) * len(text); work > maxWork {
			break
		}
		if far := Distance(text, s); far <= limit && !slices.Contains(found, near{s, far}) {
			found = append(found, near{s, far})
		}
	}

	slices.SortStableFunc(found, func(a, b near) int { return cmp.Compare(a.far, b.far) })
	var out []string
	for _, n := range found[:min(len(found), most)] {
		out = append(out, n.text)
	}

	return out
}

func abs(n int) int { return max(n, -n) }

// Distance returns the number of characters to change to make a into b.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}

	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := last
			if a[i] != b[j] {
				cost++
			}
			last = row[j+1]
			row[j+1] = min(cost, last+1, row[j]+1)
		}
	}

	return row[len(b)]
}
