package autograd

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/tensor"
)

// newSwap returns a swap over a file that records and delays its reads and writes.
func newSwap(t *testing.T, opts *SwapOptions) (*Swap, *slowFile) {
	t.Helper()
	s, err := NewSwap(t.Context(), host.New(nil), t.TempDir(), opts)
	must.Do(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &slowFile{file: s.file.(*os.File)}
	s.file = f
	return s, f
}

// slowFile is a file with functions that are called before writes and reads.
type slowFile struct {
	file          *os.File
	onWrite       func() error
	onRead        func() error
	mu            sync.Mutex
	writes, reads []int64 // offsets; guarded by mu
}

func (f *slowFile) note(list *[]int64, off int64, on func() error) error {
	f.mu.Lock()
	*list = append(*list, off/swapPage)
	f.mu.Unlock()
	if on != nil {
		return on()
	}
	return nil
}

func (f *slowFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.note(&f.writes, off, f.onWrite); err != nil {
		return 0, err
	}
	return f.file.WriteAt(p, off)
}

func (f *slowFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.note(&f.reads, off, f.onRead); err != nil {
		return 0, err
	}
	return f.file.ReadAt(p, off)
}

func (f *slowFile) Close() error { return f.file.Close() }

// check compares the pages that were written and read so far.
func (f *slowFile) check(t *testing.T, s *Swap, writes, reads []int64) {
	t.Helper()
	must.Do(t, s.stream.Synchronize(t.Context()))
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := cmp.Diff(map[string][]int64{"writes": writes, "reads": reads}, map[string][]int64{"writes": f.writes, "reads": f.reads}); d != "" {
		t.Error(d)
	}
}

// await waits for a signal, for minutes at most.
func await(signal <-chan struct{}) error {
	select {
	case <-signal:
		return nil
	case <-time.After(5 * time.Minute):
		return errors.New("nothing happened for five minutes")
	}
}

// page returns a tensor of a page, filled with a number.
func page(v float32) *tensor.Tensor {
	x := empty(swapPage / 4)
	for i := range floats(x) {
		floats(x)[i] = v
	}
	return x
}

func mustKeep(t *testing.T, s *Swap, x *tensor.Tensor) Kept {
	t.Helper()
	k, err := s.Keep(t.Context(), Saved{Op: "test", Tensor: x})
	if err != nil || k == nil {
		t.Fatalf("Keep = %v, %v", k, err)
	}
	return k
}

func mustGet(t *testing.T, k Kept, want float32) {
	t.Helper()
	x, err := k.Get(t.Context())
	must.Do(t, err)
	if !tensor.Equal(x, page(want)) {
		t.Errorf("the tensor is not what was kept: it begins with %v; want %v", floats(x)[0], want)
	}
}

// transformer is a block of a transformer, for gradients with and without swapping.
func transformer(g *Graph, in ...*Var) *Var {
	x, w, gain, bias := in[0], in[1], in[2], in[3]
	n := g.LayerNorm(x, gain, bias)
	x = g.Add(x, g.CausalAttention(g.Linear(n, w, bias), g.Linear(n, w, nil), g.Reshape(n, n.Shape()...), 2))
	return g.Add(x, g.Linear(g.GELU(g.Linear(g.LayerNorm(x, gain, bias), w, bias)), w, nil))
}

// gradients returns the loss and the gradients of some blocks.
func gradients(t testing.TB, shape []int64, wrap func(Func) Func, keep func(*Graph) *Graph) []*tensor.Tensor {
	t.Helper()
	width := shape[2]
	sizes := [][]int64{shape, {width, width}, {width}, {width}}
	vars := make([]*Var, len(sizes))
	for i, s := range sizes {
		x := empty(s...)
		for j := range floats(x) {
			floats(x)[j] = float32((j*7919+i*31)%1000)/1000 - 0.3
		}
		vars[i] = Leaf(x)
		must.Do(t, vars[i].RequireGrad(true))
	}
	g := keep(New(t.Context()))
	f := wrap(transformer)
	y := vars[0]
	for range 3 {
		y = f(g, y, vars[1], vars[2], vars[3])
	}
	loss := g.Sum(g.Mul(y, y))
	must.Do(t, g.Backward(loss, nil))
	if now, _ := g.KeptBytes(); now != 0 {
		t.Errorf("%d bytes are kept after the backward pass", now)
	}
	out := []*tensor.Tensor{loss.Data()}
	for _, v := range vars {
		out = append(out, v.Grad())
	}
	return out
}

// Swapping, recomputation and both together do not change a bit of the gradients.
func TestSwappingAndCheckpointsKeepGradients(t *testing.T) {
	deep.Check(t, func(r *rapid.T) {
		shape := []int64{rapid.Int64Range(1, 2).Draw(r, "batch"), rapid.Int64Range(1, 40).Draw(r, "time"), 32}
		plain := func(f Func) Func { return f }
		want := gradients(t, shape, plain, func(g *Graph) *Graph { return g })

		wrap, keep := plain, func(g *Graph) *Graph { return g }
		if rapid.Bool().Draw(r, "checkpoint") {
			policy := rapid.SampledFrom([]Policy{nil, SaveOps("linear"), SaveOps("attention", "layernorm"), SaveOps("gelu", "add")}).Draw(r, "policy")
			wrap = func(f Func) Func {
				return func(g *Graph, in ...*Var) *Var { return g.Checkpoint(f, policy, in...) }
			}
		}
		if rapid.Bool().Draw(r, "swap") {
			s, _ := newSwap(t, &SwapOptions{BufferBytes: rapid.Int64Range(1, 1<<16).Draw(r, "buffer")})
			keep = func(g *Graph) *Graph { return g.Keep(s) }
		}
		for i, got := range gradients(t, shape, wrap, keep) {
			if !tensor.Equal(got, want[i]) {
				r.Fatalf("tensor %d differs", i)
			}
		}
	})
}

// A kept tensor is written once, also if several keep it under several shapes, and comes back
// once for operators that follow one another.
func TestSwapWritesSharedMemoryOnce(t *testing.T) {
	s, f := newSwap(t, nil)
	x := page(3)
	wide := view(x, 2, swapPage/8)
	a, b, c := mustKeep(t, s, x), mustKeep(t, s, wide), mustKeep(t, s, x)
	other := mustKeep(t, s, page(4))
	f.check(t, s, []int64{0, 1}, nil)
	runtime.KeepAlive(x)
	mustGet(t, other, 4)
	for _, k := range []Kept{c, b, a} {
		y, err := k.Get(t.Context())
		must.Do(t, err)
		want := x
		if k == b {
			want = wide
		}
		if !tensor.Equal(y, want) {
			t.Errorf("got %v; want %v", y, want)
		}
		k.Release()
	}
	f.check(t, s, []int64{0, 1}, []int64{1, 0})
}

// Three products of one result keep it once.
func TestOperatorsShareASwappedTensor(t *testing.T) {
	s, f := newSwap(t, nil)
	x, w := leaf(t, []int64{64, 64}), leaf(t, []int64{64, 64})
	g := New(t.Context()).Keep(s)
	y := g.Scale(x, 2)
	z := g.Add(g.Add(g.Linear(y, w, nil), g.Linear(y, w, nil)), g.Linear(y, w, nil))
	if g.Err() != nil {
		t.Fatal(g.Err())
	}
	f.check(t, s, []int64{0}, nil)
	must.Do(t, g.Backward(g.Sum(z), nil))
	f.check(t, s, []int64{0}, []int64{0})
}

// A tensor that an early operator keeps too leaves the memory between the two.
func TestSwapFreesSharedMemoryBetweenUses(t *testing.T) {
	s, f := newSwap(t, &SwapOptions{BufferBytes: 1})
	x := page(1)
	early, other, late := mustKeep(t, s, x), mustKeep(t, s, page(2)), mustKeep(t, s, x)
	f.check(t, s, []int64{0, 1}, nil)
	runtime.KeepAlive(x)
	for i, k := range []Kept{late, other, early} {
		mustGet(t, k, []float32{1, 2, 1}[i])
		k.Release()
		if k.(*swapped).block.data != nil {
			t.Errorf("tensor %d is in memory after its release", i)
		}
	}
	f.check(t, s, []int64{0, 1}, []int64{0, 1, 0})
}

// An operator may change its tensors, so it gets no memory that is being written.
func TestSwapWaitsForAWriteThatHasBegun(t *testing.T) {
	s, f := newSwap(t, nil)
	begun, gate := make(chan struct{}), make(chan struct{})
	f.onWrite = func() error {
		close(begun)
		return await(gate)
	}
	k := mustKeep(t, s, page(1))
	must.Do(t, await(begun))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.Get(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Get during the write = %v; want it to wait", err)
	}
	close(gate)
	mustGet(t, k, 1)
	k.Release()
	f.check(t, s, []int64{0}, nil)
}

// The tensors of one operator come back in the order in which reading ahead wants them.
func TestOperandsComeBackLastFirst(t *testing.T) {
	s, f := newSwap(t, &SwapOptions{BufferBytes: 1})
	g := New(t.Context()).Keep(s)
	x := leaf(t, []int64{32, 32})
	y := g.Sum(g.Mul(g.Scale(x, 2), g.Scale(x, 3)))
	f.check(t, s, []int64{0, 1}, nil)
	must.Do(t, g.Backward(y, nil))
	f.check(t, s, []int64{0, 1}, []int64{1, 0})
}

// Memory that is used again after its tensor is gone is not taken for the old one.
func TestSwapDoesNotMistakeMemory(t *testing.T) {
	s, _ := newSwap(t, nil)
	var kept []Kept
	for i := range 200 {
		kept = append(kept, mustKeep(t, s, page(float32(i))))
		if i%20 == 0 {
			must.Do(t, s.stream.Synchronize(t.Context()))
			runtime.GC()
		}
	}
	for i := len(kept) - 1; i >= 0; i-- {
		mustGet(t, kept[i], float32(i))
		kept[i].Release()
	}
}

// When a tensor is asked for, those before it are read, as far as the buffer goes, and
// the rest later.
func TestSwapReadsAhead(t *testing.T) {
	s, f := newSwap(t, &SwapOptions{BufferBytes: 3 * swapPage})
	var kept []Kept
	for i := range 6 {
		kept = append(kept, mustKeep(t, s, page(float32(i))))
	}
	f.check(t, s, []int64{0, 1, 2, 3, 4, 5}, nil)
	mustGet(t, kept[5], 5)
	f.check(t, s, []int64{0, 1, 2, 3, 4, 5}, []int64{5, 4, 3})
	kept[5].Release()
	kept[4].Release() // without Get
	mustGet(t, kept[3], 3)
	f.check(t, s, []int64{0, 1, 2, 3, 4, 5}, []int64{5, 4, 3, 2, 1})
	for _, i := range []int{3, 2, 1, 0} {
		mustGet(t, kept[i], float32(i))
		kept[i].Release()
	}
	f.check(t, s, []int64{0, 1, 2, 3, 4, 5}, []int64{5, 4, 3, 2, 1, 0})
	if s.wanted != 0 || len(s.order) != 0 || len(s.known) != 0 {
		t.Errorf("%d bytes are wanted, %d places and %d blocks are known", s.wanted, len(s.order), len(s.known))
	}
}

// The next operator runs while a tensor is written, and while the one before it is read.
func TestSwapOverlapsWithComputation(t *testing.T) {
	s, f := newSwap(t, nil)
	forward, reading := make(chan struct{}), make(chan struct{})
	f.onWrite = func() error {
		if len(f.writes) == 1 { // of the first product
			return await(forward)
		}
		return nil
	}
	step := func(g *Graph, x *Var, run func(), back func() error) *Var {
		return g.Apply(Op{Name: "step", In: []*Var{x},
			Forward: func() (*tensor.Tensor, []*tensor.Tensor, error) {
				if run != nil {
					run()
				}
				out := x.data.Clone()
				return out, []*tensor.Tensor{out}, nil
			},
			Backward: func(p *Pass) ([]*tensor.Tensor, error) { return []*tensor.Tensor{p.Grad.Clone()}, back() },
		})
	}
	f.onRead = func() error {
		if len(f.reads) == 2 { // of the first operator
			close(reading)
		}
		return nil
	}
	g := New(t.Context()).Keep(s)
	x := leaf(t, []int64{64, 64})
	y := step(g, x, nil, func() error { return nil })
	z := step(g, y, func() { close(forward) }, func() error { return await(reading) })
	loss := g.Sum(z)
	must.Do(t, s.stream.Synchronize(t.Context()))
	must.Do(t, g.Backward(loss, nil))
	f.check(t, s, []int64{0, 4}, []int64{4, 0})
}

// A tensor with a write that has not begun is returned from memory, and is not written.
func TestSwapGivesUpWritesThatAreNotNeeded(t *testing.T) {
	s, f := newSwap(t, nil)
	gate := make(chan struct{})
	f.onWrite = func() error { return await(gate) }
	first, second, third := mustKeep(t, s, page(1)), mustKeep(t, s, page(2)), mustKeep(t, s, page(3))
	mustGet(t, third, 3) // also wants the other two
	mustGet(t, second, 2)
	close(gate)
	mustGet(t, first, 1) // after its write, if that has begun
	must.Do(t, s.stream.Synchronize(t.Context()))
	if n := len(f.writes); n > 1 || len(f.reads) != 0 {
		t.Errorf("%d tensors were written and %d read", n, len(f.reads))
	}
}

// A tensor that was taken back from memory, and that another operator still keeps, is
// written then.
func TestSwapWritesWhatIsStillKept(t *testing.T) {
	s, f := newSwap(t, nil)
	begun, gate := make(chan struct{}), make(chan struct{})
	f.onWrite = func() error {
		if len(f.writes) == 1 {
			close(begun)
		}
		return await(gate)
	}
	blocker := mustKeep(t, s, page(0))
	must.Do(t, await(begun))
	x := page(1)
	first := mustKeep(t, s, x)
	mustGet(t, first, 1)
	second := mustKeep(t, s, x)
	first.Release()
	close(gate)
	f.check(t, s, []int64{0, 1}, nil)
	if b := second.(*swapped).block; b.data != nil || b.state != present {
		t.Error("the tensor is still in memory")
	}
	mustGet(t, second, 1)
	second.Release()
	blocker.Release()
}

// Keep waits if too much is to be written.
func TestSwapBoundsWhatWaits(t *testing.T) {
	s, f := newSwap(t, &SwapOptions{BufferBytes: 2 * swapPage})
	gate := make(chan struct{})
	f.onWrite = func() error { return await(gate) }
	kept := []Kept{mustKeep(t, s, page(0)), mustKeep(t, s, page(1))}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if k, err := s.Keep(ended, Saved{Tensor: page(2)}); !errors.Is(err, context.Canceled) {
		t.Errorf("Keep while the buffer is full = %v, %v; want it to wait", k, err)
	}
	close(gate)
	for i := range 3 {
		kept = append(kept, mustKeep(t, s, page(float32(2+i))))
	}
	large := empty(2, 4*swapPage) // above the bound
	kept = append(kept, mustKeep(t, s, large))
	if x, err := kept[5].Get(t.Context()); err != nil || !tensor.Equal(x, large) {
		t.Errorf("%v, %v", x, err)
	}
	for i := range 5 {
		mustGet(t, kept[i], float32(i))
	}
}

func TestSwapLeavesSomeTensors(t *testing.T) {
	s, f := newSwap(t, &SwapOptions{Stay: func(v Saved) bool { return v.Op == "gelu" }})
	x, w := leaf(t, []int64{64, 64}), leaf(t, []int64{64, 64})
	g := New(t.Context()).Keep(s)
	y := g.Scale(x, 1)
	small, none := g.GELU(leaf(t, []int64{31, 33})), g.Mul(leaf(t, []int64{0}), leaf(t, []int64{0}))
	z := g.Softmax(g.GELU(g.Linear(y, w, nil))) // keeps y and w, the product, and its result
	loss := g.Add(g.Sum(z), g.Add(g.Sum(g.Mul(small, small)), g.Sum(none)))
	f.check(t, s, []int64{0, 4}, nil)
	if now, _ := g.KeptBytes(); now != (64*64+31*33)*4 {
		t.Errorf("%d bytes are in memory", now) // the product, which gelu keeps, and small
	}
	must.Do(t, g.Backward(loss, nil))
}

// Tensors that are not contiguous come back contiguous.
func TestSwapOfStridedTensors(t *testing.T) {
	s, _ := newSwap(t, nil)
	base := leaf(t, []int64{64, 48}).Data()
	turned, err := base.Transpose(0, 1)
	must.Do(t, err)
	a, b := mustKeep(t, s, base), mustKeep(t, s, turned)
	for k, want := range map[Kept]*tensor.Tensor{a: base, b: turned} {
		if got, err := k.Get(t.Context()); err != nil || !tensor.Equal(got, want) {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
		k.Release()
	}
}

func TestSwapErrorsAreTheGraphs(t *testing.T) {
	build := func(s *Swap) (*Graph, *Var) {
		g := New(t.Context()).Keep(s)
		y := leaf(t, []int64{64, 64})
		for range 8 {
			y = g.GELU(g.Scale(y, 0.5))
		}
		return g, g.Sum(y)
	}
	full := func() error { return syscall.ENOSPC }
	t.Run("in the forward pass", func(t *testing.T) {
		// Each tensor is written before the next.
		s, f := newSwap(t, &SwapOptions{BufferBytes: 1})
		f.onWrite = func() error {
			if len(f.writes) == 4 {
				return full()
			}
			return nil
		}
		g, y := build(s)
		if y.Data() != nil || !errors.Is(g.Err(), syscall.ENOSPC) {
			t.Errorf("error %v; want the error of the file", g.Err())
		}
	})
	t.Run("after the forward pass", func(t *testing.T) {
		s, f := newSwap(t, nil)
		gate := make(chan struct{})
		f.onWrite = func() error { return errors.Join(await(gate), full()) }
		g, y := build(s)
		k := mustKeep(t, s, page(1))
		if g.Err() != nil {
			t.Fatal(g.Err())
		}
		close(gate)
		<-s.stream.Record().Done()
		if _, err := k.Get(t.Context()); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("Get after a write that failed = %v", err)
		}
		if _, err := s.Keep(t.Context(), Saved{Tensor: page(2)}); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("Keep after a write that failed = %v", err)
		}
		if err := g.Backward(y, nil); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("Backward = %v; want the error of the file", err)
		}
	})
	t.Run("of a read", func(t *testing.T) {
		s, f := newSwap(t, nil)
		f.onRead = func() error { return io.ErrUnexpectedEOF }
		g, y := build(s)
		must.Do(t, s.stream.Synchronize(t.Context()))
		if err := g.Backward(y, nil); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("Backward = %v; want the error of the file", err)
		}
	})
}

