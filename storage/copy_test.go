package storage_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// stream is a tensor of uint8 that is not in memory.
type stream struct {
	data   string
	err    error
	closed int
}

func (s *stream) DType() tensor.DType { return tensor.Uint8 }
func (s *stream) Shape() []int64      { return []int64{int64(len(s.data))} }
func (s *stream) Close() error        { s.closed++; return nil }

func (s *stream) ReadAt(_ context.Context, p []byte, off int64) error {
	copy(p, s.data[off:])
	return s.err
}

// resolved is a resolver that returns one content.
type resolved struct {
	plan.Data
	err error
}

func (r resolved) Resolve(*plan.WriteItem) (plan.Data, error) { return r.Data, r.err }

// Contents returns the bytes of any kind of content, releases it once, and returns its
// errors.
func TestContents(t *testing.T) {
	x := must.Get(tensor.Of([]int64{2, 2}, []uint8{1, 2, 3, 4}))(t)
	turned := must.Get(x.Transpose(0, 1))(t)
	item := func(d tensor.DType, sizes ...int64) *plan.WriteItem {
		info := &plan.Info{FQN: "x", Properties: meta.Properties{DType: d}, Shape: sizes}
		return &plan.WriteItem{Info: info, Kind: plan.KindTensor, Box: tensor.Whole(sizes)}
	}
	two, three, float := item(tensor.Uint8, 2, 2), item(tensor.Uint8, 3), item(tensor.Float32, 2, 2)
	value := &plan.WriteItem{Info: &plan.Info{FQN: "x"}, Kind: plan.KindBytes, Size: 5}
	broken, released := errors.New("broken"), 0
	release := func() error { released++; clear(x.Memory()); return nil }
	good, bad := &stream{data: "abc"}, &stream{data: "abc", err: broken}
	misfit := &stream{data: "abcd"}
	for _, c := range []struct {
		name string
		it   *plan.WriteItem
		d    resolved
		want string
		err  error
	}{
		{"a value", value, resolved{plan.Data{Bytes: []byte("value")}, nil}, "value", nil},
		{"a view", two, resolved{plan.Data{Tensor: turned}, nil}, "\x01\x03\x02\x04", nil},
		{"a stream", three, resolved{plan.Data{Stream: good}, nil}, "abc", nil},
		{"a stream that fails", three, resolved{plan.Data{Stream: bad}, nil}, "", broken},
		{"a stream of another shape", three, resolved{plan.Data{Stream: misfit}, nil}, "", plan.ErrState},
		{"memory that is released", two, resolved{plan.Data{Tensor: x, Release: release}, nil}, "\x01\x02\x03\x04", nil},
		{"a release that fails", two, resolved{plan.Data{Tensor: x, Release: func() error { return broken }}, nil}, "", broken},
		{"a resolver that fails", two, resolved{plan.Data{}, broken}, "", broken},
		{"no tensor", two, resolved{plan.Data{Bytes: make([]byte, 4)}, nil}, "", plan.ErrState},
		{"another dtype", float, resolved{plan.Data{Tensor: x}, nil}, "", plan.ErrState},
		{"another shape", three, resolved{plan.Data{Tensor: x}, nil}, "", plan.ErrState},
		{"a longer value", value, resolved{plan.Data{Bytes: make([]byte, 6)}, nil}, "", plan.ErrState},
		{"a tensor for a value", value, resolved{plan.Data{Tensor: x, Bytes: []byte("value")}, nil}, "", plan.ErrState},
	} {
		b, err := storage.Contents(t.Context(), c.d, c.it)
		if string(b) != c.want || !errors.Is(err, c.err) || err != nil && !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("%s: Contents = %q, %v; want %q, %v", c.name, b, err, c.want, c.err)
		}
	}
	if good.closed != 1 || bad.closed != 1 || misfit.closed != 1 || released != 1 {
		t.Errorf("closed %d, %d and %d times, released %d times; want 1 of each", good.closed, bad.closed, misfit.closed, released)
	}
}

// receiver keeps the received bytes.
type receiver struct {
	to        *tensor.Tensor
	committed int
	value     string
	err       error
}

func (r *receiver) ResolveTensor(*plan.ReadItem) (*tensor.Tensor, error) { return r.to, r.err }

func (r *receiver) CommitTensor(_ *plan.ReadItem, t *tensor.Tensor) error {
	if t == r.to {
		r.committed++
	}
	return nil
}

func (r *receiver) LoadBytes(_ *plan.ReadItem, codec string, data []byte) error {
	r.value = codec + ":" + string(data)
	return r.err
}

