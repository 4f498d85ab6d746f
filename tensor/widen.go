package tensor

// trait is something that some dtypes can tell and others cannot.
type trait uint8

const (
	zero trait = 1 << iota
	negative
	minusZero
	nan
	infinity
	imaginary
)

const (
	signed = zero | negative
	finite = signed | minusZero | nan // a float without infinities
	ieee   = finite | infinity
)

// ranges describes the numbers of every dtype: m·2^e for any m of so many bits
// and any e from low on, as long as the product is below 2^high, and what else
// there is besides. An integer's lowest number, a power of two by itself, is
// below what any larger type holds.
var ranges = [...]struct {
	bits, low, high int
	traits          trait
}{
	Float64:        {53, -1074, 1024, ieee},
	Float32:        {24, -149, 128, ieee},
	Float16:        {11, -24, 16, ieee},
	BFloat16:       {8, -133, 128, ieee},
	Float8E4M3FN:   {4, -9, 9, finite},
	Float8E4M3FNUZ: {4, -10, 8, finite &^ minusZero},
	Float8E5M2:     {3, -16, 16, ieee},
	Float8E5M2FNUZ: {3, -17, 16, finite &^ minusZero},
	Float8E8M0FNU:  {1, -127, 128, nan},
	Int64:          {63, 0, 63, signed},
	Int32:          {31, 0, 31, signed},
	Int16:          {15, 0, 15, signed},
	Int8:           {7, 0, 7, signed},
	Uint64:         {64, 0, 64, zero},
	Uint32:         {32, 0, 32, zero},
	Uint16:         {16, 0, 16, zero},
	Uint8:          {8, 0, 8, zero},
	Bool:           {1, 0, 1, zero},
	Complex64:      {24, -149, 128, ieee | imaginary},
	Complex128:     {53, -1074, 1024, ieee | imaginary},
}

// CanWiden reports whether every value of from is also one of to: finite
// numbers to the last bit, infinities, NaN (not the bits inside of it) and the
// sign of zero. A bool counts as the number zero or one, so it widens to every
// type but float8_e8m0fnu, which has no zero; nothing else widens to a bool. Every
// valid dtype widens to itself.
func CanWiden(from, to DType) bool {
	if !from.Valid() || !to.Valid() {
		return false
	}
	f, t := ranges[from], ranges[to]
	return f.bits <= t.bits && f.low >= t.low && f.high <= t.high && f.traits&^t.traits == 0
}
