package pickle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"unicode/utf8"
)

// machine executes the opcodes of one pickle and records the result in the graph. It creates
// no objects, imports no modules and calls no functions. Its methods panic with a failure if
// the pickle is invalid.
type machine struct {
	*Graph
	pos   int
	stack []Cell
	floor int // the values below it are under the last mark
	marks []int
	memo  arena[Cell]
	names map[string]Cell // globals by module and name
	word  []byte          // buffer for lookups in names
	vary  []Operand       // see DecodeVarying
	next  int             // the next one of vary, or -1
}

// Parse returns the graph of the pickle at the start of data, and the length of
// the pickle. Instances of the classes become records. The graph refers to data,
// which must not change afterwards.
func Parse(data []byte, classes []Class, l *Limits) (g *Graph, n int, err error) {
	return parse(data, classes, nil, l)
}

// parse is Parse for a pickle with operands that vary.
func parse(data []byte, classes []Class, vary []Operand, l *Limits) (g *Graph, n int, err error) {
	defer Catch(&err)

	g = &Graph{data: data, account: newAccount(l.withDefaults(len(data))), shared: map[Cell]struct{}{}}
	g.ints.alloc(1) // the empty tuple
	if len(classes) > 0 {
		g.schema = newSchema(classes)
		g.records = make([]arena[Cell], len(classes))
		g.shared = nil
	}

	m := &machine{Graph: g, names: map[string]Cell{}, vary: vary}
	m.run()
	g.Root = m.pop()
	if len(m.stack) != 0 || len(m.marks) != 0 {
		m.malformed("%d values and %d marks are left at the end", len(m.stack), len(m.marks))
	}
	return g, m.pos, nil
}

