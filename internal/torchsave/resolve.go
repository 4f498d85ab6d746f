package torchsave

import (
	"encoding/binary"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Lazy reports whether the stored elements are not those that the tensor shows.
func (t *Tensor) Lazy() bool { return t.Conj || t.Neg }

// Resolve turns stored elements of the tensor, one after the other in p, into
// those that it shows. Of a tensor that is not Lazy it changes nothing.
func (t *Tensor) Resolve(p []byte) {
	size := t.DType.Size()
	switch kindOf(t.DType) {
	case kindComplex:
		half := size / 2
		if t.Neg {
			flipSigns(p, size, half)
		}
		if t.Conj != t.Neg {
			flipSigns(p, size, size)
		}
	case kindFloat:
		if t.Neg {
			flipSigns(p, size, size)
		}
	case kindInt:
		if t.Neg {
			negate(p, size)
		}
	}
}

// flipSigns flips the top bit of the byte before end in each element.
func flipSigns(p []byte, size, end int) {
	for i := end - 1; i < len(p); i += size {
		p[i] ^= 0x80
	}
}

// negate negates integers, which wrap around, signed or not.
func negate(p []byte, size int) {
	le := binary.LittleEndian
	for ; len(p) >= size; p = p[size:] {
		switch size {
		case 1:
			p[0] = -p[0]
		case 2:
			le.PutUint16(p, -le.Uint16(p))
		case 4:
			le.PutUint32(p, -le.Uint32(p))
		case 8:
			le.PutUint64(p, -le.Uint64(p))
		}
	}
}

// kind is what the elements of a type are to arithmetic.
type kind int

const (
	kindOther kind = iota // bool and floats of 8 bits, which PyTorch does not negate
	kindInt
	kindFloat
	kindComplex
)

func kindOf(d tensor.DType) kind {
	switch d {
	case tensor.Complex64, tensor.Complex128:
		return kindComplex
	case tensor.Float64, tensor.Float32, tensor.Float16, tensor.BFloat16:
		return kindFloat
	case tensor.Int64, tensor.Int32, tensor.Int16, tensor.Int8, tensor.Uint64, tensor.Uint32, tensor.Uint16, tensor.Uint8:
		return kindInt
	}
	return kindOther
}

// setMetadata sets what a call says in its last argument, a dict of flags. It
// reports false for what it does not understand: then nobody may take the stored
// elements for those of the tensor.
func (t *Tensor) setMetadata(v any) bool {
	flags, ok := flagsOf(v)
	if !ok {
		return false
	}
	for name, on := range flags {
		switch {
		case !on:
		case name == "conj" && kindOf(t.DType) == kindComplex:
			t.Conj = true
		case name == "neg" && kindOf(t.DType) != kindOther:
			t.Neg = true
		default:
			return false
		}
	}
	return true
}

// maxFlags bounds the flags of a tensor. PyTorch has two.
const maxFlags = 16

// flagsOf returns a dict of names and flags.
func flagsOf(v any) (map[string]bool, bool) {
	var pairs []value.Pair
	switch v := v.(type) {
	case nil:
	case map[string]any:
		if len(v) > maxFlags {
			return nil, false
		}
		for k, e := range v {
			pairs = append(pairs, value.Pair{Key: k, Value: e})
		}
	case *value.Dict:
		pairs = v.Pairs
	default:
		return nil, false
	}
	if len(pairs) > maxFlags {
		return nil, false
	}
	out := make(map[string]bool, len(pairs))
	for _, p := range pairs {
		name, ok1 := p.Key.(string)
		on, ok2 := p.Value.(bool)
		if !ok1 || !ok2 {
			return nil, false
		}
		out[name] = on
	}
	return out, true
}
