package inspect

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Side is one of two checkpoints that are compared.
type Side struct {
	Content  Content
	Metadata *meta.Metadata
}

// The results of comparing one name in two checkpoints.
const (
	// StatusIdentical means that tensors have the same dtype, shape and bits, or
	// that objects have equal values.
	StatusIdentical = "identical"
	// StatusClose means that tensors are equal by the rules of the comparison
	// although their bits or, if that is allowed, their dtypes differ.
	StatusClose = "close"
	// StatusMatching means that kinds, dtypes and shapes are equal, if values are
	// not compared.
	StatusMatching = "matching"
	// StatusDifferent means that both checkpoints have the name and differ.
	StatusDifferent = "different"
	// StatusMissing means that only the first checkpoint has the name,
	// StatusExtra that only the second has it.
	StatusMissing = "missing"
	StatusExtra   = "extra"
)

// The aspects in which a name can differ. Values are not compared if kinds or shapes
// differ.
const (
	AspectKind   = "kind"
	AspectDType  = "dtype"
	AspectShape  = "shape"
	AspectValues = "values"
)

// Compared is the result for one name.
type Compared struct {
	FQN string `json:"fqn"`
	// Renamed is the name in the first checkpoint, if it differs.
	Renamed string `json:"renamed,omitempty"`
	Status  string `json:"status"`
	// Differs lists the aspects that differ and that the options do not ignore.
	Differs []string `json:"differs,omitempty"`
	// A and B describe the name in the first and in the second checkpoint. Nil:
	// the name is not in that checkpoint.
	A *Item `json:"a,omitempty"`
	B *Item `json:"b,omitempty"`
	// Where is the position of the first difference in an object, in Python's
	// notation. Empty: the whole object differs.
	Where string `json:"where,omitempty"`
	// Values describes the elements of tensors that were compared and are not
	// identical, or all that were compared if CompareOptions.Change is set.
	Values *ValueDifference `json:"values,omitempty"`
}

// Equal reports whether no difference was found.
func (c *Compared) Equal() bool {
	return c.Status == StatusIdentical || c.Status == StatusClose || c.Status == StatusMatching
}

// ValueDifference describes how the elements of two tensors differ.
type ValueDifference struct {
	Elements int64 `json:"elements"`
	// Differing counts the elements that are not equal by the rules of the
	// comparison. NaNs counts the differing elements with a NaN on one side.
	Differing int64 `json:"differing"`
	NaNs      int64 `json:"nans"`
	// MaxAbs is the largest |a-b|, MaxRel the largest |a-b|/|b| for b other than
	// zero. Pairs with a NaN do not count; an infinity and another number differ
	// by an infinity.
	MaxAbs Number `json:"max_abs"`
	MaxRel Number `json:"max_rel"`
	// First is the first differing element. Nil: no element differs.
	First *FirstDifference `json:"first,omitempty"`
	// Change compares the tensors as vectors. Nil: CompareOptions.Change is not set.
	*Change
}

// Change compares two tensors as vectors of those elements that are finite on both sides.
type Change struct {
	// RelL2 is ‖b-a‖/‖a‖. It is 0 for equal vectors, and undefined if only a is zero, or if
	// the elements differ only where one is not finite.
	RelL2 Number `json:"rel_l2"`
	// Cosine is the cosine of the angle between a and b. It is 1 for equal vectors, and
	// undefined if one is zero.
	Cosine Number `json:"cosine"`
	// NonFinite counts the elements that are NaN or infinite on one side or on both.
	NonFinite int64 `json:"nonfinite"`
}

// FirstDifference is an element on both sides, as printed by ElementFormat.
type FirstDifference struct {
	Index []int64 `json:"index"`
	A     string  `json:"a"`
	B     string  `json:"b"`
}

