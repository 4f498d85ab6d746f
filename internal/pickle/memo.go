package pickle

import (
	"encoding/binary"
	"strconv"
)

// memoize stores the topmost value under the next number.
func (m *machine) memoize() error {
	if err := m.need(1); err != nil {
		return err
	}
	return m.remember(m.top())
}

// memoizeNext executes the opcode MEMOIZE if it comes next: nearly every value
// is followed by one.
func (m *machine) memoizeNext() error {
	if m.pos >= len(m.data) || m.data[m.pos] != opMemoize {
		return nil
	}
	m.pos++
	return m.remember(m.top())
}

// room returns s with room for n more. It doubles what is large, as nothing is
// known beforehand about how large a table becomes, and append grows by less.
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
		return handle(State) // nobody may have it back
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

// pushShared pushes a value that is at another place too.
func (m *machine) pushShared(c Cell) error {
	m.push(c)
	if k := c.Kind(); m.shared == nil || k < Bytes || k == Global {
		return nil
	}
	before := len(m.shared)
	m.shared[c] = struct{}{}
	return m.charge(madeBytes * (len(m.shared) - before))
}

// put stores the topmost value under the number i. Numbers are given in order,
// each with a byte at least, so none is larger than the position.
func (m *machine) put(i uint64) error {
	if err := m.need(1); err != nil {
		return err
	}
	if i > uint64(m.pos) {
		return m.malformed("memo entry %d after as few values", i)
	}
	for uint64(m.memo.len) <= i {
		m.memo.append(free)
	}
	*m.memo.at(int(i)) = m.handle(m.top())
	return nil
}

// memoOp executes the opcodes that carry a number of the memo.
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
			return m.malformed("%.20q is no number of the memo", l)
		}
	}
	if op == opGet || op == opLongBinGet {
		return m.get(i)
	}
	return m.put(i)
}
