package segment

import (
	"bytes"
	"testing"
)

// stream returns the code of p as a stream after it has checked that the stream is read back.
func stream(t *testing.T, s *streams, p []byte) []byte {
	t.Helper()
	code := s.append(nil, p)
	got, rest, err := s.read(make([]byte, len(p)), append(code, 1, 2, 3), len(p))
	if err != nil {
		t.Fatalf("%d bytes: %v", len(p), err)
	}
	if !bytes.Equal(got, p) || !bytes.Equal(rest, []byte{1, 2, 3}) {
		t.Fatalf("%d bytes: the stream read differs", len(p))
	}
	return code
}

// Alphabets of all sizes, with equal and with very different counts: the longest codes of the
// latter are limited.
func TestStreamAlphabets(t *testing.T) {
	r := random(t)
	s := new(streams)
	for symbols := 2; symbols <= 256; symbols++ {
		for _, n := range []int{minHuff - 1, minHuff, minHuff4 - 1, minHuff4, 4099} {
			equal, skewed := make([]byte, n), make([]byte, n)
			for i := range equal {
				equal[i] = byte(r.IntN(symbols))
				skewed[i] = byte(255 - min(symbols-1, int(r.ExpFloat64()*2)))
			}
			stream(t, s, equal)
			stream(t, s, skewed)
		}
	}
}

// Counts that are Fibonacci numbers make the deepest trees.
func TestStreamWithDeepTree(t *testing.T) {
	var p []byte
	for i, a, b := 0, 1, 1; len(p)+a < blockElems; i, a, b = i+1, b, a+b {
		p = append(p, bytes.Repeat([]byte{byte(7 * i)}, a)...)
	}
	random(t).Shuffle(len(p), func(i, j int) { p[i], p[j] = p[j], p[i] })
	if code := stream(t, new(streams), p); code[0] != modeHuff4 || len(code) > len(p)*3/8 {
		t.Errorf("the stream has mode %d and %d bytes, of %d", code[0], len(code), len(p))
	}
	var h huffman
	h.count(p)
	depths := h.treeDepths()
	if depths[maxBits+5] == 0 {
		t.Fatal("the tree is not deep")
	}
	if _, longest := h.build(); longest != maxBits {
		t.Errorf("the longest code has %d bits, want %d", longest, maxBits)
	}
	room := 0
	for _, l := range h.lengths {
		if l > 0 {
			room += 1 << (maxBits - l)
		}
	}
	if room != 1<<maxBits {
		t.Errorf("the codes take %d of %d: the tree is not complete", room, 1<<maxBits)
	}
}

func TestStreamModes(t *testing.T) {
	r := random(t)
	few := make([]byte, 2000)
	for i := range few {
		few[i] = byte(r.IntN(4))
	}
	for _, c := range []struct {
		name string
		p    []byte
		mode byte
	}{
		{"one byte", []byte{1}, modeRaw},
		{"two equal bytes", []byte{1, 1}, modeFill},
		{"two bytes", []byte{1, 2}, modeRaw},
		{"equal bytes", bytes.Repeat([]byte{9}, 5000), modeFill},
		{"noise", noise(r, 5000), modeRaw},
		{"few bytes of few values", few[:500], modeHuff1},
		{"bytes of few values", few, modeHuff4},
	} {
		if code := stream(t, new(streams), c.p); code[0] != c.mode {
			t.Errorf("%s: the mode is %d, want %d", c.name, code[0], c.mode)
		}
	}
}
