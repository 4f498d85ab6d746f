package platform

import (
	"io"
	"iter"

	"github.com/cairn-ckpt/cairn/tensor"
)

// TensorFiles is the capability of platforms that keep tensors in files of their
// own, beside checkpoints: weights to hand on, exports.
type TensorFiles interface {
	// SaveTensors writes a file of the named tensors and of words about them,
	// which may be nil. The same tensors always make the same bytes, in
	// whatever order they come. See [Tensors] for those of a nested state.
	SaveTensors(w io.Writer, tensors iter.Seq2[string, *tensor.Tensor], words map[string]string) error
	// OpenTensors opens a file of size bytes. The reader must stay open as long
	// as what is returned is in use.
	OpenTensors(r io.ReaderAt, size int64) (TensorFile, error)
}

// TensorFile is an open file of tensors. It is safe for concurrent use if its
// reader is. A name that is not there is an error that wraps [fs.ErrNotExist].
type TensorFile interface {
	// Names returns the names of the tensors in ascending order.
	Names() []string
	// Words returns what the file says about itself, or nil.
	Words() map[string]string
	// Describe returns a tensor of that name without its memory; see
	// [tensor.Placeholder].
	Describe(name string) (*tensor.Tensor, error)
	// ReadInto reads the part of a tensor inside b into dst, which has b's sizes
	// and the tensor's dtype.
	ReadInto(dst *tensor.Tensor, name string, b tensor.Box) error
}

// ReadTensor reads a tensor of a file into memory of its own.
func ReadTensor(f TensorFile, name string) (*tensor.Tensor, error) {
	like, err := f.Describe(name)
	if err != nil {
		return nil, err
	}
	return ReadSlice(f, name, tensor.Whole(like.Shape()))
}

// ReadSlice reads the part of a tensor inside b into memory of its own.
func ReadSlice(f TensorFile, name string, b tensor.Box) (*tensor.Tensor, error) {
	like, err := f.Describe(name)
	if err != nil {
		return nil, err
	}
	part, err := like.Narrow(b) // so that the sizes are those of something in the file
	if err != nil {
		return nil, err
	}
	dst, err := tensor.New(like.DType(), part.Shape())
	if err != nil {
		return nil, err
	}
	return dst, f.ReadInto(dst, name, b)
}

// ReadTensors reads all tensors of a file.
func ReadTensors(f TensorFile) (map[string]*tensor.Tensor, error) {
	out := map[string]*tensor.Tensor{}
	for _, name := range f.Names() {
		t, err := ReadTensor(f, name)
		if err != nil {
			return nil, err
		}
		out[name] = t
	}
	return out, nil
}
