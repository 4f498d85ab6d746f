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

// machine executes the opcodes of one pickle and records the result in the graph.
// It builds, imports and calls nothing.
type machine struct {
	*Graph
	pos   int
	stack []Cell
	marks []int
	memo  memo
	wides []Cell
	lim   Limits
	names map[string]Cell // globals by module and name
	word  []byte          // buffer for lookups in names
}

// Parse returns the graph of the pickle at the start of data, and the length of
// the pickle. Instances of the classes become records. The graph refers to data,
// which must not change afterwards.
func Parse(data []byte, classes []Class, l *Limits) (*Graph, int, error) {
	lim := l.withDefaults(len(data))
	g := &Graph{data: data, account: newAccount(&lim), shared: map[Cell]struct{}{}}
	g.ints.alloc(1) // the empty tuple
	if len(classes) > 0 {
		g.schema = newSchema(classes)
		g.records = make([]arena[Cell], len(classes))
		g.shared = nil
	}
	m := &machine{Graph: g, lim: lim, names: map[string]Cell{}}
	if err := m.run(); err != nil {
		return nil, 0, err
	}
	return g, m.pos, nil
}

// run executes opcodes up to the end of the pickle. It handles the frequent ones
// itself and leaves the others to exec.
func (m *machine) run() error {
	for {
		if m.pos >= len(m.data) {
			return m.truncated()
		}
		op := m.data[m.pos]
		m.pos++
		switch op {
		case opBinGet:
			if m.pos >= len(m.data) {
				return m.truncated()
			}
			i := uint64(m.data[m.pos])
			m.pos++
			if err := m.get(i); err != nil {
				return err
			}
		case opBinInt1:
			if m.pos >= len(m.data) {
				return m.truncated()
			}
			m.push(cellOf(Int, int64(m.data[m.pos])))
			m.pos++
		case opMark:
			m.marks = append(m.marks, len(m.stack))
		case opEmptyTuple:
			m.push(cellEmpty)
		case opMemoize:
			if err := m.memoize(); err != nil {
				return err
			}
		case opStop:
			return m.stop()
		default:
			if err := m.exec(op); err != nil {
				return err
			}
		}
	}
}

func (m *machine) stop() error {
	if err := m.need(1); err != nil {
		return err
	}
	m.Root = m.pop()
	if len(m.stack) != 0 || len(m.marks) != 0 {
		return m.malformed("%d values and %d marks are left at the end", len(m.stack), len(m.marks))
	}
	return nil
}

func (m *machine) push(c Cell) { m.stack = append(m.stack, c) }

// pop removes the topmost value. The caller must have called need.
func (m *machine) pop() Cell {
	c := m.stack[len(m.stack)-1]
	m.stack = m.stack[:len(m.stack)-1]
	return c
}

func (m *machine) top() Cell { return m.stack[len(m.stack)-1] }

// need checks that there are n values above the last mark.
func (m *machine) need(n int) error {
	floor := 0
	if len(m.marks) > 0 {
		floor = m.marks[len(m.marks)-1]
	}
	if len(m.stack)-floor < n {
		return m.malformed("%d values on the stack, %d needed", len(m.stack)-floor, n)
	}
	return nil
}

// popMark removes the last mark and returns where the values above it begin.
func (m *machine) popMark() (int, error) {
	if len(m.marks) == 0 {
		return 0, m.malformed("no mark on the stack")
	}
	i := m.marks[len(m.marks)-1]
	m.marks = m.marks[:len(m.marks)-1]
	return i, nil
}

// popTo removes the last mark and returns the values above it, which are valid
// until the next push.
func (m *machine) popTo() ([]Cell, error) {
	i, err := m.popMark()
	if err != nil {
		return nil, err
	}
	items := m.stack[i:]
	m.stack = m.stack[:i]
	return items, nil
}

// take returns the next n bytes of the input.
func (m *machine) take(n int) ([]byte, error) {
	if n < 0 || n > len(m.data)-m.pos {
		return nil, m.malformed("%d bytes wanted, %d left", n, len(m.data)-m.pos)
	}
	b := m.data[m.pos : m.pos+n]
	m.pos += n
	return b, nil
}

