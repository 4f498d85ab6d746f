package torchfile

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
)

// names gives out the names of a checkpoint, no name twice.
type names struct {
	// file returns the file whose value has a name, if several files have a
	// value of that name. Nil, or an empty result: the file that is added first.
	file  func(fqn string) string
	taken map[string]bool
	next  map[string]int // the number to try next, by name
}

// namedLeaf is a leaf with its name.
type namedLeaf struct {
	fqn string
	leaf
}

// give names the leaves of a file and returns them in the order of their names.
// A name is the steps of the path, joined by dots. If several paths give one
// name, the shortest path has it, and the names of the others end in "#2", "#3"
// and so on.
func (n *names) give(file string, leaves []leaf) []namedLeaf {
	out := make([]namedLeaf, len(leaves))
	for i, l := range leaves {
		out[i] = namedLeaf{possible(l.path.FQN()), l}
	}
	slices.SortStableFunc(out, func(a, b namedLeaf) int {
		return cmp.Or(cmp.Compare(a.fqn, b.fqn), cmp.Compare(len(a.path), len(b.path)), slices.CompareFunc(a.path, b.path, compareSteps))
	})
	var again []int
	for i, l := range out {
		other := ""
		if n.file != nil {
			other = n.file(l.fqn)
		}
		if n.taken[l.fqn] || other != "" && other != file {
			again = append(again, i)
		} else {
			n.taken[l.fqn] = true
		}
	}
	for _, i := range again {
		out[i].fqn = n.numbered(out[i].fqn)
	}
	slices.SortFunc(out, func(a, b namedLeaf) int { return cmp.Compare(a.fqn, b.fqn) })
	return out
}

// unused takes a name, or one like it if it is taken.
func (n *names) unused(fqn string) string {
	fqn = possible(fqn)
	if n.taken[fqn] {
		return n.numbered(fqn)
	}
	n.taken[fqn] = true
	return fqn
}

// numbered takes the first free name that is fqn and a number.
func (n *names) numbered(fqn string) string {
	for i := max(2, n.next[fqn]); ; i++ {
		if s := fqn + "#" + strconv.Itoa(i); !n.taken[s] {
			n.taken[s], n.next[fqn] = true, i+1
			return s
		}
	}
}

// nameRoom is left in every name for a number behind it.
const nameRoom = 32

// possible returns fqn, or what can be a name instead of it: a file may have
// keys that are empty, too long, or not Unicode text.
func possible(fqn string) string {
	if fqn == "" {
		return "''"
	}
	if fqn = strings.ToValidUTF8(fqn, "\uFFFD"); len(fqn) > meta.MaxFQN-nameRoom {
		fqn = strings.ToValidUTF8(fqn[:meta.MaxFQN-nameRoom], "")
	}
	return fqn
}

// compareSteps orders steps of the same text: positions, integers, strings.
func compareSteps(a, b meta.Step) int {
	kind := func(s meta.Step) int {
		switch {
		case s.List:
			return 0
		case s.Int:
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(kind(a), kind(b)), cmp.Compare(a.String(), b.String()))
}
