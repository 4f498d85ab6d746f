package torchdcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// sequenceOf reads b from front to back, and counts how often it began anew.
func sequenceOf(b []byte, opens *int) *sequence {
	return &sequence{open: func(context.Context) (io.ReadCloser, error) {
		*opens++
		return io.NopCloser(bytes.NewReader(b)), nil
	}}
}

// drawTensor draws any strided tensor inside of n bytes, also one with elements that overlap
// or repeat.
func drawTensor(t *rapid.T, n int64) *torchsave.Tensor {
	x := &torchsave.Tensor{DType: tensor.Int16, Offset: rapid.Int64Range(0, 9).Draw(t, "offset"), End: n}
	left := (n-x.Offset)/2 - 1
	for range rapid.IntRange(0, 3).Draw(t, "dims") {
		size := rapid.Int64Range(0, 5).Draw(t, "size")
		stride := rapid.Int64Range(0, 40).Draw(t, "stride")
		if size > 1 {
			stride = min(stride, left/(size-1))
			left -= stride * (size - 1)
		}
		x.Shape, x.Strides = append(x.Shape, size), append(x.Strides, stride)
	}
	return x
}

func TestPickProperty(t *testing.T) {
	data := make([]byte, 400)
	for i := range data {
		data[i] = byte(i*7 + i>>3)
	}
	deep.Check(t, func(t *rapid.T) {
		x := drawTensor(t, int64(len(data)))
		whole := must.Get(tensor.FromStrided(x.DType, x.Shape, x.Strides, 0, data[x.Offset:x.Offset+(int64(len(data))-x.Offset)/2*2]))(t)
		var box tensor.Box
		for _, size := range x.Shape {
			at := rapid.Int64Range(0, size).Draw(t, "at")
			box.Offsets = append(box.Offsets, at)
			box.Sizes = append(box.Sizes, rapid.Int64Range(0, size-at).Draw(t, "n"))
		}
		got := must.Get(tensor.New(tensor.Int64, box.Sizes))(t)
		var opens int
		s := sequenceOf(data, &opens)
		must.Do(t, pick(context.Background(), s, x, box, got, rapid.Int64Range(1, 300).Draw(t, "piece")))
		part := must.Get(whole.Narrow(box))(t)
		want := must.Get(tensor.New(tensor.Int64, box.Sizes))(t)
		must.Do(t, tensor.Convert(want, part, tensor.CastAny))
		if !tensor.Equal(want, got) {
			t.Fatalf("box %v of %v strides %v: other elements", box, x.Shape, x.Strides)
		}
	})
}

// A tensor in order, turned or not, is made once.
func TestPickReadsOnce(t *testing.T) {
	data := make([]byte, 6*50*7*2)
	for name, strides := range map[string][]int64{"in order": {350, 7, 1}, "turned": {1, 6, 300}, "half turned": {7, 42, 1}} {
		var opens int
		x := &torchsave.Tensor{DType: tensor.Int16, Shape: []int64{6, 50, 7}, Strides: strides, End: int64(len(data))}
		dst := must.Get(tensor.New(tensor.Int16, x.Shape))(t)
		if err := pick(t.Context(), sequenceOf(data, &opens), x, tensor.Whole(x.Shape), dst, 64); err != nil || opens != 1 {
			t.Errorf("%s: began %d times, %v; want once", name, opens, err)
		}
	}
}

func TestPickDetectsTruncation(t *testing.T) {
	var opens int
	x := &torchsave.Tensor{DType: tensor.Int16, Shape: []int64{50}, Strides: []int64{1}, End: 100}
	dst := must.Get(tensor.New(tensor.Int16, x.Shape))(t)
	if err := pick(t.Context(), sequenceOf(make([]byte, 99), &opens), x, tensor.Whole(x.Shape), dst, 64); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("pick = %v; want %v", err, storage.ErrCorrupt)
	}
}

// packedTensor stores a compressed record of n zero bytes.
func packedTensor(t testing.TB, n int64) (*archive, *meta.Entry) {
	t.Helper()
	x := must.Get(tensor.New(tensor.Uint8, []int64{n}))(t)
	record := must.Get(torchsave.Marshal(x))(t)
	enc := must.Get(zstd.NewWriter(nil, zstd.WithWindowSize(1<<20)))(t)
	b := enc.EncodeAll(record, nil)
	a := &archive{store: new(mem.Store), sizes: map[string]int64{"f": int64(len(b))}, opened: map[recordAt]*torchsave.Tensor{}, good: map[recordAt]bool{}}
	must.Get(blob.WriteAll(t.Context(), a.store, "f", b, nil))(t)
	e := &meta.Entry{FQN: "x", Tensor: &meta.Tensor{Shape: []int64{n}, Chunks: []tensor.Box{tensor.Whole([]int64{n})}}}
	e.Tensor.DType = tensor.Uint8
	e.Tensor.Locs = []meta.Location{{File: "f", Length: int64(len(b)), Detail: &meta.Detail{Transforms: []string{"stream.zstd/1"}}}}
	return a, e
}

// A large chunk is never in memory as a whole.
func TestCompressedChunksTakeBoundedMemory(t *testing.T) {
	a, e := packedTensor(t, 24<<20)
	dst := must.Get(tensor.New(tensor.Uint8, []int64{1 << 20}))(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c := must.Get(a.chunk(t.Context(), e, 0))(t)
	must.Get(c.Decoder.Decode(t.Context(), tensor.Box{Offsets: []int64{20 << 20}, Sizes: []int64{1 << 20}}, dst, 1<<20))(t)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 12<<20 {
		t.Errorf("a slice of a chunk of 24 MiB took %d bytes of memory", n)
	}
}

// The result of a few compressed bytes is bounded by the size in the metadata.
func TestEndlessCompressedBytesAreRefused(t *testing.T) {
	a, e := packedTensor(t, 20<<20)
	e.Tensor.Shape, e.Tensor.Chunks = []int64{4}, []tensor.Box{tensor.Whole([]int64{4})}
	if _, err := a.chunk(t.Context(), e, 0); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("20 MiB behind a chunk of 4 bytes: %v; want %v", err, storage.ErrCorrupt)
	}
}
