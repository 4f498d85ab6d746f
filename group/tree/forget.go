package tree

// Forget leaves the group as Leave does, and lets go of what this rank holds for
// it: only its name is kept, to know what comes late. Links stay, as they serve
// other groups too. The group of all ranks is only left.
func (g *Group) Forget() {
	g.Leave(nil)
	n := g.team.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if g.team.parent == nil {
		return
	}
	delete(n.teams, g.team.id)
	n.forgotten[g.team.id] = struct{}{}
}

// late reports whether a frame is of a group that this rank has forgotten. Room
// for its pieces is not given back: the other end has been told that the group is
// over. The lock is held.
func (n *Node) late(f frame) bool {
	_, ok := n.forgotten[f.id]
	return ok
}
