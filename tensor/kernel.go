package tensor

// A kernel converts contiguous, aligned elements of one dtype into another; dst
// has room for as many as src holds.
type kernel func(dst, src []byte)

// chainElements is how many elements pass through the middle of a chain at a
// time: they stay in the nearest cache.
const chainElements = 1024

// kernelFor returns the kernel of a pair of different dtypes. Pairs that occur
// all the time have a loop of their own; the others are chained from two loops
// whose middle loses nothing, or keeps what the second has to know to round as
// if it had seen the first's source. The kernel may hold memory: it is for one
// goroutine.
func kernelFor(from, to DType) kernel {
	switch {
	case from.IsComplex() && to.IsComplex():
		return kernelFor(partOf(from), partOf(to)) // twice as many parts
	case from.IsComplex() && to == Bool:
		return complexToBool(from)
	case from.IsComplex():
		return chain(from, partOf(from), to, dropImaginary(from))
	case to.IsComplex():
		return chainInto(from, partOf(to), to, addImaginary(to))
	case from.isSmall() && to == Float32:
		return fromSmall(from)
	case from == Float32 && to.isSmall():
		return toSmall(to)
	case from.isSmall():
		return chain(from, Float32, to, fromSmall(from))
	case to.isSmall():
		return join(from, Float32, to, roundToOdd(from), toSmall(to))
	}
	return numberKernel(from, to)
}

// isSmall reports whether d is a float that Go has no type for.
func (d DType) isSmall() bool { return d >= Float16 && d <= Float8E8M0FNU }

// chain goes on with the usual kernel after first.
func chain(from, mid, to DType, first kernel) kernel {
	if mid == to {
		return first
	}
	return join(from, mid, to, first, kernelFor(mid, to))
}

// chainInto comes to last by the usual kernel.
func chainInto(from, mid, to DType, last kernel) kernel {
	if from == mid {
		return last
	}
	return join(from, mid, to, kernelFor(from, mid), last)
}

func join(from, mid, to DType, first, second kernel) kernel {
	buf := make([]byte, chainElements*mid.Size())
	return func(dst, src []byte) {
		for len(src) > 0 {
			n := min(len(src)/from.Size(), chainElements)
			between := buf[:n*mid.Size()]
			first(between, src[:n*from.Size()])
			second(dst[:n*to.Size()], between)
			dst, src = dst[n*to.Size():], src[n*from.Size():]
		}
	}
}

// fromSmall returns the kernel to float32, which holds every small float
// exactly.
func fromSmall(from DType) kernel {
	switch from {
	case Float16:
		return float16ToFloat32
	case BFloat16:
		return bfloat16ToFloat32
	}
	return float8ToFloat32(from)
}

// toSmall returns the kernel from float32.
func toSmall(to DType) kernel {
	switch to {
	case Float16:
		return float32ToFloat16
	case BFloat16:
		return float32ToBFloat16
	}
	return float32ToFloat8(to)
}
