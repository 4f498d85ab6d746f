//go:build !purego

package crc32c

import (
	"math/big"
	"math/bits"
	"testing"
)

// eachPath runs a test on every implementation that the processor has.
func eachPath(t *testing.T, test func(t *testing.T)) {
	was := canFold
	defer func() { canFold = was }()
	canFold = false
	t.Run("plain", test)
	if canFold = was; canFold {
		t.Run("folded", test)
	}
}

// remainder returns x^n modulo the Castagnoli polynomial by long division, in
// the plain order of bits: bit i is the coefficient of x^i.
func remainder(n int) uint32 {
	castagnoli := big.NewInt(0x1_1edc6f41) // x^32 is its highest power
	v := new(big.Int).Lsh(big.NewInt(1), uint(n))
	for v.BitLen() > 32 {
		v.Xor(v, new(big.Int).Lsh(castagnoli, uint(v.BitLen()-33)))
	}
	return uint32(v.Uint64())
}

func TestFoldFactors(t *testing.T) {
	distances := []int{2048, 1536, 1024, 512, 384, 256, 128}
	if got, want := len(foldBy), 2*len(distances)+2; got != want {
		t.Fatalf("len(foldBy) = %d; want %d", got, want)
	}
	for i, d := range distances {
		for half, power := range []int{d + 63, d - 1} {
			want := uint64(bits.Reverse32(remainder(power))) << 32
			if got := foldBy[2*i+half]; got != want {
				t.Errorf("factor x^%d = %#016x; want %#016x", power, got, want)
			}
		}
	}
	if last := foldBy[2*len(distances):]; last[0] != 0 || last[1] != 0 {
		t.Errorf("factors of the last lane = %#x; want 0", last)
	}
}

func TestFoldBulkLeavesLittle(t *testing.T) {
	p := noise(2*foldMax + 700)
	for _, n := range []int{0, 1, foldMin - 1, foldMin, foldMin + 63, 1000, foldMax, foldMax + 1, len(p)} {
		crc, rest := foldBulk(7, p[:n])
		want := n
		if canFold && n >= foldMin {
			want = foldMin - 1
		}
		if len(rest) > want {
			t.Errorf("foldBulk of %d bytes leaves %d; want at most %d", n, len(rest), want)
		}
		if got, want := bitwise(crc, rest), bitwise(7, p[:n]); got != want {
			t.Errorf("foldBulk of %d bytes and the rest = %#08x; want %#08x", n, got, want)
		}
	}
}
