package segment

import (
	"math/bits"
	"slices"
)

// blockElems is the number of elements in a block. Small blocks follow changes of scale within a
// segment, large blocks have fewer tables.
const blockElems = 1 << 16

// AppendPacked appends a compressed form of src to dst. len(src) is at most MaxLen. width is
// the size of an element in bytes: 1, 2, 4, 8 or 16. The last element may be shorter.
//
// If the code would be longer than limit, AppendPacked returns dst and false. It looks at a
// sample first, so that it costs little if src is not compressible. Rarely, the sample makes it
// refuse a code that would be a little shorter than limit.
func AppendPacked(dst, src []byte, width, limit int) ([]byte, bool) {
	mustFit(len(src), width)
	c := coders.Get().(*coder)
	defer coders.Put(c)
	pays, size := c.sample.packedSize(src, width)
	if size > float64(limit) {
		return dst, false
	}
	start := len(dst)
	out := appendHeader(dst, kindPacked, width, len(src))
	elems := len(src) / width
	for i := 0; i < elems; i += blockElems {
		n := min(blockElems, elems-i)
		out = c.appendBlock(out, src[i*width:(i+n)*width], width, pays)
		if len(out)-start > limit {
			return dst, false
		}
	}
	out = append(out, src[elems*width:]...)
	if len(out)-start > limit {
		return dst, false
	}
	return out, true
}

// appendBlock appends a block, in which it codes the planes whose bit in pays is set. The
// planes before them, which is the mantissa of numbers, are split right into dst.
func (c *coder) appendBlock(dst, src []byte, width int, pays uint) []byte {
	n := len(src) / width
	c.planes = grow(c.planes, len(src))
	var mem [maxWidth][]byte
	planes := cut(&mem, c.planes, width, n)
	raw := min(bits.TrailingZeros(pays), width)
	at := len(dst)
	dst = slices.Grow(dst, raw*(1+n))[:at+raw*(1+n)]
	for k := range raw {
		dst[at] = modeRaw
		planes[k] = dst[at+1 : at+1+n]
		at += 1 + n
	}
	split(planes, src)
	for k, plane := range planes[raw:] {
		if pays>>(raw+k)&1 == 1 {
			dst = c.streams.append(dst, plane)
		} else {
			dst = appendRaw(dst, plane)
		}
	}
	return dst
}

// Unpack fills p with the segment that code is the packed form of. code is from
// AppendPacked with the same width. If code is corrupt or belongs to another length or width,
// Unpack returns an error that wraps ErrCode; the contents of p are then undefined. The memory
// that Unpack takes is bounded, whatever code has.
func Unpack(p, code []byte, width int) error {
	code, err := readHeader(code, kindPacked, width, len(p))
	if err != nil {
		return err
	}
	c := coders.Get().(*coder)
	defer coders.Put(c)
	elems := len(p) / width
	for i := 0; i < elems; i += blockElems {
		n := min(blockElems, elems-i)
		if code, err = c.unpackBlock(p[i*width:(i+n)*width], code, width); err != nil {
			return err
		}
	}
	if rest := p[elems*width:]; copy(rest, code) != len(code) || len(rest) != len(code) {
		return corrupt("it ends with %d bytes, not %d", len(code), len(rest))
	}
	return nil
}

// unpackBlock fills p with a block and returns the rest of code.
func (c *coder) unpackBlock(p, code []byte, width int) ([]byte, error) {
	n := len(p) / width
	c.planes = grow(c.planes, len(p))
	var mem, planes [maxWidth][]byte
	var err error
	for k, buf := range cut(&mem, c.planes, width, n) {
		if planes[k], code, err = c.streams.read(buf, code, n); err != nil {
			return nil, err
		}
	}
	merge(p, planes[:width])
	return code, nil
}