// length reads a length of size bytes and checks it against the rest of the
// input.
func (m *machine) length(size int) (int, error) {
	b, err := m.take(size)
	if err != nil {
		return 0, err
	}
	var n uint64
	switch size {
	case 1:
		n = uint64(b[0])
	case 4:
		n = uint64(binary.LittleEndian.Uint32(b))
	default:
		n = binary.LittleEndian.Uint64(b)
	}
	if n > uint64(len(m.data)-m.pos) {
		return 0, m.malformed("a length of %d, %d bytes are left", n, len(m.data)-m.pos)
	}
	if n > maxSpan {
		return 0, fmt.Errorf("%w: %d bytes at once, at most %d", ErrLimit, n, maxSpan)
	}
	return int(n), nil
}

// line returns the next line of the input, without its end.
func (m *machine) line() ([]byte, error) {
	i := bytes.IndexByte(m.data[m.pos:], '\n')
	if i < 0 || i > maxSpan {
		return nil, m.truncated()
	}
	l := m.data[m.pos : m.pos+i]
	m.pos += i + 1
	return l, nil
}

func (m *machine) malformed(format string, args ...any) error {
	return fmt.Errorf("%w: before byte %d: %s", ErrMalformed, m.pos, fmt.Sprintf(format, args...))
}

func (m *machine) unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: before byte %d: %s", ErrUnsupported, m.pos, fmt.Sprintf(format, args...))
}

func (m *machine) truncated() error { return m.malformed("it is cut off") }

// exec executes an opcode that run does not handle.
func (m *machine) exec(op byte) error {
	switch op {
	case opLongBinGet, opGet, opPut, opBinPut, opLongBinPut:
		return m.memoOp(op)
	case opBinInt, opBinInt2, opLong1, opLong4, opInt, opLong, opFloat, opBinFloat:
		return m.number(op)
	case opNone, opNewTrue, opNewFalse:
		m.push(constant(op))
		return nil
	case opShortBinUnicode, opBinUnicode, opBinUnicode8, opUnicode, opString, opBinString, opShortBinString:
		return m.text0(op)
	case opShortBinBytes, opBinBytes, opBinBytes8:
		return m.bytesOp(op)
	case opByteArray8:
		return m.byteArray()
	case opTuple1, opTuple2, opTuple3, opTuple:
		return m.tupleOp(op)
	case opEmptyList, opEmptyDict, opEmptySet, opList, opDict, opFrozenSet:
		return m.container(op)
	case opAppend, opAppends, opSetItem, opSetItems, opAddItems:
		return m.fill(op)
	case opGlobal, opStackGlobal:
		return m.globalOp(op)
	case opNewObj, opNewObjEx, opReduce, opInst, opObj:
		return m.call(op)
	case opBuild:
		return m.build()
	case opPersID, opBinPersID:
		return m.persistent(op)
	case opPop, opPopMark, opDup:
		return m.shuffle(op)
	case opProto, opFrame:
		return m.preamble(op)
	case opExt1, opExt2, opExt4:
		return m.unsupported("an extension code, which only the program that wrote it can resolve")
	case opNextBuffer, opReadonlyBuffer:
		return m.unsupported("an out-of-band buffer")
	}
	return m.malformed("opcode %#02x", op)
}

func constant(op byte) Cell {
	switch op {
	case opNewTrue:
		return cellTrue
	case opNewFalse:
		return cellFalse
	}
	return cellNone
}

// shuffle executes the opcodes that only rearrange the stack.
func (m *machine) shuffle(op byte) error {
	if op == opPopMark {
		_, err := m.popTo()
		return err
	}
	if n := len(m.marks); op == opPop && n > 0 && m.marks[n-1] == len(m.stack) {
		m.marks = m.marks[:n-1]
		return nil
	}
	if err := m.need(1); err != nil {
		return err
	}
	if op == opDup {
		return m.pushShared(m.top())
	}
	m.pop()
	return nil
}

