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

// sharedItems returns the items of which several ranks hold equal contents and one writes them, by name, in the order of
// their boxes. final are the final plans.
func sharedItems(final []*plan.SavePlan) map[string][]shared {
	out := map[string][]shared{}
	for rank, p := range final {
		for i := range p.Items {
			if it := &p.Items[i]; it.Replicated && !it.MayDiffer && it.Kind != plan.KindBytes && it.NumBytes() > 0 {
				out[it.FQN()] = append(out[it.FQN()], shared{rank, it.Box, it.NumBytes()})
			}
		}
	}
	for name, of := range out {
		slices.SortFunc(of, func(a, b shared) int { return compareBoxes(&a.box, &b.box) })
		once := of[:0]
		for len(of) > 0 {
			n := 1
			for n < len(of) && compareBoxes(&of[0].box, &of[n].box) == 0 {
				n++
			}
			if n == 1 { // otherwise all holders write it, see plan.EveryHolder
				once = append(once, of[0])
			}
			of = of[n:]
		}
		out[name] = once
	}
	return out
}

// compareBoxes orders boxes of a tensor.
func compareBoxes(a, b *tensor.Box) int {
	return cmp.Or(slices.Compare(a.Offsets, b.Offsets), slices.Compare(a.Sizes, b.Sizes))
}

// find finds the items of all local plans that another rank writes.
func (c *choice) find(items map[string][]shared) {
	for _, of := range items {
		for k := range of {
			c.items = append(c.items, &of[k])
		}
	}
	number := make(map[*shared]int32, len(c.items))
	for n, h := range c.items {
		number[h] = int32(n)
	}

	type named struct {
		name string
		of   []shared
	}
	var before []named // by position: plans of ranks have the same names in most cases
	c.found = make([][]int32, len(c.local))
	for rank, p := range c.local {
		c.found[rank] = make([]int32, len(p.Items))
		for i := range p.Items {
			it := &p.Items[i]
			c.found[rank][i] = -1
			if len(before) == i {
				before = append(before, named{})
			}
			if name := it.FQN(); before[i].name != name {
				before[i] = named{name, items[name]}
			}
			of := before[i].of
			if it.Kind == plan.KindBytes || len(of) == 0 {
				continue
			}
			k, ok := slices.BinarySearchFunc(of, &it.Box, func(h shared, box *tensor.Box) int { return compareBoxes(&h.box, box) })
			if ok && of[k].rank != rank {
				c.found[rank][i] = number[&of[k]]
			}
		}
	}
}

// each calls fn for each item of a rank's local plan that another rank writes. item is its position.
func (c *choice) each(rank int, fn func(item int, h *shared)) {
	for i, n := range c.found[rank] {
		if n >= 0 {
			fn(i, c.items[n])
		}
	}
}

// choice chooses the hosts and the ranks that copy files from their own state. Hosts are positions in job.Hosts.
type choice struct {
	job      *Job
	local    []*plan.SavePlan
	items    []*shared
	found    [][]int32 // by rank: the positions in items of the items of its local plan, or -1
	total    []int64   // bytes that each rank writes
	host     []int     // of each rank
	partners [][]int   // of each host
	chosen   [][]int   // by host: the ones that copy its files from their own state
	keeps    []int     // by host: how many have chosen it
	held     [][]holding
}

// holding is how many bytes of the files of another rank a rank holds.
type holding struct {
	rank  int
	bytes int64
}

// holder is a host that holds bytes that another one writes.
type holder struct {
	host  int
	bytes int64
}

// cover counts what the ranks hold of the files of each rank. may reports whether a host may keep copies for another one.
func (c *choice) cover(may func(of, by int) bool) {
	c.held = make([][]holding, len(c.local))
	bytes := make([]int64, len(c.local))
	var some []int // ranks with bytes
	for rank := range c.local {
		c.each(rank, func(_ int, h *shared) {
			if !may(c.host[h.rank], c.host[rank]) {
				return
			}
			if bytes[h.rank] == 0 {
				some = append(some, h.rank)
			}
			bytes[h.rank] += h.bytes
		})
		for _, r := range some {
			c.held[r] = append(c.held[r], holding{rank, bytes[r]})
			bytes[r] = 0
		}
		some = some[:0]
	}
}

