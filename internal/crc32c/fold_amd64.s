//go:build !purego

#include "textflag.h"

// CRC-32C by folding.
//
// A message is a polynomial over GF(2), its first bit the coefficient of the
// highest power, and its CRC (the register, before the final inversion) is the
// message times x^32 modulo the polynomial P. So a part of the message may be
// replaced by anything that is congruent to it modulo P. If A are 128 bits that
// stand d bits before others, B, they contribute A*x^d, and a number congruent
// to that but only 128 bits long can be XORed into B; then A is done with.
//
// CRC-32C is reflected: bit 0 of the first byte comes first. Loaded as little
// endian, bit i of a quadword is the coefficient of x^(63-i), and the first
// eight bytes, the low quadword L, are the higher powers: A = L*x^64 + H. Hence
//
//	A*x^d = L * x^(d+64)  +  H * x^d
//
// is two multiplications of 64 by 64 bits, with the powers replaced by their
// remainders modulo P, which have 32 bits and stand in the upper half of their
// quadword, where the low powers are. The product of bit i and bit j is bit i+j
// of the result, that is x^(127-i-j), but should be x^(63-i+63-j): the product
// comes out times x. So the factors are x^(d+63) and x^(d-1); they are in the
// table foldBy, and a test proves them.
//
// VPCLMULQDQ does this in the four lanes of a register at once. One such
// register would wait for its own result each time; four keep the multiplier
// busy. Each moves over 256 bytes, 2048 bits, at a step.

// FOLD multiplies the four lanes of X by the factors in K. The sum of X and T
// is then what is to be added to the bytes ahead. The immediates choose the low
// quadword of both operands, and the high one of both.
#define FOLD(K, X, T) \
	VPCLMULQDQ $0x00, K, X, T \
	VPCLMULQDQ $0x11, K, X, X

// ADD3 is the truth table of a^b^c, for VPTERNLOGQ.
#define ADD3 $0x96

// func foldAVX512(crc uint32, p *byte, n int) uint32
TEXT ·foldAVX512(SB), NOSPLIT, $0-28
	MOVL crc+0(FP), AX
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
	LEAQ ·foldBy(SB), DX

	// The first 256 bytes. The register is what came before, times x^32: it
	// is added to the first four bytes.
	VMOVD     AX, X4 // and zeros the rest of Z4
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VPXORQ    Z4, Z0, Z0
	ADDQ      $256, SI
	SUBQ      $256, CX

	VBROADCASTI32X4 (DX), Z8 // by 2048
	JMP             more

four:
	FOLD(Z8, Z0, Z4)
	FOLD(Z8, Z1, Z5)
	FOLD(Z8, Z2, Z6)
	FOLD(Z8, Z3, Z7)
	VPTERNLOGQ ADD3, (SI), Z4, Z0
	VPTERNLOGQ ADD3, 64(SI), Z5, Z1
	VPTERNLOGQ ADD3, 128(SI), Z6, Z2
	VPTERNLOGQ ADD3, 192(SI), Z7, Z3
	ADDQ       $256, SI
	SUBQ       $256, CX

more:
	CMPQ CX, $256
	JGE  four

	// Three registers onto the last.
	VBROADCASTI32X4 16(DX), Z8  // by 1536
	VBROADCASTI32X4 32(DX), Z9  // by 1024
	VBROADCASTI32X4 48(DX), Z10 // by 512
	FOLD(Z8, Z0, Z4)
	FOLD(Z9, Z1, Z5)
	FOLD(Z10, Z2, Z6)
	VPTERNLOGQ      ADD3, Z4, Z0, Z3
	VPTERNLOGQ      ADD3, Z5, Z1, Z2
	VPTERNLOGQ      ADD3, Z6, Z2, Z3
	JMP             last

	// At most three blocks are left, one at a time.
one:
	FOLD(Z10, Z3, Z4)
	VPTERNLOGQ ADD3, (SI), Z4, Z3
	ADDQ       $64, SI
	SUBQ       $64, CX

last:
	TESTQ CX, CX
	JNZ   one

	// Three lanes onto the last, which the factors 0 take out of Z3.
	VMOVDQU64     64(DX), Z8 // by 384, 256, 128
	VEXTRACTI32X4 $3, Z3, X0
	FOLD(Z8, Z3, Z4)
	VPXORQ        Z4, Z3, Z3
	VEXTRACTI64X4 $1, Z3, Y4
	VPXOR         Y4, Y3, Y3
	VEXTRACTI128  $1, Y3, X4
	VPTERNLOGQ    ADD3, Z4, Z3, Z0

	// The CRC of these 16 bytes, which CRC32 computes as it stands, is that of
	// all the bytes.
	VMOVQ   X0, AX
	VPEXTRQ $1, X0, BX
	VZEROUPPER
	XORL    R8, R8
	CRC32Q  AX, R8
	CRC32Q  BX, R8
	MOVL    R8, ret+24(FP)
	RET
