package segment

import (
	"math"
	"sync"
)

const (
	// samplePlaces is the number of places that a sample looks at, samplePlaceBytes the
	// number of bytes at each.
	samplePlaces     = 64
	samplePlaceBytes = 64
	maxSample        = samplePlaces * samplePlaceBytes
)

// counters counts the values of each byte plane in a sample.
type counters [maxWidth][256]uint16

// nlog2n returns n*log2(n) for all counts that a sample can have.
var nlog2n = sync.OnceValue(func() *[maxSample + 1]float32 {
	t := new([maxSample + 1]float32)
	for n := 2; n < len(t); n++ {
		t[n] = float32(float64(n) * math.Log2(float64(n)))
	}
	return t
})

// entropy estimates the bits for each byte of a plane in which total bytes were counted.
// It corrects the bias of a small sample.
func entropy(counts *[256]uint16, total int) float64 {
	if total == 0 {
		return 0
	}
	t := nlog2n()
	sum, seen := float32(0), -1
	for _, n := range counts {
		if n > 0 {
			sum += t[n]
			seen++
		}
	}
	bits := math.Log2(float64(total)) - float64(sum)/float64(total)
	return min(8, bits+float64(seen)/(2*math.Ln2*float64(total)))
}

// places returns the offset of the place number i of a sample of length bytes. Offsets are
// multiples of 64.
func place(i, length int) int {
	return length / samplePlaces * i &^ (samplePlaceBytes - 1)
}

// huffmanBits returns the bits that a Huffman code takes for a byte with the given entropy. It
// takes one at least, unless all bytes are equal.
func huffmanBits(entropy float64) float64 {
	if entropy == 0 {
		return 0
	}
	return max(1, entropy)
}
