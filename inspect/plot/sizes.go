package plot

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/inspect"
)

// Sizes draws the tree of the names of a checkpoint. The height of a name is its part of the
// bytes. Names that are lower than two pixels are drawn together.
func Sizes(names *inspect.Names, opts ...Option) *Picture {
	o := collect(opts)
	t := newSizeTree(names, o.shades)
	d, y := newDrawing("Names by size", listed(o.about, plural(len(names.Form), "name"), byteSize(float64(t.root.bytes))))
	if t.root.bytes == 0 {
		why := "the names have no bytes"
		if len(names.Form) == 0 {
			why = "there are no names"
		}
		return d.finish(d.empty(y, why))
	}
	if t.shades == nil {
		y = d.legend(margin, y+12, t.legend())
	} else {
		y = t.shades.legend(d, y+12)
	}
	p := &icicle{sizeTree: t, d: d, colors: t.colors(), last: map[int]float64{}}
	levels := min(max(1, t.root.depth()), mostLevels)
	p.column = (pictureWidth - 2*margin - 44) / float64(levels)
	p.axis(y)
	p.children(t.root, margin+44, y, levels)
	for _, write := range p.labels {
		write()
	}
	notes := []string{"Height: bytes. A name stands right of the name that it belongs to. Dashed: neighbours that are too small to be drawn one by one."}
	if t.shades != nil {
		notes = append(notes, "Colour: "+t.shades.Title+". What stands left of several names has their largest value.")
	}
	if tied := len(t.Tied); tied > 0 {
		notes = append(notes, "Not counted: "+plural(tied, "further name")+" of tensors that are stored once under several names.")
	}
	return d.finish(d.notes(y+icicleHeight+26, notes...))
}

const (
	icicleHeight = 640.0
	mostLevels   = 8
	leastHeight  = 2.0 // of a name
)

// sizeNode is a name, or the beginning of names.
type sizeNode struct {
	name     string // without the name of the parent
	full     string
	bytes    int64
	names    int64
	dtypes   map[int32]int64 // bytes by dtype
	children []*sizeNode
	leaf     int // row of the name; -1: it is only the beginning of names
	merged   int // number of neighbours that are drawn together; zero: one
	shade    shade
}

// merge returns neighbours as one node. Their children are merged by name, so that 1,000
// layers look like one.
func merge(nodes []*sizeNode) *sizeNode {
	first, last := nodes[0], nodes[len(nodes)-1]
	out := &sizeNode{name: first.name + " … " + last.name, full: parent(first), leaf: -1, dtypes: map[int32]int64{}, merged: len(nodes), shade: noShade}
	byName := map[string][]*sizeNode{}
	var names []string
	for _, n := range nodes {
		out.bytes, out.names, out.shade = out.bytes+n.bytes, out.names+n.names, out.shade.with(n.shade)
		for d, b := range n.dtypes {
			out.dtypes[d] += b
		}
		for _, c := range n.children {
			if byName[c.name] == nil {
				names = append(names, c.name)
			}
			byName[c.name] = append(byName[c.name], c)
		}
	}
	slices.SortFunc(names, inspect.Natural)
	for _, name := range names {
		c := merge(byName[name])
		c.name, c.full = name, parent(first)
		out.children = append(out.children, c)
	}
	return out
}

// parent returns the name of the parent of a node.
func parent(n *sizeNode) string { return strings.TrimSuffix(n.full, n.name) }

// depth returns the number of levels below a node.
func (n *sizeNode) depth() int {
	most := 0
	for _, c := range n.children {
		most = max(most, 1+c.depth())
	}
	return most
}

// dtype returns the dtype with most bytes.
func (n *sizeNode) dtype() int32 {
	best, most := int32(-1), int64(-1)
	for d, b := range n.dtypes {
		if b > most || b == most && d < best {
			best, most = d, b
		}
	}
	return best
}

// sizeTree is the tree of all names.
type sizeTree struct {
	*inspect.Names
	root   *sizeNode
	dtypes []string // -1 stands for objects
	dtype  []int32  // of each form
	shades *Shades  // nil: colours are dtypes
}

