package tensor

import (
	"math"
	"math/bits"
	"unsafe"
)

type integer interface {
	int64 | int32 | int16 | int8 | uint64 | uint32 | uint16 | uint8
}

type float interface{ float64 | float32 }

type number interface{ integer | float }

// numberKernel returns the kernel between the dtypes that are numbers in Go,
// and bool.
func numberKernel(from, to DType) kernel {
	switch from {
	case Float64:
		return fromFloat[float64](to)
	case Float32:
		return fromFloat[float32](to)
	case Int64:
		return fromInteger[int64](to)
	case Int32:
		return fromInteger[int32](to)
	case Int16:
		return fromInteger[int16](to)
	case Int8:
		return fromInteger[int8](to)
	case Uint64:
		return fromInteger[uint64](to)
	case Uint32:
		return fromInteger[uint32](to)
	case Uint16:
		return fromInteger[uint16](to)
	case Uint8:
		return fromInteger[uint8](to)
	}
	return join(Bool, Uint8, to, anyToBool[uint8], fromInteger[uint8](to))
}

func fromFloat[S float](to DType) kernel {
	switch to {
	case Float64:
		return plainCast[float64, S]
	case Float32:
		return plainCast[float32, S]
	case Int64:
		return truncate[int64, S]
	case Int32:
		return truncate[int32, S]
	case Int16:
		return truncate[int16, S]
	case Int8:
		return truncate[int8, S]
	case Uint64:
		return truncate[uint64, S]
	case Uint32:
		return truncate[uint32, S]
	case Uint16:
		return truncate[uint16, S]
	case Uint8:
		return truncate[uint8, S]
	}
	return anyToBool[S]
}

func fromInteger[S integer](to DType) kernel {
	switch to {
	case Float64:
		return plainCast[float64, S]
	case Float32:
		return plainCast[float32, S]
	case Int64:
		return plainCast[int64, S]
	case Int32:
		return plainCast[int32, S]
	case Int16:
		return plainCast[int16, S]
	case Int8:
		return plainCast[int8, S]
	case Uint64:
		return plainCast[uint64, S]
	case Uint32:
		return plainCast[uint32, S]
	case Uint16:
		return plainCast[uint16, S]
	case Uint8:
		return plainCast[uint8, S]
	}
	return anyToBool[S]
}

// plainCast is for the pairs whose Go conversion is what Convert promises:
// integers lose their upper bits, floats are rounded once.
func plainCast[D, S number](dst, src []byte) {
	s := elements[S](src)
	d := elements[D](dst)[:len(s)]
	for i, v := range s {
		d[i] = D(v)
	}
}

// truncate drops fractions. Go leaves open what becomes of a float outside the
// integer's range, so those never reach the conversion.
func truncate[D integer, S float](dst, src []byte) {
	lowest, highest := limits[D]()
	floor, ceiling := S(lowest), S(highest/2+1)*2 // the ceiling as a float is just out of range
	s := elements[S](src)
	d := elements[D](dst)[:len(s)]
	for i, v := range s {
		switch {
		case v > floor && v < ceiling:
			d[i] = D(v)
		case v >= ceiling:
			d[i] = highest
		case v <= floor:
			d[i] = lowest
		default:
			d[i] = 0
		}
	}
}

func limits[D integer]() (lowest, highest D) {
	ones := ^D(0)
	if ones > 0 {
		return 0, ones
	}
	highest = D(uint64(math.MaxUint64) >> (65 - 8*unsafe.Sizeof(ones)))
	return -highest - 1, highest
}

func anyToBool[S number](dst, src []byte) {
	s := elements[S](src)
	d := dst[:len(s)]
	for i, v := range s {
		var b uint8
		if v != 0 {
			b = 1
		}
		d[i] = b
	}
}

// roundToOdd returns a kernel to float32 for sources that do not fit one, made
// for a second rounding: the bits that do not fit leave a one in the last place.
// Rounded again to a float that is at least two bits shorter, the result is that
// of rounding the source once.
func roundToOdd(from DType) kernel {
	switch from {
	case Float64:
		return oddFloats
	case Int64:
		return oddIntegers[int64]
	case Int32:
		return oddIntegers[int32]
	case Uint64:
		return oddIntegers[uint64]
	case Uint32:
		return oddIntegers[uint32]
	}
	return kernelFor(from, Float32) // exact
}

func oddFloats(dst, src []byte) {
	s := elements[float64](src)
	d := elements[float32](dst)[:len(s)]
	for i, v := range s {
		f := float32(v)
		if float64(f) == v || v != v {
			d[i] = f
			continue
		}
		b := math.Float32bits(f)
		if math.Abs(float64(f)) > math.Abs(v) {
			b-- // back to what truncation gives; from infinity, too
		}
		d[i] = math.Float32frombits(b | 1)
	}
}

func oddIntegers[S integer](dst, src []byte) {
	s := elements[S](src)
	d := elements[float32](dst)[:len(s)]
	for i, v := range s {
		m := uint64(v)
		if v < 0 {
			m = -m
		}
		if over := bits.Len64(m) - 24; over > 0 {
			lost := m & (1<<over - 1)
			m -= lost
			if lost != 0 {
				m |= 1 << over
			}
		}
		d[i] = float32(m)
		if v < 0 {
			d[i] = -d[i]
		}
	}
}