// preamble executes the opcodes that only describe the following bytes.
func (m *machine) preamble(op byte) error {
	if op == opProto {
		b, err := m.take(1)
		if err == nil && b[0] > maxProtocol {
			return m.unsupported("protocol %d", b[0])
		}
		return err
	}
	b, err := m.take(8)
	if err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint64(b); n > uint64(len(m.data)-m.pos) {
		return m.malformed("a frame of %d bytes, %d are left", n, len(m.data)-m.pos)
	}
	return nil
}

func (m *machine) persistent(op byte) error {
	var id Cell
	if op == opPersID {
		l, err := m.line()
		if err != nil {
			return err
		}
		if id, err = m.newStr(span{off: m.pos - 1 - len(l), len: uint32(len(l))}, l); err != nil {
			return err
		}
	} else {
		if err := m.need(1); err != nil {
			return err
		}
		id = m.pop()
	}
	if class, ok := m.savedClass(id); ok {
		m.push(class)
		return m.memoizeNext()
	}
	if err := m.charge(cellBytes); err != nil {
		return err
	}
	m.pids = append(m.pids, id)
	m.push(at(Persistent, len(m.pids)-1))
	return m.memoizeNext()
}

// savedClass returns the class in a persistent id of the form ("module", class,
// source file, source), which PyTorch's legacy format uses for classes of
// modules.
func (m *machine) savedClass(id Cell) (Cell, bool) {
	if id.Kind() != Tuple {
		return 0, false
	}
	t, _ := m.List(id)
	if len(t) != 4 || t[1].Kind() != Global {
		return 0, false
	}
	word, _ := m.Text(t[0])
	return t[1], string(word) == "module"
}

// memoize stores the topmost value under the next memo number.
func (m *machine) memoize() error {
	if err := m.need(1); err != nil {
		return err
	}
	return m.remember(m.top())
}

// memoizeNext executes MEMOIZE if it is the next opcode, as it is after nearly
// every value.
func (m *machine) memoizeNext() error {
	if m.pos >= len(m.data) || m.data[m.pos] != opMemoize {
		return nil
	}
	m.pos++
	return m.remember(m.top())
}

// room returns s with room for n more. It doubles large slices, because append
// would grow them by less and the final size is unknown.
func room[T any](s []T, n int) []T {
	if cap(s)-len(s) >= n {
		return s
	}
	return append(make([]T, 0, len(s)+max(n, len(s))), s...)
}

func (m *machine) remember(c Cell) error {
	m.memo.append(m.handle(c))
	return nil
}

// handle returns c in four bytes.
func (m *machine) handle(c Cell) handle {
	if c.Kind() == State {
		return handle(State) // it cannot be used again
	}
	p := c.payload()
	if p >= 0 && p < maxHandle {
		return handle(c)
	}
	m.wides = append(m.wides, c)
	return handle(at(wide, len(m.wides)-1))
}

// recall is the inverse of handle.
func (m *machine) recall(h handle) Cell {
	c := Cell(h)
	if c.Kind() == wide {
		return m.wides[c.pos()]
	}
	return c
}

// lookup returns the memo's entry i.
func (m *machine) lookup(i uint64) (Cell, bool) {
	if i >= uint64(m.memo.len) {
		return 0, false
	}
	h := *m.memo.at(int(i))
	if h == free {
		return 0, false
	}
	return m.recall(h), true
}

// get pushes the memo's entry i.
func (m *machine) get(i uint64) error {
	c, ok := m.lookup(i)
	if !ok {
		return m.malformed("memo entry %d is empty", i)
	}
	if c.Kind() == Global && m.pos+1 < len(m.data) && m.data[m.pos] == opEmptyTuple && m.data[m.pos+1] == opNewObj {
		if class := m.globals[c.pos()].class; class >= 0 {
			m.pos += 2
			return m.newRecord(class)
		}
	}
	return m.pushShared(c)
}

