package platform

import (
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/npy"
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
	head, err := npy.Header(t.DType(), t.Shape(), false)
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
