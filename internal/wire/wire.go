// Package wire is a small binary codec: varints, fixed little-endian integers, strings and
// counts, appended to a slice and read back within its bounds. It does not depend on the
// meaning of the values; index files, plans and results are built on it. The contract of
// hostile input is in the comment of Reader.
package wire

import (
	"encoding/binary"
	"errors"
)

// ErrMalformed reports bytes that are not an encoding of the requested values.
var ErrMalformed = errors.New("malformed encoding")

// Writer appends values to B. The zero Writer is ready, and a caller may set B
// beforehand to reuse its capacity, or append to it directly.
type Writer struct{ B []byte }

// Uvarint appends v in base 128, least significant group first.
func (w *Writer) Uvarint(v uint64) {
	if v < 0x80 {
		w.B = append(w.B, byte(v))
		return
	}
	w.B = binary.AppendUvarint(w.B, v)
}

// Varint appends v as a zigzag-coded Uvarint, short for small values of either
// sign.
func (w *Writer) Varint(v int64) { w.Uvarint(uint64(v)<<1 ^ uint64(v>>63)) }

// U32 appends the four bytes of v, little-endian.
func (w *Writer) U32(v uint32) { w.B = binary.LittleEndian.AppendUint32(w.B, v) }

// U64 appends the eight bytes of v, little-endian.
func (w *Writer) U64(v uint64) { w.B = binary.LittleEndian.AppendUint64(w.B, v) }

// Byte appends v.
func (w *Writer) Byte(v byte) { w.B = append(w.B, v) }

// Bool appends one byte, 0 or 1.
func (w *Writer) Bool(v bool) {
	var b byte
	if v {
		b = 1
	}
	w.B = append(w.B, b)
}

// Bytes appends the length of p as a Uvarint and then p. Nil and empty look
// the same.
func (w *Writer) Bytes(p []byte) {
	w.Uvarint(uint64(len(p)))
	w.B = append(w.B, p...)
}

// String appends s as Bytes does.
func (w *Writer) String(s string) {
	w.Uvarint(uint64(len(s)))
	w.B = append(w.B, s...)
}
