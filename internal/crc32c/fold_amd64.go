//go:build !purego

package crc32c

import "golang.org/x/sys/cpu"

const (
	// blockBytes is the size of a register; foldAVX512 takes whole blocks.
	blockBytes = 64
	// foldMin is the least that foldAVX512 takes: a block for each of its four
	// registers. It is then faster than hash/crc32.
	foldMin = 4 * blockBytes
	// foldMax is the most that foldAVX512 processes in one call. The scheduler cannot
	// interrupt assembly, so a garbage collection has to wait for it: ten to a
	// hundred microseconds. Another call costs a thousandth of that.
	foldMax = 512 << 10
)

// canFold reports whether the processor and the system support foldAVX512.
// GODEBUG=cpu.avx512f=off makes it false.
var canFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasSSE42

// foldBulk adds the part of p to crc that foldAVX512 can process, and returns the
// checksum and the rest of p: fewer than foldMin bytes, or all of p if foldAVX512 cannot
// be used.
func foldBulk(crc uint32, p []byte) (uint32, []byte) {
	if !canFold {
		return crc, p
	}
	for len(p) >= foldMin {
		n := min(len(p), foldMax) &^ (blockBytes - 1)
		crc = ^foldAVX512(^crc, &p[0], n)
		p = p[n:]
	}
	return crc, p
}

// foldAVX512 returns the CRC register crc, which is not inverted, advanced over
// the n bytes at p. n is a multiple of blockBytes and at least foldMin.
//
//go:noescape
func foldAVX512(crc uint32, p *byte, n int) uint32

// foldBy has, for each distance d in bits by which foldAVX512 moves 128 bits
// forward, the two factors for it: x^(d+63) for the earlier half, x^(d-1) for
// the later one, both modulo the polynomial. See fold_amd64.s.
var foldBy = [...]uint64{
	0xe9a5d8be << 32, 0x1426a815 << 32, // 2048: over four registers
	0x7ccbbbf2 << 32, 0x31c94608 << 32, // 1536: over three
	0x6577b245 << 32, 0x7417153f << 32, // 1024: over two
	0x1c19243b << 32, 0x75bba45b << 32, //  512: over one
	// Within a register, each lane onto the last, and the last to the end.
	0xa46ef4aa << 32, 0x6051243f << 32, //  384
	0x33ccbbbc << 32, 0xa2158b34 << 32, //  256
	0x3743f7bd << 32, 0x3171d430 << 32, //  128
	0, 0,
}
