// Package examples holds the code that the pages in docs and the README quote, so that
// quoted code compiles and runs. Each file is one pattern and uses only packages that a
// program outside of this module can use; this file has their shared code.
package examples

import (
	"log"

	"github.com/cairn-ckpt/cairn/tensor"
)

// check ends the example where there is an error.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// floats returns a tensor of the given values.
func floats(shape []int64, values ...float32) *tensor.Tensor {
	t, err := tensor.Of(shape, values)
	check(err)
	return t
}

// values returns the memory of a contiguous tensor.
func values(t *tensor.Tensor) []float32 {
	v, err := tensor.Values[float32](t)
	check(err)
	return v
}