// holds returns how many bytes of the files of a rank another one holds.
func (c *choice) holds(of, by int) int64 {
	i, ok := slices.BinarySearchFunc(c.held[of], by, func(h holding, rank int) int { return cmp.Compare(h.rank, rank) })
	if !ok {
		return 0
	}
	return c.held[of][i].bytes
}

// covering returns the hosts that hold at least half of the bytes that a host's ranks write, the ones that hold
// most first.
func (c *choice) covering(host int) []holder {
	var most int64
	has := map[int]int64{}
	for _, r := range c.job.ranks[c.job.Hosts[host].ID] {
		most += c.total[r]
		best := map[int]int64{}
		for _, h := range c.held[r] {
			best[c.host[h.rank]] = max(best[c.host[h.rank]], h.bytes)
		}
		for by, n := range best {
			has[by] += n
		}
	}
	var out []holder
	for by, n := range has {
		if 2*n >= most {
			out = append(out, holder{by, n})
		}
	}
	slices.SortFunc(out, func(a, b holder) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.host, b.host)) })
	return out
}

// choose notes that a host copies the files of another one, unless there are enough such hosts, or it does so for as many
// hosts as it is a partner of: then it may have no room for more.
func (c *choice) choose(of, by int) {
	if c.lacks(of) && c.keeps[by] < len(c.partners[by]) && !slices.Contains(c.chosen[of], by) {
		c.chosen[of] = append(c.chosen[of], by)
		c.keeps[by]++
	}
}

// lacks reports whether not all copies of a host's files are made from what other hosts hold.
func (c *choice) lacks(host int) bool { return len(c.chosen[host]) < len(c.partners[host]) }

// chooseReplicas returns for each rank the ranks that copy its files from their own state, and for each rank
// what it copies.
func (j *Job) chooseReplicas(local, final []*plan.SavePlan, copies int) (keepers map[int][]int, out []Replica) {
	out = make([]Replica, len(final))
	items := sharedItems(final)
	if len(items) == 0 || len(j.Hosts) == 1 {
		return nil, out
	}
	c := &choice{job: j, local: local, total: make([]int64, len(final)), host: make([]int, len(final))}
	c.find(items)
	for r, p := range final {
		c.total[r] = p.NumBytes()
	}
	n := len(j.Hosts)
	c.partners, c.chosen, c.keeps = make([][]int, n), make([][]int, n), make([]int, n)
	partners, at := Partners(j.Hosts, copies), map[string]int{}
	for i, h := range j.Hosts {
		at[h.ID] = i
		for _, r := range j.ranks[h.ID] {
			c.host[r] = i
		}
	}
	for i, h := range j.Hosts {
		for _, id := range partners[h.ID] {
			c.partners[i] = append(c.partners[i], at[id])
		}
	}

	c.cover(func(of, by int) bool { return slices.Contains(c.partners[of], by) })
	lacking := false
	for i := range j.Hosts {
		for _, h := range c.covering(i) {
			c.choose(i, h.host)
		}
		lacking = lacking || c.lacks(i)
	}
	if lacking {
		c.chooseOthers(copies)
	}

	ranks := c.chooseRanks()
	for rank := range local {
		of := map[int]bool{}
		c.each(rank, func(item int, h *shared) {
			if slices.Contains(ranks[h.rank], rank) {
				of[h.rank] = true
				out[rank].Items = append(out[rank].Items, item)
			}
		})
		out[rank].Of = slices.Sorted(maps.Keys(of))
	}
	keepers = map[int][]int{}
	for r, k := range ranks {
		if len(k) > 0 {
			keepers[r] = k
		}
	}
	return keepers, out
}

