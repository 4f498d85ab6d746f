package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// jobOf returns a job with the ranks 0, 1, … one after the other on its hosts.
func jobOf(hosts []ram.Host, ranksPerHost int) *Job {
	j := &Job{Hosts: hosts, ranks: map[string][]int{}}
	for i, h := range hosts {
		for k := range ranksPerHost {
			j.ranks[h.ID] = append(j.ranks[h.ID], i*ranksPerHost+k)
		}
	}
	return j
}

// whole returns tensors of n elements that are not sharded.
func whole(n int64, names ...string) []plan.WriteItem {
	var out []plan.WriteItem
	for _, name := range names {
		in := &plan.Info{FQN: name, Shape: []int64{n}, Properties: meta.Properties{DType: tensor.Float32}}
		out = append(out, plan.WriteItem{Info: in, Kind: plan.KindTensor, Box: tensor.Whole(in.Shape)})
	}
	return out
}

// shardOf returns part i of n of some tensors.
func shardOf(i, n int64, names ...string) []plan.WriteItem {
	var out []plan.WriteItem
	for _, name := range names {
		in := &plan.Info{FQN: name, Shape: []int64{n * 100}, Properties: meta.Properties{DType: tensor.Float32}}
		out = append(out, plan.WriteItem{Info: in, Kind: plan.KindShard, Box: tensor.Box{Offsets: []int64{i * 100}, Sizes: []int64{100}}})
	}
	return out
}

// plansOf returns the local and the final plans of ranks with these items.
func plansOf(t *testing.T, items ...[]plan.WriteItem) (local, final []*plan.SavePlan) {
	t.Helper()
	for _, some := range items {
		local = append(local, &plan.SavePlan{Items: some})
	}
	final, _, err := plan.Global(local, plan.LeastLoaded)
	if err != nil {
		t.Fatal(err)
	}
	return local, final
}

func TestReplicas(t *testing.T) {
	four := []string{"a", "b", "c", "d"}
	mayDiffer := func(items []plan.WriteItem) []plan.WriteItem {
		for i := range items {
			items[i].MayDiffer = true
		}
		return items
	}
	racks := func(r ...string) []ram.Host { return hostsOf(r...) }
	for _, c := range []struct {
		name   string
		hosts  []ram.Host
		each   int // ranks of each host
		items  [][]plan.WriteItem
		copies int
		want   string // the keepers of each rank
	}{
		{"all ranks hold all", racks("", ""), 2, [][]plan.WriteItem{whole(9, four...), whole(9, four...), whole(9, four...), whole(9, four...)}, 1,
			"map[0:[2] 1:[3] 2:[0] 3:[1]]"},
		{"all ranks are on one host", racks(""), 2, [][]plan.WriteItem{whole(9, four...), whole(9, four...)}, 1, "map[]"},
		{"no rank holds what another one does", racks("", ""), 1, [][]plan.WriteItem{shardOf(0, 2, four...), shardOf(1, 2, four...)}, 1, "map[]"},
		{"shards on two hosts, and the same on two others", racks("", "", "", ""), 1,
			[][]plan.WriteItem{shardOf(0, 2, four...), shardOf(1, 2, four...), shardOf(0, 2, four...), shardOf(1, 2, four...)}, 1,
			"map[0:[2] 1:[3] 2:[0] 3:[1]]"},
		{"the other holder is in the same rack", racks("r1", "r1", "r2", "r2"), 1,
			[][]plan.WriteItem{shardOf(0, 2, four...), shardOf(0, 2, four...), shardOf(1, 2, four...), shardOf(1, 2, four...)}, 1, "map[]"},
		{"there is one rack only", racks("r1", "r1", "r1", "r1"), 1,
			[][]plan.WriteItem{shardOf(0, 2, four...), shardOf(1, 2, four...), shardOf(0, 2, four...), shardOf(1, 2, four...)}, 1,
			"map[0:[2] 1:[3] 2:[0] 3:[1]]"},
		{"two copies", racks("", "", ""), 1, [][]plan.WriteItem{whole(9, "a", "b", "c"), whole(9, "a", "b", "c"), whole(9, "a", "b", "c")}, 2,
			"map[0:[1 2] 1:[0 2] 2:[0 1]]"},
		{"contents may differ", racks("", ""), 1, [][]plan.WriteItem{mayDiffer(whole(9, four...)), mayDiffer(whole(9, four...))}, 1, "map[]"},
		{"most of a rank is its own", racks("", ""), 1, [][]plan.WriteItem{append(whole(9, four...), whole(999, "own")...), whole(9, four...)}, 1,
			"map[1:[0]]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := jobOf(c.hosts, c.each)
			local, final := plansOf(t, c.items...)
			j.Replicas(local, final, c.copies)
			if j.keepers == nil {
				j.keepers = map[int][]int{}
			}
			if got := fmt.Sprint(j.keepers); got != c.want {
				t.Errorf("the keepers are %s; want %s", got, c.want)
			}
		})
	}
}

