package segment

// AppendPacked appends a compressed form of src to dst. len(src) is at most MaxLen. width is
// the size of an element in bytes: 1, 2, 4, 8 or 16. The last element may be shorter.
//
// If the code would be longer than limit, AppendPacked returns dst and false. It looks at a
// sample first, so that it costs little if src is not compressible; the estimate can also
// refuse a code that would be a little shorter than limit.
func AppendPacked(dst, src []byte, width, limit int) ([]byte, bool) {
	mustFit(len(src), width)
	c := coders.Get().(*coder)
	defer coders.Put(c)
	pays, size := c.estimatePacked(src, width)
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

// appendBlock appends a block, in which it codes the planes whose bit in pays is set.
func (c *coder) appendBlock(dst, src []byte, width int, pays uint) []byte {
	n := len(src) / width
	c.planes = grow(c.planes, len(src))
	var p [maxWidth][]byte
	planes := cut(&p, c.planes, width, n)
	split(planes, src)
	for k, plane := range planes {
		if pays>>k&1 == 1 {
			dst = c.appendStream(dst, plane)
		} else {
			dst = appendRaw(dst, plane)
		}
	}
	return dst
}

// rawBits: a plane whose bytes have more than this number of bits of entropy stays raw.
const rawBits = 8 - 8.0/(1<<wantLogLess)

// estimatePacked returns which planes a Huffman code pays for, as a set of bits, and an
// estimate of the length of the code. A short segment is not sampled: the length is then 0.
func (c *coder) estimatePacked(src []byte, width int) (pays uint, size float64) {
	if len(src) < 2*maxSample {
		return 1<<width - 1, 0
	}
	for k := range width {
		clear(c.counts[k][:])
	}
	for i := range samplePlaces {
		off := place(i, len(src))
		for j, b := range src[off : off+samplePlaceBytes] {
			c.counts[j&(width-1)][b]++
		}
	}
	for k := range width {
		bits := entropy(&c.counts[k], maxSample/width)
		if bits <= rawBits {
			pays |= 1 << k
		} else {
			bits = 8
		}
		size += bits / 8 * float64(len(src)/width)
	}
	return pays, size
}

// Unpack fills p with the segment that code is the packed form of. code and width are of
// AppendPacked. If code is corrupt or belongs to another length or width, Unpack returns an
// error that wraps ErrCode; the contents of p are then undefined. Unpack takes memory of at
// most a fixed multiple of len(p).
func Unpack(p, code []byte, width int) error {
	mustFit(len(p), width)
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
		if planes[k], code, err = c.readStream(buf, code, n); err != nil {
			return nil, err
		}
	}
	merge(p, planes[:width])
	return code, nil
}
