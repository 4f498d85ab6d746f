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
	NumBytes int64   `json:"nbytes"`
	Numbers
	// Histogram is nil if it was not requested or there is nothing to count.
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
	NumBytes int64 `json:"nbytes"`
	Numbers
	// NonFinite counts the tensors with elements that are NaN or infinite.
	NonFinite int64 `json:"nonfinite_tensors"`
}

// StatsReport is the result of Stats: the statistics of each tensor in the order
// of the entries, and those of all together.
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
	// Log2 makes histograms of magnitudes, with at most Buckets buckets that all
	// span the same number of powers of two. Otherwise buckets have equal width
	// between the lowest and the highest finite element, which takes a second
	// pass over tensors whose elements have more than two bytes: from memory if
	// they fit a buffer, otherwise from the store.
	Log2 bool
	// BufferBytes bounds the memory for the bytes of tensors, with a minimum of
	// 256 KiB. Zero: 256 MiB, or 16 MiB for each worker if that is more. There
	// are fewer workers if it is less than 16 MiB for each.
	BufferBytes int64
	// Parallel is the number of workers, which also share large tensors. Zero: 2,
	// or one for each processor if there are more.
	Parallel int
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

func (o *StatsOptions) withDefaults() StatsOptions {
	var out StatsOptions
	if o != nil {
		out = *o
	}
	out.Buckets = max(0, out.Buckets)
	if out.Total == nil {
		out.Total = func(int64) {}
	}
	if out.Progress == nil {
		out.Progress = func(int64) {}
	}
	return out
}

// Stats computes the statistics of the tensors among the entries, and of the
// tensors and arrays of NumPy and Python inside objects among them, which are
// named after the object and the path in it. Single numbers do not count. It
// reads every tensor once, or twice for some histograms, in bounded memory. The
// results have the same bits whatever the options for memory and parallel work
// are, and however the tensors were cut and stored.
func Stats(ctx context.Context, src Content, entries []*meta.Entry, opts *StatsOptions) (*StatsReport, error) {
	s := &statist{opts: opts.withDefaults()}
	s.n, s.each = workers(s.opts.Parallel, s.opts.BufferBytes)
	in, err := lookInside(ctx, src, entries, namesOf(entries, s.opts.Known), s.n)
	if err != nil {
		return nil, err
	}
	content := &within{src, map[*meta.Entry]*tensor.Tensor{}}
	s.src, s.unread = content, in.unread
	for _, e := range entries {
		all := []*meta.Entry{e}
		if e.Tensor == nil {
			all = nil
			for _, t := range in.tensors[e] {
				all = append(all, t.entry)
				content.inside[t.entry] = t.tensor
			}
		}
		for _, e := range all {
			it, err := newStatsItem(e)
			if err != nil {
				return nil, err
			}
			s.items = append(s.items, it)
		}
	}
	s.opts.Total(s.toRead())
	if err := s.pass(ctx, (*statsWorker).pass1, func(*statsItem) bool { return true }); err != nil {
		return nil, err
	}
	if err := s.pass(ctx, (*statsWorker).pass2, (*statsItem).needsSecond); err != nil {
		return nil, err
	}
	return s.report(), nil
}

// namesOf returns known. If that is nil, it returns a function that looks for
// tensors among entries.
func namesOf(entries []*meta.Entry, known func(fqn string) bool) func(fqn string) bool {
	if known != nil {
		return known
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.FQN] = e.Tensor != nil
	}
	return func(fqn string) bool { return names[fqn] }
}

// statist is one call of Stats.
type statist struct {
	src   Content
	opts  StatsOptions
	items []*statsItem
	n     int   // workers
	each  int64 // bytes of a worker's buffer

	unread []Unread
}

// toRead returns the bytes that will be read.
func (s *statist) toRead() int64 {
	var n int64
	for _, it := range s.items {
		bytes := it.entry.NumBytes()
		n += bytes
		if s.wantsLinear() && !it.table && (bytes > s.each || it.elements > it.slab) {
			n += bytes
		}
	}
	return n
}

func (s *statist) wantsLinear() bool { return s.opts.Buckets > 0 && !s.opts.Log2 }

// pass runs the workers over all items that want selects.
func (s *statist) pass(ctx context.Context, do func(*statsWorker, context.Context, job) error, want func(*statsItem) bool) error {
	start := func() *statsWorker { return &statsWorker{statist: s} }
	return sweep(ctx, s.n, s.jobs(want), start, func(ctx context.Context, w *statsWorker, j job) error { return do(w, ctx, j) })
}

