package tensor

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestWriteToWritesTheContents(t *testing.T) {
	whole := counted(300, 700) // more than a piece
	for _, x := range []*Tensor{whole, must.Value(whole.Transpose(0, 1)), must.Value(Placeholder(Int8, []int64{3})), must.Value(New(Float32, []int64{0, 2}))} {
		var b bytes.Buffer
		n, err := x.WriteTo(&b)
		if err != nil || n != x.NumBytes() || !bytes.Equal(b.Bytes(), x.Contents()) {
			t.Errorf("%v: WriteTo = %d, %v; want its %d bytes", x, n, err, x.NumBytes())
		}
	}
}

func TestWriteToStopsAtAnError(t *testing.T) {
	x := must.Value(counted(300, 700).Transpose(0, 1))
	r, w := io.Pipe()
	r.CloseWithError(io.ErrClosedPipe)
	if n, err := x.WriteTo(w); n != 0 || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("WriteTo a closed pipe = %d, %v; want its error", n, err)
	}
}
