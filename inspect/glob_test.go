package inspect_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/inspect"
)

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"*", "a.b.c", true},
		{"", "", true},
		{"", "a", false},
		{"*.weight", "model.norm.weight", true},
		{"*.weight", "model.norm.weights", false},
		{"model.*", "xmodel.a", false},
		{"a?c", "a.c", true},
		{"a?c", "aüc", true},
		{"a?c", "ac", false},
		{"layers.[0-3].*", "layers.2.w", true},
		{"layers.[0-3].*", "layers.4.w", false},
		{"[!ab]x", "cx", true},
		{"[!ab]x", "ax", false},
		{"[^a]", "^", true},
		{"[^a]", "b", false},
		{`[\]`, `\`, true},
		{"[ü]", "ü", true},
		{"*ü*", "xüy", true},
		{"a.b", "aXb", false},
		{"a.b", "a.b", true},
		{"a.b", "a.b.c", true},
		{"a.b.", "a.b.c", true},
		{"a.b", "a.bc", false},
		{"a.b", "x.a.b", false},
		{`a\.b`, "a.b.c", false},
		{"a+(b)", "a+(b)", true},
		{`\*`, "*", true},
		{`\*`, "x", false},
		{"a*", "a\nb", true},
	} {
		match, err := inspect.Glob(c.pattern)
		if err != nil {
			t.Errorf("Glob(%q) = %v", c.pattern, err)
			continue
		}
		if got := match(c.name); got != c.want {
			t.Errorf("Glob(%q) on %q = %v; want %v", c.pattern, c.name, got, c.want)
		}
	}
}

func TestGlobErrors(t *testing.T) {
	for _, p := range []string{"[", "[]", "[!]", "[a", "[b-a]", `a\`} {
		if _, err := inspect.Glob(p); !errors.Is(err, inspect.ErrPattern) {
			t.Errorf("Glob(%q) = %v; want ErrPattern", p, err)
		}
	}
}
