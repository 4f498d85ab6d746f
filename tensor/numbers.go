package tensor

// Aligned reports whether Go may look at mem as at elements of type d, those of
// complex types as two floats. It is false for an invalid type.
func (d DType) Aligned(mem []byte) bool {
	size := d.Size()
	if d.IsComplex() {
		size /= 2
	}
	return size > 0 && alignedTo(mem, uintptr(size))
}

// Numbers returns mem as a slice of E, without a copy; what is left after the
// last whole one is not seen. It checks nothing: mem must be aligned for E, which
// [DType.Aligned] says. [Values] is for tensors, and checks.
func Numbers[E Number](mem []byte) []E { return elements[E](mem) }
