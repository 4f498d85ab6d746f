package segment

import (
	"bytes"
	"slices"
	"testing"
)

// cat joins parts of a code: bytes and slices of bytes.
func cat(parts ...any) (p []byte) {
	for _, x := range parts {
		switch x := x.(type) {
		case int:
			p = append(p, byte(x))
		case []byte:
			p = append(p, x...)
		}
	}
	return p
}

// The smallest code that breaks each rule of the format.
func TestHostileDifferences(t *testing.T) {
	const n = 100 // elements of two bytes
	head := cat(kindDiff, 2, 200, 1)
	fill := func(b int) []byte { return cat(modeFill, b) }
	for _, c := range []struct {
		name string
		code []byte
	}{
		{"no code", nil},
		{"no width", cat(kindDiff)},
		{"no length", cat(kindDiff, 2)},
		{"a length that never ends", cat(kindDiff, 2, bytes.Repeat([]byte{0xff}, 20))},
		{"a length of 2^63", cat(kindDiff, 2, bytes.Repeat([]byte{0x80}, 9), 1)},
		{"no groups", head},
		{"bytes after the end", cat(head, 0, 0)},
		{"a group that is too large", cat(head, 0x81, 0x80, 1, fill(0), 0, fill(1), fill(1), 0)},
		{"more elements than the segment has", cat(head, n+1, fill(0), 0, fill(1), fill(1), 0)},
		{"a second group beyond the end", cat(head, n, fill(0), 0, fill(1), fill(1), 1, fill(0), 0, fill(1), fill(1), 0)},
		{"a gap beyond the end", cat(head, 1, fill(n), 0, fill(1), fill(1), 0)},
		{"a gap of 2^24-1", cat(head, 1, fill(0xff), 3, fill(0xff), fill(1), fill(1), 0)},
		{"a gap without its extra byte", cat(head, 1, fill(0xf0), 0, fill(1), fill(1), 0)},
		{"a gap with one of three extra bytes", cat(head, 1, fill(0xff), 1, fill(0), fill(1), fill(1), 0)},
		{"an extra byte without a gap", cat(head, 1, fill(0), 1, fill(0), fill(1), fill(1), 0)},
		{"more extra bytes than gaps can have", cat(head, 1, fill(0), 4, fill(0), fill(1), fill(1), 0)},
		{"a missing plane", cat(head, 1, fill(0), 0, fill(1))},
		{"an unknown mode", cat(head, 1, 9, 0, 0, fill(1), fill(1), 0)},
		{"a raw stream that is cut off", cat(head, 50, fill(0), 0, fill(1), modeRaw, 1, 2, 3)},
		{"a Huffman code that is cut off", cat(head, 50, modeHuff1, 255, 255, 255, 1, 2, 3)},
		{"a Huffman code without a length", cat(head, 50, modeHuff4, 1)},
		{"a Huffman code without a table", cat(head, 50, modeHuff1, 0, 0, 0, 0, fill(1), fill(1), 0)},
		{"a Huffman table without a code", cat(head, 50, modeHuff1, 2, 0, 0, 128, 0x10, 0, fill(1), fill(1), 0)},
		{"four parts of one byte", cat(head, 1, modeHuff4, 9, 0, 0, 128, 0x10, 1, 0, 1, 0, 1, 0, 1, 0, fill(1), fill(1), 0)},
		{"parts longer than the code", cat(head, 50, modeHuff4, 9, 0, 0, 128, 0x10, 255, 255, 255, 255, 255, 255, 1, 0, fill(1), fill(1), 0)},
	} {
		mustRefuse(t, c.name, Patch(make([]byte, 2*n), c.code, 2))
	}
}

func TestHostilePackedSegments(t *testing.T) {
	head := cat(kindPacked, 2, 201, 1)
	fill := cat(modeFill, 7)
	for _, c := range []struct {
		name string
		code []byte
	}{
		{"no planes", head},
		{"one plane", cat(head, fill)},
		{"no rest", cat(head, fill, fill)},
		{"too much rest", cat(head, fill, fill, 1, 2)},
		{"a fill without a byte", cat(head, fill, modeFill)},
		{"a raw plane that is cut off", cat(head, fill, modeRaw, 1, 2)},
		{"a Huffman code of few bytes", cat(head, fill, modeHuff1, 3, 0, 0, 128, 0x10, 1, 1)},
		{"a Huffman code of many bytes", cat(head, fill, modeHuff1, 42, 0, 0, 128, 0x10, bytes.Repeat([]byte{0x81}, 40), 1)},
		{"weights that are all zero", cat(head, fill, modeHuff1, 3, 0, 0, 128, 0, 1, 1)},
	} {
		mustRefuse(t, c.name, Unpack(make([]byte, 201), c.code, 2))
	}
}

// The last element of a difference has bytes beyond the end of the segment, which must be zero.
func TestBytesBeyondTheEnd(t *testing.T) {
	code := cat(kindDiff, 4, 6, 1, modeFill, 1, 0, modeFill, 1, modeFill, 2, modeFill, 0, modeFill, 0, 0)
	p := make([]byte, 6)
	if err := Patch(p, code, 4); err != nil || !bytes.Equal(p, []byte{0, 0, 0, 0, 1, 2}) {
		t.Errorf("the patched bytes are %v, %v", p, err)
	}
	code[len(code)-2] = 1
	mustRefuse(t, "a byte beyond the end", Patch(make([]byte, 6), code, 4))
}

func TestBadWidthsAndLengths(t *testing.T) {
	for _, width := range []int{-1, 0, 3, 5, 32, 1 << 20} {
		mustRefuse(t, "Patch", Patch(make([]byte, 8), cat(kindDiff, width, 8, 0), width))
		mustRefuse(t, "Unpack", Unpack(make([]byte, 8), cat(kindPacked, width, 8, 0), width))
	}
	long := make([]byte, MaxLen+1)
	mustRefuse(t, "Patch of a long segment", Patch(long, cat(kindDiff, 1, 0x81, 0x80, 0x40, 0), 1))
	mustRefuse(t, "Unpack of a long segment", Unpack(long, cat(kindPacked, 1, 0x81, 0x80, 0x40, 0), 1))
}

// A short code can be for a long segment. It takes no more memory than any other.
func TestBombs(t *testing.T) {
	fill := cat(modeFill, 7)
	blocks := cat(kindPacked, 1, 0x80, 0x80, 0x40)
	for range MaxLen / blockElems {
		blocks = append(blocks, fill...)
	}
	p := make([]byte, MaxLen)
	if err := Unpack(p, blocks, 1); err != nil || !slices.Equal(p, bytes.Repeat([]byte{7}, MaxLen)) {
		t.Errorf("a segment of equal bytes: %v", err)
	}
	mustRefuse(t, "a block too many", Unpack(p, append(blocks, fill...), 1))
	mustRefuse(t, "a segment of 2^40 bytes", Unpack(p, cat(kindPacked, 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, fill), 1))
}
