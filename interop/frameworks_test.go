//go:build interop

package interop

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
		ddp(r, "with_lightning.resumed")
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
	{name: "Lightning: a background save that fails is an error, and loses nothing", needs: "lightning", run: func(r *rig) {
		r.frameworks().nothing("with_lightning.failed", args{"folder": r.there("run")})
	}},
	{name: "Lightning: a sharded tensor is refused, because rank 0 saves alone", needs: "lightning", run: func(r *rig) {
		var got string
		if r.frameworks().ranks(2, "with_lightning.sharded", args{"folder": r.there("run")}, &got); got != "StateError" {
			r.Errorf("%s; want StateError", got)
		}
	}},
	{name: "Hugging Face: a training that is interrupted goes on as if it was not", needs: "transformers", run: func(r *rig) {
		r.frameworks().nothing("with_transformers.resumed", args{"folder": r.there("run")})
	}},
	{name: "Hugging Face: gradients of 2 batches, interrupted after an epoch", needs: "transformers", run: func(r *rig) {
		r.frameworks().nothing("with_transformers.resumed", args{"folder": r.there("run"), "gradient_accumulation_steps": 2, "stop": 13})
	}},
	{name: "Hugging Face: killed while it saves in the background", needs: "transformers", run: func(r *rig) {
		r.frameworks().nothing("with_transformers.resumed", args{"folder": r.there("run"), "how": "kill"})
	}},
	{name: "Hugging Face: 2 ranks with DDP", needs: "transformers", run: func(r *rig) {
		ddp(r, "with_transformers.resumed")
	}},
	{name: "Hugging Face: a damaged checkpoint is an error", needs: "transformers", run: func(r *rig) {
		wantError(r, "with_transformers.damaged", "CorruptError")
	}},
	{name: "Hugging Face: what the callback cannot do is refused", needs: "transformers", run: func(r *rig) {
		wantError(r, "with_transformers.refused", "OptionsError")
	}},
}

// ddp has two ranks call a function that returns what it finds wrong.
func ddp(r *rig, function string) {
	r.Helper()
	var found []string
	r.frameworks().ranks(2, function, args{"folder": r.there("run"), "ranks": 2}, &found)
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
