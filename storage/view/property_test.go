package view_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/tensor"
)

// generator makes random recipes of operations that have inverses, with the tensors of both
// sides. It knows the elements from the layouts alone: each element has a number for its
// place along the axes of its part.
type generator struct {
	r        *rand.Rand
	size     map[string]int64 // of axes and captures
	captures []string
	text     strings.Builder // the rules
	sides    [2]tensors
	numbers  map[string]int32 // of elements
}

// genDim is a dimension of a layout.
type genDim struct {
	before, after []string
	terms         []genTerm // nil: no sum
}

// genTerm is a term of a sum.
type genTerm struct {
	part int // negative: zeros
	axes []string
}

func (g *generator) axis(most int64) string {
	name := fmt.Sprintf("a%d", len(g.size))
	g.size[name] = 1 + g.r.Int64N(most)
	return name
}

func (g *generator) shuffled(axes []string) []string {
	axes = slices.Clone(axes)
	g.r.Shuffle(len(axes), func(i, j int) { axes[i], axes[j] = axes[j], axes[i] })
	return axes
}

// rule adds a rule.
func (g *generator) rule(number int) {
	var common, captures []string // axes that all parts have
	for range g.r.IntN(4) {
		common = append(common, g.axis(4))
	}
	for _, c := range g.captures {
		if g.r.IntN(2) == 0 {
			captures = append(captures, c)
		}
	}
	parts := make([][]string, 1+g.r.IntN(4)) // the axes that only the part has
	for i := range parts {
		for range g.r.IntN(3) {
			parts[i] = append(parts[i], g.axis(3))
		}
	}
	fmt.Fprintf(&g.text, "[[rule]]\n")
	for side, key := range []string{"a", "b"} {
		var inName, axes []string
		for _, c := range captures {
			if g.r.IntN(2) == 0 {
				inName = append(inName, c)
			} else {
				axes = append(axes, c)
			}
		}
		axes = append(axes, common...)
		var terms []string
		for first := 0; first < len(parts); {
			n := 1 + g.r.IntN(len(parts)-first)
			name := fmt.Sprintf("%s%d.%d", key, number, first)
			layout := g.layout(axes, parts, first, n)
			terms = append(terms, fmt.Sprintf("%q", g.tensors(side, number, first, name, inName, layout)))
			first += n
		}
		fmt.Fprintf(&g.text, "%s = [%s]\n", key, strings.Join(terms, ", "))
	}
}

// layout returns a layout of n parts.
func (g *generator) layout(axes []string, parts [][]string, first, n int) []genDim {
	zeros := g.r.IntN(4) == 0
	if n == 1 && !zeros {
		return g.grouped(slices.Concat(axes, parts[first]))
	}
	sum := genDim{}
	for i := range n {
		sum.terms = append(sum.terms, genTerm{first + i, g.shuffled(parts[first+i])})
	}
	if zeros {
		at := g.r.IntN(len(sum.terms) + 1)
		sum.terms = slices.Insert(sum.terms, at, genTerm{-1, []string{g.axis(3)}})
	}
	dims := g.grouped(axes)
	if len(dims) > 0 && g.r.IntN(2) == 0 { // inside of a dimension
		d := &dims[g.r.IntN(len(dims))]
		cut := g.r.IntN(len(d.before) + 1)
		*d = genDim{d.before[:cut], d.before[cut:], sum.terms}
		return dims
	}
	return slices.Insert(dims, g.r.IntN(len(dims)+1), sum)
}

// grouped returns the axes in a random order, in random dimensions.
func (g *generator) grouped(axes []string) []genDim {
	var dims []genDim
	for _, a := range g.shuffled(axes) {
		if len(dims) == 0 || g.r.IntN(2) == 0 {
			dims = append(dims, genDim{})
		}
		last := &dims[len(dims)-1]
		last.before = append(last.before, a)
	}
	if len(dims) > 0 && g.r.IntN(8) == 0 {
		dims = slices.Insert(dims, g.r.IntN(len(dims)), genDim{before: []string{"1"}})
	}
	return dims
}

// tensors makes the tensors of a term, and returns its text.
func (g *generator) tensors(side, rule, first int, name string, captures []string, dims []genDim) string {
	pattern := name
	var fill func(name string, at map[string]int64, rest []string)
	offsets := map[string]int64{}
	for _, c := range captures {
		hole := c
		if offsets[c] = int64(g.r.IntN(3)); offsets[c] > 0 {
			hole = fmt.Sprintf("%s + %d", c, offsets[c])
		}
		pattern += ".{" + hole + "}"
	}
	fill = func(name string, at map[string]int64, rest []string) {
		if len(rest) == 0 {
			g.sides[side][name] = g.tensor(rule, first, at, dims)
			return
		}
		for i := range g.size[rest[0]] {
			at[rest[0]] = i
			fill(fmt.Sprintf("%s.%d", name, i+offsets[rest[0]]), at, rest[1:])
		}
		delete(at, rest[0])
	}
	fill(name, map[string]int64{}, captures)
	texts := make([]string, len(dims))
	for i, d := range dims {
		words := slices.Clone(d.before)
		if d.terms != nil {
			var sum []string
			for _, t := range d.terms {
				text := strings.Join(t.axes, " ")
				switch {
				case t.part < 0:
					text = "zeros(" + text + ")"
				case text == "":
					text = "1"
				}
				sum = append(sum, text)
			}
			words = append(words, "("+strings.Join(sum, " + ")+")")
		}
		texts[i] = strings.Join(append(words, d.after...), " ")
	}
	return pattern + " [" + strings.Join(texts, ", ") + "]"
}

