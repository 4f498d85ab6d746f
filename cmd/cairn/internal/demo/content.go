package demo

import (
	"encoding/binary"
)

// look makes random words look like training state: of each eight bytes some
// bits are kept and some are set.
type look struct{ keep, set uint64 }

// The looks: bfloat16 and float32 numbers between 2^-7 and 2^-3 with a sign, and
// squares, which have none.
var (
	weightLook = look{keep: 0x81ff_81ff_81ff_81ff, set: 0x3c00_3c00_3c00_3c00}
	momentLook = look{keep: 0x81ff_ffff_81ff_ffff, set: 0x3c00_0000_3c00_0000}
	squareLook = look{keep: 0x01ff_ffff_01ff_ffff, set: 0x3c00_0000_3c00_0000}
)

// content is the bytes of one tensor at one training step. They are a function
// of the name and the step, so any rank can tell what any part of it must be.
type content struct {
	seed uint64
	look look
}

func newContent(fqn string, step int64, l look) content {
	h := uint64(14695981039346656037)
	for _, c := range []byte(fqn) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return content{seed: mix(h + uint64(step)), look: l}
}

// mix is a step of the SplitMix64 generator.
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (c content) word(i int64) uint64 { return mix(c.seed+uint64(i))&c.look.keep | c.look.set }

// fill sets p to the bytes of the flattened tensor from off on.
func (c content) fill(p []byte, off int64) {
	i := off / 8
	if skip := int(off % 8); skip > 0 {
		w := c.word(i) >> (8 * skip)
		n := min(8-skip, len(p))
		for k := range n {
			p[k] = byte(w >> (8 * k))
		}
		p = p[n:]
		i++
	}
	for ; len(p) >= 8; i++ {
		binary.LittleEndian.PutUint64(p, c.word(i))
		p = p[8:]
	}
	for k, w := 0, c.word(i); k < len(p); k++ {
		p[k] = byte(w >> (8 * k))
	}
}