// pushShared pushes a value that occurs more than once.
func (m *machine) pushShared(c Cell) error {
	m.push(c)
	if k := c.Kind(); m.shared == nil || k < Bytes || k == Global {
		return nil
	}
	before := len(m.shared)
	m.shared[c] = struct{}{}
	return m.charge(madeBytes * (len(m.shared) - before))
}

// put stores the topmost value under the number i. Numbers are assigned in order
// and each takes at least one byte, so i cannot exceed the position.
func (m *machine) put(i uint64) error {
	if err := m.need(1); err != nil {
		return err
	}
	if i > uint64(m.pos) {
		return m.malformed("memo entry %d is out of order", i)
	}
	for uint64(m.memo.len) <= i {
		m.memo.append(free)
	}
	*m.memo.at(int(i)) = m.handle(m.top())
	return nil
}

// memoOp executes the opcodes with a memo number.
func (m *machine) memoOp(op byte) error {
	var i uint64
	switch op {
	case opBinPut, opLongBinPut, opLongBinGet:
		size := 4
		if op == opBinPut {
			size = 1
		}
		b, err := m.take(size)
		if err != nil {
			return err
		}
		i = uint64(b[0])
		if size == 4 {
			i = uint64(binary.LittleEndian.Uint32(b))
		}
	default:
		l, err := m.line()
		if err != nil {
			return err
		}
		if i, err = strconv.ParseUint(string(l), 10, 32); err != nil {
			return m.malformed("%.20q is not a memo number", l)
		}
	}
	if op == opGet || op == opLongBinGet {
		return m.get(i)
	}
	return m.put(i)
}

// number executes the opcodes of integers and floats.
func (m *machine) number(op byte) error {
	switch op {
	case opBinInt:
		b, err := m.take(4)
		if err == nil {
			m.push(cellOf(Int, int64(int32(binary.LittleEndian.Uint32(b)))))
		}
		return err
	case opBinInt2:
		b, err := m.take(2)
		if err == nil {
			m.push(cellOf(Int, int64(binary.LittleEndian.Uint16(b))))
		}
		return err
	case opBinFloat:
		b, err := m.take(8)
		if err == nil {
			m.pushFloat(math.Float64frombits(binary.BigEndian.Uint64(b)))
		}
		return err
	case opLong1, opLong4:
		return m.long(op)
	}
	l, err := m.line()
	if err != nil {
		return err
	}
	if op == opFloat {
		f, err := strconv.ParseFloat(string(bytes.TrimSpace(l)), 64)
		if err != nil && !math.IsInf(f, 0) {
			return m.malformed("%.40q is not a float", l)
		}
		m.pushFloat(f)
		return nil
	}
	return m.decimal(op, l)
}

func (m *machine) pushFloat(f float64) {
	m.floats = append(m.floats, f)
	m.push(at(Float, len(m.floats)-1))
}

// long reads an integer in two's complement.
func (m *machine) long(op byte) error {
	size := 1
	if op == opLong4 {
		size = 4
	}
	n, err := m.length(size)
	if err != nil {
		return err
	}
	b, err := m.take(n)
	if err != nil {
		return err
	}
	if n <= 7 {
		m.push(cellOf(Int, littleEndian(b)))
		return nil
	}
	m.bigs = append(m.bigs, m.taken(n))
	m.push(at(Big, len(m.bigs)-1))
	return nil
}

// littleEndian returns the integer in at most seven bytes.
func littleEndian(b []byte) int64 {
	var v uint64
	for i, x := range b {
		v |= uint64(x) << (8 * i)
	}
	shift := 64 - 8*len(b)
	return int64(v<<shift) >> shift
}

