package inspect

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestPrefixChanges(t *testing.T) {
	names := func(prefix string, also ...string) []string {
		for i := range 4 {
			also = append(also, fmt.Sprintf("%slayers.%d.weight", prefix, i), fmt.Sprintf("%slayers.%d.bias", prefix, i))
		}
		return also
	}
	for name, c := range map[string]struct {
		a, b []string
		want string
	}{
		"a wrapper in A":              {names("module."), names(""), "[{module.  8}]"},
		"a state around the model":    {names(""), names("state.model.", "state.step", "optim.lr"), "[{ state.model. 8}]"},
		"one wrapper for another":     {names("_orig_mod."), names("module."), "[{_orig_mod. module. 8}]"},
		"a copy: both are offered":    {names(""), names("ema.", names("model.")...), "[{ ema. 8} { model. 8}]"},
		"a part of A is not in B":     {names("module.", "head.w", "head.b"), names(""), "[{module.  8}]"},
		"other names":                 {[]string{"a.weight", "b.weight", "c.bias"}, []string{"x.weight", "y.kernel", "z.scale"}, "[]"},
		"deeper than names are split": {names("a.b.c.d.e."), names(""), "[]"},
		"nothing":                     {nil, nil, "[]"},
	} {
		if got := fmt.Sprint(PrefixChanges(c.a, c.b)); got != c.want {
			t.Errorf("%s: %s; want %s", name, got, c.want)
		}
	}
}

// A change touches only names that one side lacks.
func TestPrefixRename(t *testing.T) {
	in := func(names ...string) func(string) bool {
		return func(n string) bool { return slices.Contains(names, n) }
	}
	f := PrefixChange{To: "model."}.Rename(in("w", "step", "x", "model.x"), in("model.w", "step", "model.step", "model.x"))
	if got := strings.Join([]string{f("w"), f("step"), f("x"), f("model.x"), f("y")}, " "); got != "model.w step x model.x y" {
		t.Errorf("the names are %s", got)
	}
}
