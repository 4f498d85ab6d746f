//go:build interop

package interop

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// frameworks are trainings with Lightning and the Trainer of Hugging Face that save
// through the Python package.
var frameworks = []testCase{
	{name: "Lightning: a training that is interrupted goes on as if it was not", needs: "lightning", run: func(r *rig) {
		r.frameworks().nothing("with_lightning.resumed", args{"folder": r.there("run"), "background": false})
	}},
	{name: "Lightning: killed while it saves in the background", needs: "lightning", run: func(r *rig) {
		r.frameworks().nothing("with_lightning.resumed", args{"folder": r.there("run"), "how": "kill"})
	}},
	{name: "Lightning: 2 ranks with DDP", needs: "lightning", run: func(r *rig) {
		ddp(r, "with_lightning.resumed", nil)
	}},
	{name: "Lightning: a damaged checkpoint is an error", needs: "lightning", run: func(r *rig) {
		wantError(r, "with_lightning.damaged", "CorruptError")
	}},
	{name: "Lightning: objects are unpickled only if allowed", needs: "lightning", run: func(r *rig) {
		r.frameworks().nothing("with_lightning.objects", args{"folder": r.there("run")})
	}},
	{name: "Lightning: the removal of checkpoints that are URLs", needs: "lightning", run: func(r *rig) {
		r.frameworks().nothing("with_lightning.removed", args{"folder": r.there("run")})
	}},
	{name: "Lightning: runs, with a policy and with save_top_k", needs: "lightning", run: func(r *rig) {
		r.frameworks().nothing("with_lightning.in_a_run", args{"folder": r.there("run")})
	}},
	{name: "Lightning: a training that goes on from an older checkpoint of a run", needs: "lightning", run: func(r *rig) {
		r.frameworks().nothing("with_lightning.goes_back", args{"folder": r.there("run")})
	}},
	{name: "Lightning: a background save that fails is an error, and loses nothing", needs: "lightning", run: func(r *rig) {
		r.frameworks().nothing("with_lightning.failed", args{"folder": r.there("run")})
	}},
	{name: "Lightning: a sharded tensor is refused, because rank 0 saves alone", needs: "lightning", run: func(r *rig) {
		var got string
		if r.frameworks().ranks(2, "with_lightning.sharded", args{"folder": r.there("run")}, &got); got != "StateError" {
			r.Errorf("%s; want StateError", got)
		}
	}},
	{name: "torchdata: the example dataloader.py goes on with as many ranks, more and fewer", needs: "torchdata", run: func(r *rig) {
		dataLoader(r, 0)
	}},
	{name: "torchdata: the example dataloader.py, with worker processes", needs: "torchdata", slow: true, run: func(r *rig) {
		dataLoader(r, 1)
	}},
	{name: "Hugging Face: a training that is interrupted goes on as if it was not", needs: "transformers", run: func(r *rig) {
		r.frameworks().nothing("with_transformers.resumed", args{"folder": r.there("run")})
	}},
	{name: "Hugging Face: gradients of 2 batches, interrupted after an epoch", needs: "transformers", run: func(r *rig) {
		r.frameworks().nothing("with_transformers.resumed", args{"folder": r.there("run"), "gradient_accumulation_steps": 2, "stop": 13})
	}},
	{name: "Hugging Face: models are built from checkpoints of any format", needs: "transformers", run: func(r *rig) {
		var got []string
		r.frameworks().python("with_transformers.from_checkpoint", args{"folder": r.there("run")}, &got)
		want := []string{
			"MissingError: /refused-0 lacks 3 weights of LlamaForCausalLM: 'model.layers.1.mlp.",
			"MismatchError: /refused-1 has 1 weights that LlamaForCausalLM lacks: 'model.extra'",
			"MismatchError: /refused-2 has other shapes than LlamaForCausalLM: 'model.norm.weight'",
			"OptionsError: /refused-3 has a model below 'a.' and one below 'b.'",
			"MissingError: /refused-4 has no names that begin with 'nothing.'",
			"OptionsError: /refused-5 has no config.json",
		}
		for i, text := range want {
			if i >= len(got) || !strings.HasPrefix(got[i], text) {
				r.Errorf("the errors are %q; want %q as number %d", got, text, i)
			}
		}
	}},
	{name: "Hugging Face: killed while it saves in the background", needs: "transformers", run: func(r *rig) {
		r.frameworks().nothing("with_transformers.resumed", args{"folder": r.there("run"), "how": "kill"})
	}},
	{name: "Hugging Face: 2 ranks with DDP", needs: "transformers", run: func(r *rig) {
		ddp(r, "with_transformers.resumed", nil)
	}},
	{name: "Hugging Face: resume_from_checkpoint=True", needs: "transformers", run: func(r *rig) {
		r.frameworks().nothing("with_transformers.resumed", args{"folder": r.there("run"), "resume": true})
		wantError(r, "with_transformers.nothing_yet", "NotFoundError")
	}},
	{name: "Hugging Face: resume from a path", needs: "transformers", run: func(r *rig) {
		r.frameworks().nothing("with_transformers.resumed", args{"folder": r.there("run"), "resume": "path"})
	}},
	{name: "Hugging Face: cairn goes on with a checkpoint of the Trainer", needs: "transformers", run: func(r *rig) {
		r.frameworks().nothing("with_transformers.resumed", args{"folder": r.there("run"), "first": args{"stock": true}})
	}},
	{name: "Hugging Face: 2 ranks with FSDP2", needs: "transformers", run: func(r *rig) {
		ddp(r, "with_transformers.resumed", fsdp2)
	}},
	{name: "Hugging Face: from DDP to FSDP2 and back", needs: "transformers", slow: true, run: func(r *rig) {
		ddp(r, "with_transformers.resumed", args{"first": fsdp2, "near": 1e-4})
		ddp(r, "with_transformers.resumed", args{"first": args{"fsdp": nil}, "near": 1e-4, "fsdp": fsdp2["fsdp"], "fsdp_config": fsdp2["fsdp_config"]})
	}},
	{name: "Hugging Face: from_pretrained reads what was exported", needs: "transformers", run: func(r *rig) {
		r.frameworks().nothing("with_transformers.exported", args{"folder": r.there("one")})
		ddp(r, "with_transformers.exported", fsdp2)
	}},
	{name: "Hugging Face: recipes fit the models of transformers", needs: "transformers", run: func(r *rig) {
		r.frameworks().nothing("with_transformers.by_recipes", args{"folder": r.there("models")})
	}},
	{name: "Hugging Face: a damaged checkpoint is an error", needs: "transformers", run: func(r *rig) {
		wantError(r, "with_transformers.damaged", "CorruptError")
	}},
	{name: "Hugging Face: runs, with a policy and with save_total_limit", needs: "transformers", run: func(r *rig) {
		r.frameworks().nothing("with_transformers.in_a_run", args{"folder": r.there("run")})
		r.frameworks().nothing("with_transformers.in_object_storage", args{"folder": r.there("run")})
	}},
	{name: "Hugging Face: the best model at the end", needs: "transformers", run: func(r *rig) {
		r.frameworks().nothing("with_transformers.best_at_end", args{"folder": r.there("run")})
	}},
	{name: "Hugging Face: the Trainer of cairn is interrupted and killed, also with DDP and FSDP2", needs: "transformers", slow: true, run: func(r *rig) {
		r.frameworks().nothing("with_transformers.resumed", args{"folder": r.there("run"), "own": true})
		r.frameworks().nothing("with_transformers.resumed", args{"folder": r.there("killed"), "own": true, "how": "kill"})
		ddp(r, "with_transformers.resumed", args{"own": true})
		ddp(r, "with_transformers.resumed", fsdp2.with(args{"own": true}))
	}},
	{name: "Hugging Face: the Trainer of cairn saves and loads the best model, as the Trainer itself", needs: "transformers", slow: true, run: func(r *rig) {
		r.frameworks().nothing("with_transformers.best", args{"folder": r.there("run")})
		r.frameworks().nothing("with_transformers.best_at_end", args{"folder": r.there("end"), "own": true})
		r.frameworks().nothing("with_transformers.best_goes_on", args{"folder": r.there("goes-on"), "own": true})
		r.frameworks().nothing("with_transformers.best_goes_on", args{"folder": r.there("callback")})
		r.frameworks().nothing("with_transformers.unsaved_best", args{"folder": r.there("unsaved")})
		r.frameworks().nothing("with_transformers.callbacks_go_on", args{"folder": r.there("callbacks")})
		ddp(r, "with_transformers.best", nil)
	}},
	{name: "Hugging Face: the Trainer of cairn pushes models to the hub", needs: "transformers", slow: true, run: func(r *rig) {
		r.frameworks().nothing("with_transformers.pushed", args{"folder": r.there("run")})
		r.frameworks().nothing("with_transformers.push_failed", args{"folder": r.there("failed")})
		ddp(r, "with_transformers.pushed", nil)
		ddp(r, "with_transformers.pushed", fsdp2)
		var got []string
		r.frameworks().python("with_transformers.refused_trainers", args{"folder": r.there("refused")}, &got)
		want := []string{"OptionsError: cairn.transformers.Trainer pushes models, not checkpoints", "OptionsError: cairn.transformers.CheckpointCallback: with save_strategy='best'"}
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			r.Errorf("the errors are %q; want %q", got, want)
		}
	}},
	{name: "Hugging Face: 2 ranks with DDP in a run", needs: "transformers", run: func(r *rig) {
		ddp(r, "with_transformers.in_a_run", nil)
	}},
	{name: "Hugging Face: what the callback cannot do is refused", needs: "transformers", run: func(r *rig) {
		wantError(r, "with_transformers.refused", "OptionsError")
	}},
}