// Comparison is the result of Compare.
type Comparison struct {
	// Equal reports whether the checkpoints are equal. Nil: no difference was
	// found, but not all values were compared.
	Equal *bool `json:"equal"`
	// Names counts all names of both sides. The following fields count them by
	// result.
	Names     int64 `json:"names"`
	Identical int64 `json:"identical"`
	Close     int64 `json:"close"`
	Matching  int64 `json:"matching"`
	Different int64 `json:"different"`
	Missing   int64 `json:"missing"`
	Extra     int64 `json:"extra"`
	// Compared counts the names that were compared: all, unless the comparison
	// stopped early.
	Compared int64 `json:"compared"`
	// MaxAbs and MaxRel are the largest of all tensors. NaN if no elements differ
	// or no elements were compared.
	MaxAbs Number `json:"max_abs"`
	MaxRel Number `json:"max_rel"`
	// Items are the names that are different, missing or extra, or all names, in
	// order. Omitted counts the names beyond the limit.
	Items   []Compared `json:"items"`
	Omitted int64      `json:"omitted"`
	// Unread lists objects with references to tensors that could not be compared.
	Unread []Unread `json:"unread"`
}

// Differences returns the number of names that are not equal.
func (c *Comparison) Differences() int64 { return c.Different + c.Missing + c.Extra }

// CompareOptions are the options of Compare. Nil means the defaults.
type CompareOptions struct {
	// Rtol and Atol are tolerances as in numpy.allclose: elements are equal if
	// |a-b| <= Atol + Rtol·|b|. An infinity equals only itself. Zero: elements
	// must be equal as numbers, so 0 equals -0.
	Rtol, Atol float64
	// Exact compares bits, so that zeros with different signs and NaNs with
	// different payloads differ, without tolerance. Tensors of different dtypes
	// are still compared as numbers.
	Exact bool
	// NaNDiffers makes a NaN differ from a NaN. Otherwise all NaNs are equal. It
	// has no effect with Exact.
	NaNDiffers bool
	// IgnoreDType lets tensors of different dtypes be equal.
	IgnoreDType bool
	// DescriptionsOnly compares names, kinds, dtypes and shapes and reads no
	// values. Objects are equal if both exist.
	DescriptionsOnly bool
	// Keep selects names of the first checkpoint. A name that it drops is also
	// dropped, as renamed, from the second. Nil: all.
	Keep func(fqn string) bool
	// KeepExtra selects names that only the second checkpoint has. Nil: Keep is
	// used.
	KeepExtra func(fqn string) bool
	// Rename returns the name in the second checkpoint for a name of the first.
	// It must not map two names to one. Nil: the same name.
	Rename func(fqn string) string
	// Change sets ValueDifference.Change, for identical tensors too.
	Change bool
	// All lists equal names too.
	All bool
	// Limit bounds the names that are listed. Zero: no limit.
	Limit int
	// First ends the comparison at the first name, in order, that is not equal.
	First bool
	// Total and Progress are as in StatsOptions. They count bytes of both sides.
	Total    func(bytes int64)
	Progress func(bytes int64)
}

func (o *CompareOptions) withDefaults() CompareOptions {
	var out CompareOptions
	if o != nil {
		out = *o
	}
	if out.Keep == nil {
		out.Keep = func(string) bool { return true }
	}

	if out.KeepExtra == nil {
		out.KeepExtra = out.Keep
	}
	if out.Rename == nil {
		out.Rename = func(n string) string { return n }
	}
	out.Total, out.Progress = orIgnore(out.Total), orIgnore(out.Progress)
	return out
}

