package inspect

import (
	"context"
	"fmt"
	"iter"
	"math"
	"sync"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// TensorStats are the statistics of one tensor. They cover its finite elements
// and are computed in float64: integers beyond 2^53 count as the closest float64,
// complex numbers as their magnitude. They are undefined if there are no finite
// elements. L2 is infinite if it overflows float64; Std and L2 are zero if the
// squares underflow.
type TensorStats struct {
	FQN      string  `json:"fqn"`
	DType    string  `json:"dtype"`
	Shape    []int64 `json:"shape"`
	NumBytes int64   `json:"bytes"`
	Numbers
	// Histogram is nil if it was not requested or if the tensor has no elements to count.
	Histogram *Histogram `json:"histogram,omitempty"`
}

// Numbers are statistics of elements.
type Numbers struct {
	Elements int64  `json:"elements"`
	Min      Number `json:"min"`
	Max      Number `json:"max"`
	Mean     Number `json:"mean"`
	// Std is the standard deviation of the population: the divisor is the
	// number of elements, not one less.
	Std Number `json:"std"`
	// L2 is the root of the sum of the squares.
	L2     Number `json:"l2"`
	Zeros  int64  `json:"zeros"`
	NaN    int64  `json:"nan"`
	PosInf int64  `json:"pos_inf"`
	NegInf int64  `json:"neg_inf"`
}

// Finite returns the number of elements that are neither NaN nor infinite.
func (n *Numbers) Finite() int64 { return n.Elements - n.NonFinite() }

// NonFinite returns the number of elements that are NaN or infinite.
func (n *Numbers) NonFinite() int64 { return n.NaN + n.PosInf + n.NegInf }

// absMax returns the largest magnitude of the finite elements. It is undefined if there are none.
func (n *Numbers) absMax() Number {
	return Number(max(math.Abs(float64(n.Min)), math.Abs(float64(n.Max))))
}

func newNumbers(m moments) Numbers {
	out := Numbers{
		Elements: m.n + m.nan + m.posInf + m.negInf, Zeros: m.zeros, NaN: m.nan, PosInf: m.posInf, NegInf: m.negInf,
	}
	none := Number(math.NaN())
	out.Min, out.Max, out.Mean, out.Std, out.L2 = none, none, none, none, none

	if m.n > 0 {
		out.Min, out.Max, out.Mean = Number(m.min), Number(m.max), Number(m.average())
		out.Std, out.L2 = Number(m.std()), Number(m.norm())
	}
	return out
}

// StatsTotals treat all tensors as one.
type StatsTotals struct {
	Tensors  int64 `json:"tensors"`
	NumBytes int64 `json:"bytes"`
	Numbers
	// NonFinite counts the tensors with elements that are NaN or infinite.
	NonFinite int64 `json:"nonfinite_tensors"`
}

// StatsReport is the result of Stats: the statistics of each tensor in the order
// of the entries, and of all tensors together.
type StatsReport struct {
	Tensors []TensorStats `json:"tensors"`
	Totals  StatsTotals   `json:"totals"`
	// Unread lists names that may hold elements and could not be read.
	Unread []Unread `json:"unread"`
}

// StatsOptions are the options of Stats. Nil means the defaults.
type StatsOptions struct {
	// Buckets is the number of buckets of the histograms. Zero: no histograms.
	Buckets int
	// Log2 makes histograms of magnitudes, with at most Buckets buckets that all span the same
	// number of powers of two. Otherwise buckets have equal width between the lowest and the
	// highest finite element, which takes a second pass over tensors with elements of more than
	// two bytes: from memory if they fit a buffer, otherwise from the store.
	Log2 bool
	// Known reports whether the checkpoint has a tensor with a name to which an
	// object among the entries refers. Nil: only the tensors among the entries
	// are known.
	Known func(fqn string) bool
	// Total, if not nil, is called once before anything is read, with the
	// approximate number of bytes that Progress will count.
	Total func(bytes int64)
	// Progress, if not nil, is called with the number of bytes that were read. It
	// must be safe for concurrent use.
	Progress func(bytes int64)
}

func (o *StatsOptions) withDefaults(entries []*meta.Entry) StatsOptions {
	var out StatsOptions
	if o != nil {
		out = *o
	}

	if out.Known == nil {
		names := map[string]bool{}
		for _, e := range entries {
			names[e.FQN] = e.Tensor != nil
		}
		out.Known = func(fqn string) bool { return names[fqn] }
	}

	out.Total, out.Progress = orIgnore(out.Total), orIgnore(out.Progress)
	return out
}

// orIgnore returns fn, or a function without effect if fn is nil.
func orIgnore(fn func(bytes int64)) func(bytes int64) {
	if fn == nil {
		return func(int64) {}
	}
	return fn
}

// Stats computes the statistics of the tensors among the entries, and of the
// tensors and arrays of NumPy and Python inside objects among them, which are
// named after the object and the path in it. Single numbers do not count. It
// reads every tensor once, or twice for some histograms. It holds about 16 MiB of
// tensors for each processor. The results have the same bits whatever the number of
// processors is, and however the tensors were cut and stored.
func Stats(ctx context.Context, src Content, entries []*meta.Entry, opts *StatsOptions) (*StatsReport, error) {
	s := &statist{src: src, opts: opts.withDefaults(entries)}
	if err := s.collect(ctx, entries); err != nil {
		return nil, err
	}

	s.opts.Total(s.toRead())
	if err := sweep(ctx, s.jobs(false), s.first); err != nil {
		return nil, err
	}

	if err := sweep(ctx, s.jobs(true), s.second); err != nil {
		return nil, err
	}
	return s.report(), nil
}

// statist is one call of Stats.
type statist struct {
	src    Content
	opts   StatsOptions
	items  []*statsItem
	unread []Unread
	// ranged means that the caller chooses the range of linear histograms after the first
	// pass, as Overlay does.
	ranged bool
}

// collect sets the items: the tensors among the entries and inside their objects.
func (s *statist) collect(ctx context.Context, entries []*meta.Entry) error {
	inside, err := lookInside(ctx, s.src, entries, s.opts.Known)
	if err != nil {
		return err
	}

	for i, e := range entries {
		all := inside[i].tensors
		if e.Tensor != nil {
			all = []insideTensor{{entry: e}}
		}
		s.unread = append(s.unread, inside[i].unread...)

		for _, t := range all {
			it, err := newStatsItem(t)
			if err != nil {
				return err
			}
			s.items = append(s.items, it)
		}
	}

	return nil
}

// toRead returns the bytes that will be read.
func (s *statist) toRead() int64 {
	var n int64
	for _, it := range s.items {
		n += it.entry.NumBytes()
		if s.wantsLinear() && !it.table && (s.ranged || it.elements > it.slab) {
			n += it.entry.NumBytes()
		}
	}
	return n
}

func (s *statist) wantsLinear() bool { return s.opts.Buckets > 0 && !s.opts.Log2 }

// jobs yields the slabs of all items, or of the items with a histogram that was not filled in
// the first pass.
func (s *statist) jobs(second bool) iter.Seq[job] {
	return func(yield func(job) bool) {
		for i := 0; i < len(s.items); i++ {
			it := s.items[i]
			if second && !it.second {
				continue
			}

			if n := s.small(i, second); n > 1 {
				if !yield(job{item: i, together: n}) {
					return
				}
				i += n - 1
				continue
			}

			for j := range slabs(i, it.elements, it.slab) {
				if !yield(j) {
					return
				}
			}
		}
	}
}

// small returns how many items from i on are small tensors, which the first pass reads
// together, or empty ones.
func (s *statist) small(i int, second bool) int {
	if second {
		return 0
	}
	return small(len(s.items)-i, slabBytes/4, func(k int) (int64, bool) {
		it := s.items[i+k]
		return it.entry.NumBytes(), it.tensor == nil && it.elements <= it.slab
	})
}

func (s *statist) report() *StatsReport {
	out := &StatsReport{Tensors: make([]TensorStats, len(s.items)), Unread: append([]Unread{}, s.unread...)}
	var all pairwise
	for i, it := range s.items {
		t := it.result(&s.opts)
		all.add(it.total)
		out.Tensors[i] = t
		out.Totals.Tensors++
		out.Totals.NumBytes += t.NumBytes
		out.Totals.NonFinite += int64(count(t.NonFinite() > 0))
	}

	out.Totals.Numbers = newNumbers(all.total())
	return out
}

// statsItem is the state of a tensor in Stats.
type statsItem struct {
	insideTensor
	elements int64
	slab     int64 // elements of a slab
	table    bool  // see tableWorth

	mu      sync.Mutex
	left    int64           // slabs; guarded by mu
	slabs   map[int]moments // guarded by mu
	values  []int64         // counts by value; guarded by mu
	octaves *octaves        // guarded by mu
	linear  *linear         // guarded by mu

	// Set once no slab is left:
	total  moments
	second bool // a second pass must fill linear
	// powers, if not nil, are those that the histogram of octaves covers.
	powers *[2]int
}

func newStatsItem(t insideTensor) (*statsItem, error) {
	d, shape := t.entry.Tensor.DType, t.entry.Tensor.Shape
	elements, err := tensor.NumElements(shape)
	if err == nil && d.Size() == 0 {
		err = fmt.Errorf("%w: %v", tensor.ErrDType, d)
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", t.entry.FQN, err)
	}

	it := &statsItem{insideTensor: t, elements: elements, slab: slabElements(shape, int64(d.Size()), slabBytes), slabs: map[int]moments{}}
	it.left = (elements + it.slab - 1) / it.slab
	it.table = d.Size() <= 2 && elements >= tableWorth
	return it, nil
}

func (it *statsItem) result(o *StatsOptions) TensorStats {
	t := it.entry.Tensor
	out := TensorStats{
		FQN: it.entry.FQN, DType: t.DType.String(), Shape: append([]int64{}, t.Shape...), NumBytes: it.entry.NumBytes(),
		Numbers: newNumbers(it.total),
	}
	switch {
	case it.octaves != nil:
		lo, hi := it.octaves.span()
		if it.powers != nil {
			lo, hi = it.powers[0], it.powers[1]
		}
		out.Histogram = it.octaves.histogram(lo, hi, o.Buckets)
	case it.linear != nil:
		out.Histogram = it.linear.histogram()
	}

	return out
}

// statsWorker has the buffers of one worker.
type statsWorker struct {
	buf    []byte
	blocks blocks
	spare  []float64
	counts []uint32
}

// read reads a slab into the buffer of w.
func (s *statist) read(ctx context.Context, w *statsWorker, j job) error {
	it := s.items[j.item]
	w.buf = grow(w.buf, (j.hi-j.lo)*int64(it.entry.Tensor.DType.Size()))
	read := s.src.ReadEntry
	if it.tensor != nil {
		read = it.readEntry
	}

	if err := readFlat(ctx, read, it.entry, j.lo, j.hi, w.buf); err != nil {
		return err
	}

	s.opts.Progress(int64(len(w.buf)))
	return nil
}

// first processes a slab in the first pass.
func (s *statist) first(ctx context.Context, w *statsWorker, j job) error {
	if j.together > 0 {
		return s.together(ctx, w, j)
	}
	if err := s.read(ctx, w, j); err != nil {
		return err
	}
	return s.add(w, j, w.buf)
}

// together processes small tensors.
func (s *statist) together(ctx context.Context, w *statsWorker, j job) error {
	var entries []*meta.Entry
	var items []int
	for i := j.item; i < j.item+j.together; i++ {
		if s.items[i].elements > 0 {
			entries, items = append(entries, s.items[i].entry), append(items, i)
		}
	}

	var parts [][]byte
	var err error
	if parts, w.buf, err = readTogether(ctx, s.src, entries, w.buf); err != nil {
		return err
	}

	for i, p := range parts {
		s.opts.Progress(int64(len(p)))
		if err := s.add(w, job{item: items[i]}, p); err != nil {
			return err
		}
	}

	return nil
}

// add adds the elements p of a slab to its tensor.
func (s *statist) add(w *statsWorker, j job, p []byte) error {
	it := s.items[j.item]
	if it.table {
		return s.tally(w, it, p)
	}

	if w.spare == nil {
		w.spare = make([]float64, blockElements)
	}

	log2 := s.opts.Buckets > 0 && s.opts.Log2
	var sum pairwise
	var powers octaves
	err := w.blocks.each(it.entry.Tensor.DType, p, func(v []float64) {
		sum.add(momentsOf(v, w.spare))
		if log2 {
			powers.countAll(v)
		}
	})
	if err != nil {
		return fmt.Errorf("%q: %w", it.entry.FQN, err)
	}

	it.mu.Lock()
	defer it.mu.Unlock()

	it.slabs[j.slab] = sum.total()
	if log2 && it.octaves == nil {
		it.octaves = new(octaves)
	}
	if log2 {
		it.octaves.add(&powers)
	}

	if it.left--; it.left > 0 {
		return nil
	}

	// In the order of the slabs, whatever order they arrived in.
	sum = pairwise{}
	for i := range len(it.slabs) {
		sum.add(it.slabs[i])
	}

	it.total = sum.total()
	if !s.wantsLinear() || it.total.n == 0 || s.ranged {
		return nil
	}

	it.linear = newLinear(it.total.min, it.total.max, s.opts.Buckets)
	if it.second = len(it.slabs) > 1; it.second {
		return nil
	}
	return w.blocks.each(it.entry.Tensor.DType, p, it.linear.countAll) // the whole tensor
}

// second processes a slab in the second pass.
func (s *statist) second(ctx context.Context, w *statsWorker, j job) error {
	it := s.items[j.item]
	if err := s.read(ctx, w, j); err != nil {
		return err
	}

	mine := it.linear.empty()
	if err := w.blocks.each(it.entry.Tensor.DType, w.buf, mine.countAll); err != nil {
		return fmt.Errorf("%q: %w", it.entry.FQN, err)
	}

	it.mu.Lock()
	defer it.mu.Unlock()
	it.linear.add(mine)
	return nil
}

// Elements of one or two bytes have few values. The fastest way is to count how
// often each value occurs: all results follow from these counts, without a second
// pass.

// tableWorth is the number of elements from which a table is used.
const tableWorth = 1 << 16

// tally counts the values in p, a slab of a tensor with a table.
func (s *statist) tally(w *statsWorker, it *statsItem, p []byte) error {
	size := it.entry.Tensor.DType.Size()
	if w.counts == nil {
		w.counts = make([]uint32, 1<<16)
	}

	clear(w.counts)
	if size == 1 {
		for _, b := range p {
			w.counts[b]++
		}
	} else {
		v, err := valuesOf[uint16](tensor.Uint16, p)
		if err != nil {
			return err
		}
		table := (*[1 << 16]uint32)(w.counts)
		for _, x := range v {
			table[x]++
		}
	}

	it.mu.Lock()
	defer it.mu.Unlock()

	if it.values == nil {
		it.values = make([]int64, 1<<(8*size))
	}

	for i := range it.values {
		it.values[i] += int64(w.counts[i])
	}

	if it.left--; it.left > 0 {
		return nil
	}
	return it.finish(&s.opts, s.ranged)
}

// tableValues returns every value of a dtype of one or two bytes, by its bits.
func tableValues(d tensor.DType) ([]float64, error) {
	n := 1 << (8 * d.Size())
	bits := make([]byte, n*d.Size())
	for i := range n {
		if d.Size() == 1 {
			bits[i] = byte(i)
		} else {
			bits[2*i], bits[2*i+1] = byte(i), byte(i>>8)
		}
	}

	return converted(d, bits, make([]float64, n))
}

// tableMoments returns the moments of counts[i] elements with the value
// values[i], for all i.
func tableMoments(values []float64, counts []int64) moments {
	var sum pairwise
	for i, n := range counts {
		switch x := values[i]; {
		case n == 0:
		case x != x:
			sum.add(moments{nan: n})
		case math.IsInf(x, 1):
			sum.add(moments{posInf: n})
		case math.IsInf(x, -1):
			sum.add(moments{negInf: n})
		default:
			sum.add(moments{n: n, mean: x, min: x, max: x, zeros: n * int64(count(x == 0))})
		}
	}

	return sum.total()
}

// finish computes the results from the counts of all slabs. The caller holds mu.
func (it *statsItem) finish(o *StatsOptions, ranged bool) error {
	values, err := tableValues(it.entry.Tensor.DType)
	if err != nil {
		return err
	}

	it.total = tableMoments(values, it.values)
	switch {
	case o.Buckets == 0 || it.total.n == 0:
	case o.Log2:
		it.octaves = new(octaves)
		for i, n := range it.values {
			it.octaves.count(values[i], n)
		}
	case ranged:
		return nil // the counts are still needed
	default:
		it.linear = newLinear(it.total.min, it.total.max, o.Buckets)
		it.linear.countTable(values, it.values)
	}

	it.values = nil
	return nil
}