// Each rank has as many copies as without replicas, on other hosts. A keeper has the items that the rank writes and it
// holds too, and no others, and most of the bytes.
func TestReplicasOfRandomJobs(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		n, each, copies := 1+rnd.IntN(6), 1+rnd.IntN(3), 1+rnd.IntN(2)
		var domains []string
		for range n {
			domains = append(domains, []string{"", "r1", "r2"}[rnd.IntN(3)])
		}
		j := jobOf(hostsOf(domains...), each)
		shards := int64(1 + rnd.IntN(n*each))
		var items [][]plan.WriteItem
		for r := range n * each {
			some := shardOf(int64(r)%shards, shards, "a", "b", "c", "d", "e")
			some = append(some, whole(int64(1+rnd.IntN(50)), fmt.Sprint("own", r))...)
			items = append(items, some)
		}

		local, final := plansOf(t, items...)
		replicas := j.Replicas(local, final, copies)
		at, partners := j.place(copies, j.keepers), Partners(j.Hosts, copies)
		for r := range final {
			host := at.host[r]
			to := at.of(r)
			if len(to) != len(partners[host]) || slices.Contains(to, host) || len(slices.Compact(slices.Sorted(slices.Values(to)))) != len(to) {
				t.Fatalf("rank %d on %s has copies on %v; want %d other hosts", r, host, to, len(partners[host]))
			}
		}
		for s, rep := range replicas {
			want := map[int]bool{}
			for _, r := range rep.Of {
				if !slices.Contains(j.keepers[r], s) {
					t.Fatalf("rank %d copies files of rank %d, whose keepers are %v", s, r, j.keepers[r])
				}
				var held int64
				for i := range local[s].Items {
					it := &local[s].Items[i]
					if slices.ContainsFunc(final[r].Items, func(o plan.WriteItem) bool { return o.Key() == it.Key() }) {
						want[i] = true
						held += it.NumBytes()
					}
				}
				if 2*held < final[r].NumBytes() {
					t.Fatalf("rank %d has %d of the %d bytes of rank %d; want half of them or more", s, held, final[r].NumBytes(), r)
				}
			}
			for _, i := range rep.Items {
				if !want[i] {
					t.Fatalf("rank %d needs its item %d, which none of %v writes", s, i, rep.Of)
				}
			}
			if len(rep.Items) != len(want) {
				t.Fatalf("rank %d needs %d items; want %d", s, len(rep.Items), len(want))
			}
		}
	}
}

// The room for copies is counted on the hosts that keep them.
func TestNeedsWithReplicas(t *testing.T) {
	j := jobOf(hostsOf("", "", "", ""), 1)
	four := []string{"a", "b", "c", "d"}
	local, final := plansOf(t, shardOf(0, 2, four...), shardOf(1, 2, four...), shardOf(0, 2, four...), shardOf(1, 2, four...))
	j.Replicas(local, final, 1)
	_, foreign := j.needs([]int64{100, 200, 400, 800}, 1, j.keepers)
	for host, of := range map[string]int64{"a": 400, "b": 800, "c": 100, "d": 200} {
		if want := of + of/stateOverhead + rankOverhead; foreign[host] != want {
			t.Errorf("the host %s needs %d bytes for copies; want %d", host, foreign[host], want)
		}
	}
	if kept := j.place(1, j.keepers).byHost(); fmt.Sprint(kept) != "map[a:map[c:true] b:map[d:true] c:map[a:true] d:map[b:true]]" {
		t.Errorf("the hosts keep copies as %v says", kept)
	}
}

// If all hosts have the same work, none keeps more copies than without replicas, so that its memory is enough.
func TestReplicasAreSpread(t *testing.T) {
	var hosts []string
	var items [][]plan.WriteItem
	for r := range int64(12) {
		hosts = append(hosts, "")
		items = append(items, shardOf(r%2, 2, "a", "b", "c", "d", "e", "f")) // other shards than the partner
	}
	j := jobOf(hostsOf(hosts...), 1)
	local, final := plansOf(t, items...)
	for _, copies := range []int{1, 2} {
		j.Replicas(local, final, copies)
		if len(j.keepers) != len(items) {
			t.Errorf("%d copies: the keepers are %v; want some for each rank", copies, j.keepers)
		}
		of := map[int]int{}
		for r, by := range j.keepers {
			if len(by) != copies && copies == 1 {
				t.Errorf("%d copies: rank %d has the keepers %v", copies, r, by)
			}
			for _, k := range by {
				of[k]++
			}
		}
		for k, n := range of {
			if n > copies {
				t.Errorf("%d copies: rank %d copies the files of %d ranks: %v", copies, k, n, j.keepers)
			}
		}
	}
}

// If only some copies are made from what other hosts hold, the others are in other domains as far as possible.
func TestReplicasInDomains(t *testing.T) {
	j := jobOf(hostsOf("r1", "r2", "r3", "r3", "r1", "r2"), 1)
	for _, keeper := range []int{1, 2, 3, 5} { // not in r1
		at := j.place(2, map[int][]int{0: {keeper}})
		if to := at.of(0); len(to) != 2 || at.domain[to[0]] == at.domain[to[1]] {
			t.Errorf("the copies are on %v; want hosts in different racks", to)
		}
	}
}