func (g *generator) product(axes []string) int64 {
	n := int64(1)
	for _, a := range axes {
		if a != "1" {
			n *= g.size[a]
		}
	}
	return n
}

// tensor makes a tensor with these values of its captures. If it has no sum, all of it is the
// part first.
func (g *generator) tensor(rule, first int, fixed map[string]int64, dims []genDim) *tensor.Tensor {
	shape := []int64{}
	for _, d := range dims {
		n := g.product(d.before) * g.product(d.after)
		if d.terms != nil {
			total := int64(0)
			for _, t := range d.terms {
				total += g.product(t.axes)
			}
			n *= total
		}
		shape = append(shape, n)
	}
	count := must.Value(tensor.NumElements(shape))
	numbers := make([]int32, count)
	for i := range numbers {
		at, part := maps.Clone(fixed), first
		for d, rest := len(dims)-1, int64(i); d >= 0; d-- {
			if p, ok := g.decode(dims[d], rest%shape[d], at); ok {
				part = p
			}
			rest /= shape[d]
		}
		if part < 0 {
			continue
		}
		var key strings.Builder
		fmt.Fprintf(&key, "%d.%d", rule, part)
		for _, a := range slices.Sorted(maps.Keys(at)) {
			fmt.Fprintf(&key, " %s=%d", a, at[a])
		}
		if g.numbers[key.String()] == 0 {
			g.numbers[key.String()] = int32(len(g.numbers) + 1)
		}
		numbers[i] = g.numbers[key.String()]
	}
	return ints(shape, numbers...)
}

// decode finds the indices of the axes of a dimension, and the part if it has a sum.
func (g *generator) decode(d genDim, i int64, at map[string]int64) (part int, ok bool) {
	take := func(axes []string, i int64) int64 {
		for _, a := range slices.Backward(axes) {
			if a != "1" {
				at[a] = i % g.size[a]
				i /= g.size[a]
			}
		}
		return i
	}
	i = take(d.after, i)
	if d.terms != nil {
		total := int64(0)
		for _, t := range d.terms {
			total += g.product(t.axes)
		}
		inside := i % total
		for _, t := range d.terms {
			n := g.product(t.axes)
			if inside < n && inside >= 0 {
				part = t.part
				take(t.axes, inside)
			}
			inside -= n
		}
		i /= total
	}
	take(d.before, i)
	return part, d.terms != nil
}

// TestRandomRecipes makes random recipes and checks each element of the result, there and
// back, and random boxes.
func TestRandomRecipes(t *testing.T) {
	for range 60 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomRecipe(t, seed) })
	}
}

func randomRecipe(t *testing.T, seed uint64) {
	g := &generator{
		r: rand.New(rand.NewPCG(seed, 0)), size: map[string]int64{}, numbers: map[string]int32{}, sides: [2]tensors{{}, {}},
	}
	for range g.r.IntN(3) {
		c := fmt.Sprintf("c%d", len(g.size))
		g.size[c] = 1 + g.r.Int64N(4)
		g.captures = append(g.captures, c)
	}
	for n := range 1 + g.r.IntN(3) {
		g.rule(n)
	}
	var text strings.Builder
	text.WriteString("[variables]\n")
	for _, a := range slices.Sorted(maps.Keys(g.size)) {
		if !slices.Contains(g.captures, a) {
			fmt.Fprintf(&text, "%s = %d\n", a, g.size[a])
		}
	}
	text.WriteString("[captures]\n")
	for _, c := range g.captures {
		if !regexp.MustCompile(`\b` + c + `\b`).MatchString(g.text.String()) {
			continue // Parse refuses a capture that no rule uses
		}
		fmt.Fprintf(&text, "%s = %d\n", c, g.size[c])
	}
	text.WriteString(g.text.String())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d, recipe:\n%s", seed, text.String())
		}
	})
	r := parse(t, text.String())
	for side, from := range r.Sides {
		v := must.Get(open(t, save(t, g.sides[side]), r, from, recipe.Options{}))(t)
		must.Do(t, v.Check(t.Context()))
		want := g.sides[1-side]
		compare(t, "from "+from, want, load(t, v))
		ck := cairn.NewCheckpoint(new(mem.Store), v)
		var read, made view.Sums
		for name := range want {
			made.Add(must.Get(ck.ReadTensor(view.WithSums(t.Context(), &read), name))(t))
		}
		must.Do(t, read.Compare(&made))
		for name, x := range want {
			box := tensor.Box{Offsets: make([]int64, x.Dims()), Sizes: make([]int64, x.Dims())}
			for d, n := range x.Shape() {
				box.Offsets[d] = g.r.Int64N(n)
				box.Sizes[d] = 1 + g.r.Int64N(n-box.Offsets[d])
			}
			dst := must.Get(tensor.New(x.DType(), box.Sizes))(t)
			must.Do(t, ck.ReadBox(t.Context(), name, box, dst))
			if !tensor.Equal(dst, must.Get(x.Narrow(box))(t)) {
				t.Errorf("from %s: box %v of %s is %v", from, box, name, describe(dst))
			}
		}
	}
}
