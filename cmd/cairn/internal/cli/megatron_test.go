package cli

import (
	"testing"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// The glob of a name matches this name alone.
func TestLiteralGlob(t *testing.T) {
	for _, name := range []string{"args", "a[0]*?", `\a`, "é", "optimizer.0.optimizer"} {
		match := must.Get(inspect.Glob(literalGlob(name)))(t)
		for _, other := range []string{name, name + ".b", "x" + name, "a1023", "é.b", "ab0c??"} {
			if match(other) != (other == name) {
				t.Errorf("the glob %q of %q: match(%q) = %v", literalGlob(name), name, other, match(other))
			}
		}
	}
}