// run executes opcodes up to STOP.
func (m *machine) run() {
	m.nextVarying()
	for {
		if m.pos == m.next {
			m.pushVarying()
			continue
		}
		switch op := m.byte(); op {
		case opStop:
			return
		case opMark:
			m.marks = append(m.marks, len(m.stack))
			m.floor = len(m.stack)
		case opPop:
			if m.floor == len(m.stack) && len(m.marks) > 0 {
				m.popMark()
			} else {
				m.pop()
			}
		case opPopMark:
			m.popTo()
		case opDup:
			m.pushShared(m.top())
		case opProto:
			if n := m.byte(); n > maxProtocol {
				m.unsupported("protocol %d", n)
			}
		case opFrame:
			if n := binary.LittleEndian.Uint64(m.take(8)); n > uint64(len(m.data)-m.pos) {
				m.malformed("a frame of %d bytes, %d are left", n, len(m.data)-m.pos)
			}

		case opMemoize:
			m.remember(m.top())
		case opBinGet:
			m.get(uint64(m.byte()))
		case opLongBinGet:
			m.get(uint64(m.uint32()))
		case opGet:
			m.get(m.memoNumber())
		case opBinPut:
			m.put(uint64(m.byte()))
		case opLongBinPut:
			m.put(uint64(m.uint32()))
		case opPut:
			m.put(m.memoNumber())

		case opNone:
			m.push(cellNone)
		case opNewTrue:
			m.push(cellTrue)
		case opNewFalse:
			m.push(cellFalse)
		case opBinInt1:
			m.push(cellOf(Int, int64(m.byte())))
		case opBinInt2:
			m.push(cellOf(Int, int64(binary.LittleEndian.Uint16(m.take(2)))))
		case opBinInt:
			m.push(cellOf(Int, int64(int32(m.uint32()))))
		case opLong1:
			m.long(1)
		case opLong4:
			m.long(4)
		case opInt, opLong:
			m.decimal(op)
		case opBinFloat:
			m.pushFloat(math.Float64frombits(binary.BigEndian.Uint64(m.take(8))))
		case opFloat:
			l := m.line()
			f, err := strconv.ParseFloat(string(bytes.TrimSpace(l)), 64)
			if err != nil && !math.IsInf(f, 0) {
				m.malformed("%.40q is not a float", l)
			}
			m.pushFloat(f)

		case opShortBinUnicode:
			m.pushStr(m.prefixed(1))
		case opBinUnicode:
			m.pushStr(m.prefixed(4))
		case opBinUnicode8:
			m.pushStr(m.prefixed(8))
		case opUnicode:
			m.pushStr(m.unquote(rawUnicodeEscape))
		case opShortBinString:
			m.pushString(m.prefixed(1))
		case opBinString:
			m.pushString(m.prefixed(4))
		case opString:
			m.pushString(m.unquote(quoted))
		case opShortBinBytes:
			m.pushBytes(m.prefixed(1))
		case opBinBytes:
			m.pushBytes(m.prefixed(4))
		case opBinBytes8:
			m.pushBytes(m.prefixed(8))
		case opByteArray8: // a call, as in the older protocols
			m.bytes = append(m.bytes, m.prefixed(8))
			m.call(m.global([]byte("builtins"), []byte("bytearray")), m.newTuple([]Cell{at(Bytes, len(m.bytes)-1)}), cellNone, false)

		case opEmptyTuple:
			m.push(cellEmpty)
		case opTuple1, opTuple2, opTuple3:
			m.tuple(len(m.stack) - int(op-opTuple1) - 1)
		case opTuple:
			m.tuple(m.popMark())
		case opEmptyList:
			m.pushSeq(List, nil, false)
		case opList:
			m.pushSeq(List, m.popTo(), false)
		case opEmptyDict:
			m.pushSeq(Dict, nil, false)
		case opDict:
			m.pushSeq(Dict, m.popTo(), false)
		case opEmptySet:
			m.pushSeq(Set, nil, false)
		case opFrozenSet:
			m.pushSeq(Set, m.popTo(), true)
		case opAppend:
			m.fill(List, len(m.stack)-1)
		case opAppends:
			m.fill(List, m.popMark())
		case opSetItem:
			m.fill(Dict, len(m.stack)-2)
		case opSetItems:
			m.fill(Dict, m.popMark())
		case opAddItems:
			m.fill(Set, m.popMark())

		case opGlobal:
			m.pushGlobal()
		case opStackGlobal:
			name, ok := m.Text(m.pop())
			module, ok2 := m.Text(m.pop())
			if !ok || !ok2 {
				m.malformed("a name that is not a string")
			}
			m.pushMemo(m.global(module, name))
		case opReduce:
			args := m.pop()
			m.call(m.pop(), args, cellNone, false)
		case opNewObj:
			args := m.pop()
			m.call(m.pop(), args, cellNone, true)
		case opNewObjEx:
			kwargs := m.pop()
			if kwargs.Kind() != Dict {
				m.malformed("named arguments that are not a dict")
			}
			args := m.pop()
			m.call(m.pop(), args, kwargs, true)
		case opInst:
			m.pushGlobal()
			callee := m.pop()
			m.call(callee, m.newTuple(m.popTo()), cellNone, false)
		case opObj:
			items := m.popTo()
			if len(items) == 0 {
				m.malformed("an object without a class")
			}
			m.call(items[0], m.newTuple(items[1:]), cellNone, false)
		case opBuild:
			m.build()
		case opPersID:
			l := m.line()
			m.persistent(m.newStr(span{off: m.pos - 1 - len(l), len: uint32(len(l))}))
		case opBinPersID:
			m.persistent(m.pop())

		case opExt1, opExt2, opExt4:
			m.unsupported("an extension code, which only the program that wrote it can resolve")
		case opNextBuffer, opReadonlyBuffer:
			m.unsupported("an out-of-band buffer")
		default:
			m.malformed("opcode %#02x", op)
		}
	}
}

func (m *machine) malformed(format string, args ...any) {
	Fail("%w: before byte %d: %s", ErrMalformed, m.pos, fmt.Sprintf(format, args...))
}

