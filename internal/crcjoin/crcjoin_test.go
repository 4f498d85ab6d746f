package crcjoin_test

import (
	"hash/crc32"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/crcjoin"
)

// polynomials are those of hash/crc32.
var polynomials = map[string]uint32{"IEEE": crc32.IEEE, "Castagnoli": crc32.Castagnoli, "Koopman": crc32.Koopman}

func TestJoinIsTheChecksumOfBoth(t *testing.T) {
	for name, poly := range polynomials {
		t.Run(name, func(t *testing.T) {
			table, join := crc32.MakeTable(poly), crcjoin.New(poly)
			rapid.Check(t, func(t *rapid.T) {
				p := rapid.SliceOfN(rapid.Byte(), 0, 5000).Draw(t, "bytes")
				cut := rapid.IntRange(0, len(p)).Draw(t, "cut")
				got := join.Join(crc32.Checksum(p[:cut], table), crc32.Checksum(p[cut:], table), int64(len(p)-cut))
				if want := crc32.Checksum(p, table); got != want {
					t.Errorf("Join = %#08x; want %#08x", got, want)
				}
			})
		})
	}
}

// Lengths no test can allocate: in which order three are joined must not matter.
func TestJoinIsAssociative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		crcs := rapid.SliceOfN(rapid.Uint32(), 3, 3).Draw(t, "crcs")
		b := rapid.Int64Range(0, math.MaxInt64).Draw(t, "second length")
		c := rapid.Int64Range(0, math.MaxInt64-b).Draw(t, "third length")
		join := crcjoin.IEEE.Join
		left := join(join(crcs[0], crcs[1], b), crcs[2], c)
		right := join(crcs[0], join(crcs[1], crcs[2], c), b+c)
		if left != right {
			t.Errorf("(a+b)+c = %#08x, a+(b+c) = %#08x", left, right)
		}
	})
}
