package segment

import "encoding/binary"

// Byte plane k of a list of elements has byte k of each element. The planes of elements of
// width bytes are width slices, each with a byte for every element.

// split sets the planes to the elements in src, of which there are as many as a plane has bytes.
func split(planes [][]byte, src []byte) {
	switch len(planes) {
	case 1:
		copy(planes[0], src)
	case 2:
		split2(planes[0], planes[1], src)
	case 4:
		split4(planes, src)
	default:
		for k := 0; k < len(planes); k += 8 {
			split8(planes[k:k+8], src[k:], len(planes))
		}
	}
}

func split2(a, b, src []byte) {
	b = b[:len(a)]
	src = src[:2*len(a)]
	i := 0
	for ; i+8 <= len(a); i += 8 {
		s := (*[16]byte)(src[2*i:])
		x, y := binary.LittleEndian.Uint64(s[:8]), binary.LittleEndian.Uint64(s[8:])
		binary.LittleEndian.PutUint64(a[i:], squeeze(x)|squeeze(y)<<32)
		binary.LittleEndian.PutUint64(b[i:], squeeze(x>>8)|squeeze(y>>8)<<32)
	}
	for ; i < len(a); i++ {
		a[i], b[i] = src[2*i], src[2*i+1]
	}
}

// squeeze returns bytes 0, 2, 4 and 6 of x as bytes 0 to 3.
func squeeze(x uint64) uint64 {
	x &= 0x00ff00ff00ff00ff
	x = (x | x>>8) & 0x0000ffff0000ffff
	return (x | x>>16) & 0xffffffff
}

func split4(planes [][]byte, src []byte) {
	n := len(planes[0])
	a, b, c, d := planes[0][:n], planes[1][:n], planes[2][:n], planes[3][:n]
	src = src[:4*n]
	for i := range a {
		x := binary.LittleEndian.Uint32(src[4*i:])
		a[i], b[i], c[i], d[i] = byte(x), byte(x>>8), byte(x>>16), byte(x>>24)
	}
}

// split8 splits the first 8 bytes of every stride bytes of src.
func split8(planes [][]byte, src []byte, stride int) {
	n := len(planes[0])
	a, b, c, d := planes[0][:n], planes[1][:n], planes[2][:n], planes[3][:n]
	e, f, g, h := planes[4][:n], planes[5][:n], planes[6][:n], planes[7][:n]
	for i := range a {
		x := binary.LittleEndian.Uint64(src[stride*i:])
		a[i], b[i], c[i], d[i] = byte(x), byte(x>>8), byte(x>>16), byte(x>>24)
		e[i], f[i], g[i], h[i] = byte(x>>32), byte(x>>40), byte(x>>48), byte(x>>56)
	}
}

// merge sets dst to the elements whose planes are given.
func merge(dst []byte, planes [][]byte) {
	switch len(planes) {
	case 1:
		copy(dst, planes[0])
	case 2:
		merge2(dst, planes[0], planes[1])
	case 4:
		merge4(dst, planes)
	default:
		for k := 0; k < len(planes); k += 8 {
			merge8(dst[k:], planes[k:k+8], len(planes))
		}
	}
}

func merge2(dst, a, b []byte) {
	b = b[:len(a)]
	dst = dst[:2*len(a)]
	i := 0
	for ; i+8 <= len(a); i += 8 {
		x, y := binary.LittleEndian.Uint64(a[i:]), binary.LittleEndian.Uint64(b[i:])
		d := (*[16]byte)(dst[2*i:])
		binary.LittleEndian.PutUint64(d[:8], spread(x)|spread(y)<<8)
		binary.LittleEndian.PutUint64(d[8:], spread(x>>32)|spread(y>>32)<<8)
	}
	for ; i < len(a); i++ {
		dst[2*i], dst[2*i+1] = a[i], b[i]
	}
}

// spread returns bytes 0 to 3 of x as bytes 0, 2, 4 and 6. The other bytes are 0.
func spread(x uint64) uint64 {
	x &= 0xffffffff
	x = (x | x<<16) & 0x0000ffff0000ffff
	return (x | x<<8) & 0x00ff00ff00ff00ff
}

func merge4(dst []byte, planes [][]byte) {
	n := len(planes[0])
	a, b, c, d := planes[0][:n], planes[1][:n], planes[2][:n], planes[3][:n]
	dst = dst[:4*n]
	for i := range a {
		x := uint32(a[i]) | uint32(b[i])<<8 | uint32(c[i])<<16 | uint32(d[i])<<24
		binary.LittleEndian.PutUint32(dst[4*i:], x)
	}
}

// merge8 sets the first 8 bytes of every stride bytes of dst.
func merge8(dst []byte, planes [][]byte, stride int) {
	n := len(planes[0])
	a, b, c, d := planes[0][:n], planes[1][:n], planes[2][:n], planes[3][:n]
	e, f, g, h := planes[4][:n], planes[5][:n], planes[6][:n], planes[7][:n]
	for i := range a {
		x := uint64(a[i]) | uint64(b[i])<<8 | uint64(c[i])<<16 | uint64(d[i])<<24
		x |= uint64(e[i])<<32 | uint64(f[i])<<40 | uint64(g[i])<<48 | uint64(h[i])<<56
		binary.LittleEndian.PutUint64(dst[stride*i:], x)
	}
}

// cut returns width slices of n bytes each in p.
func cut(planes *[maxWidth][]byte, p []byte, width, n int) [][]byte {
	for k := range width {
		planes[k] = p[k*n : (k+1)*n : (k+1)*n]
	}
	return planes[:width]
}