func (m *machine) unsupported(format string, args ...any) {
	Fail("%w: before byte %d: %s", ErrUnsupported, m.pos, fmt.Sprintf(format, args...))
}

func (m *machine) push(c Cell) { m.stack = append(m.stack, c) }

// pushMemo pushes a value and executes MEMOIZE if it is the next opcode, as it is
// after nearly every such value.
func (m *machine) pushMemo(c Cell) {
	m.push(c)
	if m.pos < len(m.data) && m.data[m.pos] == opMemoize {
		m.pos++
		m.remember(c)
	}
}

// need checks that there are n values above the last mark.
func (m *machine) need(n int) {
	if len(m.stack)-m.floor < n {
		m.tooFew(n)
	}
}

//go:noinline
func (m *machine) tooFew(n int) {
	m.malformed("%d values on the stack, %d needed", len(m.stack)-m.floor, n)
}

func (m *machine) top() Cell {
	m.need(1)
	return m.stack[len(m.stack)-1]
}

func (m *machine) pop() Cell {
	c := m.top()
	m.stack = m.stack[:len(m.stack)-1]
	return c
}

// popMark removes the last mark and returns where the values above it begin.
func (m *machine) popMark() int {
	n := len(m.marks) - 1
	if n < 0 {
		m.malformed("no mark on the stack")
	}

	from := m.marks[n]
	m.marks, m.floor = m.marks[:n], 0
	if n > 0 {
		m.floor = m.marks[n-1]
	}
	return from
}

// popTo removes the last mark and returns the values above it, which are valid
// until the next push.
func (m *machine) popTo() []Cell {
	from := m.popMark()
	items := m.stack[from:]
	m.stack = m.stack[:from]
	return items
}

// byte returns the next byte of the input.
func (m *machine) byte() byte {
	if m.pos >= len(m.data) {
		m.cutOff()
	}
	m.pos++
	return m.data[m.pos-1]
}

//go:noinline
func (m *machine) cutOff() { m.malformed("it is cut off") }

// take returns the next n bytes of the input.
func (m *machine) take(n int) []byte {
	if n > len(m.data)-m.pos {
		m.cutOff()
	}
	m.pos += n
	return m.data[m.pos-n : m.pos]
}

func (m *machine) uint32() uint32 { return binary.LittleEndian.Uint32(m.take(4)) }

// prefixed reads a length of size bytes and returns the span of as many bytes,
// which follow it.
func (m *machine) prefixed(size int) span {
	var n uint64
	switch size {
	case 1:
		n = uint64(m.byte())
	case 4:
		n = uint64(m.uint32())
	default:
		n = binary.LittleEndian.Uint64(m.take(8))
	}

	if n > uint64(len(m.data)-m.pos) {
		m.malformed("a length of %d, %d bytes are left", n, len(m.data)-m.pos)
	}
	if n > maxSpan {
		Fail("%w: %d bytes at once, at most %d", ErrLimit, n, maxSpan)
	}
	m.pos += int(n)
	return span{off: m.pos - int(n), len: uint32(n)}
}

// line returns the next line of the input, without its end.
func (m *machine) line() []byte {
	i := bytes.IndexByte(m.data[m.pos:], '\n')
	if i < 0 || i > maxSpan {
		m.cutOff()
	}
	m.pos += i + 1
	return m.data[m.pos-i-1 : m.pos-1]
}

// persistent pushes the object of a persistent id. PyTorch's legacy format also
// uses ids of the form ("module", class, source file, source) for classes of
// modules: they stand for the class.
func (m *machine) persistent(id Cell) {
	if t, _ := m.List(id); id.Kind() == Tuple && len(t) == 4 && t[1].Kind() == Global {
		if word, _ := m.Text(t[0]); string(word) == "module" {
			m.pushMemo(t[1])
			return
		}
	}
	m.charge(cellBytes)
	m.pids = append(m.pids, id)
	m.pushMemo(at(Persistent, len(m.pids)-1))
}