// fsdp2 makes the Trainer of Hugging Face cut the model.
var fsdp2 = args{"fsdp": true, "fsdp_config": args{"version": 2, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}}

// dataLoader lets runs of python/examples/dataloader.py go on with other numbers of ranks. An
// epoch has 12 steps. If the processes of the ranks themselves fetch the data, their generators
// make its noise.
func dataLoader(r *rig, workers int) {
	r.Helper()
	folder := r.there("data")
	train := func(ranks int, name string, steps int) string {
		var said []string
		r.frameworks().ranks(ranks, "with_torchdata.train", args{"folder": folder, "name": name, "steps": steps, "workers": workers}, &said)
		return strings.Join(said, "\n")
	}
	compare := func(name string, ranks, first, end int, noise bool) {
		r.frameworks().nothing("with_torchdata.compared", args{"folder": folder, "name": name, "ranks": ranks, "first": first, "end": end, "noise": noise})
	}
	own := workers == 0 // the noise is kept
	train(2, "undisturbed", 26)
	if said := train(2, "same", 7) + train(2, "same", 14); said != "" {
		r.Errorf("a load into as many ranks says %q", said)
	}
	compare("same", 2, 0, 14, own)
	// From 2 ranks to 4, into the next epoch, to 1 and to 8.
	train(2, "other", 7)
	stages := []struct {
		ranks, first, end int
		want              []string
	}{
		{4, 7, 14, []string{"of StatefulDataLoader was saved by 2 ranks, and 4 ranks load it", "not loaded",
			"were saved by 2 ranks, and 4 ranks load them: ranks 0 to 1 get the states of the same number, and ranks 2 to 3 new ones"}},
		{1, 14, 19, []string{"was saved by 4 ranks, and 1 rank loads", "rank 0 gets the state of the same number, and the others are not used"}},
		{8, 19, 26, []string{"ranks 1 to 7 new ones"}},
	}
	if workers > 0 {
		stages = stages[:1]
	}
	for _, c := range stages {
		said := train(c.ranks, "other", c.end)
		for _, w := range c.want {
			if !strings.Contains(said, w) {
				r.Errorf("a load into %d ranks does not say %q:\n%s", c.ranks, w, said)
			}
		}
		compare("other", c.ranks, c.first, c.end, false)
	}
}

// ddp has two ranks call a function that returns the problems that it finds.
func ddp(r *rig, function string, more args) {
	r.Helper()
	all := args{"folder": r.there(fmt.Sprintf("run-%d", len(more))), "ranks": 2}
	maps.Copy(all, more)
	var found []string
	r.frameworks().ranks(2, function, all, &found)
	for _, f := range found {
		r.Errorf("%s: %s", function, f)
	}
}

// wantError has Python call a function that returns the name of an error.
func wantError(r *rig, function, want string) {
	r.Helper()
	var got string
	if r.frameworks().python(function, args{"folder": r.there("run")}, &got); got != want {
		r.Errorf("%s: %s; want %s", function, got, want)
	}
}
