package pickle

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"unicode/utf8"
)

// scalar writes what has no parts and is never shared, and reports whether v is
// such a value.
func (e *encoder) scalar(v any) bool {
	switch v := v.(type) {
	case nil:
		e.b = append(e.b, opNone)
	case bool:
		op := byte(opNewFalse)
		if v {
			op = opNewTrue
		}
		e.b = append(e.b, op)
	case int64:
		e.int(v)
	case uint64:
		if v <= math.MaxInt64 {
			e.int(int64(v))
		} else {
			e.big(new(big.Int).SetUint64(v))
		}
	case *big.Int:
		if v == nil {
			e.b = append(e.b, opNone)
		} else {
			e.big(v)
		}
	case float64:
		e.b = binary.BigEndian.AppendUint64(append(e.b, opBinFloat), math.Float64bits(v))
	default:
		return false
	}
	return true
}

func (e *encoder) int(v int64) { e.b = appendInt(e.b, v) }

// appendInt appends the shortest opcode for v.
func appendInt(b []byte, v int64) []byte {
	switch {
	case v >= 0 && v < 1<<8:
		return append(b, opBinInt1, byte(v))
	case v >= 0 && v < 1<<16:
		return append(b, opBinInt2, byte(v), byte(v>>8))
	case v == int64(int32(v)):
		return binary.LittleEndian.AppendUint32(append(b, opBinInt), uint32(v))
	}
	le := binary.LittleEndian.AppendUint64(nil, uint64(v))
	n := 8
	for n > 1 && littleEndian(le[:n-1]) == v {
		n--
	}
	return append(append(b, opLong1, byte(n)), le[:n]...)
}

func (e *encoder) big(n *big.Int) {
	if n.IsInt64() {
		e.int(n.Int64())
		return
	}
	b := twosComplement(n)
	if len(b) < 256 {
		e.b = append(e.b, opLong1, byte(len(b)))
	} else {
		e.b = binary.LittleEndian.AppendUint32(append(e.b, opLong4), uint32(len(b)))
	}
	e.b = append(e.b, b...)
}

// str writes a string, once.
func (e *encoder) str(s string) error {
	if n, ok := e.strs[s]; ok {
		e.get(n)
		return nil
	}
	if !utf8.ValidString(s) && !validWTF8([]byte(s)) {
		return fmt.Errorf("%w: string %.40q is no text", ErrUnsupported, s)
	}
	e.b = appendStr(e.b, s, e.o.Protocol)
	e.strs[s] = e.put()
	return nil
}

func appendStr(b []byte, s string, protocol int) []byte {
	switch {
	case protocol >= 4 && len(s) < 256:
		b = append(b, opShortBinUnicode, byte(len(s)))
	case protocol < 4 || len(s) <= math.MaxUint32:
		b = binary.LittleEndian.AppendUint32(append(b, opBinUnicode), uint32(len(s)))
	default:
		b = binary.LittleEndian.AppendUint64(append(b, opBinUnicode8), uint64(len(s)))
	}
	return append(b, s...)
}

// bytes writes bytes; before protocol 3 Python has none, and writes a call that
// makes them of a string.
func (e *encoder) bytes(v []byte) error {
	switch n := len(v); {
	case e.o.Protocol < 3:
		text := make([]rune, n)
		for i, c := range v {
			text[i] = rune(c)
		}
		return e.reduce("_codecs", "encode", string(text), "latin1")
	case n < 256:
		e.b = append(e.b, opShortBinBytes, byte(n))
	case e.o.Protocol < 4 || n <= math.MaxUint32:
		e.b = binary.LittleEndian.AppendUint32(append(e.b, opBinBytes), uint32(n))
	default:
		e.b = binary.LittleEndian.AppendUint64(append(e.b, opBinBytes8), uint64(n))
	}
	e.b = append(e.b, v...)
	return nil
}
