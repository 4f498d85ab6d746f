package reading

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// openStore changes the readers of a store.
type openStore struct {
	blob.Store
	wrap func(blob.Reader) blob.Reader
}

func (s openStore) Open(ctx context.Context, name string) (blob.Reader, error) {
	r, err := s.Store.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return s.wrap(r), nil
}

// refusing is a receiver that must not be called.
type refusing struct{ t *testing.T }

func (r refusing) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	r.t.Errorf("memory was asked for %v", it.Source)
	return nil, errors.New("no")
}
func (r refusing) CommitTensor(*plan.ReadItem, *tensor.Tensor) error { return nil }
func (r refusing) LoadBytes(*plan.ReadItem, string, []byte) error    { return nil }

// A region outside of its file is refused before memory is allocated.
func TestReadRefusesInvalidRegions(t *testing.T) {
	const huge = math.MaxInt64
	for name, c := range map[string]struct {
		region Region
		shape  []int64
	}{
		"before the file":               {Region{Offset: -1, End: 16, DType: tensor.Float32}, []int64{4}},
		"beyond the file":               {Region{Offset: 90, End: 106, DType: tensor.Float32}, []int64{4}},
		"its end before its start":      {Region{Offset: 20, End: 16, DType: tensor.Float32}, []int64{4}},
		"far beyond the file":           {Region{Offset: huge - 8, End: huge, DType: tensor.Float32}, []int64{2}},
		"too few bytes":                 {Region{Offset: 0, End: 15, DType: tensor.Float32}, []int64{4}},
		"a huge shape":                  {Region{Offset: 0, End: 100, DType: tensor.Float32}, []int64{1 << 40}},
		"a shape that overflows":        {Region{Offset: 0, End: 100, DType: tensor.Float64}, []int64{1 << 61}},
		"no element type":               {Region{Offset: 0, End: 100}, []int64{4}},
		"a stride beyond the end":       {Region{Offset: 0, End: 100, DType: tensor.Uint8, Strides: []int64{34}}, []int64{4}},
		"a stride that overflows":       {Region{Offset: 0, End: 100, DType: tensor.Uint8, Strides: []int64{huge / 2}}, []int64{4}},
		"strides that overflow":         {Region{Offset: 0, End: 100, DType: tensor.Uint8, Strides: []int64{huge, huge}}, []int64{2, 2}},
		"a negative stride":             {Region{Offset: 50, End: 100, DType: tensor.Uint8, Strides: []int64{-1}}, []int64{4}},
		"too few strides":               {Region{Offset: 0, End: 100, DType: tensor.Uint8, Strides: []int64{1}}, []int64{4, 4}},
		"a few bytes repeated for ever": {Region{Offset: 0, End: 100, DType: tensor.Uint8, Strides: []int64{0}}, []int64{1 << 40}},
	} {
		t.Run(name, func(t *testing.T) {
			ck, _ := one(t, c.region.DType, c.shape, c.region, noise(100))
			if c.region.DType == tensor.Invalid {
				ck.md.Entries[0].Tensor.DType = tensor.Uint8
			}
			e := &ck.md.Entries[0]
			if err := ck.CheckHeld(t.Context(), e); !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("CheckHeld = %v; want ErrCorrupt", err)
			}
			var p plan.LoadPlan
			want(&p, "x", e.Tensor.Chunks[0], tensor.Box{Offsets: make([]int64, len(c.shape)), Sizes: ones(len(c.shape))})
			if _, err := read(t, ck, &p, refusing{t}, storage.ReadOptions{}); !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("ReadData = %v; want ErrCorrupt", err)
			}
			rep, err := ck.Verify(t.Context(), nil)
			if err != nil || len(rep.Problems) == 0 {
				t.Errorf("Verify = %+v, %v; want a problem", rep, err)
			}
		})
	}
}

