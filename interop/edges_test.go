//go:build interop

package interop

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/internal/deep"
)

// edges are failures around the Python package, and differences between jobs: ranks and
// savers that die, Ctrl-C, workers, process groups, numbers of ranks.
var edges = []testCase{
	{name: "cairn.torch: a save that is complete before the copy has returned", run: func(r *rig) {
		r.nothing("edges.complete_early", args{"path": r.there("ckpt")})
	}},
	{name: "cairn.torch: 1 to 4 ranks save, 1 to 4 load", run: func(r *rig) {
		var paths []string
		var want items
		for n := 1; n <= 4; n++ {
			paths = append(paths, r.there(fmt.Sprint("of-", n)))
			got := r.itemsOf(n, "edges.save", args{"path": paths[n-1]})
			if want == nil {
				want = got
			}
			equal(r, fmt.Sprintf("the state of %d ranks", n), got, want)
			equal(r, fmt.Sprintf("cairn digest, %d ranks", n), r.digest(fmt.Sprint("of-", n)), want)
		}
		for n := 1; n <= 4; n++ {
			var got map[string]items
			r.ranks(n, "edges.load", args{"paths": paths}, &got)
			for m := 1; m <= 4; m++ {
				equal(r, fmt.Sprintf("%d ranks load what %d saved", n, m), got[fmt.Sprint("of-", m)], want)
			}
		}
	}},
	{name: "cairn.torch.load: every checkpoint of the fixtures", run: readsFixtures("edges.all_of")},
	{name: "cairn.torch: tensors that are not contiguous, larger than the shared memory", run: finds(1, "edges.too_large")},
	{name: "cairn.torch: a save whose state is copied aside after the state of the next", run: finds(1, "edges.overtaken")},
	{name: "cairn.torch: a save that fails while its state is copied aside", run: finds(1, "edges.fails_early")},
	{name: "cairn.torch: Ctrl-C while a state is copied aside", run: finds(1, "edges.fails_late")},
	{name: "cairn.torch: the interpreter ends right after async_save", run: func(r *rig) {
		r.nothing("edges.ends", args{"path": r.there("out"), "rounds": deep.Rounds(1, 6)})
	}},
	{name: "cairn.torch: fetches that come late", run: finds(1, "edges.late_fetch")},
	{name: "Writer and Reader: 3 ranks, process groups of some of them", run: finds(3, "edges.subgroups")},
	{name: "cairn.torch: what cannot be saved or loaded", run: finds(1, "edges.odd")},
	{name: "cairn.torch: 2 ranks, errors of one", run: finds(2, "edges.mismatches")},
	{name: "cairn.torch: 2 ranks with different contents", run: finds(2, "edges.unequal")},
	{name: "cairn.torch: 2 ranks, one of them is late", run: finds(2, "edges.waits")},
	{name: "cairn.torch: 2 ranks, one is killed before it has staged", run: finds(1, "edges.rank_dies_before_staging")},
	{name: "cairn.torch: 2 ranks, the first, with the store, is killed before it has staged", run: finds(1, "edges.first_dies_before_staging")},
	{name: "cairn.torch: 2 ranks, one is killed after it has staged", run: finds(1, "edges.rank_dies_after_staging")},
	{name: "cairn.torch: 2 ranks, both are killed after they have staged", run: finds(1, "edges.all_die_after_staging")},
	{name: "cairn.torch: 2 ranks with disks of their own, uploads to one store", run: finds(2, "edges.uploads")},
	{name: "cairn.torch: 2 ranks, a saver is killed during a save", run: finds(1, "edges.saver_dies")},
	{name: "cairn.torch: Ctrl-C while a save is under way", run: finds(1, "edges.ctrl_c")},
	{name: "cairn.torch: 2 ranks, Ctrl-C while one waits for the other", run: finds(1, "edges.ctrl_c_of_ranks")},
	{name: "cairn.open in workers of a DataLoader, by fork and by spawn", run: finds(1, "edges.workers")},
	{name: "cairn.torch: 2 ranks of torch.multiprocessing.spawn", run: finds(1, "edges.spawn")},
}
