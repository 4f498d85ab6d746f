//go:build interop

package interop

import (
	"maps"
	"os"
	"slices"
	"strings"
)

// torchtitan are trainings of its Llama, with its managers and cairn's. The steps of a training
// that was interrupted have the losses of one that was not.
var torchtitan = []testCase{
	{name: "torchtitan: killed while it saves, it goes on as with torchtitan's own checkpoints", needs: "torchtitan", slow: true, run: func(r *rig) {
		titan(r, 2, "whole", args{"manager": "stock"})
		titan(r, 2, "stock", args{"manager": "stock", "stop": 6})
		titan(r, 2, "stock", args{"manager": "stock", "like": "whole", "first": 5})
		for _, mode := range []string{"disabled", "async", "async_with_pinned_mem"} {
			titanKilled(r, mode, 2, args{"async_mode": mode})
			titan(r, 2, mode, args{"async_mode": mode, "like": "whole", "first": 9})
			r.cairn("verify", mode+"/step-000000008")
			r.cairn("verify", mode+"/step-000000012")
		}
	}},
	{name: "torchtitan: killed on 2 ranks, it goes on on one, on 4 with replicas, and on 4 with tensor parallelism and back", needs: "torchtitan", slow: true, run: func(r *rig) {
		titan(r, 2, "whole", nil)
		like := args{"like": "whole", "first": 9, "near": 1e-5}
		for name, c := range map[string]struct{ ranks, replicas int }{"one": {1, 1}, "four": {4, 2}} {
			titanKilled(r, name, 2, nil)
			said := titanSays(r, c.ranks, name, like.with(args{"replicas": c.replicas}))
			if len(said) != 1 || !strings.Contains(said[0], "step-000000008 has the states of the data loaders of 2 data parallel ranks") {
				r.Errorf("on %d ranks: %q", c.ranks, said)
			}
		}
		tensor := args{"tensor": 2}
		titanKilled(r, "to-tensor", 2, nil)
		titan(r, 4, "to-tensor", like.with(tensor))
		titanKilled(r, "from-tensor", 4, tensor)
		titan(r, 2, "from-tensor", like)
	}},
	{name: "torchtitan: cairn goes on with its checkpoints, and it with converted ones", needs: "torchtitan", slow: true, run: func(r *rig) {
		titan(r, 2, "whole", args{"manager": "stock"})
		titan(r, 2, "run", args{"manager": "stock", "stop": 6})
		if err := os.Mkdir(r.path("run/step-8"), 0o755); err != nil { // a save of torchtitan that was killed
			r.Fatal(err)
		}
		if err := os.WriteFile(r.path("run/step-8/__0_0.distcp"), []byte("a part"), 0o644); err != nil {
			r.Fatal(err)
		}
		titan(r, 2, "run", args{"like": "whole", "first": 5, "keep_latest_k": 2})
		r.cairn("prune", "run") // the saver process may still be about to
		if got, want := r.names("run"), []string{"cairn-run.json", "step-000000008", "step-000000012", "step-8"}; !slices.Equal(got, want) {
			r.Errorf("keep_latest_k=2 has left %q; want %q", got, want)
		}
		r.convert("run/step-000000008", "back/step-8", "torchdcp")
		titan(r, 2, "back", args{"manager": "stock", "like": "whole", "first": 9})
	}},
	{name: "torchtitan: a seed checkpoint", needs: "torchtitan", slow: true, run: func(r *rig) {
		titan(r, 2, "whole", nil)
		r.beside("torchtitan", "with_torchtitan").python("with_torchtitan.seed", args{"folder": r.there("."), "name": "seed"}, nil)
		titan(r, 2, "seed", args{"seed": 2, "like": "whole"})
	}},
	{name: "torchtitan: the model in the form of Hugging Face", needs: "torchtitan", slow: true, run: func(r *rig) {
		titanFinds(r, "with_torchtitan.exported")
	}},
	{name: "torchtitan: options of the configuration", needs: "torchtitan", slow: true, run: func(r *rig) {
		titanFinds(r, "with_torchtitan.options")
	}},
	{name: "torchtitan: a failure on one rank is an error on all", needs: "torchtitan", slow: true, run: func(r *rig) {
		var got []map[string][]any
		r.beside("torchtitan", "with_torchtitan").ranks(2, "with_torchtitan.failures", args{"folder": r.there("")}, &got)
		for rank, outcomes := range got {
			error := []string{"CairnError", "RuntimeError"}[rank]
			want := map[string][]any{"save": {error, "no state"}, "close": {"SaverError", "saver process"}, "close again": {},
				"load": {error, "no state"}, "load again": {true, 4.0}}
			if !maps.EqualFunc(outcomes, want, slices.Equal[[]any]) {
				r.Errorf("rank %d: %v; want %v", rank, outcomes, want)
			}
		}
	}},
	{name: "torchtitan: managers of other releases are refused", needs: "torchtitan", slow: true, run: func(r *rig) {
		var got []string
		r.beside("torchtitan", "with_torchtitan").python("with_torchtitan.unknown", nil, &got)
		want := []string{"BaseCheckpointManager._load_checkpoint", "CheckpointManager.dcp_save", "import of torchtitan.components.checkpointer halted"}
		for i, what := range want {
			what = "OptionsError: cairn.torchtitan was tested with torchtitan 0.3.0, and the checkpoint managers of this torchtitan 0.3.0 are different (" + what
			if i >= len(got) || !strings.HasPrefix(got[i], what) {
				r.Errorf("the errors are %q; want %q", got, what)
			}
		}
	}},
}

// titan trains on ranks, in a folder of the case.
func titan(r *rig, ranks int, name string, more args) {
	r.Helper()
	for _, said := range titanSays(r, ranks, name, more) {
		r.Errorf("%d ranks: %s", ranks, said)
	}
}

// titanSays is titan. It returns the warnings of cairn and the differences from another training.
func titanSays(r *rig, ranks int, name string, more args) []string {
	r.Helper()
	var said []string
	all := args{"folder": r.there("."), "name": name}
	r.beside("torchtitan", "with_torchtitan").ranks(ranks, "with_torchtitan.train", all.with(more), &said)
	return said
}

// titanKilled trains on ranks that are killed when step 8 is copied aside.
func titanKilled(r *rig, name string, ranks int, more args) {
	r.Helper()
	all := args{"folder": r.there("."), "name": name, "kill": 8}
	err := r.beside("torchtitan", "with_torchtitan").py.call("with_torchtitan.train", all.with(more), ranks, nil)
	if err == nil || strings.Count(err.Error(), "died") != ranks {
		r.Fatalf("%s: the ranks were not killed: %v", name, err)
	}
}

// titanFinds has 2 ranks call a function that returns the problems that it finds.
func titanFinds(r *rig, function string) {
	r.Helper()
	var found []string
	r.beside("torchtitan", "with_torchtitan").ranks(2, function, args{"folder": r.there(".")}, &found)
	for _, f := range found {
		r.Errorf("%s: %s", function, f)
	}
}

// names returns the names in a folder of the case.
func (r *rig) names(folder string) []string {
	r.Helper()
	entries, err := os.ReadDir(r.path(folder))
	if err != nil {
		r.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
