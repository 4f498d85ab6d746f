package inspect

import (
	"cmp"
	"slices"
	"strings"
)

// PrefixChange replaces the beginning From of names by To. Either may be empty.
type PrefixChange struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Names is how many names of one list it turns into names of the other list.
	Names int `json:"names"`
}

// The bounds of PrefixChanges.
const (
	maxPrefixParts   = 4 // of names between dots
	maxPrefixNames   = 200_000
	maxPrefixChanges = 3
	maxPrefixSame    = 8 // names with the same rest: more are a word such as "weight"
)

// PrefixChanges returns possible prefixes of names that two lists have in common, such as
// "module." of a wrapper or "model." of a state that holds the model: changes of the beginnings
// of names of a, which turn at least half of the names of a, or half as many as b has, into names
// of b. The one for the most names comes first. No name is in both lists.
func PrefixChanges(a, b []string) []PrefixChange {
	if len(b) > maxPrefixNames || len(a) > maxPrefixNames {
		return nil
	}

	begins := map[string][]string{} // by the rest of a name of b
	for _, name := range b {
		for begin, rest := range cutBegins(name) {
			if len(begins[rest]) <= maxPrefixSame {
				begins[rest] = append(begins[rest], begin)
			}
		}
	}

	counts := map[PrefixChange]int{}
	for _, name := range a {
		for from, rest := range cutBegins(name) { // the longest common rest counts
			all := begins[rest]
			if len(all) == 0 {
				continue
			}
			if len(all) <= maxPrefixSame {
				for _, to := range all {
					counts[PrefixChange{From: from, To: to}]++
				}
			}
			break
		}
	}

	out := []PrefixChange{}
	for c, n := range counts {
		if 2*n >= min(len(a), len(b)) {
			out = append(out, PrefixChange{c.From, c.To, n})
		}
	}

	slices.SortFunc(out, func(x, y PrefixChange) int {
		return cmp.Or(y.Names-x.Names, len(x.From+x.To)-len(y.From+y.To), strings.Compare(x.From+"\x00"+x.To, y.From+"\x00"+y.To))
	})
	return out[:min(len(out), maxPrefixChanges)]
}

// cutBegins yields a name in two parts, beginning with none and the whole name.
func cutBegins(name string) func(yield func(begin, rest string) bool) {
	return func(yield func(begin, rest string) bool) {
		at := 0
		for range maxPrefixParts {
			if !yield(name[:at], name[at:]) {
				return
			}
			dot := strings.IndexByte(name[at:], '.')
			if dot < 0 {
				return
			}
			at += dot + 1
		}
	}
}

// Rename returns a function for CompareOptions.Rename that changes names which only a has to
// names which only b has. Other names stay.
func (c PrefixChange) Rename(a, b func(name string) bool) func(name string) string {
	return func(name string) string {
		rest, ok := strings.CutPrefix(name, c.From)
		if to := c.To + rest; ok && !b(name) && b(to) && !a(to) {
			return to
		}
		return name
	}
}

// PrefixChanges is PrefixChanges of the names that only one checkpoint has.
func (c *Comparison) PrefixChanges() []PrefixChange {
	var a, b []string
	for i := range c.Items {
		switch c.Items[i].Status {
		case StatusMissing:
			a = append(a, c.Items[i].FQN)
		case StatusExtra:
			b = append(b, c.Items[i].FQN)
		}
	}

	return PrefixChanges(a, b)
}
