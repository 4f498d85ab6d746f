package collective

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Op says how the elements of several ranks become one.
//
// Integers wrap. Floats of 16 and 8 bits are reduced as float32 from end to end
// and rounded once. Max and Min return NaN where any rank has one. Of bools Sum
// and Max are "or", Prod and Min "and". What makes no sense is an error that
// wraps [tensor.ErrDType]: Avg of integers and bools, Max and Min of complex
// numbers, anything of float8_e8m0fnu, which holds scales.
type Op uint8

// The ways to reduce.
const (
	Sum Op = iota
	Avg
	Max
	Min
	Prod
)

var opNames = [...]string{Sum: "sum", Avg: "avg", Max: "max", Min: "min", Prod: "prod"}

// Ops returns every way to reduce.
func Ops() []Op { return []Op{Sum, Avg, Max, Min, Prod} }

// String returns the name, such as "sum".
func (o Op) String() string {
	if !o.valid() {
		return fmt.Sprintf("op %d", uint8(o))
	}
	return opNames[o]
}

func (o Op) valid() bool { return int(o) < len(opNames) }

// ParseOp returns the way to reduce that String calls s, in any case. The error
// wraps [group.ErrInvalid] and lists those that there are.
func ParseOp(s string) (Op, error) {
	i := slices.Index(opNames[:], strings.ToLower(s))
	if i < 0 {
		return 0, fmt.Errorf("reduce by %q, not one of %s: %w", s, strings.Join(opNames[:], ", "), group.ErrInvalid)
	}
	return Op(i), nil
}

// check returns an error where elements of type d cannot be reduced by o.
func (o Op) check(d tensor.DType) error {
	switch {
	case !o.valid():
		return fmt.Errorf("reduce by %v: %w", o, group.ErrInvalid)
	case !o.fits(d):
		return fmt.Errorf("%v of %v: %w", o, d, tensor.ErrDType)
	}
	return nil
}

func (o Op) fits(d tensor.DType) bool {
	switch {
	case !d.Valid() || d == tensor.Float8E8M0FNU:
		return false
	case isComplex(d):
		return o != Max && o != Min
	case d >= tensor.Int64 && d <= tensor.Bool:
		return o != Avg
	}
	return true
}

func isComplex(d tensor.DType) bool { return d == tensor.Complex64 || d == tensor.Complex128 }

// sumType returns the type in which elements of type d are reduced.
func sumType(d tensor.DType) tensor.DType {
	if d >= tensor.Float16 && d <= tensor.Float8E5M2FNUZ {
		return tensor.Float32
	}
	return d
}
