//go:build interop

package interop

// withTRL are trainings with TRL whose Trainer has cairn's as its last base.
var withTRL = []testCase{
	{name: "TRL: the SFTTrainer is interrupted and killed, and loads the best model", needs: "trl", slow: true, run: func(r *rig) {
		t := r.beside("trl", "with_trl")
		t.nothing("with_trl.resumed", args{"folder": r.there("run")})
		t.nothing("with_trl.resumed", args{"folder": r.there("killed"), "how": "kill"})
		t.nothing("with_trl.resumed", args{"folder": r.there("lora"), "lora": true})
		var found []string
		t.ranks(2, "with_trl.resumed", args{"folder": r.there("ddp"), "ranks": 2}, &found)
		for _, f := range found {
			r.Errorf("2 ranks: %s", f)
		}
	}},
}
