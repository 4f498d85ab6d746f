// Package tensor holds element types, shapes, boxes and strided views of host
// memory, with the copies and casts between them. It knows nothing of ranks,
// files or checkpoints and imports nothing else of this module; everything else
// is built on its geometry. The contract of memory is that of [Tensor], the
// contract of geometry that of [Box], the contract of values that of [Convert].
//
// # Byte order
//
// Elements are little-endian in every format that cairn reads or writes, and
// the package looks at memory as it is, so it does not compile for big-endian
// machines.
package tensor