func newSizeTree(names *inspect.Names, shades *Shades) *sizeTree {
	t := &sizeTree{Names: names, root: &sizeNode{leaf: -1, dtypes: map[int32]int64{}, shade: noShade}, dtype: make([]int32, len(names.Forms)), shades: shades}
	for i, f := range names.Forms {
		t.dtype[i] = -1
		if f.Shape != nil {
			if t.dtype[i] = int32(slices.Index(t.dtypes, f.DType)); t.dtype[i] < 0 {
				t.dtype[i], t.dtypes = int32(len(t.dtypes)), append(t.dtypes, f.DType)
			}
		}
	}
	row := 0
	t.grow(t.root, 0, len(names.Label), &row)
	return t
}

// grow adds nodes of Names to a node, of which row is the first row. A node with one child is
// joined with it.
func (t *sizeTree) grow(n *sizeNode, from, to int, row *int) {
	for i := from; i < to; i += 1 + int(t.Below[i]) {
		c := &sizeNode{name: t.Labels[t.Label[i]], leaf: -1, dtypes: map[int32]int64{}, shade: noShade}
		c.full = c.name
		if n != t.root {
			c.full = n.full + "." + c.name
		}
		if t.Below[i] == 0 {
			c.leaf = *row
			c.names, c.bytes = 1, max(0, t.Forms[t.Form[*row]].Bytes)
			if _, tied := t.Tied[*row]; tied {
				c.bytes = 0
			}
			c.dtypes[t.dtypeOf(*row)] = c.bytes
			if t.shades != nil {
				c.shade = t.shades.of(*row)
			}
			*row++
		}
		t.grow(c, i+1, i+1+int(t.Below[i]), row)
		n.names, n.bytes, n.shade = n.names+c.names, n.bytes+c.bytes, n.shade.with(c.shade)
		for d, b := range c.dtypes {
			n.dtypes[d] += b
		}
		if len(c.children) == 1 {
			only := c.children[0]
			only.name = c.name + "." + only.name
			c = only
		}
		n.children = append(n.children, c)
	}
}

func (t *sizeTree) dtypeOf(row int) int32 { return t.dtype[t.Form[row]] }

// kinds returns the dtypes, the one with the most bytes first. -1 stands for objects.
func (t *sizeTree) kinds() []int32 {
	var out []int32
	for d := range t.root.dtypes {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b int32) int {
		if x, y := t.root.dtypes[a], t.root.dtypes[b]; x != y {
			if x > y {
				return -1
			}
			return 1
		}
		return int(a) - int(b)
	})
	return out
}

func (t *sizeTree) kindName(d int32) string {
	if d < 0 {
		return "objects"
	}
	return t.dtypes[d]
}

// colors returns the colour of each dtype. Objects, and dtypes beyond the first ones, are
// grey.
func (t *sizeTree) colors() map[int32]string {
	out, i := map[int32]string{}, 0
	for _, d := range t.kinds() {
		out[d] = other
		if d >= 0 && i < len(categories)-1 {
			out[d] = category(i)
			i++
		}
	}
	return out
}

func (t *sizeTree) legend() []swatch {
	var out []swatch
	colors := t.colors()
	for i, d := range t.kinds() {
		if i == 12 {
			out = append(out, swatch{color: other, text: "further dtypes"})
			break
		}
		b := t.root.dtypes[d]
		out = append(out, swatch{color: colors[d], text: fmt.Sprintf("%s %s (%s)", t.kindName(d), byteSize(float64(b)), percent(float64(b), float64(t.root.bytes)))})
	}
	return out
}

// icicle draws a sizeTree: levels from left to right, bytes from top to bottom.
type icicle struct {
	*sizeTree
	d      *drawing
	column float64 // width of a level
	colors map[int32]string
	labels []func()        // write the names
	last   map[int]float64 // y coordinate of the last name in each column
}

