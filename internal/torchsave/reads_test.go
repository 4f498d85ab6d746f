package torchsave

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// virtual is a file with slots of zeros that take no memory. It counts the bytes that are
// read.
type virtual struct {
	size  int64
	spans []span

	mu           sync.Mutex
	reads, bytes int64
}

type span struct {
	at, length int64
	bytes      []byte // nil: zeros
}

// newVirtual writes a layout.
func newVirtual(t testing.TB, l *Layout) *virtual {
	t.Helper()
	v := &virtual{}
	for _, p := range l.Parts {
		b := p.Literal
		if p.Tail != nil {
			var err error
			if b, err = p.Tail(); err != nil {
				t.Fatal(err)
			}
		}
		if p.Pass != nil && p.Length <= 1<<20 { // larger ones have a wrong checksum, which no test reads
			p.Pass(make([]byte, p.Length), 0)
		}
		if p.Slot == nil && int64(len(b)) != p.Length {
			t.Fatalf("a part of %d bytes has %d", p.Length, len(b))
		}
		v.spans = append(v.spans, span{v.size, p.Length, b})
		v.size += p.Length
	}
	if v.size != l.Size {
		t.Fatalf("Size = %d; the parts have %d bytes", l.Size, v.size)
	}
	return v
}

func (v *virtual) read(_ context.Context, p []byte, off int64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.reads++
	v.bytes += int64(len(p))
	if off < 0 || off+int64(len(p)) > v.size {
		return fmt.Errorf("read of %d bytes at %d of %d", len(p), off, v.size)
	}
	clear(p)
	for _, s := range v.spans {
		if s.bytes == nil {
			continue
		}
		from, to := max(s.at, off), min(s.at+s.length, off+int64(len(p)))
		if from < to {
			copy(p[from-off:to-off], s.bytes[from-s.at:])
		}
	}
	return nil
}

func lay(t testing.TB, root any) *Layout {
	t.Helper()
	l, err := Lay(root)
	if err != nil {
		t.Fatalf("Lay = %v", err)
	}
	return l
}

func TestOpenReadsNoTensors(t *testing.T) {
	slot := func(n int64) *Slot { return &Slot{DType: tensor.Float32, Shape: []int64{n}} }
	for name, c := range map[string]struct {
		root         any
		reads, bytes int64
	}{
		"a small file":    {slot(10), 1, smallFile},
		"a large tensor":  {slot(1 << 20), 2, 2 * endBytes},
		"several tensors": {[]any{slot(1 << 20), slot(1 << 20), slot(1 << 20), slot(1 << 20)}, 2 + 3, 2*endBytes + 3*200},
	} {
		v := newVirtual(t, lay(t, c.root))
		if _, err := Open(t.Context(), v.read, v.size); err != nil {
			t.Fatalf("%s: Open = %v", name, err)
		}
		if v.reads > c.reads || v.bytes > c.bytes {
			t.Errorf("%s: Open took %d reads of %d bytes; want at most %d of %d", name, v.reads, v.bytes, c.reads, c.bytes)
		}
	}
}

// Sizes and places beyond 32 bits.
func TestLargeFiles(t *testing.T) {
	big := &Slot{DType: tensor.Uint8, Shape: []int64{math.MaxUint32}}
	edge := &Slot{DType: tensor.Uint8, Shape: []int64{math.MaxUint32 - 1}}
	small := &Slot{DType: tensor.Int64, Shape: []int64{3}}
	for name, root := range map[string][]any{
		"a record of 4 GiB": {big}, "one byte less": {edge}, "records beyond 4 GiB": {edge, edge, small}, "both": {big, small, big},
	} {
		v := newVirtual(t, lay(t, root))
		f, err := Open(t.Context(), v.read, v.size)
		if err != nil {
			t.Fatalf("%s: Open = %v", name, err)
		}
		for i, got := range f.Root.([]any) {
			x, want := got.(*Tensor), root[i].(*Slot)
			if !cmp.Equal(x.Shape, want.Shape) || x.DType != want.DType || x.Offset%alignment != 0 || x.End-x.Offset != x.NumBytes() {
				t.Errorf("%s: tensor %d = %+v; want %+v, aligned", name, i, x, want)
			}
		}
	}
}

func TestOpenReturnsReadErrors(t *testing.T) {
	v := newVirtual(t, lay(t, []any{&Slot{DType: tensor.Float32, Shape: []int64{1 << 20}}, &Slot{DType: tensor.Float32, Shape: []int64{1 << 20}}}))
	broken := errors.New("broken")
	for fail := int64(1); ; fail++ {
		v.reads = 0
		_, err := Open(t.Context(), func(ctx context.Context, p []byte, off int64) error {
			if v.reads+1 == fail {
				v.reads++
				return broken
			}
			return v.read(ctx, p, off)
		}, v.size)
		if err == nil {
			return
		}
		if !errors.Is(err, broken) || errors.Is(err, ErrMalformed) {
			t.Fatalf("read %d fails: Open = %v; want %v", fail, err, broken)
		}
	}
}

func TestTensorsAreBounded(t *testing.T) {
	v := newVirtual(t, lay(t, []any{&Slot{DType: tensor.Uint8, Shape: []int64{1000}}, &Slot{DType: tensor.Uint8, Shape: []int64{1000}}}))
	if _, err := readAll(t.Context(), v.read, v.size, 1999); !errors.Is(err, errLimit) {
		t.Errorf("Unmarshal of 2000 bytes of tensors within 1999 = %v; want %v", err, errLimit)
	}
	if _, err := readAll(t.Context(), v.read, v.size, 2000); err != nil {
		t.Errorf("Unmarshal of 2000 bytes of tensors within 2000 = %v", err)
	}
}

// Damage of a record is noticed when a tensor in it is read, also if the tensor is only a
// part of the record.
func TestReadVerifiesChecksums(t *testing.T) {
	b := must.Get(Marshal(map[string]any{"x": of[float32](t, []int64{2}, 1, 2)}))(t)
	f := must.Get(Open(t.Context(), reader(b), int64(len(b))))(t)
	x := f.Root.(map[string]any)["x"].(*Tensor)
	part := *x
	part.Shape = []int64{1}
	if _, err := part.Read(t.Context(), reader(b)); err != nil {
		t.Errorf("Read of a part = %v", err)
	}
	b[x.End-1] ^= 1
	for claim, v := range map[string]any{"the whole record": f.Root, "a part": &part, "parts": []any{&part, x}} {
		if _, err := Materialise(t.Context(), v, reader(b), 100); !errors.Is(err, errChecksum) || !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: Materialise = %v; want %v", claim, err, errChecksum)
		}
	}
}

// A value with many views of one record reads the record once to compare it.
func TestMaterialiseComparesARecordOnce(t *testing.T) {
	const views = 100
	b := must.Get(Marshal(of(t, []int64{4 * checkBytes}, make([]byte, 4*checkBytes)...)))(t)
	reads := 0
	read := func(ctx context.Context, p []byte, off int64) error {
		reads++
		return reader(b)(ctx, p, off)
	}
	f := must.Get(Open(t.Context(), read, int64(len(b))))(t)
	list := make([]any, views)
	for i := range list {
		x := *f.Root.(*Tensor)
		x.Shape = []int64{1}
		list[i] = &x
	}
	reads = 0
	if _, err := Materialise(t.Context(), list, read, views); err != nil || reads > views+4 {
		t.Errorf("Materialise = %v after %d reads; want at most %d", err, reads, views+4)
	}
}
