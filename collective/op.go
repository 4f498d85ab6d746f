package collective

import (
	"fmt"

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

// String returns the name, such as "sum".
func (o Op) String() string {
	if !o.valid() {
		return fmt.Sprintf("op %d", uint8(o))
	}
	return opNames[o]
}

func (o Op) valid() bool { return int(o) < len(opNames) }

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
	case d.IsComplex():
		return o != Max && o != Min
	case d.IsInteger() || d == tensor.Bool:
		return o != Avg
	}
	return true
}

// sumType returns the type in which elements of type d are reduced: float32 for
// floats that Go has no type for.
func sumType(d tensor.DType) tensor.DType {
	if d.IsFloat() && d.Size() < tensor.Float32.Size() {
		return tensor.Float32
	}
	return d
}
