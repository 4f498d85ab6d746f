//go:build interop

package interop

import (
	"fmt"
	"maps"
)

// accelerated are trainings with Accelerate that save through cairn.accelerate. The losses after a
// load are those of a training that does not save, and those after a load of Accelerate itself.
var accelerated = []testCase{
	{name: "Accelerate: a save in the background, the process is killed, the training goes on", needs: "transformers", slow: true, run: func(r *rig) {
		goesOn(r, 1, args{})
	}},
	{name: "Accelerate: 2 ranks with DDP", needs: "transformers", slow: true, run: func(r *rig) {
		goesOn(r, 2, args{"kind": "ddp"})
	}},
	{name: "Accelerate: 2 and 4 ranks with FSDP2", needs: "transformers", slow: true, run: func(r *rig) {
		goesOn(r, 2, args{"kind": "fsdp"})
		goesOn(r, 4, args{"kind": "fsdp"})
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
}

// goesOn compares trainings with a save, a kill and a load, after an epoch and within one. Within one,
// Accelerate draws other numbers for dropout than a training that is undisturbed.
func goesOn(r *rig, ranks int, options args) {
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
