package memory

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Ranks that train with the same data-parallel weights hold the same tensors, and one of them writes each tensor. A
// rank on another host that holds most of what a rank writes makes the copy of its files from its own state, and
// receives only the rest.

// Replica is what a rank holds of the files of other ranks.
type Replica struct {
	// Of are the ranks whose files it copies.
	Of []int
	// Items are positions in its local plan, in order, of the items that it needs for that.
	Items []int
}

// Replicas chooses the ranks that copy files of other ranks from their own state. local and final are the plans of all
// ranks. Rank 0 calls it each time that they are made. The result has a Replica for each rank; copies is as in Saved.
//
// A host's partner comes first. If it does not hold the data, and another host in another fault domain does, that
// one keeps the copies. So nothing is sent for states that hosts hold anyway.
func (j *Job) Replicas(local, final []*plan.SavePlan, copies int) []Replica {
	var out []Replica
	j.keepers, out = j.chooseReplicas(local, final, cmp.Or(copies, DefaultCopies))
	return out
}

// shared is an item that a rank writes and others hold.
type shared struct {
	rank  int
	box   tensor.Box
	bytes int64
}

// sharedItems returns the items of which several ranks hold equal contents, by name. final are the final plans.
func sharedItems(final []*plan.SavePlan) map[string][]shared {
	out := map[string][]shared{}
	for rank, p := range final {
		for i := range p.Items {
			if it := &p.Items[i]; it.Replicated && !it.MayDiffer && it.Kind != plan.KindBytes && it.NumBytes() > 0 {
				out[it.FQN()] = append(out[it.FQN()], shared{rank, it.Box, it.NumBytes()})
			}
		}
	}
	return out
}

// eachShared calls fn for each item of a local plan that another rank writes. item is its position.
func eachShared(items map[string][]shared, rank int, local *plan.SavePlan, fn func(item int, h *shared)) {
	for i := range local.Items {
		it := &local.Items[i]
		if it.Kind == plan.KindBytes {
			continue
		}
		of := items[it.FQN()]
		for k := range of {
			if of[k].rank != rank && of[k].box.Equal(it.Box) {
				fn(i, &of[k])
			}
		}
	}
}

// coverage has for each writing rank the bytes of its files that other ranks hold.
type coverage []map[int]int64

// cover counts what the ranks hold of files of other ranks. may reports whether a host may keep copies for another one.
func (j *Job) cover(items map[string][]shared, local []*plan.SavePlan, may func(of, by string) bool) coverage {
	host := j.hostOfRanks()
	out := make(coverage, len(local))
	for rank, p := range local {
		eachShared(items, rank, p, func(_ int, h *shared) {
			if !may(host[h.rank], host[rank]) {
				return
			}
			if out[h.rank] == nil {
				out[h.rank] = map[int]int64{}
			}
			out[h.rank][rank] += h.bytes
		})
	}
	return out
}

// hostOfRanks returns the ids of the hosts of all ranks.
func (j *Job) hostOfRanks() map[int]string {
	out := map[int]string{}
	for id, ranks := range j.ranks {
		for _, r := range ranks {
			out[r] = id
		}
	}
	return out
}

// chooseReplicas returns for each rank the ranks that copy its files from what they hold, and for each rank
// what it copies.
func (j *Job) chooseReplicas(local, final []*plan.SavePlan, copies int) (keepers map[int][]int, out []Replica) {
	items := sharedItems(final)
	out = make([]Replica, len(final))
	if len(items) == 0 || len(j.Hosts) == 1 {
		return nil, out
	}
	total := make([]int64, len(final))
	for r, p := range final {
		total[r] = p.NumBytes()
	}

	partners := Partners(j.Hosts, copies)
	c := j.cover(items, local, func(of, by string) bool { return slices.Contains(partners[of], by) })
	chosen, lacking := map[string][]string{}, map[string]bool{}
	for _, h := range j.Hosts {
		chosen[h.ID] = j.covering(c, total, h.ID, partners[h.ID])
		lacking[h.ID] = len(chosen[h.ID]) < len(partners[h.ID])
	}
	if slices.Contains(slices.Collect(maps.Values(lacking)), true) {
		apart := j.apart()
		c = j.cover(items, local, func(of, by string) bool {
			return slices.Contains(chosen[of], by) || lacking[of] && apart(of, by)
		})
		for id := range lacking {
			others := slices.DeleteFunc(j.covering(c, total, id, j.hostIDs()), func(by string) bool { return slices.Contains(chosen[id], by) })
			n := min(len(others), len(partners[id])-len(chosen[id]))
			chosen[id] = append(chosen[id], others[:n]...)
		}
	}

	keepers = j.chooseRanks(c, total, chosen)
	for rank, p := range local {
		of := map[int]bool{}
		eachShared(items, rank, p, func(item int, h *shared) {
			if slices.Contains(keepers[h.rank], rank) {
				of[h.rank] = true
				out[rank].Items = append(out[rank].Items, item)
			}
		})
		out[rank].Of = slices.Sorted(maps.Keys(of))
		out[rank].Items = slices.Compact(out[rank].Items)
	}
	return keepers, out
}

