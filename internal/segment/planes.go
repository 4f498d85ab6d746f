package segment

import "encoding/binary"

// Byte plane k of a list of elements has byte k of each element. The planes of elements of
// width bytes are width slices, each with a byte for every element. The package comment has
// the order of the elements in a plane.
//
// Eight elements of w bytes are w words of 8 bytes, and a word in each of the w planes. These
// words are a matrix that is transposed in log2(w) steps; each step exchanges parts between
// pairs of words. The order of elements is chosen so that no other step is needed.

const (
	mask8  = 0x00ff00ff00ff00ff
	mask16 = 0x0000ffff0000ffff
	mask32 = 0x00000000ffffffff
)

// swap8 exchanges the odd bytes of x with the even bytes of y. It is its own inverse, and so
// are swap16 and swap32 for larger parts.
func swap8(x, y uint64) (a, b uint64) {
	return x&mask8 | y&mask8<<8, x>>8&mask8 | y&^mask8
}

func swap16(x, y uint64) (a, b uint64) {
	return x&mask16 | y&mask16<<16, x>>16&mask16 | y&^mask16
}

func swap32(x, y uint64) (a, b uint64) {
	return x&mask32 | y<<32, x>>32 | y&^mask32
}

// transpose4 returns the words of four planes of eight elements, or of four words of planes
// the words of the elements.
func transpose4(x0, x1, x2, x3 uint64) (a, b, c, d uint64) {
	x0, x2 = swap16(x0, x2)
	x1, x3 = swap16(x1, x3)
	a, b = swap8(x0, x1)
	c, d = swap8(x2, x3)
	return
}

// untranspose4 is the inverse of transpose4.
func untranspose4(a, b, c, d uint64) (x0, x1, x2, x3 uint64) {
	x0, x1 = swap8(a, b)
	x2, x3 = swap8(c, d)
	x0, x2 = swap16(x0, x2)
	x1, x3 = swap16(x1, x3)
	return
}

// split sets the planes to the elements in src. There are as many as a plane has bytes, at
// least one.
func split(planes [][]byte, src []byte) {
	n := len(planes[0])
	switch len(planes) {
	case 1:
		copy(planes[0], src)
		return
	case 2:
		split2(planes[0], planes[1], src)
	case 4:
		split4(planes, src)
	default:
		for k := 0; k < len(planes); k += 8 {
			split8(planes[k:k+8], src[k:], len(planes))
		}
	}
	for i := n &^ 7; i < n; i++ {
		for k, b := range src[i*len(planes) : (i+1)*len(planes)] {
			planes[k][i] = b
		}
	}
}

func split2(a, b, src []byte) {
	le := binary.LittleEndian
	b = b[:len(a)]
	for i := 0; i+8 <= len(a); i += 8 {
		s := (*[16]byte)(src[2*i:])
		x, y := swap8(le.Uint64(s[:8]), le.Uint64(s[8:]))
		le.PutUint64(a[i:i+8], x)
		le.PutUint64(b[i:i+8], y)
	}
}

func split4(planes [][]byte, src []byte) {
	le := binary.LittleEndian
	n := len(planes[0])
	a, b, c, d := planes[0][:n], planes[1][:n], planes[2][:n], planes[3][:n]
	for i := 0; i+8 <= n; i += 8 {
		s := (*[32]byte)(src[4*i:])
		x0, x1, x2, x3 := transpose4(le.Uint64(s[:]), le.Uint64(s[8:]), le.Uint64(s[16:]), le.Uint64(s[24:]))
		le.PutUint64(a[i:i+8], x0)
		le.PutUint64(b[i:i+8], x1)
		le.PutUint64(c[i:i+8], x2)
		le.PutUint64(d[i:i+8], x3)
	}
}

