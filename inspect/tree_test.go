package inspect_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/inspect"
)

// draw prints a tree: names, tensors below them, and a star for items.
func draw(n *inspect.Node) string {
	var b strings.Builder
	var walk func(n *inspect.Node, level int)
	walk = func(n *inspect.Node, level int) {
		star := ""
		if n.Item != nil {
			star = "*"
		}
		fmt.Fprintf(&b, "%s%q %q %d%s\n", strings.Repeat(" ", level), n.Name, n.FQN, n.Totals.Tensors, star)
		for _, c := range n.Children {
			walk(c, level+1)
		}
	}
	walk(n, 0)
	return b.String()
}

func itemsOf(names ...string) []*inspect.Item {
	var out []*inspect.Item
	for _, n := range names {
		out = append(out, &inspect.Item{FQN: n, Kind: inspect.KindTensor, Shape: []int64{2}})
	}
	return out
}

func TestTree(t *testing.T) {
	for _, c := range []struct {
		claim string
		names []string
		root  string
		depth int
		want  string
	}{
		{
			"names become levels, numbers are in order", []string{"l.10.w", "l.9.w", "l.a"}, "", -1,
			`"" "" 3
 "l" "l" 3
  "9" "l.9" 1
   "w" "l.9.w" 1*
  "10" "l.10" 1
   "w" "l.10.w" 1*
  "a" "l.a" 1*
`,
		},
		{
			"depth cuts and still counts", []string{"a.b.c", "a.b.d", "e"}, "", 1,
			`"" "" 3
 "a" "a" 2
 "e" "e" 1*
`,
		},
		{"depth zero is the root alone", []string{"a", "b"}, "", 0, "\"\" \"\" 2\n"},
		{
			"a name can have others below it, and neighbours in between", []string{"a.b", "a.b-c", "a.b.c"}, "a", -1,
			`"a" "a" 3
 "b" "a.b" 2*
  "c" "a.b.c" 1*
 "b-c" "a.b-c" 1*
`,
		},
		{
			"a root with a dot is the same", []string{"x.a.b", "x.a.c"}, "x.a.", -1,
			`"a" "x.a" 2
 "b" "x.a.b" 1*
 "c" "x.a.c" 1*
`,
		},
		{
			"dots at odd places end nowhere else", []string{".a", "b..c", "d."}, "", -1,
			`"" "" 3
 "" "" 1
  "a" ".a" 1*
 "b" "b" 1
  "" "b." 1
   "c" "b..c" 1*
 "d" "d" 1
  "" "d." 1*
`,
		},
	} {
		got := draw(inspect.Tree(itemsOf(c.names...), c.root, c.depth))
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: -want +got\n%s", c.claim, d)
		}
	}
}

func TestTreeOfManyNamesIsQuick(t *testing.T) {
	var names []string
	for i := range 50_000 {
		names = append(names, fmt.Sprintf("p%d", i))
	}
	n := inspect.Tree(itemsOf(names...), "", -1)
	if len(n.Children) != len(names) || n.Totals.Elements != 2*int64(len(names)) {
		t.Errorf("Tree has %d children and %d elements; want %d and twice that", len(n.Children), n.Totals.Elements, len(names))
	}
}