// Compare compares two checkpoints name by name: first names, kinds, dtypes and
// shapes, then the values of names in both. It holds about 16 MiB of tensors for each
// processor. A tensor that an object refers to is compared by its name, or as part of
// the object if its name is not compared. Tensors are compared as numbers, also across
// dtypes: integers exactly, everything else in float64. Objects are compared like in
// equalValues, whatever their codecs; if a codec is unknown, their bytes are compared.
// A difference is not an error.
func Compare(ctx context.Context, a, b Side, opts *CompareOptions) (*Comparison, error) {
	c := &comparer{a: a, b: b, opts: opts.withDefaults()}
	if bad := c.opts.Rtol < 0 || c.opts.Atol < 0 || math.IsNaN(c.opts.Rtol+c.opts.Atol); bad {
		return nil, fmt.Errorf("compare: tolerances %v and %v: a tolerance cannot be negative", c.opts.Rtol, c.opts.Atol)
	}

	if err := c.pair(); err != nil {
		return nil, err
	}

	c.opts.Total(c.toRead())
	if err := sweep(ctx, c.jobs(), c.compare); err != nil {
		return nil, err
	}
	return c.comparison(), nil
}

func (c *comparer) pair() error {
	byName := map[string]*pairItem{}
	leftOut := map[string]bool{}
	for i := range c.a.Metadata.Entries {
		e := &c.a.Metadata.Entries[i]
		name := c.opts.Rename(e.FQN)
		if !c.opts.Keep(e.FQN) {
			leftOut[name] = true
			continue
		}

		if other := byName[name]; other != nil {
			return fmt.Errorf("compare: %q and %q are both renamed to %q", other.a.FQN, e.FQN, name)
		}
		byName[name] = newPair(name, e)
	}

	for i := range c.b.Metadata.Entries {
		e := &c.b.Metadata.Entries[i]
		if p := byName[e.FQN]; p != nil {
			p.b, p.B = e, NewItem(e)
		} else if !leftOut[e.FQN] && c.opts.KeepExtra(e.FQN) {
			byName[e.FQN] = &pairItem{Compared: Compared{FQN: e.FQN, B: NewItem(e)}, b: e}
		}
	}

	for side, ties := range []map[string]string{c.a.Metadata.Ties(), c.b.Metadata.Ties()} {
		for _, p := range byName {
			if it := []*Item{p.A, p.B}[side]; it != nil {
				it.Tied = ties[it.FQN]
			}
		}
	}

	c.coverInside(byName)
	c.byName = byName
	c.items = slices.SortedFunc(maps.Values(byName), func(p, q *pairItem) int { return strings.Compare(p.FQN, q.FQN) })
	c.last.Store(int64(len(c.items)))

	for i, p := range c.items {
		p.index = i
		if err := p.describe(&c.opts); err != nil {
			return err
		}
		if p.left == 0 {
			c.finish(p)
		}
	}

	return nil
}

// coverInside drops tensors inside an object if only one side has them by name.
// The objects are then compared with their tensors.
func (c *comparer) coverInside(byName map[string]*pairItem) {
	a, b := c.a.Metadata.Inside(), c.b.Metadata.Inside()
	both := func(name string) bool {
		p := byName[name]
		return p != nil && p.a != nil && p.b != nil && p.a.Bytes != nil && p.b.Bytes != nil
	}
	maps.DeleteFunc(byName, func(_ string, p *pairItem) bool {
		switch {
		case p.b == nil:
			in, ok := a[p.a.FQN]
			return ok && both(c.opts.Rename(in))
		case p.a == nil:
			in, ok := b[p.b.FQN]
			return ok && both(in)
		}
		return false
	})
}

func (c *comparer) comparison() *Comparison {
	none := Number(math.NaN())
	out := &Comparison{Names: int64(len(c.items)), MaxAbs: none, MaxRel: none, Items: []Compared{}}
	for _, p := range c.items {
		if !p.done.Load() || c.opts.First && out.Differences() > 0 {
			break
		}

		out.count(&p.Compared)
		switch {
		case p.Equal() && !c.opts.All:
		case c.opts.Limit > 0 && len(out.Items) >= c.opts.Limit:
			out.Omitted++
		default:
			out.Items = append(out.Items, p.Compared)
		}
	}

	slices.SortFunc(c.unread, func(x, y Unread) int { return strings.Compare(x.FQN, y.FQN) })
	out.Unread = append([]Unread{}, c.unread...)
	if out.Differences() > 0 || !c.opts.DescriptionsOnly && len(out.Unread) == 0 {
		out.Equal = new(out.Differences() == 0)
	}
	return out
}

