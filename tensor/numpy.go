package tensor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

var errNumpy = errors.New("numpy has no such dtype")

// numpyTypes are the dtypes that numpy has, and its names for them.
var numpyTypes = map[DType]string{
	Float64: "<f8", Float32: "<f4", Float16: "<f2",
	Int64: "<i8", Int32: "<i4", Int16: "<i2", Int8: "|i1",
	Uint64: "<u8", Uint32: "<u4", Uint16: "<u2", Uint8: "|u1",
	Bool: "|b1", Complex64: "<c8", Complex128: "<c16",
}

// NumpyHeader returns the header of a .npy file, version 1.0, which the elements
// follow. Its length is a multiple of 64 bytes, so that the elements can be mapped.
// If void is set, any dtype is written as numpy's void type; otherwise a
// dtype that numpy lacks is an error.
func NumpyHeader(d DType, shape []int64, void bool) ([]byte, error) {
	descr, ok := numpyTypes[d]
	switch {
	case void:
		descr = fmt.Sprintf("|V%d", d.Size())
	case !ok:
		return nil, fmt.Errorf("%w: %v", errNumpy, d)
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
	// A shape of MaxDims dimensions is far below the limit of version 1.0.
	out := append([]byte("\x93NUMPY\x01\x00"), binary.LittleEndian.AppendUint16(nil, uint16(len(text)))...)
	return append(out, text...), nil
}
