//go:build interop

package interop

// plugins are trainings with programs that call the Trainer of Hugging Face or of PyTorch themselves.
var plugins = []testCase{
	{name: "Axolotl: a training with the plugin is killed and goes on", needs: "axolotl", slow: true, run: func(r *rig) {
		r.beside("axolotl", "with_axolotl").nothing("with_axolotl.resumed", args{"folder": r.there("run")})
	}},
}
