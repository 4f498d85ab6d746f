package plot

import (
	"fmt"
	"image"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/inspect"
)

// Shards draws how a tensor is cut into chunks. The colour of a chunk is the rank that wrote
// it or, if no rank is known, its file. A tensor of more than two dimensions is projected.
func Shards(item *inspect.Item, chunks []inspect.Chunk, opts ...Option) *Picture {
	d, y := newDrawing(item.FQN, collect(opts).about, listed(item.DType+" "+shapeText(item.Shape), byteSize(float64(item.NumBytes)),
		plural(max(item.Chunks, len(chunks)), "chunk"), plural(countFiles(chunks), "file")))
	switch {
	case item.Kind != inspect.KindTensor:
		return d.finish(d.empty(y, "an object is not cut into chunks"))
	case slices.Contains(item.Shape, 0):
		return d.finish(d.empty(y, "the tensor has no elements"))
	case len(chunks) == 0:
		return d.finish(d.empty(y, "no chunk is stored"))
	}
	m := &shardMap{d: d, shape: item.Shape}
	for i := range chunks {
		if c := &chunks[i]; len(c.Offsets) == len(item.Shape) && len(c.Sizes) == len(item.Shape) {
			m.chunks = append(m.chunks, c)
		}
	}
	m.project()
	m.paint()
	all := len(m.chunks)
	m.chunks = slices.DeleteFunc(m.chunks, m.behind)
	m.hidden = all - len(m.chunks)
	m.place(y + 8)
	if len(m.chunks) > mostBoxes {
		d.image(m.f.x0, m.f.y0, m.f.x1-m.f.x0, m.f.y1-m.f.y0, dataURI(m.pixels()), "")
	} else {
		for _, c := range m.chunks {
			m.box(c)
		}
	}
	d.rect(m.f.x0, m.f.y0, m.f.x1-m.f.x0, m.f.y1-m.f.y0, `fill="none" stroke="`+axis+`"`, "")
	m.axes()
	y = m.legend(m.f.y1 + below + 14)
	notes := m.notes()
	if item.Chunks > len(chunks) {
		notes = append(notes, fmt.Sprintf("Only the first %s of %s are drawn.", count(len(chunks)), plural(item.Chunks, "chunk")))
	}
	return d.finish(d.notes(y, notes...))
}

// mostBoxes is the most chunks that are drawn as boxes of their own. More are drawn as
// pixels.
const mostBoxes = 2500

func countFiles(chunks []inspect.Chunk) int {
	seen := map[string]struct{}{}
	for i := range chunks {
		if f := chunks[i].File; f != "" {
			seen[f] = struct{}{}
		}
	}
	return len(seen)
}

// shardMap is a map of chunks that is being drawn.
type shardMap struct {
	d      *drawing
	f      frame
	shape  []int64
	chunks []*inspect.Chunk
	dims   [2]int // the dimensions of rows and columns; -1: none
	cut    []int  // the dimensions that are cut
	hidden int    // chunks that are behind others

	byRank  bool
	keys    []string // ranks or files, in order
	keyOf   map[string]int
	unknown bool // the rank of a chunk is unknown
}

// project chooses the two dimensions that are shown: those that are cut into most parts, and
// otherwise the last ones.
func (m *shardMap) project() {
	n := len(m.shape)
	m.dims = [2]int{-1, -1}
	parts := make([]int, n)
	for dim := range n {
		starts := map[int64]struct{}{}
		for _, c := range m.chunks {
			starts[c.Offsets[dim]] = struct{}{}
		}
		if parts[dim] = len(starts); parts[dim] > 1 {
			m.cut = append(m.cut, dim)
		}
	}
	order := make([]int, n)
	for i := range order {
		order[i] = n - 1 - i // of equals, the last
	}
	slices.SortStableFunc(order, func(a, b int) int { return parts[b] - parts[a] })
	switch {
	case n == 1:
		m.dims[1] = 0
	case n > 1:
		m.dims = [2]int{min(order[0], order[1]), max(order[0], order[1])}
	}
}

// behind reports whether a chunk does not begin at index 0 of the dimensions that are not
// drawn.
func (m *shardMap) behind(c *inspect.Chunk) bool {
	for dim, at := range c.Offsets {
		if dim != m.dims[0] && dim != m.dims[1] && at > 0 {
			return true
		}
	}
	return false
}

