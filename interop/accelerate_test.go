//go:build interop

package interop

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// accelerated are trainings with Accelerate that save through cairn.accelerate. The losses after a
// load are those of a training that does not save, and those after a load of Accelerate itself.
var accelerated = []testCase{
	{name: "Accelerate: a save in the background, the process is killed, the training goes on", needs: "transformers", slow: true, run: func(r *rig) {
		acceleratedOn(r, 1, args{})
	}},
	{name: "Accelerate: 2 ranks with DDP", needs: "transformers", slow: true, run: func(r *rig) {
		acceleratedOn(r, 2, args{"kind": "ddp"})
	}},
	{name: "Accelerate: 2 and 4 ranks with FSDP2", needs: "transformers", slow: true, run: func(r *rig) {
		acceleratedOn(r, 2, args{"kind": "fsdp"})
		acceleratedOn(r, 4, args{"kind": "fsdp"})
	}},
	{name: "Accelerate: from 2 ranks to 4 and to 1, with DDP, FSDP2 and without", needs: "transformers", slow: true, run: func(r *rig) {
		for _, from := range []string{"fsdp", "ddp"} {
			one := args{"kind": from, "dropout": 0}
			want := losses(r, 2, "undisturbed", one)
			folder := r.there("from-" + from)
			losses(r, 2, "saved", one.with(args{"folder": folder, "end": 4}))
			for _, to := range []struct {
				kind  string
				ranks int
			}{{"fsdp", 4}, {"ddp", 4}, {"plain", 1}} {
				agree(r, losses(r, to.ranks, "resumed", args{"folder": folder, "first": 4, "kind": to.kind, "dropout": 0, "ended": false}), want, 8)
			}
		}
	}},
	{name: "Accelerate: automatic_checkpoint_naming, total_limit, and checkpoints of Accelerate itself", needs: "transformers", slow: true, run: func(r *rig) {
		r.frameworks().nothing("with_accelerate.named", args{"folder": r.there("run")})
		ddp(r, "with_accelerate.named", args{"kind": "ddp"})
		ddp(r, "with_accelerate.named", args{"kind": "fsdp", "folder": r.there("fsdp")})
		r.frameworks().nothing("with_accelerate.goes_back", args{"folder": r.there("back")})
	}},
	{name: "Accelerate: data loaders with a state", needs: "torchdata", slow: true, run: func(r *rig) {
		r.frameworks().nothing("with_accelerate.stateful", args{"folder": r.there("run")})
		ddp(r, "with_accelerate.stateful", nil)
	}},
	{name: "Accelerate: several models, and a gradient scaler", needs: "transformers", slow: true, run: func(r *rig) {
		r.frameworks().nothing("with_accelerate.several", args{"folder": r.there("run")})
	}},
	{name: "Accelerate: a save that fails on one rank or in the background is an error on all", needs: "transformers", slow: true, run: func(r *rig) {
		ddp(r, "with_accelerate.failed", nil)
	}},
	{name: "Accelerate: what it cannot do is refused", needs: "transformers", slow: true, run: func(r *rig) {
		var got []string
		r.frameworks().python("with_accelerate.refused", args{"folder": r.there("run")}, &got)
		want := []string{
			"OptionsError: save_state needs output_dir",
			"OptionsError: load_state needs input_dir",
			"NotFoundError: ",
			"OptionsError: save_state of cairn.accelerate has no exclude_frozen_parameters",
			"OptionsError: load_state of cairn.accelerate has no load_kwargs['mmap'], strict",
			"OptionsError: hooks of register_save_state_pre_hook write files of their own",
			"MissingError: /a has no custom_1: it was saved with other objects",
			"MismatchError: /a has custom, which was not prepared",
			"MissingError: /other is not a checkpoint of cairn.accelerate",
			"ExistsError: Accelerate itself has saved to /stock",
			"OptionsError: both cairn and Accelerate itself have saved to /both",
			"RepresentError: 'custom.losses': it is a pickle, with with_accelerate.Seen: load it with load_kwargs={'weights_only': False}",
			"CorruptError: ",
			"OptionsError: cairn.accelerate does not save with DEEPSPEED",
			"OptionsError: cairn.accelerate does not save with MEGATRON_LM",
			"OptionsError: cairn.accelerate does not save with FSDP 1",
			"OptionsError: cairn.accelerate does not save with XLA",
			"OptionsError: cairn.accelerate was tested with accelerate 1.15, and this is 0.34.2",
			"OptionsError: cairn.accelerate was tested with accelerate 1.15, and this is 2.0.0",
		}
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			r.Errorf("the errors are:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}},
}

// acceleratedOn compares trainings with a save, a kill and a load, after an epoch and within one. Within one,
// Accelerate draws other numbers for dropout than a training that is undisturbed.
func acceleratedOn(r *rig, ranks int, options args) {
	r.Helper()
	undisturbed := losses(r, ranks, "undisturbed", options)
	for _, end := range []int{6, 7} {
		train := func(stock bool, name string) map[int]float64 {
			all := options.with(args{"folder": r.there(name), "stock": stock})
			agree(r, losses(r, ranks, "saved", all.with(args{"end": end})), undisturbed, end)
			return losses(r, ranks, "resumed", all.with(args{"first": end, "ended": !stock}))
		}
		ours, stock := fmt.Sprintf("%d-%d", ranks, end), fmt.Sprintf("%d-%d-stock", ranks, end)
		got, want := train(false, ours), train(true, stock)
		if !maps.Equal(got, want) || len(got) != 12-end {
			r.Errorf("after step %d, the losses are %v; want %v", end, got, want)
		}
		if end == 6 {
			agree(r, got, undisturbed, 6)
		}
		r.cairn("verify", ours)
		r.cairn("verify", ours+"-end")
	}
}

// losses has ranks call a function that returns losses by step.
func losses(r *rig, ranks int, function string, a args) map[int]float64 {
	r.Helper()
	if ranks > 1 {
		a = a.with(args{"ranks": ranks})
	}
	var got map[int]float64
	r.frameworks().ranks(ranks, "with_accelerate."+function, a, &got)
	return got
}