// jobs yields the slabs of all items that want selects.
func (s *statist) jobs(want func(*statsItem) bool) iter.Seq[job] {
	return func(yield func(job) bool) {
		for i, it := range s.items {
			if !want(it) {
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
	entry    *meta.Entry
	elements int64
	slab     int64 // elements of a slab
	table    bool  // see statsTable

	mu      sync.Mutex
	left    int64           // slabs; guarded by mu
	sum     pairwise        // of the slabs before next; guarded by mu
	next    int             // guarded by mu
	waiting map[int]moments // of later slabs; guarded by mu
	values  []int64         // guarded by mu; see statsTable
	octaves *octaves        // guarded by mu
	linear  *linear         // guarded by mu

	// Set once no slab is left:
	total  moments
	second bool // a second pass must fill linear
}

func newStatsItem(e *meta.Entry) (*statsItem, error) {
	t := e.Tensor
	elements, err := tensor.NumElements(t.Shape)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", e.FQN, err)
	}
	size := int64(t.DType.Size())
	if size == 0 {
		return nil, fmt.Errorf("%q: %w: %v", e.FQN, tensor.ErrDType, t.DType)
	}
	it := &statsItem{entry: e, elements: elements, slab: slabElements(t.Shape, size, slabBytes)}
	it.left = (elements + it.slab - 1) / it.slab
	it.table = size <= 2 && elements >= tableWorth
	return it, nil
}

// needsSecond reports whether the first pass left a histogram to be filled.
func (it *statsItem) needsSecond() bool { return it.second }

// put adds the moments of a slab. It merges them in the order of the slabs,
// whatever order they arrive in. The caller holds mu.
func (it *statsItem) put(slab int, m moments) {
	if it.waiting == nil {
		it.waiting = map[int]moments{}
	}
	it.waiting[slab] = m
	for {
		m, ok := it.waiting[it.next]
		if !ok {
			return
		}
		delete(it.waiting, it.next)
		it.sum.add(m)
		it.next++
	}
}

// addOctaves adds the counts of a slab. The caller holds mu.
func (it *statsItem) addOctaves(o *octaves) {
	if it.octaves == nil {
		it.octaves = new(octaves)
	}
	it.octaves.add(o)
}

func (it *statsItem) result(o *StatsOptions) TensorStats {
	t := it.entry.Tensor
	out := TensorStats{
		FQN: it.entry.FQN, DType: t.DType.String(), Shape: append([]int64{}, t.Shape...), NumBytes: it.entry.NumBytes(),
		Numbers: newNumbers(it.total),
	}
	switch {
	case it.octaves != nil:
		out.Histogram = it.octaves.histogram(o.Buckets)
	case it.linear != nil:
		out.Histogram = it.linear.histogram()
	}
	return out
}

// statsWorker is the state of one worker.
type statsWorker struct {
	*statist
	buf    []byte
	blocks blocks
	first  momentVisitor
	counts []uint32
}

// pass1 processes a slab in the first pass.
func (w *statsWorker) pass1(ctx context.Context, j job) error {
	it := w.items[j.item]
	if it.table {
		return w.tally(ctx, it, j)
	}
	w.first.start(w.opts.Buckets > 0 && w.opts.Log2)
	if err := w.visit(ctx, it, j, &w.first); err != nil {
		return err
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	it.put(j.slab, w.first.sum.total())
	if w.first.octaves != nil {
		it.addOctaves(w.first.octaves)
	}
	if it.left--; it.left > 0 {
		return nil
	}
	it.total = it.sum.total()
	if !w.wantsLinear() || it.total.n == 0 {
		return nil
	}
	it.linear = newLinear(it.total.min, it.total.max, w.opts.Buckets)
	if it.entry.NumBytes() > int64(len(w.buf)) {
		it.second = true
		return nil
	}
	return w.blocks.each(it.entry.Tensor.DType, w.buf, linearVisitor{it.linear}) // the whole tensor is in the buffer
}

// tally processes a slab of a tensor with a table in the first pass.
func (w *statsWorker) tally(ctx context.Context, it *statsItem, j job) error {
	d := it.entry.Tensor.DType
	n := 1 << (8 * d.Size())
	if w.counts == nil {
		w.counts = make([]uint32, 1<<16)
	}
	counts := w.counts[:n]
	clear(counts)
	err := w.parts(ctx, it, j, func(p []byte) error { return tally(d, p, counts) })
	if err != nil {
		return err
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.values == nil {
		it.values = make([]int64, n)
	}
	for i, c := range counts {
		it.values[i] += int64(c)
	}
	if it.left--; it.left > 0 {
		return nil
	}
	return it.finish(&w.opts)
}

// pass2 processes a slab in the second pass.
func (w *statsWorker) pass2(ctx context.Context, j job) error {
	it := w.items[j.item]
	mine := linearVisitor{it.linear.empty()}
	if err := w.visit(ctx, it, j, mine); err != nil {
		return err
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	it.linear.add(mine.linear)
	return nil
}

// visit reads a slab and passes it to v in blocks.
func (w *statsWorker) visit(ctx context.Context, it *statsItem, j job, v visitor) error {
	return w.parts(ctx, it, j, func(p []byte) error { return w.blocks.each(it.entry.Tensor.DType, p, v) })
}

// parts reads a slab in parts of whole blocks that fit the worker's buffer. A
// single part remains in the buffer.
func (w *statsWorker) parts(ctx context.Context, it *statsItem, j job, do func(p []byte) error) error {
	size := int64(it.entry.Tensor.DType.Size())
	step := w.each / size / blockElements * blockElements
	for lo := j.lo; lo < j.hi; lo += step {
		hi := min(lo+step, j.hi)
		w.buf = grow(w.buf, (hi-lo)*size)
		if err := readFlat(ctx, w.src, it.entry, lo, hi, w.buf); err != nil {
			return err
		}
		w.opts.Progress(int64(len(w.buf)))
		if err := do(w.buf); err != nil {
			return fmt.Errorf("%q: %w", it.entry.FQN, err)
		}
	}
	return nil
}

// momentVisitor computes the moments of blocks.
type momentVisitor struct {
	sum     pairwise
	octaves *octaves // nil: not wanted
	spare32 []float32
	spare64 []float64
}

func (m *momentVisitor) start(log2 bool) {
	m.sum = pairwise{m.sum.parts[:0], m.sum.levels[:0]}
	if log2 {
		m.octaves = new(octaves)
	}
}

func (m *momentVisitor) narrow(v []float32) {
	if m.spare32 == nil {
		m.spare32 = make([]float32, blockElements)
	}
	m.sum.add(momentsOf(v, m.spare32))
	if m.octaves != nil {
		countOctaves(m.octaves, v)
	}
}

func (m *momentVisitor) wide(v []float64) {
	if m.spare64 == nil {
		m.spare64 = make([]float64, blockElements)
	}
	m.sum.add(momentsOf(v, m.spare64))
	if m.octaves != nil {
		countOctaves(m.octaves, v)
	}
}

// linearVisitor fills a histogram.
type linearVisitor struct{ *linear }

func (l linearVisitor) narrow(v []float32) { countLinear(l.linear, v) }
func (l linearVisitor) wide(v []float64)   { countLinear(l.linear, v) }

// Elements of one or two bytes have few values. The fastest way is to count how
// often each value occurs: all results follow from these counts, without a second
// pass.

// tableWorth is the number of elements from which a table is used.
const tableWorth = 1 << 16

// tally counts the values of elements of one or two bytes in p.
func tally(d tensor.DType, p []byte, counts []uint32) error {
	if d.Size() == 1 {
		tallyBytes(p, (*[1 << 8]uint32)(counts))
		return nil
	}
	v, err := valuesOf[uint16](tensor.Uint16, p)
	if err != nil {
		return err
	}
	table := (*[1 << 16]uint32)(counts)
	for _, x := range v {
		table[x]++
	}
	return nil
}

// tallyBytes counts bytes in two tables, because repeated increments of one
// counter would wait for each other.
func tallyBytes(p []byte, table *[1 << 8]uint32) {
	var other [1 << 8]uint32
	for ; len(p) >= 2; p = p[2:] {
		table[p[0]]++
		other[p[1]]++
	}
	for _, b := range p {
		table[b]++
	}
	for i, n := range other {
		table[i] += n
	}
}

// tableValues returns every value of a dtype of one or two bytes, by its bits.
func tableValues(d tensor.DType) ([]float32, error) {
	n := 1 << (8 * d.Size())
	bits := make([]byte, n*d.Size())
	for i := range n {
		if d.Size() == 1 {
			bits[i] = byte(i)
		} else {
			bits[2*i], bits[2*i+1] = byte(i), byte(i>>8)
		}
	}
	return converted(d, bits, make([]float32, n))
}

// tableMoments returns the moments of counts[i] elements with the value
// values[i], for all i.
func tableMoments(values []float32, counts []int64) moments {
	var m moments
	m.min, m.max = math.Inf(1), math.Inf(-1)
	sum := 0.0
	for i, n := range counts {
		if n == 0 {
			continue
		}
		switch x := float64(values[i]); {
		case x != x:
			m.nan += n
		case math.IsInf(x, 1):
			m.posInf += n
		case math.IsInf(x, -1):
			m.negInf += n
		default:
			m.n += n
			m.zeros += n * int64(count(x == 0))
			m.min, m.max = min(m.min, x), max(m.max, x)
			sum += float64(x * float64(n))
		}
	}
	if m.n == 0 {
		return m
	}
	m.mean = sum / float64(m.n)
	for i, n := range counts {
		if x := float64(values[i]); n > 0 && x-x == 0 { // finite
			m.m2 += float64((x - m.mean) * (x - m.mean) * float64(n))
		}
	}
	return m
}

// finish computes the results from the counts of all slabs. The caller holds mu.
func (it *statsItem) finish(o *StatsOptions) error {
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
			it.octaves.count(float64(values[i]), n)
		}
	default:
		it.linear = newLinear(it.total.min, it.total.max, o.Buckets)
		for i, n := range it.values {
			it.linear.count(float64(values[i]), n)
		}
	}
	it.values = nil
	return nil
}
