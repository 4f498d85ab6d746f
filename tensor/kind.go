package tensor

// IsFloat reports whether d is a floating-point type, of any width. The complex
// types are none.
func (d DType) IsFloat() bool { return d >= Float64 && d <= Float8E8M0FNU }

// IsInteger reports whether d is an integer type, with a sign or without. Bool is
// none.
func (d DType) IsInteger() bool { return d >= Int64 && d <= Uint8 }

// IsComplex reports whether d is a complex type, whose elements are two floats.
func (d DType) IsComplex() bool { return d == Complex64 || d == Complex128 }
