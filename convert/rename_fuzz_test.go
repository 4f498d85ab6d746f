package convert_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/convert"
)

// No rule makes parsing or renaming panic, and an error names the refused rule or name.
func FuzzParseRename(f *testing.F) {
	for _, r := range []string{"", "a=b", "model.*=*", "*=x.*", `s/^h\.(\d+)\./l.$1./g`, `s|a|b|`, `\*\=*=\`, "s///", "s/(/x/"} {
		f.Add(r, "model.h.0.w")
	}
	f.Fuzz(func(t *testing.T, rule, name string) {
		r, err := convert.ParseRename([]string{rule})
		if err != nil {
			if !errors.Is(err, convert.ErrOption) {
				t.Errorf("ParseRename(%q) = %v; want %v", rule, err, convert.ErrOption)
			}
			return
		}
		if once, twice := r.Apply(name), r.Apply(name); once != twice {
			t.Errorf("%q makes %q and %q of %q", rule, once, twice, name)
		}
	})
}
