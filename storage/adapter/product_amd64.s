//go:build !purego

#include "textflag.h"

// func addProducts(d, left, panel *float32, rank int, scale float32)
//
// The sums of the 32 columns are in eight registers. Products are rounded before they are added:
// there is no fused instruction. Every amd64 has the instructions.
TEXT ·addProducts(SB), NOSPLIT, $0-36
	MOVQ  d+0(FP), DI
	MOVQ  left+8(FP), SI
	MOVQ  panel+16(FP), DX
	MOVQ  rank+24(FP), CX
	XORPS X0, X0
	XORPS X1, X1
	XORPS X2, X2
	XORPS X3, X3
	XORPS X4, X4
	XORPS X5, X5
	XORPS X6, X6
	XORPS X7, X7

loop:
	MOVSS  (SI), X8
	SHUFPS $0, X8, X8
	MOVUPS (DX), X9
	MOVUPS 16(DX), X10
	MOVUPS 32(DX), X11
	MOVUPS 48(DX), X12
	MULPS  X8, X9
	MULPS  X8, X10
	MULPS  X8, X11
	MULPS  X8, X12
	ADDPS  X9, X0
	ADDPS  X10, X1
	ADDPS  X11, X2
	ADDPS  X12, X3
	MOVUPS 64(DX), X9
	MOVUPS 80(DX), X10
	MOVUPS 96(DX), X11
	MOVUPS 112(DX), X12
	MULPS  X8, X9
	MULPS  X8, X10
	MULPS  X8, X11
	MULPS  X8, X12
	ADDPS  X9, X4
	ADDPS  X10, X5
	ADDPS  X11, X6
	ADDPS  X12, X7
	ADDQ   $4, SI
	ADDQ   $128, DX
	DECQ   CX
	JNZ    loop

	MOVSS  scale+32(FP), X8
	SHUFPS $0, X8, X8
	MULPS  X8, X0
	MULPS  X8, X1
	MULPS  X8, X2
	MULPS  X8, X3
	MULPS  X8, X4
	MULPS  X8, X5
	MULPS  X8, X6
	MULPS  X8, X7
	MOVUPS (DI), X9
	ADDPS  X0, X9
	MOVUPS X9, (DI)
	MOVUPS 16(DI), X10
	ADDPS  X1, X10
	MOVUPS X10, 16(DI)
	MOVUPS 32(DI), X11
	ADDPS  X2, X11
	MOVUPS X11, 32(DI)
	MOVUPS 48(DI), X12
	ADDPS  X3, X12
	MOVUPS X12, 48(DI)
	MOVUPS 64(DI), X9
	ADDPS  X4, X9
	MOVUPS X9, 64(DI)
	MOVUPS 80(DI), X10
	ADDPS  X5, X10
	MOVUPS X10, 80(DI)
	MOVUPS 96(DI), X11
	ADDPS  X6, X11
	MOVUPS X11, 96(DI)
	MOVUPS 112(DI), X12
	ADDPS  X7, X12
	MOVUPS X12, 112(DI)
	RET
