package collective_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sizes are how many ranks the tests have.
var sizes = []int{1, 2, 3, 4, 5, 8}

// algorithms are limits that lead to each algorithm, with so small pieces that there
// are many. Floats of 8 and 16 bits are reduced directly instead of by a ring.
var algorithms = map[string]*collective.Options{
	"tree": {Tree: 1 << 30},
	"ring": {Tree: -1, Piece: 64},
}

// errors of the ranks of a group.
type results []error

// parallel calls fn for each of n ranks and returns their errors.
func parallel(n int, fn func(r int) error) results {
	errs := make(results, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { errs[r] = group.Catch(func() error { return fn(r) }) }) // must panics
	}
	wg.Wait()
	return errs
}

// comms returns the parts of n ranks.
func comms(t testing.TB, n int, o *collective.Options) []*collective.Comm {
	t.Helper()
	cs := make([]*collective.Comm, n)
	for r, g := range inproc.New(n) {
		var err error
		if cs[r], err = collective.NewWith(g, o); err != nil {
			t.Fatal(err)
		}
	}
	return cs
}

// try runs fn on n ranks and joins their errors.
func try(t testing.TB, n int, o *collective.Options, fn func(c *collective.Comm) error) error {
	t.Helper()
	cs := comms(t, n, o)
	return errors.Join(parallel(n, func(r int) error {
		if err := fn(cs[r]); err != nil {
			return fmt.Errorf("rank %d of %d: %w", r, n, err)
		}
		return nil
	})...)
}

// onRanks runs fn on n ranks, and wants no errors.
func onRanks(t testing.TB, n int, o *collective.Options, fn func(c *collective.Comm) error) {
	t.Helper()
	if err := try(t, n, o, fn); err != nil {
		t.Error(err)
	}
}

// property checks a property of groups, each in a bubble.
func property(t *testing.T, draw func(rt *rapid.T) (n int, o *collective.Options, fn func(c *collective.Comm) error)) {
	deep.Check(t, func(rt *rapid.T) {
		n, o, fn := draw(rt)
		var err error
		synctest.Test(t, func(t *testing.T) { err = try(t, n, o, fn) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// bubble runs a test in a bubble, in which a hang is an error at once.
func bubble(t *testing.T, name string, fn func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, fn) })
}

// zeros returns a new tensor.
func zeros(t testing.TB, d tensor.DType, shape ...int64) *tensor.Tensor {
	t.Helper()
	x, err := tensor.New(d, shape)
	must.Do(t, err)
	return x
}

// of returns a tensor of one dimension over values.
func of[E tensor.Element](values ...E) *tensor.Tensor {
	x, err := tensor.Of([]int64{int64(len(values))}, values)
	if err != nil {
		panic(err)
	}
	return x
}

// same returns an error unless two tensors are equal to the bit.
func same(what string, got, want *tensor.Tensor) error {
	if tensor.Equal(got, want) {
		return nil
	}
	g, w, size := got.Contents(), want.Contents(), got.DType().Size()
	for i := 0; i+size <= min(len(g), len(w)); i += size {
		if x, y := g[i:i+size], w[i:i+size]; !bytes.Equal(x, y) {
			return fmt.Errorf("%s = %v with % x as element %d; want %v with % x", what, got, x, i/size, want, y)
		}
	}
	return fmt.Errorf("%s = %v; want %v", what, got, want)
}

func TestNewNeedsMessenger(t *testing.T) {
	if _, err := collective.New(mute{group.Solo(), 2}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("New of a group without messages = %v; want errors.ErrUnsupported", err)
	}
	c, err := collective.New(group.Solo())
	must.Do(t, err)
	x := of[float32](1, 2)
	if err := c.AllReduce(t.Context(), x, collective.Avg); err != nil {
		t.Error(err)
	}
	if err := c.Send(t.Context(), x, 0, 0); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Send without messages = %v; want errors.ErrUnsupported", err)
	}
}

// mute is a group of as many ranks as it says, without messages.
type mute struct {
	group.Group
	n int
}

func (m mute) Size() int { return m.n }

func TestOpString(t *testing.T) {
	for i, want := range []string{"sum", "avg", "max", "min", "prod"} {
		if got := ops[i].String(); got != want {
			t.Errorf("name of op %d = %q; want %q", i, got, want)
		}
	}
	if got := collective.Op(9).String(); got != "op 9" {
		t.Errorf("name of what is no op = %q; want op 9", got)
	}
}

// ended returns a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
