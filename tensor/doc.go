// Package tensor holds element types, shapes, boxes and strided views of host
// memory. It knows nothing of ranks, files or checkpoints and imports nothing
// else of this module; everything else is built on its geometry.
package tensor