// axis draws the scale of bytes.
func (p *icicle) axis(y float64) {
	s := newScale(0, float64(p.root.bytes), y, y+icicleHeight)
	for _, t := range byteTicks(float64(p.root.bytes), 8) {
		p.d.line(margin+40, s.at(t.v), margin+44, s.at(t.v), `stroke="`+axis+`"`)
		at := min(s.at(t.v)+4, y+icicleHeight)
		p.d.write(margin+38, at, t.label, look{size: 9, color: soft, anchor: "end"})
	}
}

func (p *icicle) height(bytes int64) float64 {
	return float64(bytes) / float64(p.root.bytes) * icicleHeight
}

// children draws the descendants of a node in the remaining levels. y is the upper edge of
// the node.
func (p *icicle) children(n *sizeNode, x, y float64, levels int) {
	if levels == 0 {
		return
	}
	var small []*sizeNode
	var bytes int64
	flush := func() {
		if h := p.height(bytes); len(small) > 0 && h >= 0.25 {
			m := small[0]
			if len(small) > 1 {
				m = merge(small)
			}
			p.node(m, x, y-h, h, levels)
			if h >= leastHeight {
				p.children(m, x+p.column, y-h, levels-1)
			}
		}
		small, bytes = nil, 0
	}
	for _, c := range n.children {
		h := p.height(c.bytes)
		if h < leastHeight {
			small, bytes = append(small, c), bytes+c.bytes
			y += h
			continue
		}
		flush()
		p.node(c, x, y, h, levels)
		p.children(c, x+p.column, y, levels-1)
		y += h
	}
	flush()
}

// node draws one node.
func (p *icicle) node(n *sizeNode, x, y, h float64, levels int) {
	w := p.column
	leaf := len(n.children) == 0
	if leaf { // it fills the levels to the right
		w *= float64(levels)
	}
	color := tint(p.colors[n.dtype()], 0.22)
	if leaf {
		color = tint(p.colors[n.dtype()], 0.75)
	}
	if p.shades != nil {
		color = p.shades.color(n.shade)
	}
	p.d.rect(x, y, w, h, `fill="`+color+`" stroke="`+paper+`" stroke-width="`+num(min(1, h/4))+`"`, p.tip(n))
	if n.merged > 1 && h >= 8 {
		p.d.rect(x+1, y+1, w-2, h-2, `fill="none" stroke="`+axis+`" stroke-dasharray="3 2" stroke-width="0.75"`, "")
	}
	p.label(n, x, y, w, h, parseHex(color).over())
}

// label remembers the name of a node, which is written after all rectangles. A node that is
// too low for its name has a name if there is room between the names above and below.
func (p *icicle) label(n *sizeNode, x, y, w, h float64, color string) {
	const least, crowded = 6.0, 9.0
	column := int(math.Round(x / p.column))
	size, text := min(smallSize, h-1.5), n.name
	switch {
	case size >= least:
		if bytes := "  " + byteSize(float64(n.bytes)); textWidth(text+bytes, size) < w-8 {
			text += bytes
		}
	case h < least || len(n.children) == 0 || n.merged > 1 || y+h/2-p.last[column] < crowded+2:
		return
	default:
		size = crowded
	}
	p.last[column] = y + h/2
	p.labels = append(p.labels, func() {
		p.d.write(x+4, y+h/2+size*0.36, fit(text, size, w-8), look{size: size, color: color})
	})
}

func (p *icicle) tip(n *sizeNode) string {
	full := fit(n.full, 1, 300)
	if n.merged > 1 {
		full = fmt.Sprintf("%s of %s below %s together", fit(n.name, 1, 200), plural(n.merged, "part"), strings.TrimSuffix(full, "."))
	}
	text := fmt.Sprintf("%s\n%s (%s)", full, byteSize(float64(n.bytes)), percent(float64(n.bytes), float64(p.root.bytes)))
	if p.shades != nil {
		text += p.shades.tip(n.shade)
	}
	if n.leaf < 0 || len(n.children) > 0 {
		return text + ", " + plural(n.names, "name")
	}
	f := p.Forms[p.Form[n.leaf]]
	if f.Shape == nil {
		return text + ", object"
	}
	return text + ", " + f.DType + " " + shapeText(f.Shape)
}