// key returns the rank or the file of a chunk.
func (m *shardMap) key(c *inspect.Chunk) string {
	if m.byRank {
		if c.Rank == nil {
			return ""
		}
		return strconv.Itoa(*c.Rank)
	}
	return c.File
}

// paint gives ranks or files their colours.
func (m *shardMap) paint() {
	m.byRank = slices.ContainsFunc(m.chunks, func(c *inspect.Chunk) bool { return c.Rank != nil })
	m.keyOf = map[string]int{}
	for _, c := range m.chunks {
		k := m.key(c)
		if _, ok := m.keyOf[k]; !ok {
			m.keyOf[k] = 0
			if k == "" {
				m.unknown = true
			} else {
				m.keys = append(m.keys, k)
			}
		}
	}
	slices.SortFunc(m.keys, inspect.Natural)
	for i, k := range m.keys {
		m.keyOf[k] = i
	}
}

func (m *shardMap) keyColor(k string) rgb {
	switch i := m.keyOf[k]; {
	case k == "":
		return parseHex(other)
	case len(m.keys) <= len(categories):
		return mix(rgb{255, 255, 255}, parseHex(category(i)), 0.75)
	default:
		return viridis.at(float64(i) / float64(len(m.keys)-1))
	}
}

// span returns the elements of a chunk in a shown dimension, and of the whole tensor.
func (m *shardMap) span(c *inspect.Chunk, k int) (lo, hi float64) {
	if dim := m.dims[k]; dim >= 0 {
		return float64(c.Offsets[dim]), float64(c.Offsets[dim]) + float64(c.Sizes[dim])
	}
	return 0, 1
}

func (m *shardMap) size(k int) float64 {
	if dim := m.dims[k]; dim >= 0 {
		return float64(m.shape[dim])
	}
	return 1
}

func (m *shardMap) place(y float64) {
	w, h := mapWidth+90, 60.0
	if m.dims[0] >= 0 {
		ratio := min(max(m.size(0)/m.size(1), 0.15), 4)
		if h = w * ratio; h > 520 {
			w, h = max(520/ratio, 260), 520
		}
	}
	m.f = frame{d: m.d, x0: 84, y0: y, x1: 84 + w, y1: y + h}
	m.f.x, m.f.y = newScale(0, m.size(1), m.f.x0, m.f.x1), newScale(0, m.size(0), m.f.y0, m.f.y1)
}

// box draws a chunk.
func (m *shardMap) box(c *inspect.Chunk) {
	x0, x1 := m.span(c, 1)
	y0, y1 := m.span(c, 0)
	x, y := m.f.x.at(x0), m.f.y.at(y0)
	w, h := m.f.x.at(x1)-x, m.f.y.at(y1)-y
	color := m.keyColor(m.key(c))
	m.d.rect(x, y, w, h, `fill="`+color.hex()+`" stroke="`+paper+`" stroke-width="`+num(min(1, w/4, h/4))+`"`, m.tip(c))
	var lines []string
	if m.byRank && c.Rank != nil {
		lines = append(lines, "rank "+strconv.Itoa(*c.Rank))
	}
	lines = append(lines, ranges(c), c.File)
	m.boxText(x, y, w, h, lines, color.over())
}

// boxText writes as many lines into a box as fit.
func (m *shardMap) boxText(x, y, w, h float64, lines []string, color string) {
	size := smallSize
	if need := textWidth(lines[0], 1); need*size > w-4 && need > 0 {
		size = (w - 4) / need
	}
	if size = min(size, h-2); size < 6.5 {
		return
	}
	step := size * 1.3
	most := max(1, int((h-2)/step))
	var shown []string
	for i, l := range lines {
		if len(shown) < most && l != "" && (i == 0 || textWidth(l, size) <= w-4) {
			shown = append(shown, l)
		}
	}
	for i, l := range shown {
		at := y + h/2 + size*0.36 + (float64(i)-float64(len(shown)-1)/2)*step
		m.d.write(x+w/2, at, fit(l, size, w-4), look{size: size, color: color, anchor: "middle"})
	}
}