// The file has no name, does not grow from step to step, and a folder that is not there is
// an error.
func TestSwapFile(t *testing.T) {
	dir := t.TempDir()
	s, err := NewSwap(t.Context(), host.New(nil), dir, nil)
	must.Do(t, err)
	defer s.Close()
	if runtime.GOOS != "windows" {
		if names, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(names) != 0 {
			t.Errorf("the folder has %v, %v", names, err)
		}
	}
	for range 5 {
		kept := make([]Kept, 10)
		for i := range kept {
			kept[i] = mustKeep(t, s, page(float32(i)))
		}
		must.Do(t, s.stream.Synchronize(t.Context()))
		for i := range kept {
			mustGet(t, kept[i], float32(i))
			kept[i].Release()
			kept[i].Release() // has no effect
		}
		must.Do(t, s.stream.Synchronize(t.Context()))
	}
	if info, err := s.file.(*os.File).Stat(); err != nil || info.Size() != 10*swapPage {
		t.Errorf("the file has %v, %v; want ten pages", info, err)
	}
	if _, err := NewSwap(t.Context(), host.New(nil), filepath.Join(dir, "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("NewSwap in a folder that is not there = %v", err)
	}
}

// If the backward pass of a graph does not run, its tensors are freed with the graph.
func TestSwapForgetsGraphsThatAreGivenUp(t *testing.T) {
	s, _ := newSwap(t, nil)
	func() {
		g := New(t.Context()).Keep(s)
		y := g.GELU(g.GELU(leaf(t, []int64{64, 64})))
		if y.Data() == nil {
			t.Fatal(g.Err())
		}
	}()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Millisecond) {
		runtime.GC()
		s.mu.Lock()
		left := len(s.order)
		s.mu.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d tensors are still there", left)
		}
	}
}
