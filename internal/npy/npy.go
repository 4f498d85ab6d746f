// Package npy makes the header of numpy's .npy files. It knows nothing of where
// they go, and leaves the elements behind the header to its callers. The contract
// is in the comment of [Header].
package npy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
)

// ErrDType reports a dtype that numpy lacks.
var ErrDType = errors.New("numpy has no such dtype")

// types are numpy's names of the dtypes that it has.
var types = map[tensor.DType]string{
	tensor.Float64: "<f8", tensor.Float32: "<f4", tensor.Float16: "<f2",
	tensor.Int64: "<i8", tensor.Int32: "<i4", tensor.Int16: "<i2", tensor.Int8: "|i1",
	tensor.Uint64: "<u8", tensor.Uint32: "<u4", tensor.Uint16: "<u2", tensor.Uint8: "|u1",
	tensor.Bool: "|b1", tensor.Complex64: "<c8", tensor.Complex128: "<c16",
}

// Header returns the beginning of a .npy file, version 1.0: the elements
// follow it. It is a multiple of 64 bytes, so that they can be mapped. With void,
// any dtype is written as bytes without a meaning; otherwise those that numpy
// lacks are an error that wraps [ErrDType].
func Header(d tensor.DType, shape []int64, void bool) ([]byte, error) {
	descr, ok := types[d]
	switch {
	case void:
		descr = fmt.Sprintf("|V%d", d.Size())
	case !ok:
		return nil, fmt.Errorf("%w: %v", ErrDType, d)
	}
	var dims strings.Builder
	for _, n := range shape {
		fmt.Fprintf(&dims, "%d, ", n)
	}
	tuple := strings.TrimSuffix(dims.String(), " ")
	if len(shape) != 1 {
		tuple = strings.TrimSuffix(tuple, ",")
	}
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, tuple)
	const fixed = 10 // magic, version, length
	pad := 63 - (fixed+len(text))%64
	text += strings.Repeat(" ", pad) + "\n"
	// A shape of tensor.MaxDims dimensions is far below what version 1.0 holds.
	out := append([]byte("\x93NUMPY\x01\x00"), binary.LittleEndian.AppendUint16(nil, uint16(len(text)))...)
	return append(out, text...), nil
}
