package pickle

// Cell is a value of a Graph in eight bytes: a kind, and an integer that is the
// value itself or its position in one of the graph's tables. It means nothing
// without its graph.
type Cell uint64

// Kind says what a Cell is.
type Kind uint8

// The kinds.
const (
	// None is Python's None.
	None Kind = iota
	// Bool is True or False.
	Bool
	// Int is an integer of at most 58 bits.
	Int
	// Big is an integer beyond that.
	Big
	// Float is a float.
	Float
	// Str is a string.
	Str
	// Bytes are bytes. A bytearray is an Object.
	Bytes
	// Global is the name of something.
	Global
	// Tuple is a tuple that is none of the next two.
	Tuple
	// Ints is a tuple of integers of at most 58 bits, or the empty tuple.
	Ints
	// IntsTuple is a tuple with one Ints in it.
	IntsTuple
	// Size is a torch.Size.
	Size
	// List is a list.
	List
	// Dict is a dict.
	Dict
	// Set is a set or a frozenset.
	Set
	// Object is what calling a name gives.
	Object
	// Persistent is what a persistent id stands for.
	Persistent
	// State is the dict that becomes the fields of a record. It has no other
	// use: whoever meets one has met a pickle that no library writes.
	State

	wide // in the memo alone: a cell that does not fit a handle

	// Record is the kind of the records of a schema's first class; those of the
	// class i have the kind Record+i.
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

// Kind returns what c is.
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
	// cellEmpty is the empty tuple: the ints of every graph begin with it.
	cellEmpty = Cell(Ints)
)

// handle is a cell in four bytes, for the memo.
type handle uint32

// free marks an entry of the memo that was never written.
const free handle = 1<<32 - 1

// maxHandle is the first payload that a handle does not hold.
const maxHandle = 1<<(32-kindBits) - 1

// String says in Python's words what a value of that kind is.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "a record"
}

var kindNames = [...]string{
	None: "None", Bool: "a bool", Int: "an int", Big: "an int", Float: "a float", Str: "a str", Bytes: "bytes",
	Global: "a name", Tuple: "a tuple", Ints: "a tuple", IntsTuple: "a tuple", Size: "a torch.Size", List: "a list",
	Dict: "a dict", Set: "a set", Object: "an object", Persistent: "a persistent id", State: "a state", wide: "not set",
}
