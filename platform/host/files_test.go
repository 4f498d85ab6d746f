package host_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/tensor"
)

// counted returns a tensor of the shape with the elements 0, 1, 2 and so on.
func counted(t testing.TB, shape ...int64) *tensor.Tensor {
	t.Helper()
	n, err := tensor.NumElements(shape)
	must.Do(t, err)
	flat, err := tensor.Arange(0, int32(n), 1)
	must.Do(t, err)
	x, err := tensor.FromBytes(tensor.Int32, shape, flat.Contents())
	must.Do(t, err)
	return x
}

// counter counts the bytes that are read.
type counter struct {
	io.ReaderAt
	bytes int64
}

func (c *counter) ReadAt(p []byte, off int64) (int, error) {
	c.bytes += int64(len(p))
	return c.ReaderAt.ReadAt(p, off)
}

func save(t testing.TB, tensors map[string]*tensor.Tensor) []byte {
	t.Helper()
	var b bytes.Buffer
	must.Do(t, host.New(nil).SaveTensors(&b, maps.All(tensors), nil))
	return b.Bytes()
}

// Any slice of any tensor in a file equals the slice in memory.
func TestReadSliceMatchesTensor(t *testing.T) {
	x := counted(t, 40, 3, 300, 7) // a row of the second dimension is larger than a small span
	b := save(t, map[string]*tensor.Tensor{"x": x, "before": counted(t, 5)})
	f, err := host.New(nil).OpenTensors(bytes.NewReader(b), int64(len(b)))
	must.Do(t, err)
	deep.Check(t, func(t *rapid.T) {
		var box tensor.Box
		for _, n := range x.Shape() {
			o := rapid.Int64Range(0, n).Draw(t, "offset")
			box.Offsets = append(box.Offsets, o)
			box.Sizes = append(box.Sizes, rapid.Int64Range(0, n-o).Draw(t, "size"))
		}
		want, err := x.Narrow(box)
		must.Do(t, err)
		got, err := platform.ReadSlice(f, "x", box)
		if err != nil || !tensor.Equal(got, want) {
			t.Fatalf("slice %v = %v, %v; want the slice of the tensor", box, got, err)
		}
	})
}

// A slice costs little more than its own bytes if they lie far apart, and not
// a read for each of them if they do not.
func TestReadSliceReadsLittle(t *testing.T) {
	x := counted(t, 8, 1<<16) // rows of 256 KiB
	b := save(t, map[string]*tensor.Tensor{"x": x})
	r := &counter{ReaderAt: bytes.NewReader(b)}
	f, err := host.New(nil).OpenTensors(r, int64(len(b)))
	must.Do(t, err)
	for _, c := range []struct {
		box  tensor.Box
		most int64
	}{
		{tensor.Box{Offsets: []int64{2, 0}, Sizes: []int64{3, 1 << 16}}, 3 << 18},
		{tensor.Box{Offsets: []int64{0, 100}, Sizes: []int64{8, 10}}, 8 * 40},
		{tensor.Box{Offsets: []int64{0, 0}, Sizes: []int64{8, 1 << 15}}, 8 << 18},
	} {
		r.bytes = 0
		if _, err := platform.ReadSlice(f, "x", c.box); err != nil || r.bytes > c.most {
			t.Errorf("slice %v: %d bytes read, %v; want at most %d", c.box, r.bytes, err, c.most)
		}
	}
}

func TestSaveTensorsRefuses(t *testing.T) {
	complexes, err := tensor.New(tensor.Complex128, []int64{2})
	must.Do(t, err)
	var b bytes.Buffer
	for claim, x := range map[string]*tensor.Tensor{"a dtype that the format lacks": complexes, "no tensor": nil} {
		err := host.New(nil).SaveTensors(&b, maps.All(map[string]*tensor.Tensor{"x": x}), nil)
		if !errors.Is(err, tensor.ErrDType) || b.Len() > 0 {
			t.Errorf("SaveTensors of %s = %v, %d bytes written; want ErrDType and none", claim, err, b.Len())
		}
	}
	twice := func(yield func(string, *tensor.Tensor) bool) {
		_ = yield("x", counted(t, 1)) && yield("x", counted(t, 2))
	}
	if err := host.New(nil).SaveTensors(&b, twice, nil); err == nil || b.Len() > 0 {
		t.Errorf("SaveTensors of one name twice = %v, %d bytes written; want an error", err, b.Len())
	}
	closed, w := io.Pipe()
	closed.Close()
	if err := host.New(nil).SaveTensors(w, maps.All(map[string]*tensor.Tensor{"x": counted(t, 1)}), nil); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("SaveTensors to a closed pipe = %v; want its error", err)
	}
}

func TestTruncatedFilesAreErrors(t *testing.T) {
	b := save(t, map[string]*tensor.Tensor{"x": counted(t, 1<<20)})
	f, err := host.New(nil).OpenTensors(bytes.NewReader(b[:len(b)-1]), int64(len(b)))
	must.Do(t, err)
	if x, err := platform.ReadTensor(f, "x"); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("ReadTensor beyond the end = %v, %v; want io.ErrUnexpectedEOF", x, err)
	}
}

func FuzzOpenTensors(f *testing.F) {
	f.Add(save(f, map[string]*tensor.Tensor{"x": counted(f, 2, 3), "y": counted(f)}))
	f.Add(save(f, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := host.New(nil).OpenTensors(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		all, err := platform.ReadTensors(file)
		if err != nil {
			t.Fatalf("a file that opens does not read: %v", err)
		}
		var out bytes.Buffer
		err = host.New(nil).SaveTensors(&out, maps.All(all), file.Words())
		if err != nil && !errors.Is(err, tensor.ErrDType) {
			t.Fatalf("what was read cannot be saved: %v", err)
		}
	})
}