// remember stores a value under the next memo number.
func (m *machine) remember(c Cell) { m.memo.add(reusable(c)) }

// reusable returns the memo's entry for c. The state of a record loses its record,
// because it cannot be used again.
func reusable(c Cell) Cell {
	if c.Kind() == State {
		return Cell(State)
	}
	return c
}

// get pushes the memo's entry i.
func (m *machine) get(i uint64) {
	c := Unset
	if i < uint64(m.memo.len()) {
		c = *m.memo.ptr(int(i))
	}
	if c == Unset {
		m.malformed("memo entry %d is empty", i)
	}

	if rest := m.data[m.pos:]; c.Kind() == Global && len(rest) > 1 && rest[0] == opEmptyTuple && rest[1] == opNewObj {
		if class := m.globals[c.pos()].class; class >= 0 { // a shortcut: this is frequent
			m.pos += 2
			m.pushRecord(class)
			return
		}
	}
	m.pushShared(c)
}

// pushShared pushes a value that occurs more than once.
func (m *machine) pushShared(c Cell) {
	m.push(c)
	if k := c.Kind(); m.shared == nil || k < Bytes || k == Global {
		return
	}
	before := len(m.shared)
	m.shared[c] = struct{}{}
	m.charge(madeBytes * (len(m.shared) - before))
}

// put stores the topmost value under the number i. Numbers are assigned in order
// and each takes at least one byte, so i cannot exceed the position.
func (m *machine) put(i uint64) {
	c := m.top()
	if i > uint64(m.pos) {
		m.malformed("memo entry %d is out of order", i)
	}
	for uint64(m.memo.len()) <= i {
		m.memo.add(Unset)
	}
	*m.memo.ptr(int(i)) = reusable(c)
}

// memoNumber reads a memo number of protocol 0.
func (m *machine) memoNumber() uint64 {
	l := m.line()
	i, err := strconv.ParseUint(string(l), 10, 32)
	if err != nil {
		m.malformed("%.20q is not a memo number", l)
	}
	return i
}

func (m *machine) pushFloat(f float64) {
	m.floats = append(m.floats, f)
	m.push(at(Float, len(m.floats)-1))
}

// long reads an integer in two's complement, after its length, which has size bytes.
func (m *machine) long(size int) {
	s := m.prefixed(size)
	if s.len <= 7 {
		m.push(cellOf(Int, littleEndian(m.text(s))))
		return
	}
	m.bigs = append(m.bigs, s)
	m.push(at(Big, len(m.bigs)-1))
}

// littleEndian returns the integer in at most eight bytes.
func littleEndian(b []byte) int64 {
	var v uint64
	for i, x := range b {
		v |= uint64(x) << (8 * i)
	}
	shift := 64 - 8*len(b)
	return int64(v<<shift) >> shift
}

// decimal reads the integers and booleans of protocol 0.
func (m *machine) decimal(op byte) {
	l := m.line()
	switch {
	case op == opInt && string(l) == "00":
		m.push(cellFalse)
		return
	case op == opInt && string(l) == "01":
		m.push(cellTrue)
		return
	case len(l) > 2*maxBig:
		m.malformed("an integer of %d digits", len(l))
	}

	n, ok := new(big.Int).SetString(string(bytes.TrimSuffix(bytes.TrimSpace(l), []byte("L"))), 10)
	if !ok {
		m.malformed("%.40q is not an integer", l)
	}

	if n.IsInt64() && n.Int64() >= minInt && n.Int64() <= maxInt {
		m.push(cellOf(Int, n.Int64()))
		return
	}

	m.bigs = append(m.bigs, m.keep(twosComplement(n)))
	m.push(at(Big, len(m.bigs)-1))
}

// unquote reads a line and returns the string that it encodes.
func (m *machine) unquote(decode func([]byte) ([]byte, bool)) span {
	l := m.line()
	b, ok := decode(l)
	if !ok {
		m.malformed("%.40q is not a string", l)
	}
	return m.keep(b)
}