// ranges prints the elements of a chunk as an index: "[0:8, :]".
func ranges(c *inspect.Chunk) string {
	parts := make([]string, len(c.Offsets))
	for i, o := range c.Offsets {
		parts[i] = fmt.Sprintf("%d:%d", o, o+c.Sizes[i])
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

func (m *shardMap) tip(c *inspect.Chunk) string {
	text := fmt.Sprintf("chunk %d %s", c.Chunk, ranges(c))
	if c.Rank != nil {
		text += fmt.Sprintf("\nrank %d", *c.Rank)
	}
	text += "\n" + byteSize(float64(c.NumBytes))
	switch {
	case c.Inline:
		text += ", in the index"
	case c.File != "":
		text += fmt.Sprintf("\n%s, bytes %s to %s", fit(c.File, 1, 200), count(c.Offset), count(c.Offset+c.Length))
	}
	return text
}

// pixels draws the chunks as an image.
func (m *shardMap) pixels() image.Image {
	w, h := int(math.Round(m.f.x1-m.f.x0)), int(math.Round(m.f.y1-m.f.y0))
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	pixel := func(v, size float64, n int) int { return min(max(int(math.Round(v/size*float64(n))), 0), n) }
	for _, c := range m.chunks {
		color := m.keyColor(m.key(c)).rgba()
		x0, x1 := m.span(c, 1)
		y0, y1 := m.span(c, 0)
		left, right := pixel(x0, m.size(1), w), pixel(x1, m.size(1), w)
		for y := pixel(y0, m.size(0), h); y < pixel(y1, m.size(0), h); y++ {
			for x := left; x < right; x++ {
				img.SetRGBA(x, y, color)
			}
		}
	}
	return img
}

func (m *shardMap) axes() {
	label := func(k int) string {
		if m.dims[k] < 0 {
			return ""
		}
		return fmt.Sprintf("index in dimension %d", m.dims[k])
	}
	// An index is the edge at which its element begins.
	edges := func(k, most int) []tick {
		var out []tick
		step := max(1, niceStep(0, m.size(k), most))
		for _, v := range multiples(0, m.size(k), step) {
			out = append(out, tick{v, strconv.FormatFloat(v, 'f', 0, 64)})
		}
		return out
	}
	if m.dims[1] >= 0 {
		m.f.xAxis(edges(1, 10), label(1))
	}
	if m.dims[0] < 0 {
		return
	}
	widest := 0.0
	for _, t := range edges(0, max(2, int((m.f.y1-m.f.y0)/34))) {
		y := m.f.y.at(t.v)
		m.d.line(m.f.x0-4, y, m.f.x0, y, `stroke="`+axis+`"`)
		m.d.write(m.f.x0-7, y+4, t.label, look{size: smallSize, color: soft, anchor: "end"})
		widest = max(widest, textWidth(t.label, smallSize))
	}
	m.d.write(max(m.f.x0-widest-14, 12), (m.f.y0+m.f.y1)/2, label(0), look{color: soft, anchor: "middle", turned: true})
}

// legend explains the colours and returns the y coordinate below them.
func (m *shardMap) legend(y float64) float64 {
	what := "rank "
	if !m.byRank {
		what = ""
	}
	var items []swatch
	if len(m.keys) <= len(categories) {
		for _, k := range m.keys {
			items = append(items, swatch{color: m.keyColor(k).hex(), text: what + name(k)})
		}
	} else {
		for i := range 6 { // the colours are a sequence
			k := m.keys[i*(len(m.keys)-1)/5]
			text := what + fit(k, textSize, 110)
			if i < 5 {
				text += " …"
			}
			items = append(items, swatch{color: m.keyColor(k).hex(), text: text})
		}
	}
	if m.unknown {
		text := "in the index"
		if m.byRank {
			text = "unknown rank"
		}
		items = append(items, swatch{color: other, text: text})
	}
	return m.d.legend(margin, y, items) + 4
}

func (m *shardMap) notes() []string {
	var out []string
	if len(m.cut) == 0 {
		out = append(out, "The tensor is not cut.")
	}
	if len(m.shape) > 2 {
		out = append(out, fmt.Sprintf("Of %d dimensions, %d and %d are drawn.", len(m.shape), m.dims[0], m.dims[1]))
	}
	if m.hidden > 0 {
		out = append(out, fmt.Sprintf("The tensor is cut in dimensions %s. %s are not drawn: they lie behind others, at larger indexes of the dimensions that are not drawn.",
			dimensions(m.cut), plural(m.hidden, "chunk")))
	}
	if len(m.chunks) > mostBoxes {
		out = append(out, "There are too many chunks for boxes of their own: pixels show who wrote them.")
	}
	return out
}

func dimensions(dims []int) string {
	parts := make([]string, len(dims))
	for i, d := range dims {
		parts[i] = strconv.Itoa(d)
	}
	return strings.Join(parts, ", ")
}