// split8 splits the first 8 bytes of every stride bytes of src.
func split8(planes [][]byte, src []byte, stride int) {
	le := binary.LittleEndian
	n := len(planes[0])
	a, b, c, d := planes[0][:n], planes[1][:n], planes[2][:n], planes[3][:n]
	e, f, g, h := planes[4][:n], planes[5][:n], planes[6][:n], planes[7][:n]
	for i := 0; i+8 <= n; i += 8 {
		s := src[stride*i : stride*(i+7)+8]
		x0, x4 := swap32(le.Uint64(s), le.Uint64(s[4*stride:]))
		x1, x5 := swap32(le.Uint64(s[stride:]), le.Uint64(s[5*stride:]))
		x2, x6 := swap32(le.Uint64(s[2*stride:]), le.Uint64(s[6*stride:]))
		x3, x7 := swap32(le.Uint64(s[3*stride:]), le.Uint64(s[7*stride:]))
		x0, x1, x2, x3 = transpose4(x0, x1, x2, x3)
		x4, x5, x6, x7 = transpose4(x4, x5, x6, x7)
		le.PutUint64(a[i:i+8], x0)
		le.PutUint64(b[i:i+8], x1)
		le.PutUint64(c[i:i+8], x2)
		le.PutUint64(d[i:i+8], x3)
		le.PutUint64(e[i:i+8], x4)
		le.PutUint64(f[i:i+8], x5)
		le.PutUint64(g[i:i+8], x6)
		le.PutUint64(h[i:i+8], x7)
	}
}

// merge sets dst to the elements whose planes are given, at least one. It is the inverse of
// split.
func merge(dst []byte, planes [][]byte) {
	n := len(planes[0])
	switch len(planes) {
	case 1:
		copy(dst, planes[0])
		return
	case 2:
		merge2(dst, planes[0], planes[1])
	case 4:
		merge4(dst, planes)
	default:
		for k := 0; k < len(planes); k += 8 {
			merge8(dst[k:], planes[k:k+8], len(planes))
		}
	}
	for i := n &^ 7; i < n; i++ {
		for k := range planes {
			dst[i*len(planes)+k] = planes[k][i]
		}
	}
}

func merge2(dst, a, b []byte) {
	le := binary.LittleEndian
	b = b[:len(a)]
	for i := 0; i+8 <= len(a); i += 8 {
		x, y := swap8(le.Uint64(a[i:i+8]), le.Uint64(b[i:i+8]))
		d := (*[16]byte)(dst[2*i:])
		le.PutUint64(d[:8], x)
		le.PutUint64(d[8:], y)
	}
}

func merge4(dst []byte, planes [][]byte) {
	le := binary.LittleEndian
	n := len(planes[0])
	a, b, c, d := planes[0][:n], planes[1][:n], planes[2][:n], planes[3][:n]
	for i := 0; i+8 <= n; i += 8 {
		x0, x1, x2, x3 := untranspose4(le.Uint64(a[i:i+8]), le.Uint64(b[i:i+8]), le.Uint64(c[i:i+8]), le.Uint64(d[i:i+8]))
		s := (*[32]byte)(dst[4*i:])
		le.PutUint64(s[:], x0)
		le.PutUint64(s[8:], x1)
		le.PutUint64(s[16:], x2)
		le.PutUint64(s[24:], x3)
	}
}

// merge8 sets the first 8 bytes of every stride bytes of dst.
func merge8(dst []byte, planes [][]byte, stride int) {
	le := binary.LittleEndian
	n := len(planes[0])
	a, b, c, d := planes[0][:n], planes[1][:n], planes[2][:n], planes[3][:n]
	e, f, g, h := planes[4][:n], planes[5][:n], planes[6][:n], planes[7][:n]
	for i := 0; i+8 <= n; i += 8 {
		x0, x1, x2, x3 := untranspose4(le.Uint64(a[i:i+8]), le.Uint64(b[i:i+8]), le.Uint64(c[i:i+8]), le.Uint64(d[i:i+8]))
		x4, x5, x6, x7 := untranspose4(le.Uint64(e[i:i+8]), le.Uint64(f[i:i+8]), le.Uint64(g[i:i+8]), le.Uint64(h[i:i+8]))
		x0, x4 = swap32(x0, x4)
		x1, x5 = swap32(x1, x5)
		x2, x6 = swap32(x2, x6)
		x3, x7 = swap32(x3, x7)
		s := dst[stride*i : stride*(i+7)+8]
		le.PutUint64(s, x0)
		le.PutUint64(s[stride:], x1)
		le.PutUint64(s[2*stride:], x2)
		le.PutUint64(s[3*stride:], x3)
		le.PutUint64(s[4*stride:], x4)
		le.PutUint64(s[5*stride:], x5)
		le.PutUint64(s[6*stride:], x6)
		le.PutUint64(s[7*stride:], x7)
	}
}

// cut returns width slices of n bytes each in p.
func cut(planes *[maxWidth][]byte, p []byte, width, n int) [][]byte {
	for k := range width {
		planes[k] = p[k*n : (k+1)*n : (k+1)*n]
	}
	return planes[:width]
}
