package platform

import (
	"context"
	"fmt"
	"io"
	"iter"
	"reflect"
	"runtime"
	"strings"

	"github.com/cairn-ckpt/cairn/collective"
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

// StorageSize returns the bytes that a tensor takes in a file: those of its
// elements, repeated ones each time. The error for anything else wraps
// [tensor.ErrDType].
func StorageSize(v any) (int64, error) {
	if !IsTensor(v) {
		return 0, fmt.Errorf("storage size of a %T, which is no tensor: %w", v, tensor.ErrDType)
	}
	return v.(*tensor.Tensor).NumBytes(), nil
}

// WriteNumpy writes t as a .npy file, which numpy.load reads. The error for the
// dtypes that numpy lacks, bfloat16 and those of eight bits among them, wraps
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

// FuncName returns the name of a function or method, with that of its package,
// such as "tensor.Cat" or "tensor.(*Tensor).Clone". It is empty for what is no
// function.
func FuncName(fn any) string {
	v := reflect.ValueOf(fn)
	if v.Kind() != reflect.Func || v.IsNil() {
		return ""
	}
	name := runtime.FuncForPC(v.Pointer()).Name()
	name = strings.TrimSuffix(strings.TrimSuffix(name, "-fm"), "[...]")
	return name[strings.LastIndexByte(name, '/')+1:]
}

// TensorComms is the capability of platforms whose ranks can exchange tensors.
type TensorComms interface {
	// TensorComm returns the tensor collectives of g, the same each time. It is
	// local. If the group cannot carry them the error wraps
	// [errors.ErrUnsupported].
	TensorComm(g Group) (TensorComm, error)
}

// TensorComm moves and reduces tensors between the ranks of a group. Methods are
// safe for concurrent use; those that are collective must be called by all ranks
// in the same order.
//
// # Contract
//
// It is that of [collective.Comm]: a collective call that cannot be served fails
// on all ranks with one error, and writes nothing; a rank whose context ends, or
// that has gone, interrupts the calls of all, after which collective ones fail
// with [collective.ErrBroken] until Renew; results are the same bits on all ranks
// and from run to run. A tensor belongs to a call until it is done.
type TensorComm interface {
	TensorReducer
	TensorMover
	TensorMessenger
	// Renew makes another one of the same group, after an interruption. It is a
	// collective call. [TensorComms] then returns the new one.
	Renew(ctx context.Context) (TensorComm, error)
}

// ReduceOp says how the elements of several ranks become one: [collective.Sum],
// Avg, Max, Min or Prod.
type ReduceOp = collective.Op

// TensorReducer is the part of [TensorComm] that computes.
type TensorReducer interface {
	// AllReduce replaces the elements of t by the reduction of those of all
	// ranks.
	AllReduce(ctx context.Context, t *tensor.Tensor, op ReduceOp) error
	AllReduceAsync(ctx context.Context, t *tensor.Tensor, op ReduceOp) Work
	// ReduceScatter reduces the elements of all ranks' src and gives rank r the
	// r-th of as many equal parts as there are ranks: dst has the shape of src
	// with the first dimension divided by the size of the group.
	ReduceScatter(ctx context.Context, dst, src *tensor.Tensor, op ReduceOp) error
	ReduceScatterAsync(ctx context.Context, dst, src *tensor.Tensor, op ReduceOp) Work
}

// Splits says how many rows of the first dimension go to, and come from, each
// rank of an all-to-all.
type Splits = collective.Splits

// TensorMover is the part of [TensorComm] that moves tensors between all ranks.
type TensorMover interface {
	// AllGather hands every rank's src to all ranks: dst has the shape of src
	// with the first dimension multiplied by the size of the group.
	AllGather(ctx context.Context, dst, src *tensor.Tensor) error
	AllGatherAsync(ctx context.Context, dst, src *tensor.Tensor) Work
	// AllToAll hands rows of src to all ranks, and rows of theirs to dst, in the
	// order of the ranks. Zero Splits cut both evenly.
	AllToAll(ctx context.Context, dst, src *tensor.Tensor, s Splits) error
	AllToAllAsync(ctx context.Context, dst, src *tensor.Tensor, s Splits) Work
	// Broadcast replaces the elements of t on all ranks by those of root.
	Broadcast(ctx context.Context, t *tensor.Tensor, root int) error
	BroadcastAsync(ctx context.Context, t *tensor.Tensor, root int) Work
}

// TensorMessenger is the part of [TensorComm] for two ranks.
type TensorMessenger interface {
	// Send hands t to rank to.
	Send(ctx context.Context, t *tensor.Tensor, to, tag int) error
	// Recv fills t with what rank from sent to this one with tag.
	Recv(ctx context.Context, t *tensor.Tensor, from, tag int) error
	// ISend and IRecv are the same without waiting.
	ISend(ctx context.Context, t *tensor.Tensor, to, tag int) Work
	IRecv(ctx context.Context, t *tensor.Tensor, from, tag int) Work
}

// Work is a call that may go on after the method that started it has returned.
// Its methods are safe for concurrent use.
type Work interface {
	// Wait returns the call's error once it is done. If ctx ends before, it
	// returns an error that wraps ctx's, and the call goes on: the context that
	// it was started with ends it.
	Wait(ctx context.Context) error
	// Done returns a channel that is closed once the call is done.
	Done() <-chan struct{}
}

var _ Work = (*collective.Work)(nil)

// Async runs fn in a goroutine of its own, for calls that have no variant of
// their own that does not wait: a barrier for example. A panic becomes an error.
// The rules of what fn calls stay the same: until the work is done the group
// serves no other collective call of this rank.
func Async(fn func() error) Work { return collective.Go(fn) }

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
