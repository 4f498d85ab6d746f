package crc32c

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
)

// noise returns n bytes that are the same in every run.
func noise(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{'c', 'r', 'c'}).Read(p)
	return p
}

// bitwise is CRC-32C as it is defined, a bit at a time.
func bitwise(crc uint32, p []byte) uint32 {
	crc = ^crc
	for _, b := range p {
		crc ^= uint32(b)
		for range 8 {
			crc = crc>>1 ^ 0x82f63b78*(crc&1)
		}
	}
	return ^crc
}

// check compares Update with hash/crc32.
func check(t testing.TB, crc uint32, p []byte) {
	t.Helper()
	if got, want := Update(crc, p), crc32.Update(crc, table, p); got != want {
		t.Fatalf("Update(%#08x, %d bytes) = %#08x; want %#08x", crc, len(p), got, want)
	}
}

func TestChecksumKnownAnswers(t *testing.T) {
	ascending := make([]byte, 32) // as in RFC 3720, B.4
	ones := make([]byte, 32)
	for i := range ascending {
		ascending[i], ones[i] = byte(i), 0xff
	}
	for claim, c := range map[string]struct {
		p    []byte
		want uint32
	}{
		"nothing":       {nil, 0},
		"digits":        {[]byte("123456789"), 0xe3069283},
		"32 zeros":      {make([]byte, 32), 0x8a9136aa},
		"32 ones":       {ones, 0x62a8ab43},
		"ascending":     {ascending, 0x46dd794e},
		"a long one":    {noise(10_000), bitwise(0, noise(10_000))},
		"a folded one":  {noise(256), bitwise(0, noise(256))},
		"many zeros":    {make([]byte, 4096), bitwise(0, make([]byte, 4096))},
		"an odd length": {noise(1001), bitwise(0, noise(1001))},
	} {
		eachPath(t, func(t *testing.T) {
			if got := Checksum(c.p); got != c.want {
				t.Errorf("%s: Checksum = %#08x; want %#08x", claim, got, c.want)
			}
		})
	}
}

func TestUpdateEveryLength(t *testing.T) {
	p := noise(4096)
	eachPath(t, func(t *testing.T) {
		for n := range len(p) + 1 {
			check(t, 0, p[:n])
			check(t, uint32(n)*2654435761, p[len(p)-n:])
		}
	})
}

func TestUpdateEveryAlignment(t *testing.T) {
	p := noise(1<<20 + 64)
	lengths := []int{1, 63, 64, 65, 255, 256, 257, 319, 320, 511, 512, 513, 1000, 4096, 1<<20 - 1}
	eachPath(t, func(t *testing.T) {
		for at := range 64 {
			for _, n := range lengths {
				check(t, ^uint32(at), p[at:at+n])
			}
		}
	})
}

// However long the bytes are, wherever they begin and are cut, and whatever came
// before, the checksum equals hash/crc32's.
func TestUpdateOfPieces(t *testing.T) {
	p := noise(3 << 20)
	eachPath(t, func(t *testing.T) {
		deep.Check(t, func(t *rapid.T) {
			crc := rapid.Uint32().Draw(t, "crc")
			at := rapid.IntRange(0, 127).Draw(t, "at")
			q := p[at:][:rapid.IntRange(0, len(p)-at).Draw(t, "length")]
			cut := rapid.IntRange(0, len(q)).Draw(t, "cut")
			want := crc32.Update(crc, table, q)
			if got := Update(crc, q); got != want {
				t.Errorf("Update = %#08x; want %#08x", got, want)
			}
			if got := Update(Update(crc, q[:cut]), q[cut:]); got != want {
				t.Errorf("Update in two pieces = %#08x; want %#08x", got, want)
			}
		})
	})
}

// The bytes are p repeated, because a fuzzer prefers short ones and the fast
// path begins at some hundreds.
func FuzzUpdate(f *testing.F) {
	f.Add(uint32(0), []byte("123456789"), uint8(0), uint16(4))
	f.Add(^uint32(0), make([]byte, 64), uint8(63), uint16(256))
	f.Add(uint32(1), noise(320), uint8(12), uint16(1000))
	f.Fuzz(func(t *testing.T, crc uint32, p []byte, times uint8, cut uint16) {
		q := make([]byte, 0, len(p)*(int(times)+1))
		for range int(times) + 1 {
			q = append(q, p...)
		}
		check(t, crc, q)
		a, b := q[:min(len(q), int(cut))], q[min(len(q), int(cut)):]
		check(t, Update(crc, a), b)
		if got, want := Join(Update(crc, a), Checksum(b), int64(len(b))), Update(crc, q); got != want {
			t.Fatalf("Join = %#08x; want %#08x", got, want)
		}
	})
}
