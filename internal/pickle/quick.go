package pickle

import "encoding/binary"

// quick reads ahead: it recognises the few sequences of opcodes that the fields
// of records consist of, and reads their values without the stack. Whatever it
// does not recognise it leaves to the machine, in the state in which the machine
// would be without it. One chunk of a checkpoint takes some seventy opcodes, and
// there may be millions: this is where decoding metadata spends its time.
type quick struct {
	*machine
	p int // the position in the input
}

const (
	// maxQuick bounds the fields and the dimensions that quick reads.
	maxQuick = 8
	// margin is how many bytes are left at least where quick reads a name or a
	// number without another look at the end.
	margin = 32
)

// quickState reads the names and values that follow the empty state of a new
// record, up to its BUILD.
func (m *machine) quickState(class int, fields []Cell) error {
	if m.pos >= len(m.data) || m.data[m.pos] != opMark {
		return nil
	}
	q := quick{m, m.pos + 1}
	row := m.schema.fields[class]
	var seen [2 * maxQuick]Cell
	n := 0
	for n < len(seen) && len(q.data)-q.p >= margin {
		start, remembered := q.p, m.memo.len
		if d := q.data[q.p:]; d[0] == opSetItems && d[1] == opBuild {
			for i := 0; i < n; i += 2 {
				fields[seen[i]] = seen[i+1]
			}
			m.pop() // the state
			m.pos = q.p + 2
			return nil
		}
		key, ok := q.reference()
		field := int8(-1)
		if ok && key.Kind() == Str {
			field = m.fieldOf(key, row)
		}
		var v Cell
		if ok = field >= 0; ok {
			v, ok = q.value()
		}
		if !ok {
			q.p = start
			m.memo.truncate(remembered)
			break
		}
		seen[n], seen[n+1] = Cell(field), v
		n += 2
	}
	return m.resume(class, seen[:n], q.p)
}

// resume puts the machine in the state after the pairs of fields and values.
func (m *machine) resume(class int, pairs []Cell, pos int) error {
	m.marks = append(m.marks, len(m.stack))
	for i := 0; i < len(pairs); i += 2 {
		name := m.keep([]byte(m.schema.classes[class].Fields[pairs[i]]))
		m.strs = append(m.strs, name)
		m.push(at(Str, len(m.strs)-1))
		m.push(pairs[i+1])
	}
	m.pos = pos
	return nil
}

// fieldOf returns the field of a class with that name, or -1.
func (m *machine) fieldOf(key Cell, row []int8) int8 {
	s := m.strs[key.pos()].sym
	if s == 0 {
		n, err := m.symbol(key)
		if err != nil {
			return -1
		}
		s = n + 1
	}
	if s <= 0 {
		return -1
	}
	return row[s-1]
}

// reference reads a number of the memo and returns what is there.
func (q *quick) reference() (Cell, bool) {
	d := q.data[q.p:]
	if len(d) < 5 {
		return 0, false
	}
	var i int
	switch d[0] {
	case opBinGet:
		i = int(d[1])
		q.p += 2
	case opLongBinGet:
		i = int(binary.LittleEndian.Uint32(d[1:]))
		q.p += 5
	default:
		return 0, false
	}
	if i >= q.memo.len {
		return 0, false
	}
	h := q.memo.pages[i>>pageBits][i&(pageSize-1)]
	if Cell(h).Kind() == wide || h == free {
		return q.lookup(uint64(i))
	}
	return Cell(h), true
}

// value reads the value of a field.
func (q *quick) value() (Cell, bool) {
	if len(q.data)-q.p < margin {
		return 0, false
	}
	switch q.data[q.p] {
	case opBinGet, opLongBinGet:
		c, ok := q.reference()
		if ok && c.Kind() == Global && q.globals[c.pos()].size {
			return q.size()
		}
		return c, ok
	case opBinInt1, opBinInt2, opBinInt, opLong1, opMark:
		return q.numbers()
	case opNone, opNewTrue, opNewFalse:
		q.p++
		return constant(q.data[q.p-1]), true
	case opEmptyTuple:
		q.p++
		return cellEmpty, true
	case opShortBinUnicode:
		return q.text()
	}
	return 0, false
}

// text reads a short string.
func (q *quick) text() (Cell, bool) {
	n := int(q.data[q.p+1])
	start := q.p + 2
	if start+n >= len(q.data) {
		return 0, false
	}
	c, err := q.newStr(span{off: start, len: uint32(n)}, q.data[start:start+n])
	if err != nil {
		return 0, false
	}
	q.p = start + n
	return c, q.memoized(c)
}

// memoized reads the opcode MEMOIZE if it comes next.
func (q *quick) memoized(c Cell) bool {
	if q.p >= len(q.data) || q.data[q.p] != opMemoize {
		return true
	}
	q.p++
	return q.remember(c) == nil
}

// integers reads consecutive integers into v and returns how many.
func (q *quick) integers(v *[maxQuick]int64) int {
	for n := range v {
		d := q.data[q.p:]
		if len(d) < margin {
			return n
		}
		switch d[0] {
		case opBinInt1:
			v[n] = int64(d[1])
			q.p += 2
		case opBinInt2:
			v[n] = int64(binary.LittleEndian.Uint16(d[1:]))
			q.p += 3
		case opBinInt:
			v[n] = int64(int32(binary.LittleEndian.Uint32(d[1:])))
			q.p += 5
		case opLong1:
			if d[1] > 7 {
				return n
			}
			v[n] = littleEndian(d[2 : 2+d[1]])
			q.p += 2 + int(d[1])
		default:
			return n
		}
	}
	return maxQuick
}

// numbers reads an integer, or a tuple of integers.
func (q *quick) numbers() (Cell, bool) {
	var v [maxQuick]int64
	marked := q.data[q.p] == opMark
	if marked {
		q.p++
	}
	n := q.integers(&v)
	if n == 0 || q.p >= len(q.data) {
		return 0, false
	}
	switch op := q.data[q.p]; {
	case marked && op == opTuple, !marked && n <= 3 && op == opTuple1+byte(n-1):
		q.p++
	case n == 1 && !marked && (op == opBinGet || op == opLongBinGet || op == opSetItems):
		return cellOf(Int, v[0]), true
	default:
		return 0, false
	}
	if q.charge(cellBytes*(1+n)) != nil {
		return 0, false // the machine gets there
	}
	pos, s := q.ints.alloc(1 + n)
	s[0] = int64(n)
	copy(s[1:], v[:n])
	c := at(Ints, pos)
	return c, q.memoized(c)
}

// size reads the tuple of integers, the tuple around it and the call that make a
// torch.Size.
func (q *quick) size() (Cell, bool) {
	c, ok := q.value()
	d := q.data[q.p:]
	if !ok || c.Kind() != Ints || len(d) < 4 || d[0] != opTuple1 {
		return 0, false
	}
	one, size := cellOf(IntsTuple, c.payload()), cellOf(Size, c.payload())
	if d[1] == opMemoize && d[2] == opReduce && d[3] == opMemoize {
		q.p += 4
		return size, q.remember(one) == nil && q.remember(size) == nil
	}
	q.p++
	if !q.memoized(one) || q.p >= len(q.data) || q.data[q.p] != opReduce {
		return 0, false
	}
	q.p++
	return size, q.memoized(size)
}