// The total size of chunks that repeat bytes of their files is bounded.
func TestReadRefusesChunksLargerThanTheirFile(t *testing.T) {
	const n = 100 << 20
	for name, c := range map[string]struct {
		tensors, files int
		want           error
	}{
		"a few":                 {5, 1, nil},
		"many":                  {11, 1, storage.ErrCorrupt},
		"many, each in another": {11, 11, storage.ErrCorrupt},
	} {
		store := new(mem.Store)
		var s scene
		for i := range c.files {
			s.file(t, store, fmt.Sprintf("data%d", i), noise(100))
		}
		for i := range c.tensors {
			r := &Region{File: fmt.Sprintf("data%d", i%c.files), End: 100, DType: tensor.Uint8, Strides: []int64{0, 1}}
			s.tensor(fmt.Sprintf("x%d", i), tensor.Uint8, []int64{n / 100, 100}, Place{Region: r})
		}
		ck := Open(store, s.source())
		if err := ck.CheckHeld(t.Context(), &ck.md.Entries[0]); !errors.Is(err, c.want) {
			t.Errorf("%s: CheckHeld = %v; want %v", name, err, c.want)
		}
		rep := must.Get(ck.Verify(t.Context(), nil))(t)
		if want := map[bool]int{true: c.files}[c.want != nil]; len(rep.Problems) != want {
			t.Errorf("%s: Verify = %+v; want %d problems", name, rep.Problems, want)
		}
	}
}

// Layers that share their weights are accepted.
func TestReadAcceptsSharedChunks(t *testing.T) {
	store := new(mem.Store)
	var s scene
	s.file(t, store, "data", noise(1<<20))
	for i := range 48 {
		s.tensor(fmt.Sprintf("x%d", i), tensor.Uint8, []int64{1 << 20}, Place{Region: &Region{File: "data", End: 1 << 20, DType: tensor.Uint8}})
	}
	ck := Open(store, s.source())
	ck.sumChunks()
	if len(ck.repeats) > 0 {
		t.Errorf("%v; want nothing", ck.repeats)
	}
}

func ones(n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = 1
	}
	return out
}

func TestReadRefusesChunksWithoutAPlace(t *testing.T) {
	for name, at := range map[string]Place{
		"nothing":       {},
		"a stray file":  {Region: &Region{File: "../data", End: 4, DType: tensor.Uint8}},
		"two at a time": {Region: &Region{File: "data", End: 4, DType: tensor.Uint8}, Decoder: countingDecoder{}},
	} {
		ck, _ := one(t, tensor.Uint8, []int64{4}, Region{End: 4, DType: tensor.Uint8}, noise(4))
		ck.src.Place = func(context.Context, *meta.Entry, int) (Place, error) { return at, nil }
		if err := ck.CheckHeld(t.Context(), &ck.md.Entries[0]); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("%s: CheckHeld = %v; want ErrCorrupt", name, err)
		}
	}
}

// Files that shrink or vanish after the checkpoint was opened.
func TestReadDetectsChangedFiles(t *testing.T) {
	for name, c := range map[string]struct {
		rule fault.Rule
		want error
	}{
		"a read goes wrong":  {fault.Rule{On: fault.Read, Do: fault.Fail(errOnPurpose)}, errOnPurpose},
		"an open goes wrong": {fault.Rule{On: fault.Open, Do: fault.Fail(errOnPurpose)}, errOnPurpose},
		"a file is shorter":  {fault.Rule{On: fault.Open, Do: fault.Truncate(50)}, storage.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			for _, shape := range [][]int64{{100}, {1 << 20}} { // through a buffer, and into its place
				ck, store := one(t, tensor.Uint8, shape, Region{End: shape[0], DType: tensor.Uint8}, noise(1<<20))
				ck.store = fault.New(store, c.rule)
				var p plan.LoadPlan
				want(&p, "x", tensor.Whole(shape), tensor.Whole(shape))
				g := newTarget(t)
				g.fill(&p, tensor.Uint8)
				if _, err := read(t, ck, &p, g, storage.ReadOptions{}); !errors.Is(err, c.want) {
					t.Errorf("ReadData = %v; want %v", err, c.want)
				}
				if len(g.done) > 0 {
					t.Error("the item was handed over")
				}
			}
		})
	}
	ck, store := one(t, tensor.Uint8, []int64{4}, Region{End: 4, DType: tensor.Uint8}, noise(4))
	must.Do(t, store.Remove(t.Context(), "data"))
	var p plan.LoadPlan
	want(&p, "x", tensor.Whole([]int64{4}), tensor.Whole([]int64{4}))
	g := newTarget(t)
	g.fill(&p, tensor.Uint8)
	if _, err := read(t, ck, &p, g, storage.ReadOptions{}); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("ReadData of a file that is gone = %v; want ErrCorrupt", err)
	}
}

var errOnPurpose = errors.New("went wrong on purpose")
