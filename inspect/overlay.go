package inspect

import (
	"context"
	"fmt"
	"math"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// Overlaid are the statistics of two tensors, with histograms of the same edges. Both
// histograms are nil if neither tensor has elements to count.
type Overlaid struct {
	A TensorStats `json:"a"`
	B TensorStats `json:"b"`
}

// overlayBuckets is the number of buckets if the options have none.
const overlayBuckets = 100

// Overlay counts the elements of two tensors in the same buckets. These cover the elements of
// both. It reads like Stats, and reads tensors twice unless the elements have one or two
// bytes or the scale is log2. The options are those of Stats, and zero buckets mean 100. The
// error wraps plan.ErrMismatch if an entry is not a tensor.
func Overlay(ctx context.Context, a, b Content, ea, eb *meta.Entry, o *StatsOptions) (*Overlaid, error) {
	var s [2]*statist
	for i, e := range []*meta.Entry{ea, eb} {
		if e.Tensor == nil {
			return nil, fmt.Errorf("%q is not a tensor: %w", e.FQN, plan.ErrMismatch)
		}

		s[i] = &statist{src: []Content{a, b}[i], opts: o.withDefaults(nil), ranged: true}
		if s[i].opts.Buckets == 0 {
			s[i].opts.Buckets = overlayBuckets
		}

		if err := s[i].collect(ctx, []*meta.Entry{e}); err != nil {
			return nil, err
		}
	}

	s[0].opts.Total(s[0].toRead() + s[1].toRead())
	for _, x := range s {
		if err := sweep(ctx, x.jobs(false), x.first); err != nil {
			return nil, err
		}
	}

	if err := share(s[0].items[0], s[1].items[0], &s[0].opts); err != nil {
		return nil, err
	}

	for _, x := range s {
		if err := sweep(ctx, x.jobs(true), x.second); err != nil {
			return nil, err
		}
	}

	return &Overlaid{A: s[0].items[0].result(&s[0].opts), B: s[1].items[0].result(&s[1].opts)}, nil
}

// share gives two tensors the buckets of their histograms after the first pass.
func share(x, y *statsItem, o *StatsOptions) error {
	if o.Log2 {
		sharePowers(x, y)
		return nil
	}

	lo, hi := math.Inf(1), math.Inf(-1)
	for _, it := range []*statsItem{x, y} {
		if it.total.n > 0 {
			lo, hi = min(lo, it.total.min), max(hi, it.total.max)
		}
	}

	if lo > hi {
		return nil
	}

	for _, it := range []*statsItem{x, y} {
		it.linear = newLinear(lo, hi, o.Buckets)
		if it.second = it.values == nil && it.total.n > 0; it.second || it.values == nil {
			continue
		}
		values, err := tableValues(it.entry.Tensor.DType)
		if err != nil {
			return err
		}
		it.linear.countTable(values, it.values)
	}

	return nil
}

// sharePowers is share for the log2 scale.
func sharePowers(x, y *statsItem) {
	both := new([2]int{powers, 0})
	for _, it := range []*statsItem{x, y} {
		if it.octaves == nil {
			it.octaves = new(octaves)
		}
		if lo, hi := it.octaves.span(); lo < hi {
			both[0], both[1] = min(both[0], lo), max(both[1], hi)
		}
	}

	both[0] = min(both[0], both[1])
	x.powers, y.powers = both, both
}