// chunked describes a tensor of int32 [4 3] in two chunks of two rows, and a value.
func chunked() *meta.Metadata {
	chunk := func(row int64) tensor.Box { return tensor.Box{Offsets: []int64{row, 0}, Sizes: []int64{2, 3}} }
	return &meta.Metadata{Entries: []meta.Entry{
		{FQN: "v", Bytes: &meta.Bytes{Codec: "json", Size: 2}},
		{FQN: "w", Tensor: &meta.Tensor{
			Properties: meta.Properties{DType: tensor.Int32}, Shape: []int64{4, 3}, Chunks: []tensor.Box{chunk(0), chunk(2)},
		}},
	}}
}

func TestCopyChunk(t *testing.T) {
	chunk := must.Get(tensor.Of([]int64{2, 3}, []int32{6, 7, 8, 9, 10, 11}))(t)
	data := chunk.Contents()
	it := &plan.ReadItem{
		Kind: plan.KindTensor, Source: meta.Index{FQN: "w", Offset: []int64{2, 0}}, // the hint of another chunk
		SourceOffsets: []int64{0, 1}, DestOffsets: []int64{0, 0}, Lengths: []int64{2, 2},
	}
	to := must.Get(tensor.New(tensor.Float64, []int64{2, 2}))(t)
	r := &receiver{to: to}
	if n, err := storage.CopyChunk(r, chunked(), it, data); n != 16 || err != nil {
		t.Fatalf("CopyChunk = %d, %v; want 16", n, err)
	}
	if v, err := tensor.Values[float64](to); err != nil || !slices.Equal(v, []float64{7, 8, 10, 11}) || r.committed != 1 {
		t.Errorf("the memory is %v, committed %d times, %v; want [7 8 10 11], once", v, r.committed, err)
	}
	value := &plan.ReadItem{Kind: plan.KindBytes, Source: meta.Index{FQN: "v"}}
	if n, err := storage.CopyChunk(r, chunked(), value, []byte("42")); n != 2 || err != nil || r.value != "json:42" {
		t.Errorf("CopyChunk of a value = %d, %v, received %q; want 2 and json:42", n, err, r.value)
	}
}

func TestCopyChunkErrors(t *testing.T) {
	broken := errors.New("broken")
	tensorItem := func(change func(it *plan.ReadItem)) *plan.ReadItem {
		it := &plan.ReadItem{
			Kind: plan.KindTensor, Source: meta.Index{FQN: "w", Offset: []int64{2, 0}},
			SourceOffsets: []int64{0, 0}, DestOffsets: []int64{0, 0}, Lengths: []int64{2, 3},
		}
		change(it)
		return it
	}
	for name, c := range map[string]struct {
		it   *plan.ReadItem
		data int
		err  error // of the receiver
		want error
	}{
		"too few bytes":     {it: tensorItem(func(*plan.ReadItem) {}), data: 23, want: storage.ErrCorrupt},
		"too many bytes":    {it: tensorItem(func(*plan.ReadItem) {}), data: 25, want: storage.ErrCorrupt},
		"an unknown name":   {it: tensorItem(func(it *plan.ReadItem) { it.Source.FQN = "x" }), data: 24, want: plan.ErrMissing},
		"an unknown chunk":  {it: tensorItem(func(it *plan.ReadItem) { it.Source.Offset = []int64{1, 0} }), data: 24, want: plan.ErrMismatch},
		"a box outside":     {it: tensorItem(func(it *plan.ReadItem) { it.SourceOffsets = []int64{1, 0} }), data: 24, want: tensor.ErrShape},
		"other memory":      {it: tensorItem(func(it *plan.ReadItem) { it.Lengths = []int64{1, 3} }), data: 24, want: tensor.ErrShape},
		"a value as tensor": {it: tensorItem(func(it *plan.ReadItem) { it.Source = meta.Index{FQN: "v", Offset: []int64{}} }), data: 24, want: plan.ErrMismatch},
		"a tensor as value": {it: tensorItem(func(it *plan.ReadItem) { it.Kind = plan.KindBytes }), data: 24, want: plan.ErrMismatch},
		"its planner":       {it: tensorItem(func(*plan.ReadItem) {}), data: 24, err: broken, want: broken},
		"its planner, a value": {
			it: &plan.ReadItem{Kind: plan.KindBytes, Source: meta.Index{FQN: "v"}}, err: broken, want: broken,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := &receiver{to: numbers(t, 2, 3), err: c.err}
			n, err := storage.CopyChunk(r, chunked(), c.it, make([]byte, c.data))
			if n != 0 || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.it.Source.FQN) || r.committed > 0 {
				t.Errorf("CopyChunk = %d, %v, committed %d times; want %v that names %q", n, err, r.committed, c.want, c.it.Source.FQN)
			}
		})
	}
}

func numbers(t testing.TB, shape ...int64) *tensor.Tensor {
	t.Helper()
	x := must.Get(tensor.New(tensor.Float32, shape))(t)
	v := must.Get(tensor.Values[float32](x))(t)
	for i := range v {
		v[i] = float32(i)
	}
	return x
}
