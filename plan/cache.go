package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
)

// ErrStale reports that a rank sent an unchanged plan and the coordinator does not
// have that plan. Then all ranks forget their plans and send full ones.
var ErrStale = errors.New("unknown unchanged plan")

// Fingerprint identifies a local plan: its items with shapes, boxes, dtypes and paths, the
// planner's and the storage's data, and the options that [Cache.Local] received. It does not
// cover the sizes of values, which change from save to save. The zero Fingerprint identifies
// no plan.
type Fingerprint [sha256.Size]byte

// String returns the first twelve hexadecimal digits.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:6]) }

// Cache remembers the plans of the previous save. Ranks with unchanged plans send and receive
// fingerprints and new sizes of values instead of plans. If no plan has changed, the
// coordinator does not plan again. A rank uses one Cache for all its saves, one after the
// other; the zero value is empty. A Cache holds no state and no tensors, and does not change
// its arguments or results. It is not safe for concurrent use.
//
// In each save every rank calls Local, then the coordinator calls Global, then
// every rank calls Finish. The fingerprint covers everything that a plan depends
// on, so no plan is reused by mistake. If a rank does not reach Finish, it forgets
// its plan. If the ranks remember different saves, for example because a rank was
// restarted, the coordinator returns ErrStale and all ranks plan again. If a value
// grows, the same rank still writes it.
type Cache struct {
	print Fingerprint // of this rank's last local plan
	sizes sizes       // of the values in that plan
	final *SavePlan   // the final plan that was made from it
	begun bool        // Local was called, and Finish was not called yet

	// On the coordinator: the local plans of all ranks, the sizes that the ranks sent
	// since, and the final plans.
	locals  []*SavePlan
	resized []sizes
	finals  []*SavePlan
	writers map[string]int // by name: the rank that writes a value
	md      *meta.Metadata
}

// Local returns the plan that the rank sends for its local plan p: p itself with its
// fingerprint, or only the fingerprint and new sizes if p is the plan of the previous save.
// options identifies everything else that the final plan depends on: the planner's type and
// options, the rank, the number of ranks.
func (c *Cache) Local(p *SavePlan, options string) (*SavePlan, error) {
	if c.begun {
		c.final = nil // the coordinator may have made another final plan
	}

	c.begun = true
	print, err := fingerprint(p, options)
	if err != nil {
		return nil, err
	}

	old := c.sizes
	c.sizes = sizes(nil).with(p)
	if c.final != nil && print == c.print {
		return &SavePlan{Unchanged: true, Fingerprint: print, Values: p.Values, Items: old.changed(p)}, nil
	}

	q := *p
	q.Fingerprint = print
	c.print, c.final = print, nil
	return &q, nil
}

// Global returns the final plans of all ranks for the plans that they sent. It calls plan
// with the full local plans only if one of them changed. The result for a rank that
// already has its final plan is an unchanged plan.
func (c *Cache) Global(sent []*SavePlan, plan func([]*SavePlan) ([]*SavePlan, *meta.Metadata, error)) ([]*SavePlan, *meta.Metadata, error) {
	changed, err := c.compare(sent)
	if err != nil {
		return nil, nil, err
	}
	if !changed {
		c.md = resize(c.md, sent, c.writers)
		return answers(sent, c.finals, c.finals), c.md, nil
	}

	full := c.merge(sent)
	finals, md, err := plan(full)
	if err != nil {
		return nil, nil, err
	}
	if len(finals) != len(sent) {
		return nil, nil, fmt.Errorf("%w: %d final plans for %d ranks", ErrProtocol, len(finals), len(sent))
	}

	old := c.finals
	c.locals, c.resized = full, make([]sizes, len(full))
	c.finals, c.writers, c.md = finals, writersOf(finals), md
	return answers(sent, finals, old), md, nil
}

// Bytes returns how many bytes each rank writes by the plans that Global has made last.
func (c *Cache) Bytes() []int64 {
	out := make([]int64, len(c.finals))
	for r, p := range c.finals {
		out[r] = p.NumBytes()
	}
	return out
}

