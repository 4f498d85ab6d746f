package pickle

import "encoding/binary"

// exec executes one opcode that run left to it.
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
		return m.unsupported("an extension code, which only its writer could resolve")
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

// shuffle executes the opcodes that only move what is on the stack.
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

// preamble executes what only tells about the bytes that follow.
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

// savedClass returns the class that a persistent id names if it is one of those
// that PyTorch's old stream has for the classes of modules: ("module", class, file
// of the source, source).
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
