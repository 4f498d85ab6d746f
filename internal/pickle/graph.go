package pickle

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
)

// Graph is the content of a pickle, mostly in tables without pointers. Shared
// parts occur once, names stay names, and no object is built. Decode builds
// values from it, and package dcpfiles reads it directly. It is not safe for
// concurrent use.
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
	tuples  []Cell       // the length and the items of each tuple
	ints    arena[int64] // the length and the items of each tuple
	seqs    arena[seq]   // lists, sets, and dicts as alternating keys and values
	objects arena[object]
	pids    []Cell
	varying []*Varying
	records []arena[Cell] // for each class, the fields of all records

	// shared has the containers that were read back from the memo and may
	// therefore occur several times. It is nil if there is a schema.
	shared map[Cell]struct{}
}

// span is a range of data followed by extra.
type span struct {
	off int
	len uint32
	// sym is one more than the number of the schema's field of this name, -1 if
	// the schema has no such field, and 0 if it was not looked up yet.
	sym int32
}

// maxSpan bounds the bytes of a string or of bytes.
const maxSpan = 1<<32 - 1

type global struct {
	module, name string
	// class is the class of the schema, or -1.
	class int
	// size is set for torch.Size.
	size bool
}

// seq is a list, a dict or a set.
type seq struct {
	items  []Cell
	frozen bool
}

// object is the result of calling a global, with the state and the items that it
// received afterwards.
type object struct {
	args   Cell
	kwargs Cell // None or a Dict
	state  Cell
	more   *contents // nil if it has no items
	global int32
	isNew  bool
	built  bool // whether state was set
}

// contents are the items of an object.
type contents struct{ items, pairs []Cell }

// Charge counts n bytes that the caller allocates or reads toward Limits.Memory.
// Callers must use it because a pickle can refer to shared parts very often. It
// calls Fail if the limit is exceeded.
func (g *Graph) Charge(n int) { g.charge(n) }

// text returns the bytes of s. They belong to the graph.
func (g *Graph) text(s span) []byte {
	n := int(s.len)
	if s.off < len(g.data) || n == 0 {
		return g.data[s.off : s.off+n]
	}
	off := s.off - len(g.data)
	return g.extra[off : off+n]
}

// Text returns the bytes of the string c, or false if c is not a string. They
// belong to the graph.
func (g *Graph) Text(c Cell) ([]byte, bool) {
	if c.Kind() != Str {
		return nil, false
	}
	return g.text(g.strs[c.pos()]), true
}

// StrID returns the number of the string c, or false if c is not a string. All
// references to a shared string have the same number; equal strings may have
// different ones.
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

// List returns the items of a List, or of a Tuple that is not an Ints, or false.
func (g *Graph) List(c Cell) ([]Cell, bool) {
	switch c.Kind() {
	case List:
		return g.seqs.ptr(c.pos()).items, true
	case Tuple:
		p := c.pos()
		return g.tuples[p+1 : p+1+int(g.tuples[p])], true
	}
	return nil, false
}

// Dict returns the alternating keys and values of a Dict, or false. A key that
// was set twice occurs twice.
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

// Name returns the module and name of a Global, or of the callee of an Object.
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

// Args returns the arguments of an Object that has no state and no items; false
// for everything else.
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

// big returns the integer at s.
func (g *Graph) big(s span) *big.Int {
	le := g.text(s)
	if len(le) == 0 {
		return new(big.Int)
	}

	be := slices.Clone(le)
	slices.Reverse(be)
	n := new(big.Int).SetBytes(be)
	if be[0]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(be))))
	}
	return n
}

// Cell is a value of a Graph in eight bytes: a kind, and an integer that is the
// value itself or a position in one of the graph's tables.
type Cell uint64

// Kind is the kind of a Cell.
type Kind uint8

// The kinds.
const (
	// None is Python's None.
	None Kind = iota
	// Bool is True or False.
	Bool
	// Int is an integer of at most 58 bits.
	Int
	// Big is a larger integer.
	Big
	// Float is a float.
	Float
	// Str is a string.
	Str
	// Bytes are bytes. A bytearray is an Object.
	Bytes
	// Global is a name.
	Global
	// Tuple is a tuple that is neither Ints nor IntsTuple.
	Tuple
	// Ints is a tuple of integers of at most 58 bits, or the empty tuple.
	Ints
	// IntsTuple is a tuple of a single Ints.
	IntsTuple
	// Size is a torch.Size.
	Size
	// List is a list.
	List
	// Dict is a dict.
	Dict
	// Set is a set or a frozenset.
	Set
	// Object is the result of calling a name.
	Object
	// Persistent is the object of a persistent id.
	Persistent
	// Variable is an operand that varies: see DecodeVarying.
	Variable
	// State is the dict that becomes the fields of a record. It occurs elsewhere
	// only in pickles that no library writes.
	State

	unset // the kind of Unset

	// Record is the kind of records of the schema's first class. Records of class
	// i have the kind Record+i.
	Record Kind = 32
)

const (
	kindBits   = 6
	maxClasses = 1<<kindBits - int(Record)

	minInt = -1 << (63 - kindBits)
	maxInt = 1<<(63-kindBits) - 1
)

func cellOf(k Kind, payload int64) Cell { return Cell(payload)<<kindBits | Cell(k) }

func at(k Kind, pos int) Cell { return cellOf(k, int64(pos)) }

