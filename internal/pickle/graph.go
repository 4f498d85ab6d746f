package pickle

import "math/big"

// Graph holds the parts that a pickle describes, mostly in tables without pointers.
// Shared parts are there once, names are only names, and no object was built.
// Decode makes values of it, and package dcpmeta reads it directly. It is not safe
// for concurrent use.
type Graph struct {
	// Root is the value of the pickle.
	Root Cell

	account
	data   []byte // the input
	extra  []byte // decoded text of the old protocols: continues data
	schema *schema

	strs    []span
	bytes   []span
	bigs    []span // little-endian two's complement
	floats  []float64
	globals []global
	tuples  []Cell       // of each tuple its size and its items; see tupleSize
	ints    arena[int64] // of each tuple its length and its items
	seqs    arena[seq]   // lists, sets, and dicts as keys and values in turn
	objects arena[object]
	pids    []Cell
	records []arena[Cell] // by class: the fields of one record after another

	// shared are the containers that several places may have: those that came
	// out of the memo again. With a schema it is not known.
	shared map[Cell]struct{}
}

// span is a range of data followed by extra.
type span struct {
	off int
	len uint32
	// sym is one more than the number of the schema's field of this name; minus
	// one: none; zero: nobody asked yet.
	sym int32
}

// maxSpan bounds the bytes of a string or of bytes.
const maxSpan = 1<<32 - 1

type global struct {
	module, name string
	// class is the class of the schema, or -1.
	class int
	// size says that it is torch.Size.
	size bool
}

// seq is a list, a dict or a set.
type seq struct {
	items  []Cell
	height int32 // see Graph.height
	frozen bool
}

// object is what calling a global gives, and what was then done to it.
type object struct {
	args   Cell
	kwargs Cell // None or a Dict
	state  Cell
	more   *contents // nil: nothing was put into it
	global int32
	height int32 // see Graph.height
	isNew  bool
	built  bool // state was set
}

// contents are the items that were put into an object.
type contents struct{ items, pairs []Cell }

// tupleSize is the length of a tuple, and its height above.
type tupleSize Cell

const lenBits = 40

func (t tupleSize) len() int    { return int(t & (1<<lenBits - 1)) }
func (t tupleSize) height() int { return int(t >> lenBits) }

// Charge counts n bytes that a caller makes of the graph, or looks at, toward
// Limits.Memory: parts that are shared in the pickle may be asked for again and
// again.
func (g *Graph) Charge(n int) error { return g.charge(n) }

// text returns the bytes of s. They belong to the graph.
func (g *Graph) text(s span) []byte {
	n := int(s.len)
	if s.off < len(g.data) || n == 0 {
		return g.data[s.off : s.off+n]
	}
	off := s.off - len(g.data)
	return g.extra[off : off+n]
}

// Str returns the string that c is, or false. It is a copy.
func (g *Graph) Str(c Cell) (string, bool) {
	if c.Kind() != Str {
		return "", false
	}
	return string(g.text(g.strs[c.pos()])), true
}

// Text returns the bytes of the string that c is, or false. They belong to the
// graph.
func (g *Graph) Text(c Cell) ([]byte, bool) {
	if c.Kind() != Str {
		return nil, false
	}
	return g.text(g.strs[c.pos()]), true
}

// StrID returns a small number that is the same for every place that shares the
// string c, and false if c is none. Equal strings may have different numbers.
func (g *Graph) StrID(c Cell) (int, bool) { return c.pos(), c.Kind() == Str }

// NumStrs returns one more than the largest StrID.
func (g *Graph) NumStrs() int { return len(g.strs) }

// Ints returns the integers of an Ints or a Size, or false. The slice belongs to
// the graph: callers may keep it and must not write to it.
func (g *Graph) Ints(c Cell) ([]int64, bool) {
	if k := c.Kind(); k != Ints && k != Size {
		return nil, false
	}
	s := g.ints.at(c.pos())
	n := int(s[0])
	return s[1 : 1+n : 1+n], true
}

// List returns the items of a List or Tuple that is no Ints, or false.
func (g *Graph) List(c Cell) ([]Cell, bool) {
	switch c.Kind() {
	case List:
		return g.seqs.ptr(c.pos()).items, true
	case Tuple:
		p := c.pos()
		return g.tuples[p+1 : p+1+tupleSize(g.tuples[p]).len()], true
	}
	return nil, false
}

// Dict returns the keys and values of a Dict in turn, or false. A key that was
// set twice is twice there.
func (g *Graph) Dict(c Cell) ([]Cell, bool) {
	if c.Kind() != Dict {
		return nil, false
	}
	return g.seqs.ptr(c.pos()).items, true
}

// Fields returns the fields of a record in the order of its class, or false. A
// field that was not set is [Unset].
func (g *Graph) Fields(c Cell) ([]Cell, bool) {
	class, ok := c.Class()
	if !ok {
		return nil, false
	}
	n := len(g.schema.classes[class].Fields)
	return g.records[class].at(c.pos())[:n:n], true
}

// Name returns the module and name of a Global, or of what is called to make an
// Object.
func (g *Graph) Name(c Cell) (module, name string, ok bool) {
	switch c.Kind() {
	case Global:
		gl := &g.globals[c.pos()]
		return gl.module, gl.name, true
	case Object:
		gl := &g.globals[g.objects.ptr(c.pos()).global]
		return gl.module, gl.name, true
	case Size:
		return "torch", "Size", true
	}
	return "", "", false
}

// Args returns the arguments of an Object that was called, with nothing set or
// put into it afterwards; false for everything else.
func (g *Graph) Args(c Cell) ([]Cell, bool) {
	if c.Kind() != Object {
		return nil, false
	}
	o := g.objects.ptr(c.pos())
	if o.built || o.more != nil || o.kwargs != cellNone {
		return nil, false
	}
	return g.items(o.args), true
}

// items returns the items of any tuple.
func (g *Graph) items(c Cell) []Cell {
	switch c.Kind() {
	case Tuple:
		l, _ := g.List(c)
		return l
	case IntsTuple:
		return []Cell{cellOf(Ints, c.payload())}
	case Ints:
		n, _ := g.Ints(c)
		out := make([]Cell, len(n))
		for i, v := range n {
			out[i] = cellOf(Int, v)
		}
		return out
	}
	return nil
}

// height returns how deeply containers are nested in c, as far as it is known: items
// that are put into a container after the container was put into another one do not
// count there.
func (g *Graph) height(c Cell) int {
	switch c.Kind() {
	case None, Bool, Int, Big, Float, Str:
		return 0
	case IntsTuple:
		return 2
	case Tuple:
		return tupleSize(g.tuples[c.pos()]).height()
	case List, Dict, Set:
		return int(g.seqs.ptr(c.pos()).height)
	case Object:
		return int(g.objects.ptr(c.pos()).height)
	}
	return 1
}

func isTuple(c Cell) bool {
	k := c.Kind()
	return k == Tuple || k == Ints || k == IntsTuple
}

// big returns the integer that lies in s.
func (g *Graph) big(s span) *big.Int {
	le := g.text(s)
	if len(le) == 0 {
		return new(big.Int)
	}
	be := make([]byte, len(le))
	for i, b := range le {
		be[len(le)-1-i] = b
	}
	n := new(big.Int).SetBytes(be)
	if be[0]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(be))))
	}
	return n
}
