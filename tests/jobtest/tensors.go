package jobtest

import (
	"bytes"
	"crypto/subtle"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Whole returns a tensor of that shape. Its elements count up from start.
func Whole(t testing.TB, shape []int64, start float32) *tensor.Tensor {
	t.Helper()
	n := must.Get(tensor.NumElements(shape))(t)
	v := make([]float32, n)
	for i := range v {
		v[i] = start + float32(i)
	}
	x := must.Get(tensor.Of(shape, v))(t)
	return x
}

// Cut returns rank's part of x, copied.
func Cut(t testing.TB, l shard.Layout, x *tensor.Tensor, rank int) *shard.Tensor {
	t.Helper()
	s := must.Get(shard.Empty(l, x.DType(), x.Shape(), rank))(t)
	for i, b := range s.Boxes() {
		dst := must.Get(s.Part(i))(t)
		src := must.Get(x.Narrow(b))(t)
		must.Do(t, tensor.Copy(dst, src))
	}
	return s
}

// Rows cuts tensors into rows, one part for each of n ranks.
func Rows(n int) shard.Layout {
	return shard.Placed{Mesh: shard.Mesh{Shape: []int{n}}, Placements: []shard.Placement{shard.Shard(0)}}
}

// Columns cuts tensors into columns, one part for each of n ranks.
func Columns(n int) shard.Layout {
	return shard.Placed{Mesh: shard.Mesh{Shape: []int{n}}, Placements: []shard.Placement{shard.Shard(1)}}
}

// Numbered returns a tensor of n bytes that depend on seed.
func Numbered(t *testing.T, n int64, seed byte) *tensor.Tensor {
	t.Helper()
	x := must.Get(tensor.New(tensor.Uint8, []int64{n}))(t)
	mem, _ := x.Bytes()
	const period = 1 << 16 // of the bytes: the rest are copies, which take next to no time
	for i := range min(len(mem), period) {
		mem[i] = byte(i)*7 + byte(i>>8) + seed
	}
	for n := period; n < len(mem); n *= 2 {
		copy(mem[n:], mem[:n])
	}
	return x
}

// Overwrite changes every byte of a tensor.
func Overwrite(x *tensor.Tensor) {
	mem, _ := x.Bytes()
	subtle.XORBytes(mem, mem, bytes.Repeat([]byte{0xa5}, len(mem)))
}
