//go:build interop

package interop

import (
	"fmt"
	"os"

	"github.com/cairn-ckpt/cairn/internal/must"
)

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

// megatronByCairn are jobs of Megatron-core that save and load with cairn.megatron.
var megatronByCairn = func() []testCase {
	cases := []testCase{
		{name: "cairn.megatron: 2 ranks are killed when the state is copied, and go on as if they were not", needs: "megatron", run: func(r *rig) {
			m := r.beside("megatron", "megatron_by_cairn")
			m.nothing("megatron_by_cairn.killed", args{"run": r.there("run"), "ranks": 2, "sizes": args{"tensor": 2}})
			goOn(m, 2, "run", args{"sizes": args{"tensor": 2}})
			r.cairn("verify", "run/iter_0000002")
		}},
		{name: "cairn.megatron: other tensor, pipeline and data parallel sizes go on", needs: "megatron", slow: true, run: func(r *rig) {
			m := r.beside("megatron", "megatron_by_cairn")
			m.ranks(2, "megatron_by_cairn.save", args{"run": r.there("run"), "sizes": args{"tensor": 2}}, nil)
			goOn(m, 1, "run", args{"sizes": args{}, "other_ranks": true})
			goOn(m, 4, "run", args{"sizes": args{"pipeline": 2}, "other_ranks": true})
		}},
		{name: "cairn.megatron: buckets of experts go on in one rank", needs: "megatron", slow: true, run: func(r *rig) {
			m := r.beside("megatron", "megatron_by_cairn")
			form := args{"distrib_optim_sharding_type": "dp_reshardable"}
			m.ranks(2, "megatron_by_cairn.save", args{"run": r.there("run"), "how": "async", "form": form, "sizes": args{"expert": 2, "experts": 4}}, nil)
			goOn(m, 2, "run", args{"sizes": args{"expert": 2, "experts": 4}})
			r.cairn("convert", "run/iter_0000002", "out/iter_0000002", "--recipe", "megatron-optimizer", "--set", "expert_parallel=1")
			var found []string
			m.ranks(1, "with_megatron.loaded", args{"folder": r.there("out/iter_0000002"), "job": args{"experts": 4}}, &found)
			for _, f := range found {
				r.Error(f)
			}
		}},
		{name: "cairn.megatron: an error of one rank is one on all", needs: "megatron", slow: true, run: func(r *rig) {
			alike(r, "megatron_by_cairn.one_fails")
		}},
		{name: "cairn.megatron: an iteration is saved again, and the ranks are killed when that is complete", needs: "megatron", slow: true, run: func(r *rig) {
			m := r.beside("megatron", "megatron_by_cairn")
			must.Do(r.T, os.Mkdir(r.path("run"), 0o755))
			m.nothing("megatron_by_cairn.saved_again", args{"run": r.there("run"), "ranks": 2, "sizes": args{"tensor": 2}})
			goOn(m, 2, "run", args{"sizes": args{"tensor": 2}})
		}},
		{name: "cairn.megatron: odd states", needs: "megatron", slow: true, run: func(r *rig) {
			alike(r, "megatron_by_cairn.odd_states")
		}},
		{name: "cairn.megatron: saves and loads without a strategy, and checkpoints of Megatron", needs: "megatron", slow: true, run: func(r *rig) {
			alike(r, "megatron_by_cairn.installed")
		}},
		{name: "cairn.megatron: a run with a policy and a remote place", needs: "megatron", slow: true, run: func(r *rig) {
			alike(r, "megatron_by_cairn.in_a_run")
		}},
		{name: "cairn.megatron: back to an older iteration", needs: "megatron", slow: true, run: func(r *rig) {
			alike(r, "megatron_by_cairn.back")
		}},
		{name: "cairn.megatron: another release is refused", needs: "megatron", slow: true, run: func(r *rig) {
			r.beside("megatron", "megatron_by_cairn").nothing("megatron_by_cairn.other_versions", nil)
		}},
		{name: "cairn.megatron: Megatron-Bridge makes the manager that its configuration names", needs: "bridge", slow: true, run: func(r *rig) {
			r.beside("bridge").nothing("with_bridge.manager", nil)
		}},
	}
	for _, release := range []string{"0.16", "0.17", "0.18"} {
		cases = append(cases, testCase{name: "cairn.megatron: Megatron-core " + release, needs: "megatron-" + release, slow: true, run: func(r *rig) {
			m := r.beside("megatron-"+release, "megatron_by_cairn")
			m.nothing("megatron_by_cairn.killed", args{"run": r.there("run"), "ranks": 2, "sizes": args{"tensor": 2}})
			goOn(m, 2, "run", args{"sizes": args{"tensor": 2}})
			goOn(m, 1, "run", args{"sizes": args{}, "other_ranks": true})
			m.ranks(2, "megatron_by_cairn.save", args{"run": r.there("again"), "how": "async", "sizes": args{"tensor": 2}}, nil)
			goOn(m, 2, "again", args{"sizes": args{"pipeline": 2}, "other_ranks": true})
			var found []string
			must.Do(r.T, os.Mkdir(r.path("stock"), 0o755))
			m.ranks(2, "megatron_by_cairn.over_stock", args{"run": r.there("stock"), "sizes": args{}}, &found)
			for _, f := range found {
				r.Errorf("a save over a checkpoint of Megatron: %s", f)
			}
		}})
	}
	return cases
}()

// goOn has ranks go on with the newest checkpoint of a run.
func goOn(r *rig, ranks int, run string, a args) {
	r.Helper()
	var found []string
	a["run"] = r.there(run)
	r.ranks(ranks, "megatron_by_cairn.load", a, &found)
	for _, f := range found {
		r.Errorf("%d ranks go on with %s: %s", ranks, run, f)
	}
}

// alike has 2 tensor-parallel ranks call a function that returns the problems of all.
func alike(r *rig, function string) {
	r.Helper()
	var found []string
	must.Do(r.T, os.Mkdir(r.path("run"), 0o755))
	r.beside("megatron", "megatron_by_cairn").ranks(2, function, args{"run": r.there("run"), "sizes": args{"tensor": 2}}, &found)
	for _, f := range found {
		r.Errorf("%s: %s", function, f)
	}
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
