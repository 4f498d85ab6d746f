//go:build interop

package interop

// serving are loads by serving engines on a CPU, which do not compute with the weights.
var serving = []testCase{
	{name: "vLLM: the parameters are those of its own loader", needs: "vllm", slow: true, run: func(r *rig) {
		r.vllm().nothing("with_vllm.loaded", args{"folder": r.there("model")})
	}},
	{name: "vLLM: 2 tensor-parallel ranks, each of which reads its part", needs: "vllm", slow: true, run: func(r *rig) {
		eachRank(r.vllm(), 2, "with_vllm.loaded")
	}},
	{name: "vLLM: a checkpoint of torchtitan, through a recipe", needs: "vllm", slow: true, run: func(r *rig) {
		r.vllm().nothing("with_vllm.with_recipe", args{"folder": r.there("model")})
		eachRank(r.vllm(), 2, "with_vllm.with_recipe")
	}},
	{name: "vLLM: a reload from another folder", needs: "vllm", slow: true, run: func(r *rig) {
		r.vllm().nothing("with_vllm.reloaded", args{"folder": r.there("model")})
		eachRank(r.vllm(), 2, "with_vllm.reloaded")
	}},
	{name: "vLLM: published versions by the weight transfer", needs: "vllm", slow: true, run: func(r *rig) {
		r.vllm().nothing("with_vllm.transferred", args{"folder": r.there("model")})
		eachRank(r.vllm(), 2, "with_vllm.transferred")
	}},
	{name: "vLLM: a mixture of experts, with expert parallelism", needs: "vllm", slow: true, run: func(r *rig) {
		eachRank(r.vllm(), 2, "with_vllm.experts")
	}},
	{name: "vLLM: it finds the plugin", needs: "vllm", slow: true, run: func(r *rig) {
		r.vllm().nothing("with_vllm.plugged", args{"folder": r.there("plugin")})
	}},
	{name: "vLLM: what cannot be loaded is refused", needs: "vllm", slow: true, run: func(r *rig) {
		r.vllm().nothing("with_vllm.refused", args{"folder": r.there("model")})
	}},
	{name: "vLLM: its rules for which weights are read and required", needs: "vllm", slow: true, run: func(r *rig) {
		r.vllm().nothing("unittests.failures", args{"file": "test_serving.py", "case": "VLLM"})
	}},
	{name: "SGLang: the parameters are those of its own loader", needs: "sglang", slow: true, run: func(r *rig) {
		r.sglang().nothing("with_sglang.loaded", args{"folder": r.there("model")})
		eachRank(r.sglang(), 2, "with_sglang.loaded")
	}},
	{name: "SGLang: published versions by its update from a disk", needs: "sglang", slow: true, run: func(r *rig) {
		r.sglang().nothing("with_sglang.updated", args{"folder": r.there("model")})
		eachRank(r.sglang(), 2, "with_sglang.updated")
	}},
	{name: "SGLang: its calls of the loader", needs: "sglang", slow: true, run: func(r *rig) {
		r.sglang().nothing("unittests.failures", args{"file": "test_serving.py", "case": "SGLang"})
	}},
}

// eachRank has ranks call a function that returns the problems on any of them.
func eachRank(r *rig, ranks int, function string) {
	r.Helper()
	var found []string
	r.ranks(ranks, function, args{"folder": r.there("ranks")}, &found)
	for _, f := range found {
		r.Errorf("%s: %s", function, f)
	}
}
