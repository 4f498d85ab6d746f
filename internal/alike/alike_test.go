package alike

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"kitten", "sitting", 3}} {
		if got := Distance(c.a, c.b); got != c.want {
			t.Errorf("%s %s: %d", c.a, c.b, got)
		}
	}
}

func TestNearest(t *testing.T) {
	all := slices.Values([]string{"model.norm.weight", "model.norm.bias", "json", "quiet", "model.norm.weight", strings.Repeat("x", 300)})
	for text, want := range map[string][]string{
		"model.norm.wieght": {"model.norm.weight"}, "jsn": {"json"}, "quit": {"quiet"}, "x": nil, "": nil, strings.Repeat("x", 299): nil,
	} {
		if d := cmp.Diff(want, Nearest(text, all)); d != "" {
			t.Errorf("Nearest(%q): -want +got\n%s", text, d)
		}
	}
}
