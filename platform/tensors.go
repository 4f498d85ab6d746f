package platform

import (
	"context"
	"fmt"
	"io"
	"iter"
	"reflect"
	"runtime"
	"strings"

	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Allocator is the capability of platforms that make tensors in memory that
// suits them, pinned or aligned for example. Without it, [tensor.New] does.
type Allocator interface {
	// Empty returns a contiguous tensor of memory of its own that may hold
	// anything. It is safe for concurrent use.
	Empty(d tensor.DType, shape []int64) (*tensor.Tensor, error)
}

// IsTensor reports whether v is a tensor.
func IsTensor(v any) bool {
	t, ok := v.(*tensor.Tensor)
	return ok && t != nil
}

// StorageSize returns the bytes that the elements of a tensor take in a file,
// repeated elements each time. The error for anything else wraps
// [tensor.ErrDType].
func StorageSize(v any) (int64, error) {
	if !IsTensor(v) {
		return 0, fmt.Errorf("storage size of a %T, not a tensor: %w", v, tensor.ErrDType)
	}
	return v.(*tensor.Tensor).NumBytes(), nil
}

// WriteNumpy writes t as a .npy file, which numpy.load reads. The error for the
// dtypes that numpy lacks, bfloat16 and floats of eight bits among them, wraps
// [tensor.ErrDType]; [tensor.Cast] helps. To have the elements in Go, see
// [tensor.Values].
func WriteNumpy(w io.Writer, t *tensor.Tensor) error {
	head, err := tensor.NumpyHeader(t.DType(), t.Shape(), false)
	if err != nil {
		return fmt.Errorf("write %v for numpy: %w: %w", t, tensor.ErrDType, err)
	}

	if _, err = w.Write(head); err == nil {
		_, err = t.WriteTo(w)
	}
	if err != nil {
		return fmt.Errorf("write %v for numpy: %w", t, err)
	}
	return nil
}

// FuncName returns the name of a function or method with its package, such as
// "tensor.Cat" or "tensor.(*Tensor).Clone". It is empty if fn is not a function.
func FuncName(fn any) string {
	v := reflect.ValueOf(fn)
	if v.Kind() != reflect.Func || v.IsNil() {
		return ""
	}
	name := runtime.FuncForPC(v.Pointer()).Name()
	name = strings.TrimSuffix(strings.TrimSuffix(name, "-fm"), "[...]")
	return name[strings.LastIndexByte(name, '/')+1:]
}

// TensorComms is the capability of platforms with ranks that can exchange tensors.
type TensorComms interface {
	// TensorComm returns the tensor collectives of g, the same each time. It is
	// local. If the group cannot carry them the error wraps
	// [errors.ErrUnsupported].
	TensorComm(g Group) (TensorComm, error)
}

// TensorComm moves and reduces tensors between the ranks of a group. Methods are
// safe for concurrent use; all ranks must call the collective methods
// in the same order.
//
// # Contract
//
// See [collective.Comm]: a collective call that cannot be served fails on all ranks with one
// error, and writes no element; a rank that is gone, or has an ended context, interrupts the
// calls of all ranks, and later calls fail with [collective.ErrBroken] until Renew; results
// are the same bits on all ranks and in every run. A tensor belongs to a call until the call
// is done.
type TensorComm interface {
	// Rank returns this rank's number in the group, and Size the number of ranks. They
	// are local.
	Rank() int
	Size() int
	// AllReduce replaces each element of t by its reduction over all ranks.
	AllReduce(ctx context.Context, t *tensor.Tensor, op ReduceOp) error
	AllReduceAsync(ctx context.Context, t *tensor.Tensor, op ReduceOp) *Work
	// ReduceScatter reduces the elements of all ranks' src and gives rank r the
	// r-th of equal parts: dst has the shape of src with the first dimension
	// divided by the size of the group.
	ReduceScatter(ctx context.Context, dst, src *tensor.Tensor, op ReduceOp) error
	ReduceScatterAsync(ctx context.Context, dst, src *tensor.Tensor, op ReduceOp) *Work
	// AllGather hands every rank's src to all ranks: dst has the shape of src
	// with the first dimension multiplied by the size of the group.
	AllGather(ctx context.Context, dst, src *tensor.Tensor) error
	AllGatherAsync(ctx context.Context, dst, src *tensor.Tensor) *Work
	// AllToAll hands rows of src to all ranks, and rows of theirs to dst, in the
	// order of the ranks. Zero Splits cut both evenly.
	AllToAll(ctx context.Context, dst, src *tensor.Tensor, s Splits) error
	AllToAllAsync(ctx context.Context, dst, src *tensor.Tensor, s Splits) *Work
	// AllToAllParts sends the tensors src[r] to each rank r, and receives the
	// tensors dst[r] from it: the same number, of the same dtypes and numbers of elements. They may be
	// views of any strides, of which some MiB are copied at a time.
	AllToAllParts(ctx context.Context, dst, src [][]*tensor.Tensor) error
	// Broadcast replaces the elements of t on all ranks by the elements on root.
	Broadcast(ctx context.Context, t *tensor.Tensor, root int) error
	BroadcastAsync(ctx context.Context, t *tensor.Tensor, root int) *Work
	// Send hands t to rank to. ISend does not wait.
	Send(ctx context.Context, t *tensor.Tensor, to, tag int) error
	ISend(ctx context.Context, t *tensor.Tensor, to, tag int) *Work
	// Recv fills t with the tensor that rank from sent to this one with tag. IRecv does not
	// wait.
	Recv(ctx context.Context, t *tensor.Tensor, from, tag int) error
	IRecv(ctx context.Context, t *tensor.Tensor, from, tag int) *Work
	// Renew makes another one of the same group, after an interruption. It is a
	// collective call. [TensorComms] then returns the new one.
	Renew(ctx context.Context) (TensorComm, error)
}

type (
	// ReduceOp says how the elements of several ranks are reduced to one:
	// [collective.Sum], Avg, Max, Min or Prod.
	ReduceOp = collective.Op
	// Splits says how many rows of the first dimension go to, and come from, each
	// rank of an all-to-all.
	Splits = collective.Splits
	// Work is a call that may go on after the method that started it has returned.
	Work = collective.Work
)

// Async runs fn in a goroutine of its own, for calls without an asynchronous variant,
// such as a barrier. A panic becomes an error. Until the work is done, the rank must make
// no other collective call on the group.
func Async(fn func() error) *Work { return collective.Go(fn) }

// TensorFiles is the capability of platforms that keep tensors in files of their
// own, beside checkpoints: weights to hand on, exports.
type TensorFiles interface {
	// SaveTensors writes a file of the named tensors and of words about them,
	// which may be nil. The same tensors make the same bytes, in any order.
	// [Tensors] returns the tensors of a nested state.
	SaveTensors(w io.Writer, tensors iter.Seq2[string, *tensor.Tensor], words map[string]string) error
	// OpenTensors opens a file of size bytes. The reader must stay open while the
	// file is in use.
	OpenTensors(r io.ReaderAt, size int64) (TensorFile, error)
}

// TensorFile is an open file of tensors. It is safe for concurrent use if its
// reader is. The error for a name that the file lacks wraps [fs.ErrNotExist].
type TensorFile interface {
	// Names returns the names of the tensors in ascending order.
	Names() []string
	// Words returns the metadata of the file, or nil.
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

	part, err := like.Narrow(b) // checks the sizes before anything is allocated
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
