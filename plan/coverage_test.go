package plan_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// count adds one to each element of b in a row-major tensor of the given shape.
func count(hits []int, shape []int64, b tensor.Box) {
	if b.Empty() {
		return
	}
	index := slices.Clone(b.Offsets)
	for {
		at := int64(0)
		for d, i := range index {
			at = at*shape[d] + i
		}
		hits[at]++
		d := len(index) - 1
		for ; d >= 0; d-- {
			if index[d]++; index[d] < b.End(d) {
				break
			}
			index[d] = b.Offsets[d]
		}
		if d < 0 {
			return
		}
	}
}

// kinds returns the kinds of the problems, each once, in order.
func kinds(ps []plan.Problem) string {
	var out []string
	for _, p := range ps {
		out = append(out, string(p.Kind))
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), " ")
}

func TestCheckCoverage(t *testing.T) {
	b := func(r, c, h, w int64) tensor.Box { return box([]int64{r, c}, []int64{h, w}) }
	// Five boxes that no straight line separates.
	pinwheel := []tensor.Box{b(0, 0, 1, 2), b(0, 2, 2, 1), b(2, 1, 1, 2), b(1, 0, 2, 1), b(1, 1, 1, 1)}
	for name, c := range map[string]struct {
		shape []int64
		boxes []tensor.Box
		want  string
	}{
		"the whole":                         {[]int64{4}, []tensor.Box{span(0, 4)}, ""},
		"two halves in any order":           {[]int64{4}, []tensor.Box{span(2, 2), span(0, 2)}, ""},
		"a scalar":                          {[]int64{}, []tensor.Box{{}}, ""},
		"a scalar twice":                    {[]int64{}, []tensor.Box{{}, {}}, "overlap"},
		"a scalar missing":                  {[]int64{}, nil, "volume"},
		"no elements, no box":               {[]int64{0, 3}, nil, ""},
		"no elements, an empty box":         {[]int64{0, 3}, []tensor.Box{b(0, 0, 0, 3)}, ""},
		"an empty box inside another":       {[]int64{4}, []tensor.Box{span(0, 4), span(2, 0)}, ""},
		"an empty box at the end":           {[]int64{4}, []tensor.Box{span(0, 4), span(4, 0), span(4, 0)}, ""},
		"a pinwheel":                        {[]int64{3, 3}, pinwheel, ""},
		"a pinwheel without its middle":     {[]int64{3, 3}, pinwheel[:4], "volume"},
		"a pinwheel with an overlap":        {[]int64{3, 3}, append(pinwheel[:4:4], b(1, 1, 1, 2)), "overlap"},
		"two pinwheels":                     {[]int64{3, 6}, append(pinwheel[:5:5], b(0, 3, 1, 2), b(0, 5, 2, 1), b(2, 4, 1, 2), b(1, 3, 2, 1), b(1, 4, 1, 1)), ""},
		"a gap":                             {[]int64{4}, []tensor.Box{span(0, 1), span(2, 2)}, "volume"},
		"an overlap that makes up a gap":    {[]int64{4}, []tensor.Box{span(0, 2), span(1, 2)}, "overlap"},
		"an overlap and a gap":              {[]int64{9}, []tensor.Box{span(0, 2), span(1, 2)}, "overlap volume"},
		"the same box twice":                {[]int64{4}, []tensor.Box{span(0, 4), span(0, 4)}, "overlap"},
		"beyond the end":                    {[]int64{4}, []tensor.Box{span(0, 3), span(3, 2)}, "bounds volume"},
		"before the start":                  {[]int64{4}, []tensor.Box{span(-1, 5)}, "bounds volume"},
		"a negative size":                   {[]int64{4}, []tensor.Box{span(4, -4)}, "bounds volume"},
		"an end that overflows":             {[]int64{4}, []tensor.Box{span(0, 4), span(1, math.MaxInt64)}, "bounds"},
		"other dimensions":                  {[]int64{4}, []tensor.Box{span(0, 4), b(0, 0, 1, 1)}, "bounds"},
		"as many elements as there can be":  {[]int64{math.MaxInt64}, []tensor.Box{span(0, 1<<62), span(1<<62, math.MaxInt64-1<<62)}, ""},
		"more elements than can be, in all": {[]int64{math.MaxInt64}, []tensor.Box{span(0, math.MaxInt64), span(0, math.MaxInt64), span(0, math.MaxInt64)}, "overlap"},
		"a shape that cannot be":            {[]int64{math.MaxInt64, 2}, []tensor.Box{b(0, 0, 1, 1)}, "invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			before := fmt.Sprint(c.boxes)
			if got := plan.CheckCoverage(c.shape, c.boxes); kinds(got) != c.want {
				t.Errorf("CheckCoverage(%v, %v) = %v; want %q", c.shape, c.boxes, got, c.want)
			}
			if fmt.Sprint(c.boxes) != before {
				t.Error("CheckCoverage changed the order of its boxes")
			}
		})
	}
}

