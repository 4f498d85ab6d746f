package pickle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/value"
)

// Varying stands for an operand of a pickle, an integer or a string, of which pickles that are
// alike have other values: see DecodeVarying.
type Varying struct {
	// At is the offset of the opcode.
	At int
	// Value is the value in this pickle, or the value of Operand: an int64 or a string.
	Value any
	// Fixed is set if the result depends on the value, as the result of a call does: it holds
	// only for pickles with the same value.
	Fixed bool
}

// Fix returns v or, if v varies, its value in this pickle, and notes that the result depends
// on it.
func Fix(v any) any {
	if x, ok := v.(*Varying); ok {
		x.Fixed = true
		return x.Value
	}
	return v
}

// Operand is an operand that varies: the offset of its opcode and its value, an int64 or a string.
// Nil: its value in the pickle.
type Operand struct {
	At    int
	Value any
}

// DecodeVarying is Decode for a pickle of which others differ in operands: see Opcodes.Differences.
// vary are these operands, in order. In the result, and in the arguments of the functions in o,
// such an operand is a *Varying, unless the result depends on its value. Functions in o pass the
// values that they depend on through Fix. fixed are the offsets of the operands that the result
// depends on.
//
// A pickle that differs in none of the fixed operands has the same result, with its own operands
// in place of the others, unless one of the pickles exceeds a limit.
func DecodeVarying(data []byte, vary []Operand, o *DecodeOptions) (v any, fixed []int, err error) {
	g, n, err := parse(data, nil, vary, o.Limits)
	if err != nil {
		return nil, nil, err
	}
	if n != len(data) || len(g.varying) != len(vary) {
		return nil, nil, fmt.Errorf("%w: %d bytes after its end, and %d opcodes do not vary", ErrMalformed, len(data)-n, len(vary)-len(g.varying))
	}
	v, err = g.Value(g.Root, o)
	for _, x := range g.varying {
		if x.Fixed {
			fixed = append(fixed, x.At)
		}
	}
	return v, fixed, err
}

// fixAll is Fix for everything in the arguments of a call.
func fixAll(v any) any {
	switch v := v.(type) {
	case *Varying:
		return Fix(v)
	case value.Tuple:
		return value.Tuple(fixList(v))
	case []any:
		return fixList(v)
	case map[string]any:
		if v == nil {
			return v
		}
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = fixAll(e)
		}
		return out
	}
	return v
}

func fixList(l []any) []any {
	if l == nil {
		return nil
	}
	out := make([]any, len(l))
	for i, e := range l {
		out[i] = fixAll(e)
	}
	return out
}

// Opcodes is a pickle with the offsets of its opcodes, to compare other pickles with.
type Opcodes struct {
	data   []byte
	starts []uint64 // a bit for each byte
}

// NewOpcodes returns the opcodes of the pickle in data. It returns nil if the opcodes are not
// those of a pickle.
func NewOpcodes(data []byte) *Opcodes {
	o := &Opcodes{data: data, starts: make([]uint64, len(data)/64+1)}
	for at := 0; at < len(data); {
		o.starts[at/64] |= 1 << (at % 64)
		n := opLength(data[at:])
		if n == 0 {
			return nil
		}
		at += n
	}
	return o
}

// Differences calls found for each operand in which another pickle differs: with the offset of its
// opcode in o, and its value in the other pickle, an int64 or a string. It returns false if the
// pickles also differ in something else.
func (o *Opcodes) Differences(other []byte, found func(at int, v any)) bool {
	a, b := o.data, other
	for {
		n := same(a, b)
		if n == len(a) && n == len(b) {
			return true
		}
		if n == len(a) || n == len(b) {
			return false
		}

		at := len(o.data) - len(a) + n
		for o.starts[at/64]&(1<<(at%64)) == 0 {
			at--
			n--
		}
		a, b = a[n:], b[n:]
		x, _ := operand(a)
		y, v := operand(b)
		if x == 0 || y == 0 || IsText(a[0]) != IsText(b[0]) {
			return false
		}
		found(at, v)
		a, b = a[x:], b[y:]
	}
}

// IsText reports whether the operand of an opcode that varies is a string, and not an integer.
func IsText(op byte) bool { return op == opBinUnicode }

// operand returns the length and the operand of the first opcode: an int64 or a string. The length
// is 0 if it is another opcode, an integer of more than 64 bits, or invalid.
func operand(b []byte) (int, any) {
	n := opLength(b)
	if n == 0 {
		return 0, nil
	}
	switch arg := b[1:n]; b[0] {
	case opBinInt1:
		return n, int64(arg[0])
	case opBinInt2:
		return n, int64(binary.LittleEndian.Uint16(arg))
	case opBinInt:
		return n, int64(int32(binary.LittleEndian.Uint32(arg)))
	case opLong1:
		if len(arg) <= 9 {
			return n, littleEndian(arg[1:])
		}
	case opBinUnicode:
		if s := arg[4:]; utf8.Valid(s) || validWTF8(s) {
			return n, string(s)
		}
	}
	return 0, nil
}

// same returns the length of the longest prefix that a and b share.
func same(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+256 <= n && bytes.Equal(a[i:i+256], b[i:i+256]); i += 256 {
	}
	for ; i+8 <= n && binary.LittleEndian.Uint64(a[i:]) == binary.LittleEndian.Uint64(b[i:]); i += 8 {
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// pushVarying pushes the operand of an opcode that varies.
func (m *machine) pushVarying() {
	n, v := operand(m.data[m.pos:])
	if n == 0 {
		m.malformed("opcode %#02x varies", m.data[m.pos])
	}
	if x := m.vary[len(m.varying)].Value; x != nil {
		v = x
	}
	m.charge(valueObject + n)
	m.varying = append(m.varying, &Varying{At: m.pos, Value: v})
	m.pos += n
	m.push(at(Variable, len(m.varying)-1))
	m.nextVarying()
}

// nextVarying finds the next opcode whose operand varies.
func (m *machine) nextVarying() {
	m.next = -1
	if n := len(m.varying); n < len(m.vary) {
		m.next = m.vary[n].At
	}
}

// opLength returns the length of the first opcode with its operand. It returns 0 if there is
// none, or if it is cut off.
func opLength(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	n, prefix, lines := 1, 0, 0
	switch b[0] {
	case opProto, opBinGet, opBinPut, opBinInt1, opExt1:
		n = 2
	case opBinInt2, opExt2:
		n = 3
	case opBinInt, opLongBinGet, opLongBinPut, opExt4:
		n = 5
	case opBinFloat, opFrame:
		n = 9
	case opShortBinUnicode, opShortBinString, opShortBinBytes, opLong1:
		prefix = 1
	case opBinUnicode, opBinString, opBinBytes, opLong4:
		prefix = 4
	case opBinUnicode8, opBinBytes8, opByteArray8:
		prefix = 8
	case opGlobal, opInst:
		lines = 2
	case opGet, opPut, opInt, opLong, opFloat, opString, opUnicode, opPersID:
		lines = 1
	}

	if prefix > 0 {
		var size [8]byte
		if copy(size[:prefix], b[1:]) < prefix {
			return 0
		}
		more := binary.LittleEndian.Uint64(size[:])
		if more > uint64(len(b)) {
			return 0
		}
		n = 1 + prefix + int(more)
	}
	for range lines {
		i := bytes.IndexByte(b[n:], '\n')
		if i < 0 {
			return 0
		}
		n += i + 1
	}
	if n > len(b) {
		return 0
	}
	return n
}
