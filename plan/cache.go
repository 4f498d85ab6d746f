package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/meta"
)

// ErrStale reports a plan that a rank called unchanged and the coordinator does
// not know. The ranks forget their plans then and send them anew.
var ErrStale = errors.New("unknown unchanged plan")

// Fingerprint identifies a local plan: its items with shapes, boxes, dtypes and
// paths, the planner's and the storage's data, the planner's options, the rank
// and the number of ranks. The zero Fingerprint identifies nothing.
type Fingerprint [sha256.Size]byte

// String returns the first digits, for people.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:6]) }

// Cache remembers the plans of the save before, so that ranks whose plans have
// not changed send and receive nothing and the coordinator plans nothing. One
// rank's saves use one Cache, one after the other; the zero value is empty. It
// holds no state and no tensors.
//
// Whatever a plan depends on is in its fingerprint, so there is no wrong hit;
// where the ranks' memories differ (a rank was restarted, a save failed on the
// way) the coordinator answers ErrStale and they plan afresh.
type Cache struct {
	print Fingerprint // of this rank's last local plan
	final *SavePlan   // what became of it

	// On the coordinator: all ranks' local plans and what became of them.
	locals, finals []*SavePlan
	md             *meta.Metadata
}

// Local returns what the rank sends for its local plan p: p itself with its
// fingerprint, or only the fingerprint where p is the plan of the save before.
// options identifies what p depends on beside its own contents.
func (c *Cache) Local(p *SavePlan, options string) (*SavePlan, error) {
	print, err := fingerprint(p, options)
	if err != nil {
		return nil, err
	}
	if c.final != nil && print == c.print {
		return &SavePlan{Unchanged: true, Fingerprint: print}, nil
	}
	q := *p
	q.Fingerprint = print
	c.print, c.final = print, nil
	return &q, nil
}

// Global returns the final plans of all ranks for what they sent. It calls plan
// with the full local plans only if one of them changed; to a rank whose final
// plan is the one it knows it answers an unchanged one.
func (c *Cache) Global(sent []*SavePlan, plan func([]*SavePlan) ([]*SavePlan, *meta.Metadata, error)) ([]*SavePlan, *meta.Metadata, error) {
	full, changed, err := c.merge(sent)
	if err != nil {
		return nil, nil, err
	}
	if changed {
		finals, md, err := plan(full)
		if err != nil {
			return nil, nil, err
		}
		old := c.finals
		c.locals, c.finals, c.md = full, finals, md
		return answers(sent, finals, old), md, nil
	}
	return answers(sent, c.finals, c.finals), c.md, nil
}

// merge fills in the plans that were not sent.
func (c *Cache) merge(sent []*SavePlan) (full []*SavePlan, changed bool, err error) {
	full = make([]*SavePlan, len(sent))
	changed = len(sent) != len(c.finals)
	for r, p := range sent {
		if !p.Unchanged {
			full[r], changed = p, true
			continue
		}
		if len(sent) != len(c.locals) || c.locals[r].Fingerprint != p.Fingerprint {
			return nil, false, fmt.Errorf("%w: %v of rank %d", ErrStale, p.Fingerprint, r)
		}
		full[r] = c.locals[r]
	}
	return full, changed, nil
}

// answers replaces the final plans that their ranks know by unchanged ones. Only
// a rank that sent an unchanged plan still has its final one.
func answers(sent, finals, old []*SavePlan) []*SavePlan {
	out := make([]*SavePlan, len(finals))
	for r, p := range finals {
		out[r] = p
		if sent[r].Unchanged && r < len(old) && (p == old[r] || p.equal(old[r])) {
			out[r] = &SavePlan{Unchanged: true, Fingerprint: p.Fingerprint}
		}
	}
	return out
}

// Finish returns the rank's final plan for the coordinator's answer, and
// remembers it.
func (c *Cache) Finish(answer *SavePlan) (*SavePlan, error) {
	if answer.Unchanged {
		if c.final == nil {
			return nil, fmt.Errorf("%w: %v", ErrStale, answer.Fingerprint)
		}
		return c.final, nil
	}
	c.final = answer
	return answer, nil
}

// Forget empties the cache.
func (c *Cache) Forget() { *c = Cache{} }

// equal reports whether p and q write the same.
func (p *SavePlan) equal(q *SavePlan) bool {
	if len(p.Items) != len(q.Items) || string(p.PlannerData) != string(q.PlannerData) || string(p.StorageData) != string(q.StorageData) {
		return false
	}
	for i := range p.Items {
		a, b := &p.Items[i], &q.Items[i]
		if a.Kind != b.Kind || a.Hint != b.Hint || a.Size != b.Size || !a.Info.Equal(b.Info) || !a.Box.Equal(b.Box) {
			return false
		}
	}
	return true
}

// fingerprint hashes the plan as it would be sent.
func fingerprint(p *SavePlan, options string) (Fingerprint, error) {
	b, err := SavePlanCodec{}.Encode(p)
	if err != nil {
		return Fingerprint{}, err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s", len(options), options)
	h.Write(b)
	return Fingerprint(h.Sum(nil)), nil
}
