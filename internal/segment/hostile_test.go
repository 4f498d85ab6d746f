package segment

import (
	"bytes"
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
func TestHostileCodes(t *testing.T) {
	const length = 1025 // 512 elements of two bytes and a rest
	head := cat(2, 0x81, 8)
	fill := func(b int) []byte { return cat(1, b) }
	planes := cat(fill(1), fill(1), 9)
	for _, c := range []struct {
		name string
		code []byte
	}{
		{"no code", nil},
		{"no length", cat(2)},
		{"half a length", cat(2, 0x81)},
		{"a length that never ends", cat(2, bytes.Repeat([]byte{0xff}, 20))},
		{"no blocks", head},
		{"no rest", cat(head, 0)},
		{"too much rest", cat(head, 0, 1, 2)},
		{"more gaps than elements", cat(head, 0x81, 4, fill(0), planes)},
		{"a size of gaps of 2^63", cat(head, bytes.Repeat([]byte{0x80}, 9), 1, fill(0), planes)},
		{"a size of gaps that never ends", cat(head, bytes.Repeat([]byte{0x80}, 20))},
		{"a gap beyond the end", cat(head, 2, 2, 0x80, 4, planes)},
		{"a gap of 2^63", cat(head, 10, 10, bytes.Repeat([]byte{0x80}, 9), 1, planes)},
		{"an element after the last", cat(head, 3, 3, 0xff, 3, 0, planes)},
		{"a gap that is cut off", cat(head, 1, 1, 0x80, planes)},
		{"no gaps", cat(head, 1)},
		{"no planes", cat(head, 1, fill(0))},
		{"one plane", cat(head, 1, fill(0), fill(1))},
		{"a stream of no bytes", cat(head, 3, 0, planes)},
		{"a stream of too many bytes", cat(head, 3, 4, 0, 0, 0, 0, planes)},
		{"a raw stream that is cut off", cat(head, 50, fill(0), fill(1), 50, 1, 2, 3)},
		{"a fill without a byte", cat(head, 50, 1)},
		{"a Huffman code that is cut off", cat(head, 50, 40, 1, 2, 3)},
		{"a Huffman table without a code", cat(head, 50, 2, 128, 0x10, planes)},
		{"a Huffman table that is cut off", cat(head, 50, 2, 100, 0x10, planes)},
		{"weights that are all zero", cat(head, 50, 12, 128, 0, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1, planes)},
		{"parts longer than the code", cat(head, 50, 9, 128, 0x10, 255, 255, 255, 255, 255, 255, 1, planes)},
		{"parts of few bytes", cat(head, 50, 12, 128, 0x10, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1, planes)},
		{"parts of many bytes", cat(head, 50, 48, 128, 0x10, 10, 0, 10, 0, 10, 0, bytes.Repeat([]byte{0x81}, 40), planes)},
	} {
		mustRefuse(t, c.name, Patch(make([]byte, length), c.code, 2))
	}
	if err := Patch(make([]byte, length), cat(head, 3, 3, 0xfe, 3, 0, planes), 2); err != nil {
		t.Errorf("changes of the last elements: %v", err)
	}
}

func TestBadWidthsAndLengths(t *testing.T) {
	for _, width := range []int{-1, 0, 3, 5, 32, 1 << 20} {
		mustRefuse(t, "Patch", Patch(make([]byte, 512), cat(width, 0x80, 4, 0), width))
	}
	mustRefuse(t, "Patch of a long segment", Patch(make([]byte, MaxLen+1), cat(1, 0x81, 0x80, 0x40, 0, 0, 0), 1))
}

// A short code can be for a long segment. It takes no more memory than any other.
func TestBomb(t *testing.T) {
	block := cat(0x80, 0x80, 0x20, 1, 0, 1, 7)
	code := cat(1, 0x80, 0x80, 0x40, block, block)
	p := make([]byte, MaxLen)
	if err := Patch(p, code, 1); err != nil || !bytes.Equal(p, bytes.Repeat([]byte{7}, MaxLen)) {
		t.Errorf("a segment of which every byte changed: %v", err)
	}
	mustRefuse(t, "a block too many", Patch(p, cat(code, block), 1))
}
