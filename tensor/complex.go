package tensor

// A complex number is two floats in a row, the real part first; the kernels here
// see it as that.

// partOf returns the dtype of the two parts of a complex one.
func partOf(d DType) DType {
	if d == Complex64 {
		return Float32
	}
	return Float64
}

// dropImaginary returns the kernel to the dtype of the parts.
func dropImaginary(from DType) kernel {
	if from == Complex64 {
		return takeReal[float32]
	}
	return takeReal[float64]
}

func takeReal[F float](dst, src []byte) {
	d, s := elements[F](dst), elements[F](src)
	for i := range len(s) / 2 {
		d[i] = s[2*i]
	}
}

// addImaginary returns the kernel from the dtype of the parts.
func addImaginary(to DType) kernel {
	if to == Complex64 {
		return putReal[float32]
	}
	return putReal[float64]
}

func putReal[F float](dst, src []byte) {
	d := elements[F](dst)
	for i, v := range elements[F](src) {
		d[2*i], d[2*i+1] = v, 0
	}
}

func complexToBool(from DType) kernel {
	if from == Complex64 {
		return eitherPart[float32]
	}
	return eitherPart[float64]
}

func eitherPart[F float](dst, src []byte) {
	s := elements[F](src)
	for i := range len(s) / 2 {
		var b uint8
		if s[2*i] != 0 || s[2*i+1] != 0 {
			b = 1
		}
		dst[i] = b
	}
}
