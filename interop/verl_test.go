//go:build interop

package interop

import (
	"maps"
	"math"
	"strings"
)

// verl are trainings with verl's checkpoint manager for FSDP and with cairn.verl in its place.
var verl = []testCase{
	{name: "verl: 2 ranks are killed while they save in the background, and 1, 2 and 4 go on", needs: "verl", slow: true, run: func(r *rig) {
		goesOn(r, 2)
	}},
	{name: "verl: FSDP 1", needs: "verl", slow: true, run: func(r *rig) {
		goesOn(r, "1")
	}},
	{name: "verl: FSDP 1 with original parameters", needs: "verl", slow: true, run: func(r *rig) {
		goesOn(r, "1 with original parameters")
	}},
	{name: "verl: a step is noted when the actor, the critic and the trainer have saved it", needs: "verl", slow: true, run: func(r *rig) {
		found(r, "with_verl.tracked", nil)
	}},
	{name: "verl: the last save of a training is waited for", needs: "verl", slow: true, run: func(r *rig) {
		found(r, "with_verl.last", nil)
	}},
	{name: "verl: the handler for SFT", needs: "verl", slow: true, run: func(r *rig) {
		found(r, "with_verl.sft", nil)
	}},
	{name: "verl: from_pretrained reads the same weights as from verl itself", needs: "verl", slow: true, run: func(r *rig) {
		found(r, "with_verl.exported", nil)
		found(r, "with_verl.exported", args{"fsdp": "1"})
	}},
	{name: "verl: adapters alone", needs: "verl", slow: true, run: func(r *rig) {
		found(r, "with_verl.adapters", nil)
	}},
	{name: "verl: errors are errors of all ranks", needs: "verl", slow: true, run: func(r *rig) {
		var got [][]string
		r.beside("verl", "with_verl").ranks(2, "with_verl.refused", args{"folder": r.there("run")}, &got)
		want := []string{"no state", "is a file", "1", "NotFoundError", "MissingError", "without \"extra\"", "there is no optimizer", "ExistsError"}
		for i, text := range want {
			if i >= len(got) || !strings.Contains(got[i][0], text) || i != 2 && !strings.Contains(got[i][1], text) {
				r.Errorf("the errors are %q; want %q as number %d, on both ranks", got, text, i)
			}
		}
		if len(got) > 2 && got[2][1] != "True" {
			r.Error("the last complete checkpoint was removed before a save that failed")
		}
	}},
	{name: "verl: the entry point", needs: "verl", slow: true, run: func(r *rig) {
		var got []string
		r.beside("verl", "with_verl").python("with_verl.plugged", args{"folder": r.there("metadata")}, &got)
		stock := "verl.utils.checkpoint.fsdp_checkpoint_manager verl.trainer.ppo.checkpoint_callback False"
		for i, text := range []string{stock, stock, "cairn.verl cairn.verl True", "OptionsError: cairn.verl was tested with verl 0.9.1, and this is verl 0.99.0"} {
			if i >= len(got) || !strings.Contains(got[i], text) {
				r.Errorf("the entry point makes it %q; want %q as number %d", got, text, i)
			}
		}
	}},
}

// goesOn compares trainings that are interrupted with one that verl itself saves and loads: another that verl has saved,
// and one that is killed while it saves in the background. fsdp is what with_verl.build takes.
func goesOn(r *rig, fsdp any) {
	r.Helper()
	v := r.beside("verl", "with_verl")
	train := func(ranks int, name string, more args) map[string]float64 {
		out, all := map[string]float64{}, args{"folder": r.there(name), "fsdp": fsdp}
		maps.Copy(all, more)
		v.ranks(ranks, "with_verl.train", all, &out)
		return out
	}
	same := func(what string, got, want map[string]float64, steps int, near float64) {
		if len(got) != steps {
			r.Errorf("%s: the losses are %v; want %d steps", what, got, steps)
		}
		for step, loss := range got {
			if math.Abs(loss-want[step]) > near*want[step] {
				r.Errorf("%s: step %s has the loss %v; want %v", what, step, loss, want[step])
			}
		}
	}

	train(2, "stock", args{"manager": "verl", "end": 3, "saves": []int{3}})
	want := train(2, "stock", args{"manager": "verl"})
	same("a checkpoint of verl", train(2, "stock", nil), want, 6, 0)

	killed := args{"folder": r.there("run"), "fsdp": fsdp, "saves": []int{3, 6}, "later": true, "kill": 6}
	if err := v.py.call("with_verl.train", killed, 2, nil); err == nil || !strings.Contains(err.Error(), "died") {
		r.Fatalf("the ranks are not killed: %v", err)
	}
	// The second save replaces the one that the saver processes have completed.
	same("after the kill", train(2, "run", args{"saves": []int{6}, "later": true, "keep": 1}), want, 6, 0)
	r.cairn("verify", "run/global_step_6/actor")

	// Without dropout, other numbers of ranks have the same losses but for the order of sums.
	train(2, "calm-stock", args{"manager": "verl", "end": 3, "saves": []int{3}, "dropout": 0})
	want = train(2, "calm-stock", args{"manager": "verl", "dropout": 0})
	train(2, "calm", args{"end": 3, "saves": []int{3}, "later": true, "dropout": 0})
	for _, ranks := range []int{1, 4} {
		same("a checkpoint of verl in other ranks", train(ranks, "calm-stock", args{"dropout": 0}), want, 6, 1e-5)
		same("a checkpoint of cairn in other ranks", train(ranks, "calm", args{"dropout": 0}), want, 6, 1e-5)
	}
}

// found has two ranks call a function of with_verl that returns the problems that it finds.
func found(r *rig, function string, more args) {
	r.Helper()
	all := args{"folder": r.there("run" + strings.Repeat("-", len(more)))}
	maps.Copy(all, more)
	var problems []string
	r.beside("verl", "with_verl").ranks(2, function, all, &problems)
	for _, p := range problems {
		r.Errorf("%s: %s", function, p)
	}
}