func (c *Comparison) count(r *Compared) {
	c.Compared++
	counter := map[string]*int64{
		StatusIdentical: &c.Identical, StatusClose: &c.Close, StatusMatching: &c.Matching, StatusDifferent: &c.Different,
		StatusMissing: &c.Missing, StatusExtra: &c.Extra,
	}
	*counter[r.Status]++
	if v := r.Values; v != nil && r.Status != StatusIdentical {
		c.MaxAbs, c.MaxRel = larger(c.MaxAbs, v.MaxAbs), larger(c.MaxRel, v.MaxRel)
	}
}

// larger returns the larger number. A NaN does not count.
func larger(a, b Number) Number {
	if a.None() || b > a {
		return b
	}
	return a
}

// comparer is one call of Compare.
type comparer struct {
	a, b  Side
	opts  CompareOptions
	items []*pairItem // by name
	// byName has the same items.
	byName map[string]*pairItem
	// last is the index of the last item to compare.
	last atomic.Int64

	mu     sync.Mutex
	unread []Unread // guarded by mu
}

// pairItem is one name of two checkpoints.
type pairItem struct {
	Compared
	index  int
	a, b   *meta.Entry // nil: not in that checkpoint
	cast   bool        // the dtypes of two tensors differ
	unread bool        // values are not compared
	// The elements that are compared. An object is one element.
	elements int64
	slab     int64
	// done is set when all reads are done.
	done atomic.Bool

	mu     sync.Mutex
	left   int64             // slabs; guarded by mu
	values elementTally      // guarded by mu
	vector map[int]*products // by slab, if CompareOptions.Change is set; guarded by mu
}

// newPair returns the item of an entry of the first checkpoint, which has that name in
// the second.
func newPair(name string, e *meta.Entry) *pairItem {
	p := &pairItem{Compared: Compared{FQN: name, A: NewItem(e)}, a: e}
	if e.FQN != name {
		p.Renamed = e.FQN
	}
	return p
}

// describe compares the descriptions and decides whether the contents must be read.
func (p *pairItem) describe(o *CompareOptions) error {
	p.values, p.unread = newElementTally(), o.DescriptionsOnly
	switch {
	case p.a == nil || p.b == nil:
		return nil
	case (p.a.Tensor == nil) != (p.b.Tensor == nil):
		p.Differs = append(p.Differs, AspectKind)
		return nil
	case p.a.Tensor == nil:
		p.elements, p.slab, p.left = 1, 1, int64(count(!o.DescriptionsOnly))
		return nil
	}

	x, y := p.a.Tensor, p.b.Tensor
	p.cast = x.DType != y.DType
	if p.cast && !o.IgnoreDType {
		p.Differs = append(p.Differs, AspectDType)
	}

	if !slices.Equal(x.Shape, y.Shape) {
		p.Differs = append(p.Differs, AspectShape)
		return nil
	}

	var err error
	if p.elements, err = tensor.NumElements(x.Shape); err != nil {
		return fmt.Errorf("%q: %w", p.FQN, err)
	}

	if !x.DType.Valid() || !y.DType.Valid() {
		return fmt.Errorf("%q: %w: %v and %v", p.FQN, tensor.ErrDType, x.DType, y.DType)
	}

	p.slab = slabElements(x.Shape, int64(max(x.DType.Size(), y.DType.Size())), slabBytes/2)
	if !o.DescriptionsOnly {
		p.left = (p.elements + p.slab - 1) / p.slab
	}
	return nil
}

// toRead returns the number of bytes that are read if the comparison does not
// stop early.
func (c *comparer) toRead() int64 {
	var n int64
	for _, p := range c.items {
		if p.left > 0 {
			n += p.a.NumBytes() + p.b.NumBytes()
		}
	}
	return n
}

