package cairn

import (
	"bytes"
	"context"
	"encoding/binary"
	"runtime"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/internal/segment"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// comparer is the default planner, but it compares with the state and does not fill it.
type comparer struct {
	plan.DefaultLoad

	mu                                     sync.Mutex
	memory                                 []byte         // for a batch of items; guarded by mu
	used                                   int64          // of memory; guarded by mu
	found                                  []difference   // guarded by mu
	values                                 []func() error // guarded by mu
	elements, changed, bytes, changedBytes int64          // guarded by mu
}

// ResolveTensor returns memory of its own.
func (c *comparer) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	live, err := c.DefaultLoad.ResolveTensor(it)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at, n := c.used, live.NumBytes()
	c.used += aligned(n)
	t, err := tensor.FromBytes(live.DType(), live.Shape(), c.memory[at:at+n])
	if err == nil && c.Cast == tensor.CastAny {
		t = t.Lossy()
	}
	return t, err
}

// aligned rounds a number of bytes up.
func aligned(n int64) int64 { return (n + 63) &^ 63 }

// comparingReader reads the items of a comparer in batches.
type comparingReader struct {
	storage.Reader
	planner  *comparer
	follower *Follower
}

// ReadData implements storage.Reader.
func (r *comparingReader) ReadData(ctx context.Context, p *plan.LoadPlan, dst storage.Receiver) (storage.ReadStats, error) {
	c := r.planner
	sizes, most := make([]int64, len(p.Items)), int64(0)
	total := int64(0)
	for i := range p.Items {
		if p.Items[i].Kind != plan.KindBytes {
			live, err := c.DefaultLoad.ResolveTensor(&p.Items[i])
			if err != nil {
				return storage.ReadStats{}, err
			}
			sizes[i] = aligned(live.NumBytes())
		}
		most, total = max(most, sizes[i]), total+sizes[i]
	}

	c.memory = r.follower.take(max(most, min(total, r.follower.options.BufferBytes)))
	defer func() {
		r.follower.put(c.memory)
		c.memory = nil
	}()

	var sum storage.ReadStats
	for from := 0; from < len(p.Items); {
		to, n := from, int64(0)
		for to < len(p.Items) && n+sizes[to] <= int64(len(c.memory)) {
			n += sizes[to]
			to++
		}

		c.used = 0
		batch := *p
		batch.Items = p.Items[from:to]
		st, err := r.Reader.ReadData(ctx, &batch, dst)
		sum.Add(st)
		if err != nil {
			return sum, err
		}

		from = to
	}
	return sum, nil
}

// CommitTensor compares the tensor that was read with the state.
func (c *comparer) CommitTensor(it *plan.ReadItem, t *tensor.Tensor) error {
	live, err := c.DefaultLoad.ResolveTensor(it)
	if err != nil {
		return err
	}
	d, n := compare(live, t)
	c.mu.Lock()
	defer c.mu.Unlock()
	size := int64(live.DType().Size())
	c.elements += live.NumElements()
	c.bytes += live.NumElements() * size
	c.changed += n
	c.changedBytes += n * size
	c.found = append(c.found, d...)
	return nil
}

// LoadBytes keeps a value until Commit.
func (c *comparer) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	item, kept := *it, append([]byte(nil), data...)
	c.values = append(c.values, func() error { return c.DefaultLoad.LoadBytes(&item, codec, kept) })
	return nil
}

// difference has the elements that differ between a part of a state and a version.
type difference struct {
	// live is the part, if it is contiguous. at are the offsets of elements in it, and values
	// their new values. Without offsets, values replaces the whole part.
	live   []byte
	size   int // of an element
	n      int // elements that differ
	at     []uint32
	values []byte

	// part is a part with strides, which becomes whole.
	part, whole *tensor.Tensor
}

const (
	// dense is the part of its elements, one in dense, from which a part that differs is kept
	// whole.
	dense = 8
	// partBytes is the size of a difference. Several are compared and written at a time.
	partBytes = segment.MaxLen
)

// compare returns the differences between a part of the state and t, which is contiguous,
// and how many elements differ.
func compare(live, t *tensor.Tensor) ([]difference, int64) {
	size, is := live.DType().Size(), t.Contents()
	was, ok := live.Bytes()
	if !ok { // rare, so the part is kept whole
		if n := segment.Count(live.Contents(), is, size); n > 0 {
			return []difference{{part: live, whole: t.Clone()}}, int64(n)
		}
		return nil, 0
	}
	parts := make([]difference, (len(is)+partBytes-1)/partBytes)
	_ = work.Each(context.Background(), len(parts), runtime.GOMAXPROCS(0), func(_ context.Context, i int) error {
		lo, hi := i*partBytes, min((i+1)*partBytes, len(is))
		parts[i] = difference{live: was[lo:hi], size: size}
		parts[i].compare(is[lo:hi])
		return nil
	})
	n := int64(0)
	for i := range parts {
		n += int64(parts[i].n)
	}
	return slices.DeleteFunc(parts, func(d difference) bool { return d.n == 0 }), n
}

// scratch has memory for places.
var scratch = sync.Pool{New: func() any { return new([]uint32) }}

// compare notes the differences between d.live and is.
func (d *difference) compare(is []byte) {
	buf := scratch.Get().(*[]uint32)
	defer scratch.Put(buf)
	at, most := (*buf)[:0], len(is)/d.size/dense
	// If much of the beginning differs, all of it may. Then it takes long to find the places.
	if k := min(len(is), 4<<10); segment.Count(d.live[:k], is[:k], d.size) > k/d.size/dense {
		d.n = segment.Count(d.live, is, d.size)
	}
	if d.n <= most {
		at = segment.AppendPlaces(at, d.live, is, d.size)
		*buf, d.n = at, len(at)
	}
	if d.n > most {
		d.values = bytes.Clone(is)
		return
	}
	d.at, d.values = slices.Clone(at), make([]byte, 0, d.n*d.size)
	for _, i := range at {
		d.values = append(d.values, is[i:int(i)+d.size]...)
	}
}

// write changes the state.
func (d *difference) write() error {
	if d.whole != nil {
		return tensor.Copy(d.part, d.whole)
	}
	if d.at == nil {
		copy(d.live, d.values)
		return nil
	}
	switch d.size {
	case 1:
		for i, at := range d.at {
			d.live[at] = d.values[i]
		}
	case 2:
		for i, at := range d.at {
			binary.LittleEndian.PutUint16(d.live[at:], binary.LittleEndian.Uint16(d.values[2*i:]))
		}
	default:
		for i, at := range d.at {
			copy(d.live[at:], d.values[i*d.size:(i+1)*d.size])
		}
	}
	return nil
}
