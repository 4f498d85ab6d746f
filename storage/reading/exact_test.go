package reading

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

func box(offsets, sizes []int64) tensor.Box { return tensor.Box{Offsets: offsets, Sizes: sizes} }

// Read reads only the bytes that it needs, and small holes between them.
func TestReadIsExact(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		shape, strides    []int64
		boxes             []tensor.Box
		slow              bool
		bytes, reads, buf int64 // want; buf: the most that buffers may take
	}{
		"a whole chunk goes into its place": {
			shape: []int64{3 * mib}, boxes: []tensor.Box{box([]int64{0}, []int64{3 * mib})}, bytes: 3 * mib, reads: 1,
		},
		"whole rows are one run": {
			shape: []int64{16, mib / 4}, boxes: []tensor.Box{box([]int64{3, 0}, []int64{8, mib / 4})}, bytes: 2 * mib, reads: 1,
		},
		"narrow columns read through small holes": {
			shape: []int64{64, 5000}, boxes: []tensor.Box{box([]int64{0, 100}, []int64{64, 1000})}, bytes: 63*5000 + 1000, reads: 1, buf: 512 << 10,
		},
		"large holes are not read": {
			shape: []int64{64, 50_000}, boxes: []tensor.Box{box([]int64{0, 100}, []int64{64, 1000})}, bytes: 64_000, reads: 64, buf: 64 << 10,
		},
		"large holes are read if requests are slow": {
			shape: []int64{64, 50_000}, boxes: []tensor.Box{box([]int64{0, 100}, []int64{64, 1000})}, bytes: 63*50_000 + 1000, reads: 1, slow: true, buf: 4 * mib,
		},
		"wide rows go into their places": {
			shape: []int64{4, mib}, boxes: []tensor.Box{box([]int64{0, 0}, []int64{4, mib / 2})}, bytes: 2 * mib, reads: 4,
		},
		"a transposed chunk is read once": {
			shape: []int64{1000, 300}, strides: []int64{1, 1000}, boxes: []tensor.Box{box([]int64{0, 0}, []int64{1000, 300})}, bytes: 300_000, reads: 1, buf: 512 << 10,
		},
		"a column of a transposed chunk is one run": {
			shape: []int64{10_000, 300}, strides: []int64{1, 10_000}, boxes: []tensor.Box{box([]int64{0, 7}, []int64{10_000, 1})}, bytes: 10_000, reads: 1, buf: 16 << 10,
		},
		"repeated elements are read once": {
			shape: []int64{1000, 300}, strides: []int64{0, 1}, boxes: []tensor.Box{box([]int64{0, 0}, []int64{1000, 300})}, bytes: 300, reads: 1, buf: 4 << 10,
		},
		"small neighbours are read together": {
			shape: []int64{mib},
			boxes: []tensor.Box{box([]int64{0}, []int64{100}), box([]int64{4000}, []int64{50}), box([]int64{100}, []int64{900})},
			bytes: 4050, reads: 1, buf: 4 << 10,
		},
		"distant ones are not": {
			shape: []int64{mib}, boxes: []tensor.Box{box([]int64{0}, []int64{100}), box([]int64{5000}, []int64{50})}, bytes: 150, reads: 2, buf: 8 << 10,
		},
		"boxes without elements are not read": {
			shape: []int64{10, 10}, boxes: []tensor.Box{box([]int64{10, 0}, []int64{0, 10}), box([]int64{3, 3}, []int64{2, 0})},
		},
	} {
		t.Run(name, func(t *testing.T) {
			data := noise(4*mib + 7)
			r := Region{Offset: 7, End: int64(len(data)), DType: tensor.Uint8, Strides: c.strides}
			ck, inner := one(t, tensor.Uint8, c.shape, r, data)
			m := fault.New(inner)
			ck.store = m
			if c.slow {
				ck.store = slowStore{m}
			}
			var p plan.LoadPlan
			var needed int64
			for _, b := range c.boxes {
				want(&p, "x", tensor.Whole(c.shape), b)
				needed += b.Volume()
			}
			g := newTarget(t)
			g.fill(&p, tensor.Uint8)
			work.ResetPeak()
			lent := work.Stats().Lent
			st := must.Get(read(t, ck, &p, g, storage.ReadOptions{Parallel: 2}))(t)
			// Each of two large buffers has room for two blocks of the disk more.
			if peak := work.Stats().Peak - lent; peak > c.buf+4*blob.Align {
				t.Errorf("buffers took %d bytes; want about %d", peak, c.buf)
			}
			got := m.Ops()
			if got.Bytes(fault.Read) != c.bytes || got.Count(fault.Read) != c.reads || got.Count(fault.Open) != min(1, c.reads) {
				t.Errorf("read %d bytes in %d reads of %d files; want %d in %d", got.Bytes(fault.Read), got.Count(fault.Read), got.Count(fault.Open), c.bytes, c.reads)
			}
			if w := (storage.ReadStats{Needed: needed, Rounded: needed, Read: c.bytes, Requests: c.reads}); st != w {
				t.Errorf("stats = %+v; want %+v", st, w)
			}
			compare(t, &p, g, c.shape, c.strides, data[7:])
		})
	}
}

