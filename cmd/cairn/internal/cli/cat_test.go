package cli

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestEdges(t *testing.T) {
	for _, c := range []struct {
		claim string
		sizes []int64
		limit int64
		want  string
	}{
		{"few are shown in full", []int64{3, 4}, 12, "[{3 3 0} {4 4 0}]"},
		{"three on either side", []int64{100, 4}, 24, "[{100 3 3} {4 4 0}]"},
		{"of each dimension", []int64{100, 100}, 1000, "[{100 3 3} {100 3 3}]"},
		{"as many as there is room for", []int64{100, 100}, 20, "[{100 2 2} {100 2 2}]"},
		{"or only the first", []int64{2, 2, 2}, 3, "[{2 1 0} {2 1 0} {2 2 0}]"},
		{"down to one", []int64{7}, 1, "[{7 1 0}]"},
		{"nothing is little", []int64{1 << 40, 0}, 1, "[{1099511627776 1099511627776 0} {0 0 0}]"},
		{"a scalar is one", nil, 1, "[]"},
	} {
		if got := fmt.Sprint(edgesOf(c.sizes, c.limit)); got != c.want {
			t.Errorf("%s: edgesOf(%v, %d) = %s; want %s", c.claim, c.sizes, c.limit, got, c.want)
		}
	}
}

func TestEdgesProperty(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(1, 1<<20), 0, 8).Draw(rt, "sizes")
		limit := rapid.Int64Range(1, 5000).Draw(rt, "limit")
		total := int64(1)
		for i, e := range edgesOf(sizes, limit) {
			if total *= e.shown(); e.shown() < 1 || e.shown() > sizes[i] {
				rt.Errorf("edge %d of %v is %v", i, sizes, e)
			}
		}
		if total > limit {
			rt.Errorf("edgesOf(%v, %d) shows %d", sizes, limit, total)
		}
	})
}

func TestTextMatchesNumpy(t *testing.T) {
	whole := func(n int64) edge { return edge{n, n, 0} }
	for _, c := range []struct {
		claim string
		edges []edge
		width int
		want  string
	}{
		{"a scalar has no brackets", nil, 80, " 0"},
		{"a row", []edge{whole(3)}, 80, "[ 0  1  2]"},
		{"rows", []edge{whole(2), whole(2)}, 80, "[[ 0  1]\n [ 2  3]]"},
		{"matrices have a line between them", []edge{whole(2), whole(1), whole(2)}, 80, "[[[ 0  1]]\n\n [[ 2  3]]]"},
		{"what is left out", []edge{{9, 1, 1}, {9, 2, 1}}, 80, "[[ 0  1 ...  2]\n ...\n [ 3  4 ...  5]]"},
		{"at the end too", []edge{{9, 1, 0}}, 80, "[ 0 ...]"},
		{"long rows go on in the next line", []edge{whole(12)}, 13, "[ 0  1  2  3\n  4  5  6  7\n  8  9 10 11]"},
	} {
		p := &textPrinter{edges: c.edges, cell: 2, width: c.width}
		n := int64(1)
		for _, e := range c.edges {
			n *= e.shown()
		}
		for i := range n {
			p.texts = append(p.texts, fmt.Sprint(i))
		}
		p.print(0)
		if d := cmp.Diff(c.want, p.out.String()); d != "" {
			t.Errorf("%s: -want +got\n%s", c.claim, d)
		}
	}
}

func TestNester(t *testing.T) {
	for _, c := range []struct {
		shape []int64
		json  bool
		want  string
	}{
		{nil, false, "0\n"},
		{[]int64{3}, false, "[0 1 2]\n"},
		{[]int64{2, 2}, false, "[[0 1]\n [2 3]]\n"},
		{[]int64{2, 1, 2}, false, "[[[0 1]]\n\n [[2 3]]]\n"},
		{[]int64{2, 1, 2}, true, "[[[0, 1]], [[2, 3]]]\n"},
		{[]int64{2, 0}, true, "[]\n"},
	} {
		var b bytes.Buffer
		w := bufio.NewWriter(&b)
		n := &nester{w: w, shape: c.shape, at: make([]int64, len(c.shape)), json: c.json}
		total := must.Get(tensor.NumElements(c.shape))(t)
		for i := range total {
			n.element(fmt.Append(nil, i))
		}
		n.end()
		w.Flush()
		if b.String() != c.want {
			t.Errorf("%v, JSON %v: %q; want %q", c.shape, c.json, b.String(), c.want)
		}
	}
}

func TestElementsAsJSON(t *testing.T) {
	x := must.Get(tensor.Of([]int64{1}, []complex64{1 - 2i}))(t)
	b, _ := x.Bytes()
	for d, want := range map[tensor.DType]string{tensor.Complex64: "[1.0, -2.0]", tensor.Bool: "false", tensor.Int32: "1065353216"} {
		if got := string(elementText(d, true)(nil, b[:d.Size()])); got != want {
			t.Errorf("%v as JSON = %s; want %s", d, got, want)
		}
	}
	if got := string(elementText(tensor.Float32, true)(nil, []byte{0, 0, 0x80, 0xff})); got != `"-inf"` {
		t.Errorf("-inf as JSON = %s", got)
	}
}

func TestHistogramBars(t *testing.T) {
	for got, want := range map[string]string{
		bar(0, 100):   "",
		bar(1, 1e9):   "▏",
		bar(100, 100): strings.Repeat("█", barWidth),
		bar(50, 100):  strings.Repeat("█", barWidth/2),
	} {
		if got != want {
			t.Errorf("bar = %q; want %q", got, want)
		}
	}
}
