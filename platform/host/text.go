package host

import (
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/group"
)

// What a text spells out of lists that may be those of thousands of ranks.
const (
	maxRanks = 16
	maxLists = 4
)

// callText writes a call that makes groups as in "split([0 1] [2 3])", at most
// maxLists lists of it.
func callText(op group.Op, parts [][]int) string {
	lists := make([]string, min(len(parts), maxLists))
	for i := range lists {
		lists[i] = listText(parts[i])
	}
	if more := len(parts) - len(lists); more > 0 {
		lists = append(lists, fmt.Sprintf("and %d more lists", more))
	}
	return fmt.Sprintf("%s(%s)", op, strings.Join(lists, " "))
}

// listText writes ranks as in "[0 1]", at most maxRanks of them.
func listText(ranks []int) string {
	if len(ranks) <= maxRanks {
		return fmt.Sprint(ranks)
	}
	text := strings.Trim(fmt.Sprint(ranks[:maxRanks]), "[]")
	return fmt.Sprintf("[%s and %d more]", text, len(ranks)-maxRanks)
}
