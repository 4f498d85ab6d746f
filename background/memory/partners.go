package memory

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/blob/ram"
)

// Partners returns for each host, by its id, the ids of the hosts that keep copies of its files.
// Each file is then on copies other hosts, or on all other hosts if there are fewer.
//
// Hosts keep copies for each other in groups of copies+1 hosts, and in larger ones if the number of
// hosts is not a multiple of that. So data is lost only if more than copies hosts of one group are
// lost. The hosts of a group are in different fault domains as far as possible. The result depends
// only on the ids and domains of the hosts: ranks may be anywhere.
func Partners(hosts []ram.Host, copies int) map[string][]string {
	out := map[string][]string{}
	for _, g := range groups(hosts, copies+1) {
		for i, h := range g {
			for k := 1; k <= copies && k < len(g); k++ {
				out[h.ID] = append(out[h.ID], g[(i+k)%len(g)].ID)
			}
		}
	}
	return out
}

// groups divides hosts into groups of at least size hosts. There is one group if there are fewer.
func groups(hosts []ram.Host, size int) [][]ram.Host {
	spread := spreadDomains(hosts)
	n := max(1, len(spread)/size)
	out := make([][]ram.Host, n)
	// Neighbours in the order are in different domains: a group is a range of the order, so
	// that its hosts are neighbours.
	for i := range n {
		out[i] = spread[i*len(spread)/n : (i+1)*len(spread)/n]
	}
	return out
}

// spreadDomains returns the hosts in an order in which hosts that follow each other are in different
// domains, as far as possible: it takes one host of each domain in turn, and the largest domains
// first.
func spreadDomains(hosts []ram.Host) []ram.Host {
	domains := map[string][]ram.Host{}
	for _, h := range hosts {
		d := domainOf(&h)
		domains[d] = append(domains[d], h)
	}
	names := slices.Sorted(maps.Keys(domains))
	slices.SortStableFunc(names, func(a, b string) int { return len(domains[b]) - len(domains[a]) })
	var byDomain []ram.Host
	for _, d := range names {
		slices.SortFunc(domains[d], func(a, b ram.Host) int { return cmp.Compare(a.ID, b.ID) })
		byDomain = append(byDomain, domains[d]...)
	}

	// Hosts of one domain stand together in byDomain. Dealing them out to as many columns as the
	// largest domain has hosts puts hosts of one domain into different columns.
	if len(names) == 0 {
		return nil
	}
	columns := make([][]ram.Host, len(domains[names[0]]))
	for i, h := range byDomain {
		columns[i%len(columns)] = append(columns[i%len(columns)], h)
	}
	return slices.Concat(columns...)
}
