package view

import (
	"fmt"
	"math"

	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/tensor"
)

// multiply returns the elements times the constant of t, in its type. Elements and constant
// become float32, the product is rounded to float32, and then to the type of t, each time to
// the nearest, ties to even. With float64 on either side it is float64 instead. The error
// wraps ErrCheck if a product is too large.
func multiply(from *tensor.Tensor, t *recipe.Tensor) (*tensor.Tensor, error) {
	if from.DType() == tensor.Float64 || t.DType == tensor.Float64 {
		return multiplyIn(from, t, tensor.Float64, t.Multiply)
	}
	return multiplyIn(from, t, tensor.Float32, float32(t.Multiply))
}

func multiplyIn[F float32 | float64](from *tensor.Tensor, t *recipe.Tensor, d tensor.DType, c F) (*tensor.Tensor, error) {
	wide, err := tensor.Cast(from, d)
	if err != nil {
		return nil, err
	}
	if wide == from {
		wide = from.Clone()
	}

	numbers, err := tensor.Values[F](wide)
	if err != nil {
		return nil, err
	}
	for i, x := range numbers {
		numbers[i] = x * c
		if isInf(numbers[i]) && !isInf(x) {
			return nil, tooLarge(x, c, t.DType)
		}
	}

	out, err := tensor.Cast(wide, t.DType)
	if err != nil || out == wide {
		return out, err
	}
	back, err := tensor.Cast(out, d)
	if err != nil {
		return nil, err
	}
	rounded, err := tensor.Values[F](back)
	if err != nil {
		return nil, err
	}
	for i, x := range rounded {
		if isInf(x) && !isInf(numbers[i]) {
			return nil, tooLarge(numbers[i]/c, c, t.DType)
		}
	}
	return out, nil
}

func isInf[F float32 | float64](x F) bool { return math.IsInf(float64(x), 0) }

func tooLarge[F float32 | float64](x, c F, d tensor.DType) error {
	return fmt.Errorf("%w: %v times %v is too large for %v", ErrCheck, x, c, d)
}