// compare checks every item of a plan against a view of the bytes.
func compare(t *testing.T, p *plan.LoadPlan, g *target, shape, strides []int64, data []byte) {
	t.Helper()
	if strides == nil {
		x := must.Get(tensor.New(tensor.Bool, shape))(t)
		strides = x.Strides()
	}
	model := must.Get(tensor.FromStrided(tensor.Uint8, shape, strides, 0, data))(t)
	for i := range p.Items {
		it := &p.Items[i]
		part := must.Get(model.Narrow(it.SourceBox()))(t)
		if !tensor.Equal(part, g.to[it]) || g.done[it] != 1 {
			t.Errorf("box %v is wrong, or was handed over %d times", it.SourceBox(), g.done[it])
		}
	}
}

// A large tensor is read in small buffers. The reads stay within the budget, and the
// numbers that Progress receives have the right sum.
func TestReadBoundsMemory(t *testing.T) {
	shape := []int64{2048, 2048}
	data := noise(4 * 2048 * 2048)
	ck, _ := one(t, tensor.Float32, shape, Region{End: int64(len(data)), DType: tensor.Float32, Strides: []int64{1, 2048}}, data)
	var p plan.LoadPlan
	want(&p, "x", tensor.Whole(shape), tensor.Whole(shape))
	g := newTarget(t)
	g.fill(&p, tensor.BFloat16)
	work.ResetPeak()
	lent := work.Stats().Lent
	must.Get(read(t, ck, &p, g, storage.ReadOptions{BufferBytes: 2 << 20, Parallel: 4}))(t)
	if peak := work.Stats().Peak - lent; peak > 2<<20 {
		t.Errorf("buffers took %d bytes; want at most 2 MiB", peak)
	}
	model := must.Get(tensor.FromStrided(tensor.Float32, shape, []int64{1, 2048}, 0, data))(t)
	wanted, err := tensor.New(tensor.BFloat16, shape)
	if err == nil {
		err = tensor.Convert(wanted, model, tensor.CastAny)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !tensor.Equal(g.to[&p.Items[0]], wanted) {
		t.Error("other elements than are stored")
	}
}

// direct is a reader with an empty cache that counts the bytes of reads that bypass it.
type direct struct {
	blob.Reader
	seen *[][2]int64
}

func (d direct) Cached(int64, int64) bool { return false }

func (d direct) ReadDirect(ctx context.Context, buf []byte, off, n int64) ([]byte, error) {
	*d.seen = append(*d.seen, [2]int64{off, n})
	return buf[:n], d.ReadAt(ctx, buf[:n], off)
}

func TestReadBypassesTheCacheForLongRuns(t *testing.T) {
	data := noise(3 << 20)
	for _, replicated := range []bool{false, true} {
		ck, store := one(t, tensor.Uint8, []int64{3 << 20}, Region{End: 3 << 20, DType: tensor.Uint8}, data)
		var seen [][2]int64
		ck.store = openStore{store, func(r blob.Reader) blob.Reader { return direct{r, &seen} }}
		p := plan.LoadPlan{Replicated: replicated}
		want(&p, "x", tensor.Whole([]int64{3 << 20}), box([]int64{5}, []int64{2 << 20}))
		g := newTarget(t)
		g.fill(&p, tensor.Uint8)
		must.Get(read(t, ck, &p, g, storage.ReadOptions{Parallel: 1}))(t)
		wanted := [][2]int64{{5, 2 << 20}}
		if replicated { // the other ranks find it in the cache
			wanted = nil
		}
		if !slices.Equal(seen, wanted) {
			t.Errorf("replicated %v: %v went past the cache; want %v", replicated, seen, wanted)
		}
		if got, _ := g.to[&p.Items[0]].Bytes(); !bytes.Equal(got, data[5:5+2<<20]) {
			t.Errorf("replicated %v: other bytes than are stored", replicated)
		}
	}
}
