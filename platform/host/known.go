package host

import (
	"encoding/binary"
	"slices"
)

// key returns the name of a set of ranks.
func key(ranks []int) string {
	var b []byte
	for _, r := range slices.Sorted(slices.Values(ranks)) {
		b = binary.AppendVarint(b, int64(r))
	}
	return string(b)
}

func (p *Platform) remember(g *Group) {
	k := key(g.Ranks())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known[k] = g
}

func (p *Platform) lookup(ranks []int) *Group {
	k := key(ranks)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[k]
}

// forget drops g, or everything where it is the world, and returns the groups
// that were dropped beside it.
func (p *Platform) forget(g *Group) []*Group {
	k := key(g.Ranks())
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*Group
	if g == p.world {
		for _, other := range p.known {
			if other != g {
				out = append(out, other)
			}
		}
		clear(p.known)
		return out
	}
	if p.known[k] == g {
		delete(p.known, k)
	}
	return nil
}
