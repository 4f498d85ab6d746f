package inspect_test

import (
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
)

func TestNaturalOrder(t *testing.T) {
	want := []string{"a", "a.2", "a.10", "a.10.b", "a.010c", "b1", "b02", "b10"}
	deep.Check(t, func(t *rapid.T) {
		got := rapid.Permutation(want).Draw(t, "names")
		slices.SortFunc(got, inspect.Natural)
		if !slices.Equal(got, want) {
			t.Errorf("sorted %q; want %q", got, want)
		}
	})
	deep.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a.0-3]{0,5}`)
		a, b, c := name.Draw(t, "a"), name.Draw(t, "b"), name.Draw(t, "c")
		if inspect.Natural(a, a) != 0 || a != b && inspect.Natural(a, b) == 0 || inspect.Natural(a, b) < 0 != (inspect.Natural(b, a) > 0) || inspect.Natural(a, b) < 0 && inspect.Natural(b, c) < 0 && inspect.Natural(a, c) >= 0 {
			t.Errorf("%q, %q and %q have no order", a, b, c)
		}
	})
}

func TestBeside(t *testing.T) {
	md := &meta.Metadata{}
	for _, name := range []string{"a.1", "a.10", "a.2", "b"} {
		md.Entries = append(md.Entries, meta.Entry{FQN: name})
	}
	name := func(e *meta.Entry) string {
		if e == nil {
			return "-"
		}
		return e.FQN
	}
	for fqn, want := range map[string]string{"a.1": "- a.2", "a.2": "a.1 a.10", "a.10": "a.2 b", "b": "a.10 -", "a.3": "a.2 a.10"} {
		before, after := inspect.Beside(md, fqn)
		if got := name(before) + " " + name(after); got != want {
			t.Errorf("beside %s are %s; want %s", fqn, got, want)
		}
	}
}
