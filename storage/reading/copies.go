package reading

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Copy is a second copy of a tensor, which the format stores at another place and maybe
// in another precision.
type Copy struct {
	// FQN is the name of the tensor in Metadata.
	FQN string
	// Entry describes the copy. It has the shape of the tensor. It need not be an entry
	// of Metadata; Source.Place finds its chunks.
	Entry meta.Entry
}

// slabElements is the number of elements that are compared at once. Tests make it smaller.
var slabElements int64 = 1 << 20

// slab is a run of the elements of a tensor and of its copy, in row-major order.
type slab struct {
	copy   *Copy
	tensor *meta.Entry
	lo, hi int64
}

var _ storage.CopyChecker = (*Checkpoint)(nil)

// CheckCopies implements storage.CopyChecker.
func (c *Checkpoint) CheckCopies(ctx context.Context, want func(fqn string) bool, o storage.ReadOptions) (*storage.CopyReport, error) {
	rep := &storage.CopyReport{}
	if len(c.src.Copies) == 0 {
		return rep, nil
	}

	md, err := c.Metadata(ctx)
	if err != nil {
		return nil, err
	}

	var slabs []slab
	for i := range c.src.Copies {
		p := &c.src.Copies[i]
		e, ok := md.Find(p.FQN)
		if !ok || want != nil && !want(p.FQN) {
			continue
		}
		rep.Tensors++
		for lo, n := int64(0), (tensor.Box{Sizes: e.Tensor.Shape}).Volume(); lo < n; lo += slabElements {
			slabs = append(slabs, slab{p, e, lo, min(lo+slabElements, n)})
		}
	}

	var mu sync.Mutex
	found := map[string]difference{} // the first of each tensor
	workers := atOnce()
	o.BufferBytes = max(leastBytes, o.Budget()/int64(workers))
	err = work.Each(ctx, len(slabs), workers, func(ctx context.Context, i int) error {
		d, err := c.compare(ctx, &slabs[i], o)
		if err != nil || d == nil {
			return err
		}

		mu.Lock()
		defer mu.Unlock()

		if was, ok := found[slabs[i].copy.FQN]; !ok || d.at < was.at {
			found[slabs[i].copy.FQN] = *d
		}
		return nil
	})
	if err != nil {
		return nil, c.explain(ctx, err)
	}

	for fqn, d := range found {
		rep.Problems = append(rep.Problems, storage.VerifyProblem{File: d.file, FQN: fqn, Text: d.text})
	}

	if len(rep.Problems) > 0 && c.changed(ctx) {
		return nil, fmt.Errorf("%w: %s", storage.ErrChanged, c.store)
	}

	slices.SortFunc(rep.Problems, func(a, b storage.VerifyProblem) int { return strings.Compare(a.FQN, b.FQN) })
	return rep, nil
}

// difference is an element of a tensor that differs from its copy.
type difference struct {
	at         int64 // in row-major order
	file, text string
}

// compare returns the first difference in a slab, or nil. Bytes of the checkpoint that
// are damaged are a difference, too.
func (c *Checkpoint) compare(ctx context.Context, s *slab, o storage.ReadOptions) (*difference, error) {
	d := s.copy.Entry.Tensor.DType
	a, err := c.readRun(ctx, s.tensor, d, s.lo, s.hi, o)
	var b []byte
	if err == nil {
		b, err = c.readRun(ctx, &s.copy.Entry, d, s.lo, s.hi, o)
	}

	file := s.copy.Entry.Tensor.Locs[0].File
	if errors.Is(err, storage.ErrCorrupt) && ctx.Err() == nil {
		return &difference{s.lo, file, fmt.Sprintf("it cannot be compared with its copy: %v", err)}, nil
	}
	if err != nil || bytes.Equal(a, b) {
		return nil, err
	}

	size := int64(d.Size())
	for i := range s.hi - s.lo {
		x, y := a[i*size:(i+1)*size], b[i*size:(i+1)*size]
		if bytes.Equal(x, y) || isNaN(d, x) && isNaN(d, y) {
			continue
		}
		return &difference{s.lo + i, file, fmt.Sprintf("element %v as %v is %s, and %s in its copy %q: one of them is not what was saved, or the parts are not in the order that the files say",
			index(s.tensor.Tensor.Shape, s.lo+i), d, number(d, x), number(d, y), s.copy.Entry.FQN)}, nil
	}

	return nil, nil
}

// readRun returns the elements [lo, hi) of a tensor in row-major order, cast to d.
func (c *Checkpoint) readRun(ctx context.Context, e *meta.Entry, d tensor.DType, lo, hi int64, o storage.ReadOptions) ([]byte, error) {
	boxes, err := tensor.FlatBoxes(e.Tensor.Shape, lo, hi)
	if err != nil {
		return nil, err
	}

	x, err := plan.NewChunkIndex(e, len(boxes))
	if err != nil {
		return nil, err
	}

	size := int64(d.Size())
	buf, at := make([]byte, (hi-lo)*size), int64(0)
	to, p := make(flatBoxes, len(boxes)), &plan.LoadPlan{}
	for k, b := range boxes {
		n := b.Volume() * size
		t, err := tensor.FromBytes(d, b.Sizes, buf[at:at+n])
		if err != nil {
			return nil, err
		}
		to[k], at = t.Lossy(), at+n
		if p.Items, err = x.Reads(p.Items, meta.Index{FQN: e.FQN, Hint: int32(k)}, b); err != nil {
			return nil, err
		}
	}

	_, err = c.Read(ctx, &meta.Metadata{Entries: []meta.Entry{*e}}, p, to, o)
	return buf, err
}

// flatBoxes is a receiver of boxes, which items name by their hint.
type flatBoxes []*tensor.Tensor

var _ storage.Receiver = flatBoxes(nil)

// ResolveTensor returns the memory of the item's box.
func (r flatBoxes) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	return r[it.Dest.Hint].Narrow(it.DestBox())
}

// CommitTensor has no effect.
func (flatBoxes) CommitTensor(*plan.ReadItem, *tensor.Tensor) error { return nil }

// LoadBytes returns an error: there are no values among the items.
func (flatBoxes) LoadBytes(it *plan.ReadItem, _ string, _ []byte) error {
	return fmt.Errorf("%w: %q is a value", plan.ErrProtocol, it.Source.FQN)
}

// index returns the index of an element by its position in row-major order.
func index(shape []int64, at int64) []int64 {
	out := make([]int64, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		out[d], at = at%shape[d], at/shape[d]
	}
	return out
}

// asFloat returns an element as a float64.
func asFloat(d tensor.DType, p []byte) (float64, bool) {
	out := make([]float64, 1)
	dst, err := tensor.Of(nil, out)
	if err != nil {
		return 0, false
	}

	src, err := tensor.FromBytes(d, nil, p)
	if err != nil || tensor.Convert(dst, src, tensor.CastAny) != nil {
		return 0, false
	}
	return out[0], true
}

func isNaN(d tensor.DType, p []byte) bool {
	f, ok := asFloat(d, p)
	return ok && f != f
}

// number returns an element as text.
func number(d tensor.DType, p []byte) string {
	if f, ok := asFloat(d, p); ok {
		return fmt.Sprint(f)
	}
	return fmt.Sprintf("%x", p)
}
