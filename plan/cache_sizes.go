package plan

import (
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
)

// sizes are the sizes of values by their names. The text of a number changes its
// length from save to save: that must not make a new plan of it.
type sizes map[string]int64

// sizesOf returns the sizes of the values in p.
func sizesOf(p *SavePlan) sizes { return sizes(nil).with(p) }

// with returns s with the sizes in p added to it.
func (s sizes) with(p *SavePlan) sizes {
	for i := range p.Items {
		it := &p.Items[i]
		if it.Kind != KindBytes {
			continue
		}
		if s == nil {
			s = sizes{}
		}
		s[it.FQN()] = it.Size
	}
	return s
}

// others returns the values in p that are of another size than s says.
func (s sizes) others(p *SavePlan) []WriteItem {
	var out []WriteItem
	for _, it := range p.Items {
		if it.Kind == KindBytes && it.Size != s[it.FQN()] {
			out = append(out, it)
		}
	}
	return out
}

// applied returns p with the sizes that s says: p itself where they are so.
func (s sizes) applied(p *SavePlan) *SavePlan {
	q := p
	for i := range p.Items {
		it := &p.Items[i]
		if it.Kind != KindBytes {
			continue
		}
		size, ok := s[it.FQN()]
		if !ok || size == it.Size {
			continue
		}
		if q == p {
			c := *p
			c.Items = slices.Clone(p.Items)
			q = &c
		}
		q.Items[i].Size = size
	}
	return q
}

// writersOf returns the rank that writes each value.
func writersOf(finals []*SavePlan) map[string]int {
	out := map[string]int{}
	for r, p := range finals {
		for i := range p.Items {
			if p.Items[i].Kind == KindBytes {
				out[p.Items[i].FQN()] = r
			}
		}
	}
	return out
}

// resize returns md with the sizes that the values' writers sent: md itself
// where none did.
func resize(md *meta.Metadata, sent []*SavePlan, writers map[string]int) *meta.Metadata {
	out := md
	for r, p := range sent {
		for i := range p.Items {
			it := &p.Items[i]
			if w, ok := writers[it.FQN()]; !ok || w != r {
				continue
			}
			if out == md {
				c := *md
				c.Entries = slices.Clone(md.Entries)
				out = &c
			}
			if e, ok := out.Find(it.FQN()); ok && e.Bytes != nil {
				b := *e.Bytes
				b.Size = it.Size
				e.Bytes = &b
			}
		}
	}
	return out
}
