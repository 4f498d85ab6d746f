package convert

import (
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
)

// renamedPath returns where an entry with that path belongs once it is called
// name: the steps at the beginning and the end that the name still spells stay as
// they are, so that lists stay lists, and what is new in between becomes keys.
func renamedPath(old meta.Path, name string) meta.Path {
	if old == nil {
		return nil
	}
	end, rest := keepEnd(old, name)
	begin, middle := keepBegin(old[:len(old)-len(end)], rest)
	out := append(meta.Path(nil), begin...)
	if middle != "" {
		for k := range strings.SplitSeq(middle, ".") {
			out = append(out, meta.Key(k))
		}
	}
	return append(out, end...)
}

// keepEnd returns the most steps at the end of p that end the name, and what is
// left of the name.
func keepEnd(p meta.Path, name string) (meta.Path, string) {
	rest, n := name, 0
	for n < len(p) {
		step := p[len(p)-1-n].String()
		if rest == step {
			return p[len(p)-1-n:], ""
		}
		before, ok := strings.CutSuffix(rest, "."+step)
		if !ok {
			break
		}
		rest = before
		n++
	}
	return p[len(p)-n:], rest
}

// keepBegin is keepEnd for the beginning.
func keepBegin(p meta.Path, name string) (meta.Path, string) {
	rest, n := name, 0
	for n < len(p) && rest != "" {
		step := p[n].String()
		if rest == step {
			return p[:n+1], ""
		}
		after, ok := strings.CutPrefix(rest, step+".")
		if !ok {
			break
		}
		rest = after
		n++
	}
	return p[:n], rest
}

// place is one way to a container or a value, as a key of a map.
func place(p meta.Path) string {
	var b strings.Builder
	for _, s := range p {
		b.WriteString(s.String())
		b.WriteByte(0)
	}
	return b.String()
}

// reconcile makes paths that were changed one by one fit together: what is a map
// to one of them is no list to another, a state is a map, and a value has
// nothing inside, unless it is one of those that have tensors inside. paths are by
// name; those without a place in the tree become nil.
func reconcile(paths []meta.Path, open map[string]bool) {
	leaves, maps := map[string]bool{}, map[string]bool{"": true}
	for _, p := range paths {
		if p == nil {
			continue
		}
		leaves[place(p)] = true
		for i, s := range p {
			if !s.List {
				maps[place(p[:i])] = true
			}
		}
	}
	for n, p := range paths {
		out := append(meta.Path(nil), p...)
		for i, s := range p {
			at := place(p[:i])
			if i > 0 && leaves[at] && !open[at] {
				out = nil
				break
			}
			if s.List && maps[at] {
				out[i] = meta.Key(strconv.Itoa(s.Pos))
			}
		}
		paths[n] = out
	}
}
