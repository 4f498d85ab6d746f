package platform_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestIsTensorAndStorageSize(t *testing.T) {
	x := grid(t, 4, 3)
	if n, err := platform.StorageSize(x); !platform.IsTensor(x) || n != 96 || err != nil {
		t.Errorf("StorageSize of 12 int64 = %d, %v; want 96", n, err)
	}
	wide, err := scalar(1).Expand([]int64{5})
	must.Do(t, err)
	if n, err := platform.StorageSize(wide); n != 40 || err != nil {
		t.Errorf("StorageSize of an expanded tensor = %d, %v; want 40", n, err)
	}
	for _, other := range []any{nil, 3, []float32{1}, (*tensor.Tensor)(nil), *x} {
		if n, err := platform.StorageSize(other); platform.IsTensor(other) || !errors.Is(err, tensor.ErrDType) {
			t.Errorf("StorageSize(%T) = %d, %v; want ErrDType", other, n, err)
		}
	}
}

func TestWriteNumpy(t *testing.T) {
	turned, err := grid(t, 2, 3).Transpose(0, 1)
	must.Do(t, err)
	var b bytes.Buffer
	must.Do(t, platform.WriteNumpy(&b, turned))
	head, body := b.Bytes()[:b.Len()-48], b.Bytes()[b.Len()-48:]
	if !bytes.HasPrefix(head, []byte("\x93NUMPY")) || !bytes.Contains(head, []byte("(3, 2)")) || !bytes.Equal(body, turned.Contents()) {
		t.Errorf("WriteNumpy = %q; want a header of (3, 2) and the elements in order", b.Bytes())
	}
	half, err := tensor.Cast(turned, tensor.BFloat16)
	must.Do(t, err)
	if err := platform.WriteNumpy(io.Discard, half); !errors.Is(err, tensor.ErrDType) || !strings.Contains(err.Error(), "numpy") {
		t.Errorf("WriteNumpy(bfloat16) = %v; want ErrDType", err)
	}
	r, w := io.Pipe()
	r.Close()
	if err := platform.WriteNumpy(w, turned); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("WriteNumpy to a closed pipe = %v; want its error", err)
	}
}

func TestFuncName(t *testing.T) {
	for want, fn := range map[string]any{
		"tensor.Cat": tensor.Cat, "tensor.(*Tensor).Clone": (*tensor.Tensor).Clone, "tensor.(*Tensor).Dims": scalar(1).Dims,
		"tensor.Full": tensor.Full[float64], "": 3,
	} {
		if got := platform.FuncName(fn); got != want {
			t.Errorf("FuncName = %q; want %q", got, want)
		}
	}
	for _, none := range []any{nil, (func())(nil), "name"} {
		if got := platform.FuncName(none); got != "" {
			t.Errorf("FuncName(%v) = %q; want nothing", none, got)
		}
	}
}
