package segment

import (
	"math"
	"sync"
)

const (
	// samplePlaces is the number of places of a segment that a sample looks at, placeBytes
	// the number of bytes at each place.
	samplePlaces = 64
	placeBytes   = 64
	sampleBytes  = samplePlaces * placeBytes
)

// place returns the offset of place i of a segment of length bytes, a multiple of placeBytes.
func place(i, length int) int {
	return length / samplePlaces * i &^ (placeBytes - 1)
}

// A sample estimates the length of codes from a small part of a segment. It has the number of
// times that each byte occurs in each plane.
type sample [maxWidth][256]uint16

// diffSize estimates the length of the code of a difference. It returns 0 if an estimate is
// not needed: if the segment is short, or if the code stays within limit without any Huffman
// code.
func (s *sample) diffSize(src, base []byte, width, limit int) float64 {
	if len(src) < 2*sampleBytes {
		return 0
	}
	changed := 0
	for i := range samplePlaces {
		at := place(i, len(src))
		changed += countChanged(src[at:at+placeBytes], base[at:at+placeBytes], width)
	}
	// Two standard deviations less, so that chance rarely refuses what would fit.
	share := (float64(changed) - 2*math.Sqrt(float64(changed))) / float64(sampleBytes/width)
	elems := share * float64(len(src)/width)
	if share <= 0 || elems*float64(1+width) < float64(limit) {
		return 0
	}
	s.countXORs(src, base, width)
	gap := -math.Log2(share) - (1-share)/share*math.Log2(1-share)
	perElem := huffmanBits(gap)
	for k := range width {
		perElem += huffmanBits(entropy(&s[k], changed))
	}
	return elems * perElem / 8
}

// countChanged returns how many elements differ between a and b.
func countChanged(a, b []byte, width int) (n int) {
	for k := 0; k < len(a); k += width {
		if string(a[k:k+width]) != string(b[k:k+width]) {
			n++
		}
	}
	return n
}

// countXORs counts the bytes of the XORs of changed elements.
func (s *sample) countXORs(src, base []byte, width int) {
	clear(s[:width])
	for i := range samplePlaces {
		at := place(i, len(src))
		a, b := src[at:at+placeBytes], base[at:at+placeBytes]
		for k := 0; k < placeBytes; k += width {
			if string(a[k:k+width]) == string(b[k:k+width]) {
				continue
			}
			for j := range width {
				s[j][a[k+j]^b[k+j]]++
			}
		}
	}
}

// packedSize returns the set of planes that a Huffman code pays for, plane k as bit k, and an
// estimate of the length of the packed form. It does not look at a short segment, for which it
// returns all planes and the length 0.
func (s *sample) packedSize(src []byte, width int) (pays uint, size float64) {
	if len(src) < 2*sampleBytes {
		return 1<<width - 1, 0
	}
	clear(s[:width])
	for i := range samplePlaces {
		at := place(i, len(src))
		for j, b := range src[at : at+placeBytes] {
			s[j&(width-1)][b]++
		}
	}
	for k := range width {
		bits := huffmanBits(entropy(&s[k], sampleBytes/width))
		if bits <= 8-8.0/(1<<wantLogLess) {
			pays |= 1 << k
		} else {
			bits = 8
		}
		size += bits / 8 * float64(len(src)/width)
	}
	return pays, size
}

// nlog2n returns a table of n*log2(n) for all counts that a sample can have.
var nlog2n = sync.OnceValue(func() *[sampleBytes + 1]float32 {
	t := new([sampleBytes + 1]float32)
	for n := 2; n < len(t); n++ {
		t[n] = float32(float64(n) * math.Log2(float64(n)))
	}
	return t
})

// entropy estimates the bits for each byte of a plane in which total bytes were counted. It
// corrects the bias of a small sample.
func entropy(counts *[256]uint16, total int) float64 {
	t := nlog2n()
	sum, different := float32(0), 0
	for _, n := range counts {
		if n > 0 {
			sum += t[n]
			different++
		}
	}
	if different < 2 {
		return 0
	}
	bits := math.Log2(float64(total)) - float64(sum)/float64(total)
	return min(8, bits+float64(different-1)/(2*math.Ln2*float64(total)))
}

// huffmanBits returns the bits that a Huffman code takes for a byte with the given entropy. It
// takes at least one, unless all bytes are equal.
func huffmanBits(entropy float64) float64 {
	if entropy == 0 {
		return 0
	}
	return max(1, entropy)
}
