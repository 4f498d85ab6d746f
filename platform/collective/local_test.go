package collective_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// A local reduction has the result of a reduction over ranks.
func TestReduceEqualsAllReduce(t *testing.T) {
	for d := tensor.Invalid + 1; d.Valid(); d++ {
		for _, op := range ops {
			if op.Check(d) != nil || d == tensor.Bool {
				continue // bools have a test of their own
			}
			for _, n := range []int{1, 2, 3, 17} {
				var terms []*tensor.Tensor
				for r := range n {
					terms = append(terms, numbers(t, d, r, 21))
				}
				if op == collective.Prod && n > 3 {
					continue // more than a small float holds
				}
				want := reduced(t, op, terms)
				got := zeros(t, d, 21)
				if err := collective.Reduce(got, op, terms...); err != nil || !tensor.Equal(got, want) {
					t.Errorf("%v of %d %v: %v", op, n, d, err)
				}
				// In place, and of memory that has gaps or is not aligned.
				first := terms[0].Clone()
				first, err := tensor.FromBytes(d, []int64{21}, append(make([]byte, 1), first.Contents()...)[1:])
				must.Do(t, err)
				gaps, err := zeros(t, d, 42).Slice(0, 0, 42, 2)
				if err == nil {
					err = tensor.Copy(gaps, terms[n-1])
				}
				must.Do(t, err)
				others := append([]*tensor.Tensor{first}, terms[1:]...)
				if n > 1 {
					others[n-1] = gaps
				}
				if err := collective.Reduce(first, op, others...); err != nil || !tensor.Equal(first, want) {
					t.Errorf("%v of %d %v in place: %v", op, n, d, err)
				}
			}
		}
	}
}

func TestReduceRefuses(t *testing.T) {
	x := zeros(t, tensor.Float32, 4)
	none, err := tensor.Placeholder(tensor.Float32, []int64{4})
	must.Do(t, err)
	for name, c := range map[string]struct {
		dst   *tensor.Tensor
		op    collective.Op
		terms []*tensor.Tensor
		want  error
	}{
		"no terms":           {x, collective.Sum, nil, tensor.ErrShape},
		"another shape":      {x, collective.Sum, []*tensor.Tensor{x, zeros(t, tensor.Float32, 5)}, tensor.ErrShape},
		"another dtype":      {x, collective.Sum, []*tensor.Tensor{x, zeros(t, tensor.Int32, 4)}, tensor.ErrDType},
		"no memory":          {x, collective.Sum, []*tensor.Tensor{none}, tensor.ErrPlaceholder},
		"average of ints":    {zeros(t, tensor.Int32, 4), collective.Avg, []*tensor.Tensor{zeros(t, tensor.Int32, 4)}, tensor.ErrDType},
		"an expanded result": {expanded(t), collective.Sum, []*tensor.Tensor{x}, tensor.ErrLayout},
	} {
		if err := collective.Reduce(c.dst, c.op, c.terms...); !errors.Is(err, c.want) {
			t.Errorf("%s: %v; want %v", name, err, c.want)
		}
	}
}

func expanded(t *testing.T) *tensor.Tensor {
	t.Helper()
	x, err := zeros(t, tensor.Float32, 1).Expand([]int64{4})
	must.Do(t, err)
	return x
}
