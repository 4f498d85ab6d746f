package segment

import "encoding/binary"

// AppendDiff appends the code of the difference between src and base to dst. The lengths of
// src and base are equal and at most MaxLen. width is the size of an element in bytes: 1, 2,
// 4, 8 or 16. The last element may be shorter.
//
// If the code would be longer than limit, AppendDiff returns dst and false. It looks at a
// sample of the elements first, so that it costs little if nearly everything differs. Rarely,
// the sample makes it refuse a code that would be a little shorter than limit.
func AppendDiff(dst, src, base []byte, width, limit int) ([]byte, bool) {
	mustFit(len(src), width)
	if len(base) != len(src) {
		panic("segment: the segment and its base differ in length")
	}
	c := coders.Get().(*coder)
	defer coders.Put(c)
	if c.sample.diffSize(src, base, width, limit) > float64(limit) {
		return dst, false
	}
	start := len(dst)
	out := appendHeader(dst, kindDiff, width, len(src))
	c.group.begin(width)
	for off := 0; off < len(src); {
		off = c.group.scan(src, base, width, off)
		if c.group.n > 0 {
			out = c.appendGroup(out, width)
		}
		if len(out)-start > limit {
			return dst, false
		}
	}
	if out = append(out, 0); len(out)-start > limit {
		return dst, false
	}
	return out, true
}

// appendGroup appends the code of c.group.
func (c *coder) appendGroup(dst []byte, width int) []byte {
	g := &c.group
	dst = binary.AppendUvarint(dst, uint64(g.n))
	dst = c.streams.append(dst, g.gaps[:g.n])
	dst = binary.AppendUvarint(dst, uint64(len(g.extras)))
	if len(g.extras) > 0 {
		dst = c.streams.append(dst, g.extras)
	}
	c.planes = grow(c.planes, g.n*width)
	var mem [maxWidth][]byte
	planes := cut(&mem, c.planes, width, g.n)
	split(planes, g.elems)
	for _, plane := range planes {
		dst = c.streams.append(dst, plane)
	}
	return dst
}

// Patch changes p from the base of a difference to the segment, in place. code is from
// AppendDiff with the same width. If code is corrupt or belongs to another length or width,
// Patch returns an error that wraps ErrCode; p may then be changed in part. The memory that
// Patch takes is bounded, whatever code has.
func Patch(p, code []byte, width int) error {
	code, err := readHeader(code, kindDiff, width, len(p))
	if err != nil {
		return err
	}
	c := coders.Get().(*coder)
	defer coders.Put(c)
	c.group.begin(width)
	for {
		n, rest, err := readUvarint(code, groupElems)
		if err != nil {
			return err
		}
		if n == 0 {
			if len(rest) > 0 {
				return corrupt("%d bytes follow its end", len(rest))
			}
			return nil
		}
		if code, err = c.patchGroup(p, rest, width, n); err != nil {
			return err
		}
	}
}

// patchGroup applies a group of n elements to p and returns the rest of code.
func (c *coder) patchGroup(p, code []byte, width, n int) ([]byte, error) {
	g := &c.group
	gaps, code, err := c.streams.read(g.gaps[:], code, n)
	if err != nil {
		return nil, err
	}
	size, code, err := readUvarint(code, 3*n)
	if err != nil {
		return nil, err
	}
	var extras []byte
	if size > 0 {
		g.extras = grow(g.extras, size)
		if extras, code, err = c.streams.read(g.extras, code, size); err != nil {
			return nil, err
		}
	}
	c.planes = grow(c.planes, n*width)
	var mem, planes [maxWidth][]byte
	for k, buf := range cut(&mem, c.planes, width, n) {
		if planes[k], code, err = c.streams.read(buf, code, n); err != nil {
			return nil, err
		}
	}
	g.n = n
	merge(g.elems, planes[:width])
	if err := g.locate(gaps, extras, (len(p)+width-1)/width); err != nil {
		return nil, err
	}
	return code, g.apply(p, width)
}
