package inspect_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
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

func TestFilterOfUnknownNames(t *testing.T) {
	for _, c := range []struct {
		selected, excluded string
		prefix             string
		want               bool
	}{
		{"", "", "scheduler", true},
		{"model", "", "scheduler", false},
		{"model.*", "", "scheduler", false},
		{"model.*", "", "model", true},
		{"model.layers.0", "", "model", true},
		{"scheduler", "", "scheduler", true},
		{"sched", "", "scheduler", false},
		{"*.weight", "", "scheduler", true},
		{"s[cd]*", "", "scheduler", true},
		{"model", "", "", true},
		{"", "scheduler", "scheduler", false},
		{"", "scheduler*", "scheduler", false},
		{"", "scheduler.*", "scheduler", false},
		{"", "*", "scheduler", false},
		{"", "*", "", false},
		{"", "sched", "scheduler", true},
		{"", "*.weight", "scheduler", true},
		{"", "scheduler.a*", "scheduler", true},
		{"", "scheduler", "", true},
		{"", `scheduler.\*`, "scheduler", true},
	} {
		var selected, excluded []string
		if c.selected != "" {
			selected = []string{c.selected}
		}
		if c.excluded != "" {
			excluded = []string{c.excluded}
		}
		f := must.Get(inspect.NewFilter(selected, excluded))(t)
		if got := f.KeepBelow(c.prefix); got != c.want {
			t.Errorf("select %q, exclude %q: KeepBelow(%q) = %v; want %v", c.selected, c.excluded, c.prefix, got, c.want)
		}
	}
}
