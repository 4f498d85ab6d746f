package tensor

// Tensor is a strided view of host memory. Several tensors may share memory;
// the methods that only read are safe for concurrent use, and writing needs
// the caller's care. The zero Tensor is not valid: use the constructors.
type Tensor struct {
	dtype   DType
	shape   []int64
	strides []int64 // in elements; zero in an expanded dimension
	offset  int64   // of the first element, in elements
	data    []byte
}
