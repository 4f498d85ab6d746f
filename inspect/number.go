package inspect

import (
	"math"
	"strconv"
)

// Number is a float64 that JSON can say whatever it is: an infinity is the text
// "inf" or "-inf", and NaN, which stands for a number that there is none of, is
// null.
type Number float64

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	f := float64(n)
	switch {
	case math.IsNaN(f):
		return []byte("null"), nil
	case math.IsInf(f, 0):
		return strconv.AppendQuote(nil, infText(f)), nil
	}
	return strconv.AppendFloat(nil, f, 'g', -1, 64), nil
}

func infText(f float64) string {
	if f > 0 {
		return "inf"
	}
	return "-inf"
}

// None reports whether there is no such number.
func (n Number) None() bool { return math.IsNaN(float64(n)) }