// hostIDs returns the ids of the hosts of the job, in order.
func (j *Job) hostIDs() []string {
	var out []string
	for _, h := range j.Hosts {
		out = append(out, h.ID)
	}
	slices.Sort(out)
	return out
}

// apart returns a function that reports whether two hosts are not lost together.
func (j *Job) apart() func(a, b string) bool {
	domains := map[string]string{}
	several := map[string]bool{}
	for _, h := range j.Hosts {
		domains[h.ID] = domainOf(&h)
		several[domainOf(&h)] = true
	}
	return func(a, b string) bool { return a != b && (domains[a] != domains[b] || len(several) == 1) }
}

// domainOf returns the fault domain of a host.
func domainOf(h *ram.Host) string { return cmp.Or(h.Domain, "host "+h.ID) }

// covering returns the hosts that hold at least half of the bytes that a host's ranks write, the ones that hold
// most first.
func (j *Job) covering(c coverage, total []int64, host string, hosts []string) []string {
	var most int64
	for _, r := range j.ranks[host] {
		most += total[r]
	}
	has := map[string]int64{}
	for _, id := range hosts {
		for _, r := range j.ranks[host] {
			var best int64
			for _, by := range j.ranks[id] {
				best = max(best, c[r][by])
			}
			has[id] += best
		}
	}
	out := slices.DeleteFunc(slices.Clone(hosts), func(id string) bool { return has[id] == 0 || 2*has[id] < most })
	slices.SortStableFunc(out, func(a, b string) int { return cmp.Compare(has[b], has[a]) })
	return out
}

// chooseRanks returns for each rank the ranks that copy its files, one on each of the chosen hosts: the one that
// holds most of them, and of several such ranks the one that copies least so far.
func (j *Job) chooseRanks(c coverage, total []int64, chosen map[string][]string) map[int][]int {
	out, load := map[int][]int{}, map[int]int64{}
	host := j.hostOfRanks()
	for r := range total {
		for _, id := range chosen[host[r]] {
			best := slices.MinFunc(j.ranks[id], func(a, b int) int {
				return cmp.Or(cmp.Compare(c[r][b], c[r][a]), cmp.Compare(load[a], load[b]), cmp.Compare(a, b))
			})
			if n := c[r][best]; n > 0 && 2*n >= total[r] {
				out[r] = append(out[r], best)
				load[best] += n
			}
		}
	}
	return out
}

// placement says which hosts keep the copies of the files of each rank.
type placement struct {
	host     map[int]string // of each rank
	partners map[string][]string
	keepers  map[int][]int
}

// place returns where copies go. keepers are the ranks that copy files of a rank from what they hold.
func (j *Job) place(copies int, keepers map[int][]int) *placement {
	return &placement{j.hostOfRanks(), Partners(j.Hosts, copies), keepers}
}

// of returns the hosts that keep copies of the files of a rank: its keepers' hosts, then the partners of its host.
func (p *placement) of(rank int) []string {
	partners := p.partners[p.host[rank]]
	var out []string
	for _, k := range p.keepers[rank] {
		out = append(out, p.host[k])
	}
	for _, id := range partners {
		if len(out) < len(partners) && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// keeper returns the rank on a host that copies the files of a rank from what it holds, if there is one.
func (p *placement) keeper(rank int, host string) (int, bool) {
	i := slices.IndexFunc(p.keepers[rank], func(k int) bool { return p.host[k] == host })
	if i < 0 {
		return 0, false
	}
	return p.keepers[rank][i], true
}