// compare reports whether a plan has changed, and records new sizes.
func (c *Cache) compare(sent []*SavePlan) (changed bool, err error) {
	changed = len(sent) != len(c.finals)
	for r, p := range sent {
		switch {
		case p == nil:
			return false, fmt.Errorf("%w: rank %d sent no plan", ErrProtocol, r)
		case !p.Unchanged:
			changed = true
		case len(sent) != len(c.locals) || c.locals[r].Fingerprint != p.Fingerprint || p.Fingerprint == Fingerprint{}:
			return false, fmt.Errorf("%w: %v of rank %d", ErrStale, p.Fingerprint, r)
		default:
			c.resized[r] = c.resized[r].with(p)
		}
	}

	return changed, nil
}

// merge fills in the plans that were not sent.
func (c *Cache) merge(sent []*SavePlan) []*SavePlan {
	full := make([]*SavePlan, len(sent))
	for r, p := range sent {
		if full[r] = p; p.Unchanged {
			full[r] = c.resized[r].applied(c.locals[r])
		}
	}
	return full
}

// answers replaces each final plan that its rank already has by an unchanged plan.
// Only a rank that sent an unchanged plan has its final plan.
func answers(sent, finals, old []*SavePlan) []*SavePlan {
	out := make([]*SavePlan, len(finals))
	for r, p := range finals {
		out[r] = p
		if sent[r].Unchanged && r < len(old) && (p == old[r] || p.equal(old[r])) {
			out[r] = &SavePlan{Unchanged: true, Fingerprint: sent[r].Fingerprint}
		}
	}
	return out
}

// Finish returns the rank's final plan for the coordinator's answer, with its
// values' sizes as they are now, and remembers it.
func (c *Cache) Finish(answer *SavePlan) (*SavePlan, error) {
	if answer.Unchanged && (c.final == nil || answer.Fingerprint != c.print) {
		return nil, fmt.Errorf("%w: %v", ErrStale, answer.Fingerprint)
	}
	if !answer.Unchanged {
		c.final = answer
	}
	c.final = c.sizes.applied(c.final)
	c.begun = false
	return c.final, nil
}

// Forget empties the cache.
func (c *Cache) Forget() { *c = Cache{} }

// equal reports whether p and q, final plans of one rank, are the same apart from the contents
// of values. A rank with an equal plan keeps the one that it has.
func (p *SavePlan) equal(q *SavePlan) bool {
	return bytes.Equal(p.PlannerData, q.PlannerData) && bytes.Equal(p.StorageData, q.StorageData) && slices.Equal(p.Absent, q.Absent) &&
		slices.EqualFunc(p.Items, q.Items, func(a, b WriteItem) bool { return a.equal(&b) })
}

// fingerprint hashes the plan as it would be sent, without sizes.
func fingerprint(p *SavePlan, options string) (Fingerprint, error) {
	q := *p
	q.Fingerprint, q.Values = Fingerprint{}, nil
	q.Items = slices.Clone(p.Items)
	for i := range q.Items {
		q.Items[i].Size = 0
	}

	b, err := SavePlanCodec{}.Encode(&q)
	if err != nil {
		return Fingerprint{}, err
	}

	h := sha256.New()
	fmt.Fprintf(h, "%d:%s", len(options), options)
	h.Write(b)
	return Fingerprint(h.Sum(nil)), nil
}

// sizes are the sizes of values by name. The text of a number may change its length
// from save to save, which does not change the plan.
type sizes map[string]int64

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

// changed returns the values in p with a size that differs from the size in s.
func (s sizes) changed(p *SavePlan) []WriteItem {
	var out []WriteItem
	for _, it := range p.Items {
		if it.Kind == KindBytes && it.Size != s[it.FQN()] {
			out = append(out, it)
		}
	}
	return out
}

// applied returns p with the sizes in s, or p itself if it has them.
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

// resize returns md with the sizes that the writers of values sent, or md itself if
// they sent no sizes.
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
