//go:build interop

package interop

import (
	"fmt"
	"maps"
)

// deepspeeds are trainings with DeepSpeed on a CPU that save and load through the Python package.
var deepspeeds = []testCase{
	{name: "DeepSpeed: ZeRO 2: its files, and both programs go on from them", needs: "deepspeed", slow: true, run: func(r *rig) {
		sameFiles(r, args{"stage": 2})
	}},
	{name: "DeepSpeed: ZeRO 1, and bf16 in ZeRO 2: its files", needs: "deepspeed", slow: true, run: func(r *rig) {
		sameFiles(r, args{"stage": 1})
		sameFiles(r, args{"stage": 2, "bf16": true})
	}},
	{name: "DeepSpeed: ZeRO 3, in fp32 and in bf16: its files", needs: "deepspeed", slow: true, run: func(r *rig) {
		sameFiles(r, args{"stage": 3})
		sameFiles(r, args{"stage": 3, "bf16": true})
	}},
	{name: "DeepSpeed: ZeRO 1 and 2, killed after a save, with other numbers of ranks", needs: "deepspeed", slow: true, run: func(r *rig) {
		otherRanks(r, args{"stage": 1, "ranks": []int{3}})
		otherRanks(r, args{"stage": 2, "ranks": []int{1, 3}, "bf16": true})
	}},
	{name: "DeepSpeed: ZeRO 3, killed after a save, with other numbers of ranks", needs: "deepspeed", slow: true, run: func(r *rig) {
		otherRanks(r, args{"stage": 3, "ranks": []int{1, 3}})
		otherRanks(r, args{"stage": 3, "ranks": []int{3}, "bf16": true})
	}},
	{name: "DeepSpeed: from ZeRO 2 to 3 and back, with another number of ranks", needs: "deepspeed", slow: true, run: func(r *rig) {
		r.deepspeed().nothing("with_deepspeed.changed", args{"folder": r.there("up"), "stage": 2, "into": 3, "ranks": 3})
		r.deepspeed().nothing("with_deepspeed.changed", args{"folder": r.there("down"), "stage": 3, "into": 1, "ranks": 3})
		r.deepspeed().nothing("with_deepspeed.changed", args{"folder": r.there("same"), "stage": 3, "into": 3, "ranks": 3})
	}},
	{name: "DeepSpeed: a failure of one rank is an error on all, and latest stays", needs: "deepspeed", run: func(r *rig) {
		r.deepspeed().nothing("with_deepspeed.failing", args{"folder": r.there("run")})
	}},
	{name: "DeepSpeed: what does not fit is refused", needs: "deepspeed", slow: true, run: func(r *rig) {
		r.deepspeed().nothing("with_deepspeed.refused", args{"folder": r.there("run")})
	}},
}

func (r *rig) deepspeed() *rig {
	r.Helper()
	return r.beside("deepspeed", "with_deepspeed")
}

// sameFiles compares the files of a training with the files that DeepSpeed writes.
func sameFiles(r *rig, how args) {
	r.Helper()
	deepspeedCase(r, "same", "/ours", how)
}

// otherRanks lets a training with 2 ranks go on with other numbers of ranks.
func otherRanks(r *rig, how args) {
	r.Helper()
	deepspeedCase(r, "resumed", "", how)
}

func deepspeedCase(r *rig, function, below string, how args) {
	r.Helper()
	name := fmt.Sprintf("%s-%d-%v", function, how["stage"], how["bf16"])
	all := args{"folder": r.there(name)}
	maps.Copy(all, how)
	r.deepspeed().nothing("with_deepspeed."+function, all)
	r.cairn("verify", name+below)
}
