package segment

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
)

// bf16 returns n elements of a bf16 tensor with the standard deviation std.
func bf16(r *rand.Rand, n int, std float64) []byte {
	p := make([]byte, 2*n)
	for i := range n {
		b := math.Float32bits(float32(r.NormFloat64() * std))
		binary.LittleEndian.PutUint16(p[2*i:], uint16((b+0x8000)>>16))
	}
	return p
}

// fp32 returns n elements of an fp32 tensor with the standard deviation std.
func fp32(r *rand.Rand, n int, std float64) []byte {
	p := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(p[4*i:], math.Float32bits(float32(r.NormFloat64()*std)))
	}
	return p
}

// noise returns n random bytes.
func noise(r *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// step returns p after a training step that changes each element with the given probability,
// mostly by one unit in the last place.
func step(r *rand.Rand, p []byte, width int, share float64) []byte {
	p = append([]byte(nil), p...)
	for i := 0; i+width <= len(p); i += width {
		if r.Float64() >= share {
			continue
		}
		by := uint64(1)
		switch u := r.Float64(); {
		case u > 0.95:
			by = 3 + r.Uint64N(6)
		case u > 0.8:
			by = 2
		}
		if r.IntN(2) == 0 {
			by = -by
		}
		var e [16]byte
		copy(e[:], p[i:i+width])
		binary.LittleEndian.PutUint64(e[:], binary.LittleEndian.Uint64(e[:])+by)
		copy(p[i:], e[:width])
	}
	return p
}
