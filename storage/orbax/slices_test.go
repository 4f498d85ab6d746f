package orbax_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/orbax"
	"github.com/cairn-ckpt/cairn/tensor"
)

// watched counts the bytes that are read from files of data.
type watched struct {
	blob.Store
	mu   sync.Mutex
	read int64
}

func (w *watched) Open(ctx context.Context, name string) (blob.Reader, error) {
	r, err := w.Store.Open(ctx, name)
	if err != nil || !strings.HasPrefix(name, "d/values") {
		return r, err
	}
	return &watchedReader{r, w}, nil
}

func (w *watched) take() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.read
	w.read = 0
	return n
}

type watchedReader struct {
	blob.Reader
	w *watched
}

func (r *watchedReader) ReadAt(ctx context.Context, p []byte, off int64) error {
	r.w.mu.Lock()
	r.w.read += int64(len(p))
	r.w.mu.Unlock()
	return r.Reader.ReadAt(ctx, p, off)
}

// part receives the parts of one box.
type part struct{ dst *tensor.Tensor }

func (r part) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	return r.dst.Narrow(it.DestBox())
}
func (part) CommitTensor(*plan.ReadItem, *tensor.Tensor) error { return nil }
func (part) LoadBytes(*plan.ReadItem, string, []byte) error    { return plan.ErrProtocol }

// readPart reads a box of a tensor.
func readPart(t testing.TB, ck storage.Checkpoint, name string, box tensor.Box) *tensor.Tensor {
	t.Helper()
	e, ok, err := ck.Find(t.Context(), name)
	if err != nil || !ok {
		t.Fatalf("Find = %v, %v", ok, err)
	}
	dst := must.Get(tensor.New(e.Tensor.DType, box.Sizes))(t)
	x := must.Get(plan.NewChunkIndex(e, 1))(t)
	items := must.Get(x.Reads(nil, meta.Index{FQN: e.FQN}, box))(t)
	md := &meta.Metadata{Entries: []meta.Entry{*e}}
	_, err = ck.Read(t.Context(), md, &plan.LoadPlan{Items: items}, part{dst}, storage.ReadOptions{})
	must.Do(t, err)
	return dst
}

// kinds are the forms of an array of 1024 x 2560 float32, 10 MiB, in two chunks of 5 MiB.
func kinds(t testing.TB) map[string]*written {
	t.Helper()
	shape, chunk, inner := []int64{1024, 2560}, []int64{512, 2560}, []int64{128, 640}
	out := map[string]*written{}
	for _, compress := range []bool{false, true} {
		for _, turned := range []bool{false, true} {
			out[fmt.Sprintf("zarr 2, zstd %v, turned %v", compress, turned)] = newWritten(t, shape, chunk, nil, compress, turned)
			out[fmt.Sprintf("zarr 3, zstd %v, turned %v", compress, turned)] = newWritten(t, shape, chunk, inner, compress, turned)
			out[fmt.Sprintf("zarr 3, one inner chunk, zstd %v, turned %v", compress, turned)] = newWritten(t, shape, chunk, chunk, compress, turned)
		}
	}
	return out
}

// Any slice of an array in any form has the right elements.
func TestSlices(t *testing.T) {
	for name, w := range kinds(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := new(mem.Store)
			writeOCDBT(t, s, w.values)
			ck := must.Get(orbax.Format{}.Open(t.Context(), s))(t)
			defer ck.Close()

			all := must.Get(tensor.FromBytes(tensor.Float32, w.shape, w.data))(t)
			r := rand.New(rand.NewPCG(3, 4))
			boxes := []tensor.Box{tensor.Whole(w.shape), {Offsets: []int64{0, 0}, Sizes: w.chunk}}
			for range deep.Rounds(12, 200) {
				b := tensor.Box{Offsets: make([]int64, 2), Sizes: make([]int64, 2)}
				for d, n := range w.shape {
					b.Offsets[d] = r.Int64N(n)
					b.Sizes[d] = 1 + r.Int64N(n-b.Offsets[d])
				}
				boxes = append(boxes, b)
			}
			for _, b := range boxes {
				want := must.Get(all.Narrow(b))(t).Contents()
				if got := readPart(t, ck, "w", b).Contents(); !bytes.Equal(got, want) {
					t.Fatalf("the elements of %v differ", b)
				}
			}
		})
	}
}

// A slice reads only the chunks that it touches. Of chunks that are not compressed it reads little more than
// the slice, and slices one after the other do not read a compressed chunk again.
func TestSlicesReadLittle(t *testing.T) {
	for name, w := range kinds(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &watched{Store: new(mem.Store)}
			writeOCDBT(t, s, w.values)
			ck := must.Get(orbax.Format{}.Open(t.Context(), s))(t)
			defer ck.Close()
			total := int64(0)
			for _, b := range w.values {
				total += int64(len(b))
			}
			s.take()

			readPart(t, ck, "w", tensor.Box{Offsets: []int64{518, 10}, Sizes: []int64{4, 100}})
			most := total/2 + total/20 // one of two chunks
			switch small := w.inner != nil && w.inner[0] < w.chunk[0]; {
			case small: // one of 32 inner chunks, and an index
				most = total/32 + total/100
			case !w.zstd:
				most = 2 << 20 // whole columns or rows, with the holes between them
			}
			if got := s.take(); got > most {
				t.Errorf("a small slice reads %d bytes; want at most %d of %d", got, most, total)
			}

			for row := int64(0); row < w.shape[0]; row += 64 {
				readPart(t, ck, "w", tensor.Box{Offsets: []int64{row, 0}, Sizes: []int64{64, w.shape[1]}})
			}
			// A row of a chunk that is stored by columns is everywhere in the chunk.
			if got := s.take(); got > total+total/10 && !(w.turned && !w.zstd) {
				t.Errorf("slices one after the other read %d bytes; want about %d", got, total)
			}
		})
	}
}

// Slices of a large chunk by several goroutines at once, each in an order of its own, are right.
func TestSlicesAtOnce(t *testing.T) {
	w := newWritten(t, []int64{1024, 2560}, []int64{1024, 2560}, nil, true, false)
	s := new(mem.Store)
	writeOCDBT(t, s, w.values)
	ck := must.Get(orbax.Format{}.Open(t.Context(), s))(t)
	defer ck.Close()
	all := must.Get(tensor.FromBytes(tensor.Float32, w.shape, w.data))(t)

	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(g, 1))
			for range 8 {
				b := tensor.Box{Offsets: []int64{r.Int64N(900), 0}, Sizes: []int64{100, 2560}}
				if got := readPart(t, ck, "w", b).Contents(); !bytes.Equal(got, must.Get(all.Narrow(b))(t).Contents()) {
					t.Errorf("the elements of %v differ", b)
				}
			}
		})
	}
	wg.Wait()
}