// decimal reads the integers and booleans of protocol 0.
func (m *machine) decimal(op byte, l []byte) error {
	switch {
	case op == opInt && string(l) == "00":
		m.push(cellFalse)
		return nil
	case op == opInt && string(l) == "01":
		m.push(cellTrue)
		return nil
	case len(l) > 2*maxBig:
		return m.malformed("an integer of %d digits", len(l))
	}
	l = bytes.TrimSuffix(bytes.TrimSpace(l), []byte("L"))
	if v, err := strconv.ParseInt(string(l), 10, 64); err == nil && v >= minInt && v <= maxInt {
		m.push(cellOf(Int, v))
		return nil
	}
	n, ok := new(big.Int).SetString(string(l), 10)
	if !ok {
		return m.malformed("%.40q is not an integer", l)
	}
	m.bigs = append(m.bigs, m.keep(twosComplement(n)))
	m.push(at(Big, len(m.bigs)-1))
	return nil
}

// taken returns the span of the n bytes that were just taken.
func (m *machine) taken(n int) span { return span{off: m.pos - n, len: uint32(n)} }

// keep stores text that does not occur in the input literally.
func (m *machine) keep(b []byte) span {
	s := span{off: len(m.data) + len(m.extra), len: uint32(len(b))}
	if len(b) == 0 {
		return span{}
	}
	m.extra = append(m.extra, b...)
	return s
}

// text0 executes the opcodes of strings.
func (m *machine) text0(op byte) error {
	var b []byte
	var err error
	switch op {
	case opUnicode, opString:
		return m.textLine(op)
	case opBinUnicode8:
		b, err = m.prefixed(8)
	case opBinUnicode, opBinString:
		b, err = m.prefixed(4)
	default:
		b, err = m.prefixed(1)
	}
	if err != nil {
		return err
	}
	if (op == opBinString || op == opShortBinString) && !utf8.Valid(b) {
		return m.pushBytes(m.taken(len(b))) // a Python 2 string that is not text
	}
	c, err := m.newStr(m.taken(len(b)), b)
	if err != nil {
		return err
	}
	m.push(c)
	return m.memoizeNext()
}

// prefixed returns bytes that are preceded by their length.
func (m *machine) prefixed(size int) ([]byte, error) {
	n, err := m.length(size)
	if err != nil {
		return nil, err
	}
	return m.take(n)
}

// textLine reads the strings of protocol 0.
func (m *machine) textLine(op byte) error {
	l, err := m.line()
	if err != nil {
		return err
	}
	var b []byte
	var ok bool
	if op == opUnicode {
		b, ok = rawUnicodeEscape(l)
	} else {
		b, ok = quoted(l)
	}
	if !ok {
		return m.malformed("%.40q is not a string", l)
	}
	s := m.keep(b)
	if op == opString && !utf8.Valid(b) {
		return m.pushBytes(s)
	}
	c, err := m.newStr(s, b)
	if err != nil {
		return err
	}
	m.push(c)
	return nil
}

// newStr adds the string with the bytes b, which are at s.
func (m *machine) newStr(s span, b []byte) (Cell, error) {
	if !utf8.Valid(b) && !validWTF8(b) {
		return 0, m.malformed("a string that is not UTF-8")
	}
	m.strs = append(room(m.strs, 1), s)
	return at(Str, len(m.strs)-1), m.charge(spanBytes)
}

func (m *machine) bytesOp(op byte) error {
	size := 8
	switch op {
	case opShortBinBytes:
		size = 1
	case opBinBytes:
		size = 4
	}
	b, err := m.prefixed(size)
	if err != nil {
		return err
	}
	return m.pushBytes(m.taken(len(b)))
}

// byteArray adds a bytearray as the call that the older protocols write.
func (m *machine) byteArray() error {
	b, err := m.prefixed(8)
	if err != nil {
		return err
	}
	m.bytes = append(m.bytes, m.taken(len(b)))
	args, err := m.newTuple([]Cell{at(Bytes, len(m.bytes)-1)})
	if err != nil {
		return err
	}
	callee, err := m.global([]byte("builtins"), []byte("bytearray"))
	if err != nil {
		return err
	}
	return m.make(callee, args, cellNone, false)
}

func (m *machine) pushBytes(s span) error {
	if err := m.charge(spanBytes); err != nil {
		return err
	}
	m.bytes = append(m.bytes, s)
	m.push(at(Bytes, len(m.bytes)-1))
	return m.memoizeNext()
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
