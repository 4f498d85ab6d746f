package torchsave

import (
	"context"

	"github.com/cairn-ckpt/cairn/tensor"
)

// ReadFunc fills p with the bytes from off on of a file, or of the range of a
// larger file that holds one. There are no partial results.
type ReadFunc func(ctx context.Context, p []byte, off int64) error

// File is an open file of torch.save. Nobody changes it.
type File struct {
	// Root is the value that was saved, in the types of package value. The
	// tensors inside are *Tensor. One of a class that is unknown here, sparse
	// and quantised ones too, is a *value.Object.
	Root any
	// Legacy says that the file is a stream as PyTorch wrote it before 1.6.
	// Such a file has no checksums.
	Legacy bool
}

// Tensor is a tensor inside of a file: a view of one of its storages. It lies
// inside of that storage, its strides are not negative, and nothing about it
// overflows.
type Tensor struct {
	DType tensor.DType
	Shape []int64
	// Strides are the distances between neighbours in each dimension, in
	// elements.
	Strides []int64
	// Offset is where the first element lies, and End where the storage ends,
	// in bytes of the file.
	Offset, End int64
	// StorageKey names the storage. Tensors of one storage share their bytes.
	StorageKey   string
	RequiresGrad bool
	// Parameter says that it is a torch.nn.Parameter.
	Parameter bool
}

// Contiguous reports whether the elements follow each other in the file without
// a gap, the last dimension fastest.
func (t *Tensor) Contiguous() bool { return false }

// NumBytes returns the bytes of the tensor's contiguous form.
func (t *Tensor) NumBytes() int64 { return 0 }

// Open reads the description of the size bytes that read gives: of the zip form
// the directory, the records' headers and the pickle, of the stream all but the
// storages. No byte of a tensor is read. Small files take one read, larger ones
// two and one for each storage.
//
// Whatever the bytes are, Open returns an error that wraps ErrMalformed or
// reads a file of which all said here is true.
func Open(ctx context.Context, read ReadFunc, size int64) (*File, error) { return nil, nil }

// Check reads all records and compares their checksums with those of the
// directory. It tells problem of each that is wrong, with the key of the storage
// (empty where the record is none), and returns how many bytes have a checksum
// that was checked. The error is for what could not be read. read gives the
// bytes that Open got.
func (f *File) Check(ctx context.Context, read ReadFunc, problem func(key string, err error)) (summed int64, err error) {
	return 0, nil
}

// Materialise returns v with every *Tensor inside replaced by a
// *tensor.Tensor in memory of its own, contiguous. Tensors that stand at
// several places are read once. It refuses tensors of more than limit bytes in
// all with ErrLimit, before it reads any. v itself stays as it is.
func Materialise(ctx context.Context, v any, read ReadFunc, limit int64) (any, error) {
	return nil, nil
}

// Unmarshal reads a file whole: its value, with the tensors in memory. It
// refuses one whose tensors take more than limit bytes with ErrLimit.
func Unmarshal(ctx context.Context, read ReadFunc, size, limit int64) (any, error) {
	return nil, nil
}
