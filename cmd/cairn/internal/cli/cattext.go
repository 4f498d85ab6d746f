package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/tensor"
)

// elementText returns a function that prints elements in Python's notation or as
// JSON.
func elementText(d tensor.DType, asJSON bool) func(b, p []byte) []byte {
	format := inspect.ElementFormat(d)
	part, isComplex := map[tensor.DType]tensor.DType{tensor.Complex64: tensor.Float32, tensor.Complex128: tensor.Float64}[d]
	switch {
	case !asJSON:
		return format
	case isComplex:
		one := elementText(part, true)
		return func(b, p []byte) []byte {
			b = one(append(b, '['), p[:part.Size()])
			b = one(append(b, ", "...), p[part.Size():])
			return append(b, ']')
		}
	}
	return func(b, p []byte) []byte {
		n := len(b)
		b = format(b, p)
		switch text := string(b[n:]); text {
		case "nan", "inf", "-inf":
			return fmt.Appendf(b[:n], "%q", text)
		case "True", "False":
			return append(b[:n], strings.ToLower(text)...)
		}
		return b
	}
}

// nester prints a sequence of elements as nested lists. Its writer keeps the
// first error.
type nester struct {
	w     *bufio.Writer
	shape []int64
	at    []int64 // index of the next element
	json  bool
	begun bool
}

func (n *nester) element(text []byte) {
	opens := 0
	for _, i := range slices.Backward(n.at) {
		if i != 0 {
			break
		}
		opens++
	}
	if n.begun {
		n.separate(opens)
	}
	n.begun = true
	n.w.WriteString(strings.Repeat("[", opens))
	n.w.Write(text)
	for d, size := range slices.Backward(n.shape) {
		if n.at[d]++; n.at[d] < size {
			return
		}
		n.at[d] = 0
		n.w.WriteByte(']')
	}
}

// separate prints the separator before an element that begins this number of
// lists.
func (n *nester) separate(opens int) {
	switch {
	case n.json:
		n.w.WriteString(", ")
	case opens == 0:
		n.w.WriteByte(' ')
	default:
		n.w.WriteString(strings.Repeat("\n", opens))
		n.w.WriteString(strings.Repeat(" ", len(n.shape)-opens))
	}
}

// end prints the end of the last line.
func (n *nester) end() {
	if !n.begun {
		n.w.WriteString("[]") // there are no elements
	}
	n.w.WriteByte('\n')
}

// edge is the visible part of a dimension: the first and the last indexes.
type edge struct{ size, head, tail int64 }

func (e edge) shown() int64 { return e.head + e.tail }

// edgesOf returns the visible parts of a tensor for at most limit elements:
// everything if possible, otherwise at most three indexes at each end of a
// dimension.
func edgesOf(sizes []int64, limit int64) []edge {
	out := make([]edge, len(sizes))
	for d, n := range sizes {
		out[d] = edge{size: n, head: n}
	}
	for most := int64(3); most > 0 && tooMany(out, limit); most-- {
		for d, n := range sizes {
			if n > 2*most {
				out[d] = edge{n, most, most}
			}
		}
	}
	for d := 0; d < len(out) && tooMany(out, limit); d++ {
		out[d] = edge{sizes[d], 1, 0}
	}
	return out
}

func tooMany(edges []edge, limit int64) bool {
	if slices.ContainsFunc(edges, func(e edge) bool { return e.size == 0 }) {
		return false
	}
	left := limit
	for _, e := range edges {
		left /= e.shown()
	}
	return left == 0
}

// shortText prints the selected elements, shortened if there are too many.
func (k *catter) shortText(s *inspect.Selection, d tensor.DType) error {
	if s.Elements() == 0 {
		_, err := fmt.Fprintln(k.o.out, "[]")
		return err
	}

	edges := edgesOf(s.Sizes(), k.flags.limit)
	shape := make([]int64, len(edges))
	for i, e := range edges {
		shape[i] = e.shown()
	}

	shown, err := tensor.New(d, shape)
	if err != nil {
		return err
	}
	box := tensor.Box{Offsets: make([]int64, len(edges)), Sizes: make([]int64, len(edges))}
	if err := k.readEdges(s, edges, 0, box, shown); err != nil {
		return err
	}

	p := &textPrinter{width: cmp.Or(k.o.width, 80)}
	if k.o.wide {
		p.width = math.MaxInt
	}

	format, size := inspect.ElementFormat(d), d.Size()
	for mem := shown.Contents(); len(mem) > 0; mem = mem[size:] {
		text := string(format(nil, mem[:size]))
		p.texts = append(p.texts, text)
		p.cell = max(p.cell, len(text))
	}

	for d, e := range edges { // single indexes have no brackets
		if !s.Single(d) {
			p.edges = append(p.edges, e)
		}
	}

	p.print(0)
	p.out.WriteByte('\n')
	_, err = k.o.out.Write(p.out.Bytes())
	return err
}

// readEdges reads the visible elements from a dimension on into dst. The dimensions
// before it are the dimensions of box.
func (k *catter) readEdges(s *inspect.Selection, edges []edge, dim int, box tensor.Box, dst *tensor.Tensor) error {
	if dim == len(edges) {
		part, err := tensor.New(dst.DType(), box.Sizes)
		if err != nil {
			return err
		}
		if err := s.ReadBox(k.ctx, casting{k.c, k.flags.cast}, k.e, box, part); err != nil {
			return err
		}
		return tensor.Copy(dst, part)
	}
	e := edges[dim]
	for _, end := range [][3]int64{{0, 0, e.head}, {e.size - e.tail, e.head, e.tail}} {
		from, to, n := end[0], end[1], end[2]
		part, err := dst.Slice(dim, to, to+n, 1)
		if err != nil {
			return err
		}
		box.Offsets[dim], box.Sizes[dim] = from, n
		if n > 0 {
			err = k.readEdges(s, edges, dim+1, box, part)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// textPrinter prints elements like numpy, in columns of equal width.
type textPrinter struct {
	out   bytes.Buffer
	texts []string // the remaining elements
	edges []edge
	cell  int // characters of an element
	width int // characters of a line
	line  int // characters in the current line
}

// print prints everything from a dimension on.
func (p *textPrinter) print(dim int) {
	if dim == len(p.edges) {
		p.put(fmt.Sprintf("%*s", p.cell, p.texts[0]))
		p.texts = p.texts[1:]
		return
	}
	p.put("[")
	e := p.edges[dim]
	for i := range e.shown() {
		if i > 0 {
			p.separate(dim)
		}
		if i == e.head {
			p.put("...")
			p.separate(dim)
		}
		p.print(dim + 1)
	}
	if e.tail == 0 && e.head < e.size {
		p.separate(dim)
		p.put("...")
	}
	p.put("]")
}

func (p *textPrinter) put(s string) {
	p.out.WriteString(s)
	p.line += len(s)
}

// separate prints the separator between two parts of a dimension: a space within
// a row, or a line feed if the line is full; line feeds between rows.
func (p *textPrinter) separate(dim int) {
	below := len(p.edges) - dim - 1
	if below == 0 && p.line+1+p.cell+len(p.edges) <= p.width {
		p.put(" ")
		return
	}
	p.out.WriteString(strings.Repeat("\n", max(1, below)))
	p.line = 0
	p.put(strings.Repeat(" ", dim+1))
}
