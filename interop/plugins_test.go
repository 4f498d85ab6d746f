//go:build interop

package interop

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"time"
)

// plugins are trainings with programs that call the training loop themselves.
var plugins = []testCase{
	{name: "Axolotl: a training with the plugin is killed and goes on", needs: "axolotl", slow: true, run: func(r *rig) {
		r.beside("axolotl", "with_axolotl").nothing("with_axolotl.resumed", args{"folder": r.there("run")})
	}},
	{name: "ms-swift: a training with the example swift_plugin.py is killed and goes on", needs: "swift", slow: true, run: func(r *rig) {
		r.beside("swift", "with_swift").nothing("with_swift.resumed", args{"folder": r.there("run")})
	}},
	{name: "Ray Train: the example ray_train.py goes on when a worker is killed", needs: "ray", slow: true, run: func(r *rig) {
		want := r.rayTrain("undisturbed")
		if got := r.rayTrain("killed", "9"); got != want || !strings.HasPrefix(got, "step 19 loss ") {
			r.Errorf("the last step is %q; want %q", got, want)
		}
		r.cairn("verify", "killed/run/step-000000019")
		if left, err := filepath.Glob(r.path("killed/run/step-*")); err != nil || len(left) != 2 {
			r.Errorf("%v, %v; want two checkpoints", left, err)
		}
	}},
}

// rayTrain runs python/examples/ray_train.py with two workers, and returns its last step and its loss.
func (r *rig) rayTrain(folder string, kill ...string) string {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), exampleLimit)
	defer cancel()
	cmd := r.beside("ray").py.command(ctx, append([]string{"py/with_ray.py", r.there(folder), "2", "20"}, kill...)...)
	cmd.WaitDelay = 10 * time.Second
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	for line := range strings.Lines(string(out)) { // Ray prints others
		if words := strings.Fields(line); len(words) == 5 && words[0] == "step" && err == nil {
			return strings.Join(words[:4], " ")
		}
	}
	r.Fatalf("ray_train.py: %v\n%s\n%s", err, out, shorten(said.String(), 4000))
	return ""
}
