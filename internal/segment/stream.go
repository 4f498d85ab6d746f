package segment

import (
	"bytes"

	"github.com/klauspost/compress/huff0"
)

// The modes of a stream.
const (
	modeRaw   = 0 // the bytes
	modeFill  = 1 // one byte, which all bytes are equal to
	modeHuff1 = 2 // a length and a Huffman code in one part
	modeHuff4 = 3 // a length and a Huffman code in four parts
)

const (
	// minHuff is the length of the shortest stream that is worth a Huffman table.
	minHuff = 64
	// minHuff4 is the length of the shortest stream that is coded in four parts, which
	// takes about 10 bytes more and decodes about three times as fast.
	minHuff4 = 1 << 10
	// wantLogLess: a Huffman code must save a sixteenth, or the stream stays raw, because
	// reading raw bytes costs nothing.
	wantLogLess = 4
)

// streams writes and reads streams.
type streams struct {
	huff huffman
	dec  huff0.Scratch
}

// append appends p as a stream.
func (s *streams) append(dst, p []byte) []byte {
	switch {
	case len(p) < 2:
		return appendRaw(dst, p)
	case p[0] == p[len(p)-1] && bytes.Equal(p[1:], p[:len(p)-1]):
		return append(dst, modeFill, p[0])
	case len(p) < minHuff:
		return appendRaw(dst, p)
	}
	h := &s.huff
	h.count(p)
	total, longest := h.build()
	if total/8 > len(p)-len(p)>>wantLogLess {
		return appendRaw(dst, p)
	}
	start := len(dst)
	mode := byte(modeHuff1)
	if len(p) >= minHuff4 {
		mode = modeHuff4
	}
	out, ok := h.appendTable(append(dst, mode, 0, 0, 0), longest)
	if !ok {
		return appendRaw(dst, p)
	}
	h.pair(len(p))
	if mode == modeHuff1 {
		out = h.appendBits(out, p)
	} else {
		out = h.appendParts(out, p)
	}
	size := len(out) - start - 4
	if size >= len(p) {
		return appendRaw(dst, p)
	}
	out[start+1], out[start+2], out[start+3] = byte(size), byte(size>>8), byte(size>>16)
	return out
}

func appendRaw(dst, p []byte) []byte {
	return append(append(dst, modeRaw), p...)
}

// read reads a stream of n bytes and returns it and the rest of code. The stream is in
// buf, which has at least n bytes, or in code.
func (s *streams) read(buf, code []byte, n int) (p, rest []byte, err error) {
	if len(code) == 0 {
		return nil, nil, corrupt("a stream is missing")
	}
	mode, code := code[0], code[1:]
	switch mode {
	case modeRaw:
		if len(code) < n {
			return nil, nil, corrupt("a stream has %d bytes, not %d", len(code), n)
		}
		return code[:n], code[n:], nil
	case modeFill:
		if len(code) == 0 {
			return nil, nil, corrupt("the byte of a stream is missing")
		}
		p = buf[:n]
		fill(p, code[0])
		return p, code[1:], nil
	case modeHuff1, modeHuff4:
		return s.readHuff(buf, code, n, mode == modeHuff4)
	}
	return nil, nil, corrupt("a stream has mode %d", mode)
}

// readHuff reads the rest of a stream with a Huffman code.
func (s *streams) readHuff(buf, code []byte, n int, four bool) (p, rest []byte, err error) {
	if len(code) < 3 {
		return nil, nil, corrupt("the length of a Huffman code is cut off")
	}
	size := int(code[0]) | int(code[1])<<8 | int(code[2])<<16
	code = code[3:]
	if len(code) < size {
		return nil, nil, corrupt("a Huffman code has %d bytes, not %d", len(code), size)
	}
	_, data, err := huff0.ReadTable(code[:size], &s.dec)
	if err != nil {
		return nil, nil, corrupt("Huffman table: %v", err)
	}
	if four {
		p, err = s.dec.Decoder().Decompress4X(buf[:0:n], data)
	} else {
		p, err = s.dec.Decoder().Decompress1X(buf[:0:n], data)
	}
	if err != nil {
		return nil, nil, corrupt("Huffman code: %v", err)
	}
	if len(p) != n {
		return nil, nil, corrupt("a Huffman code is for %d bytes, not %d", len(p), n)
	}
	return p, code[size:], nil
}

// fill sets all bytes of p to b.
func fill(p []byte, b byte) {
	if b == 0 {
		clear(p)
		return
	}
	for i := range p {
		p[i] = b
	}
}