// Kind returns the kind of c.
func (c Cell) Kind() Kind { return Kind(c & (1<<kindBits - 1)) }

// Class returns the position of a record's class in the schema, or false.
func (c Cell) Class() (int, bool) { return int(c.Kind()) - int(Record), c.Kind() >= Record }

// Int returns the value of an Int, or false.
func (c Cell) Int() (int64, bool) { return c.payload(), c.Kind() == Int }

// Bool returns the value of a Bool, or false.
func (c Cell) Bool() (value, ok bool) { return c.payload() != 0, c.Kind() == Bool }

func (c Cell) payload() int64 { return int64(c) >> kindBits }

func (c Cell) pos() int { return int(c.payload()) }

const (
	cellNone  = Cell(None)
	cellFalse = Cell(Bool)
	cellTrue  = Cell(1<<kindBits | Cell(Bool))
	// cellEmpty is the empty tuple, which is the first one in the ints of every
	// graph.
	cellEmpty = Cell(Ints)
)

// String returns Python's name of the kind.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "a record"
}

var kindNames = [...]string{
	None: "None", Bool: "a bool", Int: "an int", Big: "an int", Float: "a float", Str: "a str", Bytes: "bytes",
	Global: "a name", Tuple: "a tuple", Ints: "a tuple", IntsTuple: "a tuple", Size: "a torch.Size", List: "a list",
	Dict: "a dict", Set: "a set", Object: "an object", Persistent: "a persistent id", Variable: "a value that varies", State: "a state", unset: "not set",
}

// Class is a class of instances that become records with fields in a Graph, instead of
// objects with a dict.
type Class struct {
	// Names are the qualified names of the class, the preferred one first.
	Names []string
	// Fields are the names of the fields in its state.
	Fields []string
	// Open makes the decoder ignore fields and tuple items beyond Fields.
	// Otherwise they are an error, except for fields that are None.
	Open bool
}

// Unset is the value of a field that is not in the record's state.
const Unset = Cell(unset)

// schema holds the classes in the form that the machine uses.
type schema struct {
	classes []Class
	byName  map[[2]string]int
	syms    map[string]int32
	// fields[class][sym] is the position of the field, or -1.
	fields [][]int8
}

func newSchema(classes []Class) *schema {
	if len(classes) > maxClasses {
		panic(fmt.Sprintf("pickle: %d classes in a schema, at most %d", len(classes), maxClasses))
	}

	s := &schema{classes: classes, byName: map[[2]string]int{}, syms: map[string]int32{}}
	for i, c := range classes {
		for _, n := range c.Names {
			s.byName[splitName(n)] = i
		}
		for _, f := range c.Fields {
			if _, ok := s.syms[f]; !ok {
				s.syms[f] = int32(len(s.syms))
			}
		}
	}

	for _, c := range classes {
		row := make([]int8, len(s.syms))
		for i := range row {
			row[i] = -1
		}
		for i, f := range c.Fields {
			row[s.syms[f]] = int8(i)
		}
		s.fields = append(s.fields, row)
	}

	return s
}

// splitName cuts a qualified name at its last dot.
func splitName(qualified string) [2]string {
	i := strings.LastIndexByte(qualified, '.')
	return [2]string{qualified[:max(i, 0)], qualified[i+1:]}
}

// arena holds runs of values in pages, so that it grows without copying. The
// position of a run consists of the number of its page and its offset there.
type arena[T any] struct{ pages [][]T }

const (
	pageBits = 16
	pageSize = 1 << pageBits
)

// alloc returns n consecutive values and their position. They are not cleared; in
// a new page they are zero.
func (a *arena[T]) alloc(n int) (int, []T) {
	last := len(a.pages) - 1
	if last < 0 || len(a.pages[last])+n > cap(a.pages[last]) {
		last = a.grow(n)
	}
	p := a.pages[last]
	off := len(p)
	p = p[: off+n : cap(p)]
	a.pages[last] = p
	return last<<pageBits | off, p[off : off+n : off+n]
}

// grow makes room for n values in the last page and returns its number. The first
// page starts small and doubles, because most pickles are small.
func (a *arena[T]) grow(n int) int {
	last := len(a.pages) - 1
	switch {
	case last < 0:
		a.pages = append(a.pages, make([]T, 0, max(n, 64)))
	case last == 0 && len(a.pages[0])+n <= pageSize:
		p := a.pages[0]
		a.pages[0] = append(make([]T, 0, min(pageSize, 2*cap(p)+n)), p...)
	default:
		a.pages = append(a.pages, make([]T, 0, max(n, pageSize)))
	}

	return len(a.pages) - 1
}

// at returns the values from a position to the end of its page.
func (a *arena[T]) at(pos int) []T { return a.pages[pos>>pageBits][pos&(pageSize-1):] }

// ptr returns the value at a position, valid until the next alloc.
func (a *arena[T]) ptr(pos int) *T { return &a.pages[pos>>pageBits][pos&(pageSize-1)] }

// add appends a value and returns its position.
func (a *arena[T]) add(v T) int {
	pos, s := a.alloc(1)
	s[0] = v
	return pos
}

// len returns one more than the largest position, if each alloc was of one value.
func (a *arena[T]) len() int {
	last := len(a.pages) - 1
	if last < 0 {
		return 0
	}
	return last<<pageBits | len(a.pages[last])
}