func TestCheckCoverageReportsEveryOverlap(t *testing.T) {
	got := plan.CheckCoverage([]int64{8}, []tensor.Box{span(0, 2), span(1, 3), span(3, 3), span(6, 2), span(7, 1)})
	var texts []string
	for _, p := range got {
		texts = append(texts, p.Text)
	}
	want := "chunks [0]+[2] and [1]+[3]; chunks [1]+[3] and [3]+[3]; chunks [6]+[2] and [7]+[1]"
	if s := strings.Join(texts, "; "); s != want {
		t.Errorf("CheckCoverage = %s; want %s", s, want)
	}
	many := slices.Repeat([]tensor.Box{span(0, 8)}, 1000)
	if n := len(plan.CheckCoverage([]int64{8}, many)); n != 100 {
		t.Errorf("%d of very many overlaps are reported; want 100", n)
	}
}

// splits cuts b at random into boxes that tile it.
func splits(t *rapid.T, b tensor.Box, depth int) []tensor.Box {
	d := rapid.IntRange(-1, b.Dims()-1).Draw(t, "dim")
	if depth == 0 || d < 0 {
		return []tensor.Box{b}
	}
	at := rapid.Int64Range(0, b.Sizes[d]).Draw(t, "at")
	lo, hi := box(b.Offsets, slices.Clone(b.Sizes)), box(slices.Clone(b.Offsets), slices.Clone(b.Sizes))
	lo.Sizes[d] = at
	hi.Offsets[d] += at
	hi.Sizes[d] -= at
	return append(splits(t, lo, depth-1), splits(t, hi, depth-1)...)
}

// pinwheels cuts a plane of at least 3×3 into five boxes that no line separates.
func pinwheels(t *rapid.T, shape []int64) []tensor.Box {
	r1 := rapid.Int64Range(1, shape[0]-2).Draw(t, "r1")
	r2 := rapid.Int64Range(r1+1, shape[0]-1).Draw(t, "r2")
	c1 := rapid.Int64Range(1, shape[1]-2).Draw(t, "c1")
	c2 := rapid.Int64Range(c1+1, shape[1]-1).Draw(t, "c2")
	b := func(r, c, rEnd, cEnd int64) tensor.Box { return box([]int64{r, c}, []int64{rEnd - r, cEnd - c}) }
	return []tensor.Box{
		b(0, 0, r1, c2), b(0, c2, r2, shape[1]), b(r2, c1, shape[0], shape[1]), b(r1, 0, shape[0], c1), b(r1, c1, r2, c2),
	}
}

// drawTiling draws a shape and boxes that tile it.
func drawTiling(t *rapid.T) ([]int64, []tensor.Box) {
	if rapid.Bool().Draw(t, "pinwheel") {
		shape := rapid.SliceOfN(rapid.Int64Range(3, 9), 2, 2).Draw(t, "shape")
		var out []tensor.Box
		for _, b := range pinwheels(t, shape) {
			out = append(out, splits(t, b, 2)...)
		}
		return shape, out
	}
	shape := rapid.SliceOfN(rapid.Int64Range(0, 7), 0, 3).Draw(t, "shape")
	return shape, splits(t, tensor.Whole(shape), 5)
}

// spoil changes boxes, drops some and adds others, so that they may no longer
// tile the shape but stay inside it.
func spoil(t *rapid.T, shape []int64, boxes []tensor.Box) []tensor.Box {
	for range rapid.IntRange(0, 3).Draw(t, "changes") {
		if len(boxes) > 0 && rapid.Bool().Draw(t, "drop") {
			i := rapid.IntRange(0, len(boxes)-1).Draw(t, "dropped")
			boxes = slices.Delete(boxes, i, i+1)
			continue
		}
		b := box(make([]int64, len(shape)), make([]int64, len(shape)))
		for d, n := range shape {
			b.Offsets[d] = rapid.Int64Range(0, n).Draw(t, "offset")
			b.Sizes[d] = rapid.Int64Range(0, n-b.Offsets[d]).Draw(t, "size")
		}
		boxes = append(boxes, b)
	}
	return boxes
}

// CheckCoverage agrees with a count of the boxes over every element.
func TestCheckCoverageAgreesWithCounting(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		shape, boxes := drawTiling(t)
		boxes = spoil(t, shape, rapid.Permutation(boxes).Draw(t, "boxes"))
		hits := make([]int, tensor.Whole(shape).Volume())
		for _, b := range boxes {
			count(hits, shape, b)
		}
		total := 0
		var want []string
		for _, h := range hits {
			total += h
		}
		if len(hits) > 0 && slices.Max(hits) > 1 {
			want = append(want, "overlap")
		}
		if total < len(hits) {
			want = append(want, "volume")
		}
		if got := plan.CheckCoverage(shape, boxes); kinds(got) != strings.Join(want, " ") {
			t.Fatalf("CheckCoverage(%v, %v) = %v; want %v from counts %v", shape, boxes, got, want, hits)
		}
	})
}

// Every overlap that is reported is one, and every one is reported.
func TestOverlapsAgreeWithPairs(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		shape, boxes := drawTiling(t)
		boxes = spoil(t, shape, boxes)
		want := 0
		for i, a := range boxes {
			for _, b := range boxes[:i] {
				if _, ok := a.Intersect(b); ok {
					want++
				}
			}
		}
		if len(shape) == 0 {
			want = max(0, len(boxes)-1) // all are one element
		}
		got := 0
		for _, p := range plan.CheckCoverage(shape, boxes) {
			if p.Kind == plan.ProblemOverlap {
				got++
			}
		}
		if got != min(want, 100) {
			t.Fatalf("CheckCoverage(%v, %v) reports %d overlaps; want %d", shape, boxes, got, want)
		}
	})
}
