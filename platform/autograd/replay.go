package autograd

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
)

// replay is how the operators of a checkpointed function run: on the first run it records
// them and keeps the results that the policy selects; on the second run it compares them and
// returns the kept results. A nil replay has no effect.
type replay struct {
	*journal
	policy Policy // nil keeps no results
	// outer compares the operators of the first run with an earlier run, if the checkpoint
	// is inside of another one.
	outer *replay
}

// journal records the first run of a checkpointed function.
type journal struct {
	operations []operation
	counts     map[string]int // operators by name, for the policy
	reading    bool           // the second run
	at         int            // the next operation of the second run

	random, drawn rand.PCG // the state of the random numbers at its begin and at its end
}

// operation is an operator of the first run.
type operation struct {
	op  string
	in  []form
	out form
	sum uint64  // of the bytes of the result
	was *result // nil: the result is computed again
	// given has checksums of the tensors from outside of the function that the operator uses.
	// The result shows neither that they were changed if it is kept, nor always if it is not.
	given []given
}

// given is a tensor from outside of a checkpointed function: operand in, or saved tensor save
// if it holds row numbers or classes.
type given struct {
	in, save int // -1: not this
	sum      uint64
}

func (v given) tensor(o Op, save []*tensor.Tensor) *tensor.Tensor {
	if v.in >= 0 {
		return o.In[v.in].data
	}
	return save[v.save]
}

// givenOf returns the tensors from outside of the function that an operator of the first run
// uses.
func givenOf(o Op, save []*tensor.Tensor) (all []given) {
	for i, v := range o.In {
		if v.made == nil && !v.inner {
			all = append(all, given{i, -1, checksum(v.data)})
		}
	}

	for i, t := range save {
		if t.DType().IsInteger() {
			all = append(all, given{-1, i, checksum(t)})
		}
	}

	return all
}

// form is the part of a tensor that is compared beside its elements.
type form struct {
	dtype tensor.DType
	shape []int64
}

func formOf(t *tensor.Tensor) form { return form{t.DType(), t.Shape()} }

func (f form) equal(o form) bool { return f.dtype == o.dtype && slices.Equal(f.shape, o.shape) }

func (f form) String() string { return fmt.Sprintf("%v%v", f.dtype, f.shape) }

// result is the result of an operator on the first run. An operand that it saved is not kept:
// on the second run it is there again.
type result struct {
	out     *tensor.Tensor
	save    []*tensor.Tensor
	operand []int    // of each saved tensor the number of the operand that it is, or -1
	random  rand.PCG // the state of the random numbers after it
}

// inside returns the replay of the operators inside of an inner checkpoint, which has its own
// policy.
func (r *replay) inside() *replay {
	if r == nil {
		return nil
	}
	return &replay{journal: r.journal, outer: r.outer}
}

// each calls f for each tensor that is kept and has memory.
func (j *journal) each(f func(t *tensor.Tensor)) {
	for _, r := range j.operations {
		if r.was == nil {
			continue
		}
		for _, t := range append(slices.Clone(r.was.save), r.was.out) {
			if t != nil && t.NumBytes() > 0 {
				f(t)
			}
		}
	}
}

// run runs an operator, or returns its result of the first run.
func (r *replay) run(s *shared, o Op) (*tensor.Tensor, []*tensor.Tensor, error) {
	switch {
	case r == nil:
		return o.Forward()
	case r.reading:
		return r.second(s, o)
	}
	return r.first(s, o)
}

// first runs and records an operator.
func (r *replay) first(s *shared, o Op) (*tensor.Tensor, []*tensor.Tensor, error) {
	keep := false
	if r.policy != nil {
		if r.counts == nil {
			r.counts = map[string]int{}
		}
		keep = r.policy(o.Name, r.counts[o.Name])
		r.counts[o.Name]++
	}

	out, save, err := r.outer.run(s, o)
	if err != nil {
		return nil, nil, err
	}

	rec := newOperation(o, out)
	rec.given = givenOf(o, save)
	if keep {
		rec.was = newResult(o, out, save, s.random)
	}
	r.operations = append(r.operations, rec)
	return out, save, nil
}