// jobs yields the work in the order of the names.
func (c *comparer) jobs() iter.Seq[job] {
	return func(yield func(job) bool) {
		for i := 0; i < len(c.items) && int64(i) <= c.last.Load(); i++ {
			p := c.items[i]
			if p.done.Load() {
				continue
			}

			if n := c.small(i); n > 1 {
				if !yield(job{item: i, together: n}) {
					return
				}
				i += n - 1
				continue
			}

			for j := range slabs(i, p.elements, p.slab) {
				if !yield(j) {
					return
				}
			}
		}
	}
}

// small returns how many items from i on are pairs of small tensors, or need no read.
func (c *comparer) small(i int) int {
	return small(len(c.items)-i, slabBytes/4, func(k int) (int64, bool) {
		p := c.items[i+k]
		if p.done.Load() {
			return 0, true
		}
		if p.a.Tensor == nil || p.elements > p.slab {
			return 0, false
		}
		return max(p.a.NumBytes(), p.b.NumBytes()), true
	})
}

// finish completes a name after its content was read.
func (c *comparer) finish(p *pairItem) {
	p.Status = p.status()
	if !p.values.same || p.values.differing > 0 || p.changes(&c.opts) {
		p.Values = p.values.difference(p.elements, p.a.Tensor.Shape)
	}
	if p.changes(&c.opts) {
		p.Values.Change = p.change()
		if p.Values.RelL2 == 0 && p.values.differing > 0 { // a tensor that became NaN is not unchanged
			p.Values.Change.RelL2 = Number(math.NaN())
		}
	}

	p.done.Store(true)
	if p.Equal() || !c.opts.First {
		return
	}

	for last := c.last.Load(); int64(p.index) < last && !c.last.CompareAndSwap(last, int64(p.index)); {
		last = c.last.Load()
	}
}

// changes reports whether the item is a pair of tensors that are compared as vectors.
func (p *pairItem) changes(o *CompareOptions) bool {
	return o.Change && p.slab > 0 && p.a.Tensor != nil && !p.unread
}

// status returns the result for a finished name.
func (p *pairItem) status() string {
	switch {
	case p.b == nil:
		return StatusMissing
	case p.a == nil:
		return StatusExtra
	case len(p.Differs) > 0:
		return StatusDifferent
	case p.unread:
		return StatusMatching
	case p.values.same && !p.cast:
		return StatusIdentical
	}
	return StatusClose
}

// elementTally accumulates the differences of elements.
type elementTally struct {
	same      bool // all bits are equal
	differing int64
	nans      int64
	maxAbs    float64
	maxRel    float64
	first     int64 // index in row-major order, if any differ
	a, b      string
}

func newElementTally() elementTally { return elementTally{same: true, first: math.MaxInt64} }

func (t *elementTally) merge(o *elementTally) {
	t.same = t.same && o.same
	t.differing += o.differing
	t.nans += o.nans
	t.maxAbs, t.maxRel = max(t.maxAbs, o.maxAbs), max(t.maxRel, o.maxRel)
	if o.first < t.first {
		t.first, t.a, t.b = o.first, o.a, o.b
	}
}

func (t *elementTally) difference(elements int64, shape []int64) *ValueDifference {
	out := &ValueDifference{
		Elements: elements, Differing: t.differing, NaNs: t.nans, MaxAbs: Number(t.maxAbs), MaxRel: Number(t.maxRel),
	}
	if t.differing > 0 {
		out.First = &FirstDifference{Index: unravel(t.first, shape), A: t.a, B: t.b}
	}
	return out
}

// unravel returns the index of an element in row-major order.
func unravel(i int64, shape []int64) []int64 {
	out := make([]int64, len(shape))
	for d, n := range slices.Backward(shape) {
		out[d] = i % n
		i /= n
	}
	return out
}
