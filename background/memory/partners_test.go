package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/ram"
)

// hostsOf returns hosts with the ids a, b, … in some domains.
func hostsOf(domains ...string) []ram.Host {
	var out []ram.Host
	for i, d := range domains {
		out = append(out, ram.Host{ID: string(rune('a' + i)), Domain: d})
	}
	return out
}

func TestPartners(t *testing.T) {
	for name, c := range map[string]struct {
		hosts  []ram.Host
		copies int
		want   string
	}{
		"no hosts":                       {nil, 1, "map[]"},
		"one host has no partner":        {hostsOf(""), 1, "map[]"},
		"two hosts":                      {hostsOf("", ""), 1, "map[a:[b] b:[a]]"},
		"three hosts are one group":      {hostsOf("", "", ""), 1, "map[a:[b] b:[c] c:[a]]"},
		"four hosts are two pairs":       {hostsOf("", "", "", ""), 1, "map[a:[b] b:[a] c:[d] d:[c]]"},
		"pairs are across racks":         {hostsOf("r1", "r1", "r2", "r2"), 1, "map[a:[c] b:[d] c:[a] d:[b]]"},
		"two copies":                     {hostsOf("", "", ""), 2, "map[a:[b c] b:[c a] c:[a b]]"},
		"more copies than other hosts":   {hostsOf("", ""), 3, "map[a:[b] b:[a]]"},
		"no copies":                      {hostsOf("", ""), 0, "map[]"},
		"one rack has most of the hosts": {hostsOf("r1", "r1", "r1", "r2"), 1, "map[a:[d] b:[c] c:[b] d:[a]]"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fmt.Sprint(Partners(c.hosts, c.copies)); got != c.want {
				t.Errorf("Partners = %s; want %s", got, c.want)
			}
		})
	}
}

// Each host has as many partners as there are copies, and they are other hosts. If no domain has
// more hosts than half of them, a pair is in two domains. The order of the hosts does not matter.
func TestPartnersOfRandomHosts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		n, copies := 1+rnd.IntN(40), 1+rnd.IntN(3)
		hosts, count := make([]ram.Host, n), map[string]int{}
		for i := range hosts {
			hosts[i] = ram.Host{ID: fmt.Sprintf("h%02d", i), Domain: fmt.Sprint("d", rnd.IntN(1+rnd.IntN(8)))}
			count[hosts[i].Domain]++
		}
		domain := map[string]string{}
		for _, h := range hosts {
			domain[h.ID] = h.Domain
		}
		got := Partners(hosts, copies)
		rnd.Shuffle(n, func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
		if again := Partners(hosts, copies); fmt.Sprint(again) != fmt.Sprint(got) {
			t.Fatalf("in another order: %v; want %v", again, got)
		}
		largest := 0
		for _, c := range count {
			largest = max(largest, c)
		}
		for _, h := range hosts {
			p := got[h.ID]
			if len(p) != min(copies, n-1) || slices.Contains(p, h.ID) || len(slices.Compact(slices.Sorted(slices.Values(p)))) != len(p) {
				t.Fatalf("%d hosts, %d copies: the partners of %s are %v", n, copies, h.ID, p)
			}
			if copies == 1 && n%2 == 0 && largest*2 <= n && domain[p[0]] == domain[h.ID] {
				t.Fatalf("%s and its partner %s are both in %s: %v", h.ID, p[0], h.Domain, got)
			}
		}
	}
}
