//go:build interop

package interop

import "fmt"

// megatron are checkpoints of Megatron-core with its distributed optimizer, which go on under other
// parallel sizes: weights, master weights and moments are the same, bit for bit.
var megatron = []testCase{
	{name: "Megatron: buckets of 2 tensor-parallel ranks, tied, go on in 2 pipeline stages", needs: "megatron", slow: true, run: func(r *rig) {
		resharded(r, "dp_reshardable", 2, args{"tensor": 2, "tied": true}, 2, args{"pipeline": 2, "tied": true})
	}},
	{name: "Megatron: buckets of interleaved stages go on in 2 tensor-parallel ranks", needs: "megatron", slow: true, run: func(r *rig) {
		resharded(r, "dp_reshardable", 2, args{"pipeline": 2, "virtual": 2, "layers": 4}, 2, args{"tensor": 2, "layers": 4})
	}},
	{name: "Megatron: several buckets of 3 data-parallel ranks go on in one", needs: "megatron", slow: true, run: func(r *rig) {
		resharded(r, "dp_reshardable", 3, args{"bucket": 5000, "layers": 3}, 1, args{"layers": 3})
	}},
	{name: "Megatron: experts on 2 ranks go on in 4, and in one", needs: "megatron", slow: true, run: func(r *rig) {
		from := args{"expert": 2, "experts": 4}
		resharded(r, "dp_reshardable", 2, from, 4, args{"expert": 4, "experts": 4})
		resharded(r, "dp_reshardable", 2, from, 1, args{"experts": 4}, "--set", "expert_parallel=1")
		resharded(r, "fully_reshardable", 1, args{"experts": 4}, 2, from, "--set", "expert_parallel=2")
	}},
}

// resharded has ranks save a job, converts the checkpoint, and has other ranks go on.
func resharded(r *rig, form string, ranks int, from args, others int, to args, flags ...string) {
	r.Helper()
	m := r.beside("megatron", "with_megatron")
	name := fmt.Sprintf("%s-%d-%d", form, ranks, others)
	m.ranks(ranks, "with_megatron.saved", args{"folder": r.there(name), "form": form, "job": from}, nil)
	r.cairn(append([]string{"convert", name, name + "-out", "--recipe", "megatron-optimizer"}, flags...)...)
	var found []string
	m.ranks(others, "with_megatron.loaded", args{"folder": r.there(name + "-out"), "job": to}, &found)
	for _, f := range found {
		r.Errorf("%s of %v to %v: %s", form, from, to, f)
	}
}
