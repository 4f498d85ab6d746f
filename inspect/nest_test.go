package inspect_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
)

func TestNest(t *testing.T) {
	key, pos := meta.Key, func(i int) meta.Step { return meta.Step{List: true, Pos: i} }
	entries := []*meta.Entry{
		{FQN: "a.b.c", Path: meta.Path{key("a"), key("b.c")}},
		{FQN: "a.b.d", Path: meta.Path{key("a"), key("b"), key("d")}},
		{FQN: "a.l.0", Path: meta.Path{key("a"), key("l"), pos(0)}},
		{FQN: "a.l.1.x", Path: meta.Path{key("a"), key("l"), pos(1), key("x")}},
		{FQN: "a.flat.y"},
	}
	leaf := func(e *meta.Entry) (any, error) { return e.FQN, nil }
	for _, c := range []struct {
		name    string
		entries []*meta.Entry
		want    any
	}{
		{"a", entries, map[string]any{
			"b.c": "a.b.c", "b": map[string]any{"d": "a.b.d"}, "l": []any{"a.l.0", map[string]any{"x": "a.l.1.x"}}, "flat.y": "a.flat.y",
		}},
		{"a.b", entries[:2], map[string]any{"c": "a.b.c", "d": "a.b.d"}},
		{"a.l", entries[2:4], []any{"a.l.0", map[string]any{"x": "a.l.1.x"}}},
		{"a.l.", entries[2:4], []any{"a.l.0", map[string]any{"x": "a.l.1.x"}}},
		{"a.l.1", entries[3:4], map[string]any{"x": "a.l.1.x"}},
	} {
		got, err := inspect.Nest(c.entries, c.name, leaf)
		if d := cmp.Diff(c.want, got); d != "" || err != nil {
			t.Errorf("Nest(%q): %v; -want +got\n%s", c.name, err, d)
		}
	}
	cause := errors.New("unreadable")
	if _, err := inspect.Nest(entries, "a", func(*meta.Entry) (any, error) { return nil, cause }); !errors.Is(err, cause) {
		t.Errorf("error %v; want that of leaf", err)
	}
}