// second compares an operator with the first run, and runs it unless its result was kept.
func (r *replay) second(s *shared, o Op) (*tensor.Tensor, []*tensor.Tensor, error) {
	if r.at == len(r.operations) {
		return nil, nil, fmt.Errorf("%v after the %d operators of the first run: %w", newOperation(o, nil), r.at, ErrReplay)
	}

	was := &r.operations[r.at]
	r.at++
	if now := newOperation(o, nil); now.op != was.op || !slices.EqualFunc(now.in, was.in, form.equal) {
		return nil, nil, fmt.Errorf("operator %d is %v, and was %v: %w", r.at, now, was, ErrReplay)
	}

	if was.was != nil {
		s.random = was.was.random
		out, save := was.was.replay(o)
		return out, save, r.unchanged(was, o, save)
	}

	out, save, err := o.Forward()
	if err != nil {
		return nil, nil, err
	}

	switch now := newOperation(o, out); {
	case !now.out.equal(was.out):
		err = fmt.Errorf("operator %d, %v, returns %v, and returned %v: %w", r.at, was, now.out, was.out, ErrReplay)
	case now.sum != was.sum:
		err = fmt.Errorf("operator %d, %v, returns other values than before: random numbers must come from Graph.Rand, and tensors must not change: %w", r.at, was, ErrReplay)
	default:
		err = r.unchanged(was, o, save)
	}

	return out, save, err
}

// unchanged returns an error if an operator uses tensors from outside of the function that
// have other elements than before.
func (r *replay) unchanged(was *operation, o Op, save []*tensor.Tensor) error {
	for _, v := range was.given {
		if t := v.tensor(o, save); checksum(t) != v.sum {
			return fmt.Errorf("operator %d, %v, uses a %v with other values than before: tensors must not change: %w", r.at, was, t, ErrReplay)
		}
	}
	return nil
}

// begin begins the second run.
func (j *journal) begin() { j.reading, j.at = true, 0 }

// end ends the second run, after which the random numbers are in the given state.
func (j *journal) end(random rand.PCG) error {
	switch {
	case j.at < len(j.operations):
		return fmt.Errorf("%d operators, and %d before, the next of which was %v: %w", j.at, len(j.operations), &j.operations[j.at], ErrReplay)
	case random != j.drawn:
		return fmt.Errorf("another number of random numbers: %w", ErrReplay)
	}
	return nil
}

// newOperation describes an operator that returned out, or that has not run if out is nil.
func newOperation(o Op, out *tensor.Tensor) operation {
	r := operation{op: o.Name}
	for _, v := range o.In {
		r.in = append(r.in, formOf(v.data))
	}

	if out != nil {
		r.out = formOf(out)
		if !o.pending {
			r.sum = checksum(out)
		}
	}
	return r
}

// String returns the call, as in "add(float32[2 2], float32[2])".
func (r operation) String() string {
	var in []string
	for _, f := range r.in {
		in = append(in, f.String())
	}
	return fmt.Sprintf("%s(%s)", r.op, strings.Join(in, ", "))
}

func newResult(o Op, out *tensor.Tensor, save []*tensor.Tensor, random rand.PCG) *result {
	k := &result{out: out, random: random}
	for _, t := range save {
		i := slices.IndexFunc(o.In, func(v *Var) bool { return v.data == t })
		if i >= 0 {
			t = nil
		}
		k.save, k.operand = append(k.save, t), append(k.operand, i)
	}
	return k
}

// replay returns the result of the first run, with the operands of the second run.
func (k *result) replay(o Op) (*tensor.Tensor, []*tensor.Tensor) {
	save := slices.Clone(k.save)
	for i, operand := range k.operand {
		if operand >= 0 {
			save[i] = o.In[operand].data
		}
	}
	return k.out, save
}

// sumSeed is the seed of all checksums: they are compared in one process only.
var sumSeed = maphash.MakeSeed()

// sumPiece is the number of bytes that a goroutine sums at a time.
const sumPiece = 256 << 10

// checksum returns a checksum of the elements.
func checksum(t *tensor.Tensor) uint64 {
	b := t.Contents()
	if len(b) <= sumPiece {
		return maphash.Bytes(sumSeed, b)
	}

	sums := make([]uint64, (len(b)-1)/sumPiece+1)
	parallel(len(sums), 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			sums[i] = maphash.Bytes(sumSeed, b[i*sumPiece:min(len(b), (i+1)*sumPiece)])
		}
	})

	var all []byte
	for _, sum := range sums {
		all = binary.LittleEndian.AppendUint64(all, sum)
	}

	return maphash.Bytes(sumSeed, all)
}
