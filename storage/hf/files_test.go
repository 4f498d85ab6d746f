package hf

import (
	"context"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/tensor"
)

// made is a tensor of a file.
type made struct {
	name string
	x    *tensor.Tensor
}

// typeName returns the format's name of a type.
func typeName(d tensor.DType) string {
	n, _ := safetensors.DTypeName(d)
	return n
}

// put writes a file of tensors.
func put(t testing.TB, s blob.Store, name string, metadata map[string]string, tensors ...made) {
	t.Helper()
	h := &safetensors.Header{Metadata: metadata}
	var data []byte
	for _, m := range tensors {
		b := m.x.Contents()
		h.Entries = append(h.Entries, safetensors.Entry{
			Name: m.name, DType: typeName(m.x.DType()), Shape: m.x.Shape(), Begin: int64(len(data)), End: int64(len(data) + len(b)),
		})
		data = append(data, b...)
	}
	head := must.Get(safetensors.Encode(h, 8))(t)
	putBytes(t, s, name, string(head)+string(data))
}

func putBytes(t testing.TB, s blob.Store, name, content string) {
	t.Helper()
	must.Get(blob.WriteAll(context.Background(), s, name, []byte(content), nil))(t)
}
