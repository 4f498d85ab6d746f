package pickle

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/big"
	"strconv"
	"unicode/utf8"
)

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
			return m.malformed("%.40q is no float", l)
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

// littleEndian returns the integer of at most seven bytes.
func littleEndian(b []byte) int64 {
	var v uint64
	for i, x := range b {
		v |= uint64(x) << (8 * i)
	}
	shift := 64 - 8*len(b)
	return int64(v<<shift) >> shift
}

// decimal reads the integers of protocol 0, among them its booleans.
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
		return m.malformed("%.40q is no integer", l)
	}
	m.bigs = append(m.bigs, m.keep(twosComplement(n)))
	m.push(at(Big, len(m.bigs)-1))
	return nil
}

// taken returns where the n bytes that were just taken lie.
func (m *machine) taken(n int) span { return span{off: m.pos - n, len: uint32(n)} }

// keep stores text that is not in the input as it is.
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
		return m.pushBytes(m.taken(len(b))) // a string of Python 2 that is no text
	}
	c, err := m.newStr(m.taken(len(b)), b)
	if err != nil {
		return err
	}
	m.push(c)
	return m.memoizeNext()
}

// prefixed returns the bytes that follow their own length.
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
		return m.malformed("%.40q is no string", l)
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

// newStr makes a string of the bytes b, which lie at s.
func (m *machine) newStr(s span, b []byte) (Cell, error) {
	if !utf8.Valid(b) && !validWTF8(b) {
		return 0, m.malformed("a string that is no UTF-8")
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

// byteArray makes what the protocols before this opcode write as a call.
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
