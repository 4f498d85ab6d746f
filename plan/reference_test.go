package plan_test

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// piece is one distinct item of the reference planner, with all ranks that hold it.
type piece struct {
	fqn     string
	first   int // the position of the name among all names
	kind    plan.Kind
	box     tensor.Box
	bytes   int64
	holders []holder
	owner   holder
}

type holder struct{ rank, item int }

func compareHolders(a, b holder) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.item, b.item))
}

// reference plans as Global does, in the plainest way: every item is compared
// with every distinct one. It returns lines that name the rank that writes each item as which
// chunk.
func reference(plans []*plan.SavePlan, rule plan.OwnerRule) []string {
	pieces := distinct(plans)
	load := make([]int64, len(plans))
	var shared []*piece
	for _, p := range pieces {
		p.owner = p.holders[0]
		if len(p.holders) > 1 && rule == plan.LeastLoaded {
			shared = append(shared, p)
			continue
		}
		load[p.owner.rank] += max(1, p.bytes)
	}
	slices.SortStableFunc(shared, func(a, b *piece) int {
		return cmp.Or(cmp.Compare(max(1, b.bytes), max(1, a.bytes)), cmp.Compare(a.first, b.first), compareHolders(a.holders[0], b.holders[0]))
	})
	for _, p := range shared {
		p.owner = slices.MinFunc(p.holders, func(a, b holder) int {
			return cmp.Or(cmp.Compare(load[a.rank], load[b.rank]), compareHolders(a, b))
		})
		load[p.owner.rank] += max(1, p.bytes)
	}
	slices.SortFunc(pieces, func(a, b *piece) int {
		return cmp.Or(cmp.Compare(a.fqn, b.fqn), compareHolders(a.owner, b.owner))
	})
	var out []string
	for i, p := range pieces {
		hint := 0
		for j := i; j > 0 && pieces[j-1].fqn == p.fqn; j-- {
			hint++
		}
		out = append(out, line(p.fqn, hint, p.owner.rank, p.kind, p.box))
	}
	return out
}

func distinct(plans []*plan.SavePlan) (pieces []*piece) {
	var names []string
	for r, p := range plans {
		for i := range p.Items {
			it := &p.Items[i]
			if !slices.Contains(names, it.FQN()) {
				names = append(names, it.FQN())
			}
			at := slices.IndexFunc(pieces, func(d *piece) bool { return d.fqn == it.FQN() && d.box.Equal(it.Box) })
			if at < 0 {
				at = len(pieces)
				pieces = append(pieces, &piece{
					fqn: it.FQN(), first: slices.Index(names, it.FQN()), kind: it.Kind, box: it.Box, bytes: it.NumBytes(),
				})
			}
			pieces[at].holders = append(pieces[at].holders, holder{r, i})
		}
	}
	return pieces
}

func line(fqn string, chunk, rank int, k plan.Kind, b tensor.Box) string {
	if k == plan.KindBytes {
		return fmt.Sprintf("%s: rank %d", fqn, rank)
	}
	return fmt.Sprintf("%s: chunk %d %v: rank %d", fqn, chunk, b, rank)
}

// lines names the writer of each item of the final plans, in the order of names and
// chunks.
func lines(finals []*plan.SavePlan) []string {
	type write struct {
		fqn  string
		hint int32
		text string
	}
	var all []write
	for r, p := range finals {
		for i := range p.Items {
			it := &p.Items[i]
			all = append(all, write{it.FQN(), it.Hint, line(it.FQN(), int(it.Hint), r, it.Kind, it.Box)})
		}
	}
	slices.SortFunc(all, func(a, b write) int { return cmp.Or(cmp.Compare(a.fqn, b.fqn), cmp.Compare(a.hint, b.hint)) })
	var out []string
	for _, w := range all {
		out = append(out, w.text)
	}
	return out
}
