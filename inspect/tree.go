package inspect

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Node is a place in the tree that the dots in the names make: everything below
// one prefix.
type Node struct {
	// Name is the part of the name between two dots, FQN all of it up to here.
	// Both are empty at the root.
	Name string `json:"name"`
	FQN  string `json:"fqn"`
	// Totals count everything here and below, also what depth cut off.
	Totals Totals `json:"totals"`
	// Item is what has exactly this name. Nil: nothing has.
	Item *Item `json:"item,omitempty"`
	// Children are the nodes one dot further, in the order of their names,
	// numbers by value.
	Children []*Node `json:"children,omitempty"`

	byName map[string]*Node // the children
	end    int              // where the name ends in the names below
	number *uint64          // the name as a number, if it is one
}

// Tree arranges items that lie below the prefix root (see Below) as a tree of
// at most depth levels under the node of root. A depth of zero makes that node
// alone, a negative one all levels. The items are shared, not copied.
func Tree(items []Item, root string, depth int) *Node {
	root = strings.TrimSuffix(root, ".")
	top := &Node{Name: root[strings.LastIndexByte(root, '.')+1:], FQN: root, end: len(root)}
	if root == "" {
		top.end = -1 // no dot before the first names
	}
	for i := range items {
		top.add(&items[i], depth)
	}
	top.sort()
	return top
}

func (n *Node) add(it *Item, depth int) {
	for {
		n.Totals.Add(it)
		if n.FQN == it.FQN {
			n.Item = it
			return
		}
		if depth == 0 {
			return
		}
		n = n.child(it.FQN)
		depth--
	}
}

// child returns the child of n in which fqn, a name below n, lies.
func (n *Node) child(fqn string) *Node {
	start, end := n.end+1, len(fqn)
	if i := strings.IndexByte(fqn[start:], '.'); i >= 0 {
		end = start + i
	}
	name := fqn[start:end]
	c := n.byName[name]
	if c == nil {
		c = &Node{Name: name, FQN: fqn[:end], end: end}
		if i, err := strconv.ParseUint(name, 10, 64); err == nil {
			c.number = &i
		}
		if n.byName == nil {
			n.byName = map[string]*Node{}
		}
		n.byName[name] = c
		n.Children = append(n.Children, c)
	}
	return c
}

func (n *Node) sort() {
	slices.SortFunc(n.Children, compareNodes)
	for _, c := range n.Children {
		c.sort()
	}
}

// compareNodes orders numbers by value and before words, so that layer 10 comes
// after layer 9.
func compareNodes(a, b *Node) int {
	switch {
	case a.number != nil && b.number != nil:
		return cmp.Or(cmp.Compare(*a.number, *b.number), strings.Compare(a.Name, b.Name))
	case a.number != nil:
		return -1
	case b.number != nil:
		return 1
	}
	return strings.Compare(a.Name, b.Name)
}
