package inspect

import (
	"context"
	"iter"
	"math"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// TensorStats are the statistics of one tensor. Those of numbers are of its
// finite elements and computed in float64: integers beyond 2^53 count as the
// closest float64, complex numbers as their magnitude. Where there are no finite
// elements there are no such numbers. L2 is infinite where it is beyond the range
// of float64 itself; where squares are too small for it, Std and L2 are zero.
type TensorStats struct {
	FQN      string  `json:"fqn"`
	DType    string  `json:"dtype"`
	Shape    []int64 `json:"shape"`
	NumBytes int64   `json:"nbytes"`
	Numbers
	// Histogram is nil where none was asked for, or there is nothing to count.
	Histogram *Histogram `json:"histogram,omitempty"`
}

// Numbers sum up elements.
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

// StatsTotals sum up all tensors as if they were one.
type StatsTotals struct {
	Tensors  int64 `json:"tensors"`
	NumBytes int64 `json:"nbytes"`
	Numbers
	// NonFinite counts the tensors with elements that are NaN or infinite.
	NonFinite int64 `json:"nonfinite_tensors"`
}

// StatsReport is what Stats found: a line for each tensor in the order of the
// entries, and all of them together.
type StatsReport struct {
	Tensors []TensorStats `json:"tensors"`
	Totals  StatsTotals   `json:"totals"`
	// Unread lists what may hold elements and could not be looked at.
	Unread []Unread `json:"unread"`
}

// StatsOptions change how statistics are computed. Nil means the defaults.
type StatsOptions struct {
	// Buckets is the number of buckets of the histograms. Zero: none.
	Buckets int
	// Log2 makes histograms of magnitudes, of at most Buckets buckets that are
	// as many whole powers of two wide as each other. Otherwise buckets are of
	// equal width between the lowest and the highest finite element, which costs
	// a second pass over tensors of elements of more than two bytes: from memory
	// where they fit a buffer, from the store where not.
	Log2 bool
	// BufferBytes bounds the memory for the bytes of tensors, which is never
	// less than 256 KiB. Zero: 256 MiB, or 16 MiB for each worker if that is
	// more. Fewer than 16 MiB for each make workers fewer.
	BufferBytes int64
	// Parallel is the number of workers, who share large tensors too. Zero: 2,
	// or one for each processor if there are more.
	Parallel int
	// Known reports whether the checkpoint has a tensor of that name, to which an
	// object among the entries refers. Nil: the tensors are those among the
	// entries.
	Known func(fqn string) bool
	// Total, if not nil, is told once, before anything is read, of about how many
	// bytes Progress will count.
	Total func(bytes int64)
	// Progress, if not nil, is told of bytes that were read. It is called from
	// several goroutines at once.
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

// Stats computes the statistics of the tensors among the entries, and of the tensors
// and arrays of NumPy and Python that are stored inside of objects among them: these
// are named after the object and the steps to them. Single numbers do not count. It
// reads every tensor once, or twice for some histograms, in bounded memory. The results are the same bits whatever the options for memory and
// parallel work are, and however the tensors were cut and stored.
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

// namesOf returns known, or if that is nil a function that reports whether a name is
// that of a tensor among entries.
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

// pass sends the workers over all items that are wanted.
func (s *statist) pass(ctx context.Context, do func(*statsWorker, context.Context, job) error, want func(*statsItem) bool) error {
	start := func() *statsWorker { return &statsWorker{statist: s} }
	return sweep(ctx, s.n, s.jobs(want), start, func(ctx context.Context, w *statsWorker, j job) error { return do(w, ctx, j) })
}

// jobs yields the slabs of all items that are wanted.
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