// chooseOthers chooses hosts for those whose partners do not hold what they write. Hosts that hold the same keep copies
// for each other in groups, as partners do.
func (c *choice) chooseOthers(copies int) {
	hosts := c.job.Hosts
	lacking := make([]bool, len(hosts))
	for i := range hosts {
		lacking[i] = c.lacks(i)
	}
	apart := apart(hosts)
	c.cover(func(of, by int) bool { return slices.Contains(c.chosen[of], by) || lacking[of] && apart(of, by) })
	by, covers := make([][]holder, len(hosts)), make([]map[int]bool, len(hosts))
	for i := range hosts {
		if !lacking[i] {
			continue
		}
		by[i], covers[i] = c.covering(i), map[int]bool{}
		for _, h := range by[i] {
			covers[i][h.host] = true
		}
	}

	grouped := make([]bool, len(hosts))
	for i := range hosts {
		if grouped[i] || !lacking[i] {
			continue
		}
		grouped[i] = true
		group := []int{i}
		for k := 0; k < len(group); k++ {
			for _, h := range by[group[k]] {
				if !grouped[h.host] && covers[h.host][group[k]] {
					grouped[h.host] = true
					group = append(group, h.host)
				}
			}
		}
		at := map[string]int{}
		var some []ram.Host
		for _, g := range group {
			at[hosts[g].ID] = g
			some = append(some, hosts[g])
		}
		partners := Partners(some, copies)
		for _, g := range group {
			for _, id := range partners[hosts[g].ID] {
				if covers[g][at[id]] {
					c.choose(g, at[id])
				}
			}
		}
	}

	for i := range hosts {
		slices.SortStableFunc(by[i], func(a, b holder) int { return cmp.Compare(c.keeps[a.host], c.keeps[b.host]) })
		for _, far := range []bool{true, false} { // hosts in domains that have no copy come first
			for _, h := range by[i] {
				if !far || !slices.ContainsFunc(c.chosen[i], func(k int) bool { return !apart(k, h.host) }) {
					c.choose(i, h.host)
				}
			}
		}
	}
}

// apart returns a function that reports whether two hosts are not lost together.
func apart(hosts []ram.Host) func(a, b int) bool {
	domains := make([]string, len(hosts))
	several := false
	for i, h := range hosts {
		domains[i] = domainOf(&h)
		several = several || domains[i] != domains[0]
	}
	return func(a, b int) bool { return a != b && (!several || domains[a] != domains[b]) }
}

// domainOf returns the fault domain of a host.
func domainOf(h *ram.Host) string { return cmp.Or(h.Domain, "host "+h.ID) }

// chooseRanks returns for each rank the ranks that copy its files, one on each of the chosen hosts: the one that
// holds most of them, and of several such ranks the one that copies least so far.
func (c *choice) chooseRanks() [][]int {
	out, load := make([][]int, len(c.total)), make([]int64, len(c.total))
	for r := range c.total {
		for _, by := range c.chosen[c.host[r]] {
			best := slices.MinFunc(c.job.ranks[c.job.Hosts[by].ID], func(a, b int) int {
				return cmp.Or(cmp.Compare(c.holds(r, b), c.holds(r, a)), cmp.Compare(load[a], load[b]), cmp.Compare(a, b))
			})
			if n := c.holds(r, best); n > 0 && 2*n >= c.total[r] {
				out[r] = append(out[r], best)
				load[best] += n
			}
		}
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

// placement says which hosts keep the copies of the files of each rank.
type placement struct {
	host     map[int]string    // of each rank
	domain   map[string]string // of each host
	partners map[string][]string
	keepers  map[int][]int
}

// place returns where copies go. keepers are the ranks that copy files of a rank from their own state.
func (j *Job) place(copies int, keepers map[int][]int) *placement {
	p := &placement{j.hostOfRanks(), map[string]string{}, Partners(j.Hosts, copies), keepers}
	for _, h := range j.Hosts {
		p.domain[h.ID] = domainOf(&h)
	}
	return p
}

// of returns the hosts that keep copies of the files of a rank: its keepers' hosts, then the partners of its host, the
// ones in other domains first.
func (p *placement) of(rank int) []string {
	partners := p.partners[p.host[rank]]
	var out []string
	for _, k := range p.keepers[rank] {
		out = append(out, p.host[k])
	}
	for _, far := range []bool{true, false} {
		for _, id := range partners {
			near := slices.ContainsFunc(out, func(o string) bool { return p.domain[o] == p.domain[id] })
			if len(out) < len(partners) && !slices.Contains(out, id) && !(far && near) {
				out = append(out, id)
			}
		}
	}
	return out
}

// byHost returns for each host the hosts that keep copies of files of its ranks.
func (p *placement) byHost() map[string]map[string]bool {
	out := map[string]map[string]bool{}
	for rank, host := range p.host {
		if out[host] == nil {
			out[host] = map[string]bool{}
		}
		for _, id := range p.of(rank) {
			out[host][id] = true
		}
	}
	return out
}

// keeper returns the rank on a host that copies the files of a rank from its own state, if there is one.
func (p *placement) keeper(rank int, host string) (int, bool) {
	i := slices.IndexFunc(p.keepers[rank], func(k int) bool { return p.host[k] == host })
	if i < 0 {
		return 0, false
	}
	return p.keepers[rank][i], true
}