// keep stores text that does not occur in the input literally.
func (m *machine) keep(b []byte) span {
	if len(b) == 0 {
		return span{}
	}
	m.extra = append(m.extra, b...)
	return span{off: len(m.data) + len(m.extra) - len(b), len: uint32(len(b))}
}

func (m *machine) pushStr(s span) { m.pushMemo(m.newStr(s)) }

// pushString pushes a string of Python 2: bytes if it is not text.
func (m *machine) pushString(s span) {
	if utf8.Valid(m.text(s)) {
		m.pushStr(s)
	} else {
		m.pushBytes(s)
	}
}

// newStr adds the string at s.
func (m *machine) newStr(s span) Cell {
	if b := m.text(s); !utf8.Valid(b) && !validWTF8(b) {
		m.malformed("a string that is not UTF-8")
	}
	m.charge(spanBytes)
	m.strs = append(room(m.strs, 1), s)
	return at(Str, len(m.strs)-1)
}

func (m *machine) pushBytes(s span) {
	m.charge(spanBytes)
	m.bytes = append(m.bytes, s)
	m.pushMemo(at(Bytes, len(m.bytes)-1))
}

// room returns s with room for n more. It doubles large slices, because append
// would grow them by less and the final size is unknown.
func room[T any](s []T, n int) []T {
	if cap(s)-len(s) >= n {
		return s
	}
	return append(make([]T, 0, len(s)+max(n, len(s))), s...)
}

// The opcodes of protocols 0 to 5.
const (
	opMark           = '('
	opStop           = '.'
	opPop            = '0'
	opPopMark        = '1'
	opDup            = '2'
	opFloat          = 'F'
	opInt            = 'I'
	opBinInt         = 'J'
	opBinInt1        = 'K'
	opLong           = 'L'
	opBinInt2        = 'M'
	opNone           = 'N'
	opPersID         = 'P'
	opBinPersID      = 'Q'
	opReduce         = 'R'
	opString         = 'S'
	opBinString      = 'T'
	opShortBinString = 'U'
	opUnicode        = 'V'
	opBinUnicode     = 'X'
	opAppend         = 'a'
	opBuild          = 'b'
	opGlobal         = 'c'
	opDict           = 'd'
	opEmptyDict      = '}'
	opAppends        = 'e'
	opGet            = 'g'
	opBinGet         = 'h'
	opInst           = 'i'
	opLongBinGet     = 'j'
	opList           = 'l'
	opEmptyList      = ']'
	opObj            = 'o'
	opPut            = 'p'
	opBinPut         = 'q'
	opLongBinPut     = 'r'
	opSetItem        = 's'
	opTuple          = 't'
	opEmptyTuple     = ')'
	opSetItems       = 'u'
	opBinFloat       = 'G'

	// Protocol 2.
	opProto    = 0x80
	opNewObj   = 0x81
	opExt1     = 0x82
	opExt2     = 0x83
	opExt4     = 0x84
	opTuple1   = 0x85
	opTuple2   = 0x86
	opTuple3   = 0x87
	opNewTrue  = 0x88
	opNewFalse = 0x89
	opLong1    = 0x8a
	opLong4    = 0x8b

	// Protocol 3.
	opBinBytes      = 'B'
	opShortBinBytes = 'C'

	// Protocol 4.
	opShortBinUnicode = 0x8c
	opBinUnicode8     = 0x8d
	opBinBytes8       = 0x8e
	opEmptySet        = 0x8f
	opAddItems        = 0x90
	opFrozenSet       = 0x91
	opNewObjEx        = 0x92
	opStackGlobal     = 0x93
	opMemoize         = 0x94
	opFrame           = 0x95

	// Protocol 5.
	opByteArray8     = 0x96
	opNextBuffer     = 0x97
	opReadonlyBuffer = 0x98
)

const maxProtocol = 5
