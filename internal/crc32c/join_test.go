package crc32c

import (
	"hash/crc32"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
)

func TestJoinIsTheChecksumOfBoth(t *testing.T) {
	p := noise(1 << 20)
	deep.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, len(p)).Draw(t, "length")
		cut := rapid.IntRange(0, n).Draw(t, "cut")
		got := Join(Checksum(p[:cut]), Checksum(p[cut:n]), int64(n-cut))
		if want := Checksum(p[:n]); got != want {
			t.Errorf("Join = %#08x; want %#08x", got, want)
		}
	})
}

// Lengths no test can allocate: to join zeros to zeros first, or one after the
// other, must not matter.
func TestJoinIsAssociative(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		crcs := rapid.SliceOfN(rapid.Uint32(), 3, 3).Draw(t, "crcs")
		b := rapid.Int64Range(0, math.MaxInt64).Draw(t, "second length")
		c := rapid.Int64Range(0, math.MaxInt64-b).Draw(t, "third length")
		left := Join(Join(crcs[0], crcs[1], b), crcs[2], c)
		right := Join(crcs[0], Join(crcs[1], crcs[2], c), b+c)
		if left != right {
			t.Errorf("(a+b)+c = %#08x, a+(b+c) = %#08x", left, right)
		}
	})
}

func TestJoinWithNothing(t *testing.T) {
	crc := Checksum([]byte("something"))
	if got := Join(crc, 0, 0); got != crc {
		t.Errorf("Join(crc, 0, 0) = %#08x; want %#08x", got, crc)
	}
	if got := Join(0, crc, 9); got != crc {
		t.Errorf("Join(0, crc, 9) = %#08x; want %#08x", got, crc)
	}
}

func TestJoinIEEE(t *testing.T) {
	p := noise(5000)
	deep.Check(t, func(t *rapid.T) {
		cut := rapid.IntRange(0, len(p)).Draw(t, "cut")
		got := JoinIEEE(crc32.ChecksumIEEE(p[:cut]), crc32.ChecksumIEEE(p[cut:]), int64(len(p)-cut))
		if want := crc32.ChecksumIEEE(p); got != want {
			t.Errorf("JoinIEEE = %#08x; want %#08x", got, want)
		}
	})
}
