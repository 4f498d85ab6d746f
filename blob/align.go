package blob

import "unsafe"

// Align is the alignment, in bytes, of memory and file offsets at which stores
// on a local disk move bytes without copying them once more.
const Align = 4096

// AlignedBytes returns n zero bytes whose address is a multiple of [Align], or
// nil where n is not positive. Writers that hand such memory to WriteAt, in
// pieces, give the store the chance to skip a copy.
func AlignedBytes(n int) []byte {
	if n <= 0 {
		return nil
	}
	p := make([]byte, n+Align-1)
	skip := -int(uintptr(unsafe.Pointer(&p[0]))) & (Align - 1)
	return p[skip : skip+n : skip+n]
}

// Aligned reports whether p begins at a multiple of [Align].
func Aligned(p []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(p)))%Align == 0
}
