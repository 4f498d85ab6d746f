package platform_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Whatever the two layouts, each rank has its part of the whole tensor, and received only
// elements that it did not hold.
func TestRedistributeEqualsCutting(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "ranks")
		job := drawJob(t, n)
		job.check(t, commsOf(t, inprocGroups(n)))
	})
}

func TestRedistributeOverTCP(t *testing.T) {
	const n = 4
	groups := make([]group.Group, n)
	for r, g := range tcptest.Meet(t, n, tcptest.ByFile(t, n)) {
		groups[r] = g
	}
	comms := commsOf(t, groups)
	deep.Check(t, func(t *rapid.T) { drawJob(t, n).check(t, comms) })
}

func inprocGroups(n int) []group.Group {
	out := make([]group.Group, n)
	for r, g := range inproc.New(n) {
		out[r] = g
	}
	return out
}

// fataler is the part of [testing.T] that a rapid.T has too.
type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// commsOf returns the tensor collectives of each rank.
func commsOf(t fataler, groups []group.Group) []platform.TensorComm {
	out := make([]platform.TensorComm, len(groups))
	for r, g := range groups {
		p := host.New(g)
		var err error
		if out[r], err = p.TensorComm(p.World()); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// job is a redistribution of some tensors.
type job struct{ moves []jobMove }

type jobMove struct {
	whole    *tensor.Tensor
	src, dst shard.Layout
	turned   bool // the local tensors are not contiguous
}

func drawJob(t *rapid.T, ranks int) *job {
	j := new(job)
	for range rapid.IntRange(1, 3).Draw(t, "tensors") {
		shape := rapid.SliceOfN(rapid.Int64Range(0, 9), 0, 3).Draw(t, "shape")
		if rapid.IntRange(0, 9).Draw(t, "large") == 0 {
			shape = []int64{int64(ranks) * 20, 300}
		}
		m := jobMove{src: drawLayout(t, shape, ranks), dst: drawLayout(t, shape, ranks), turned: rapid.Bool().Draw(t, "turned")}
		m.whole = random(t, rapid.SampledFrom([]tensor.DType{tensor.Uint8, tensor.BFloat16, tensor.Float32, tensor.Complex128}).Draw(t, "dtype"), shape)
		j.moves = append(j.moves, m)
	}
	return j
}

// random returns a tensor of bytes that depend on its shape.
func random(t fataler, d tensor.DType, shape []int64) *tensor.Tensor {
	out, err := tensor.New(d, shape)
	must.Do(t, err)
	mem, _ := out.Bytes()
	r := rand.New(rand.NewPCG(uint64(len(mem)), 7))
	for i := range mem {
		mem[i] = byte(r.Uint32())
	}
	return out
}

// drawLayout draws a layout of any kind that holds the whole tensor.
func drawLayout(t *rapid.T, shape []int64, ranks int) shard.Layout {
	kinds := []func(*rapid.T, []int64, int) shard.Layout{drawPlaced, drawMatrix, drawFlat, drawSlabs, drawHalo}
	if len(shape) == 0 {
		kinds = kinds[:3]
	}
	return rapid.SampledFrom(kinds).Draw(t, "kind")(t, shape, ranks)
}

// drawMesh draws the lengths of a mesh and the ranks in it, not always all.
func drawMesh(t *rapid.T, ranks int) (lengths, members []int) {
	n := 1
	for range rapid.IntRange(0, 3).Draw(t, "mesh dimensions") {
		k := rapid.IntRange(1, ranks/n).Draw(t, "length")
		lengths, n = append(lengths, k), n*k
	}
	return lengths, drawOrder(t, ranks)[:n]
}

func drawOrder(t *rapid.T, ranks int) []int {
	all := make([]int, ranks)
	for r := range all {
		all[r] = r
	}
	return rapid.Permutation(all).Draw(t, "order")
}

func drawPlaced(t *rapid.T, shape []int64, ranks int) shard.Layout {
	p := shard.Placed{}
	p.Mesh.Shape, p.Mesh.Ranks = drawMesh(t, ranks)
	for range p.Mesh.Shape {
		options := []shard.Placement{shard.Replicate()}
		if len(shape) > 0 {
			d := rapid.IntRange(-len(shape), len(shape)-1).Draw(t, "dim")
			options = append(options, shard.Shard(d), shard.Shard(d), shard.StridedShard(d, rapid.IntRange(1, 3).Draw(t, "split")))
		}
		p.Placements = append(p.Placements, rapid.SampledFrom(options).Draw(t, "placement"))
	}
	return p
}

func drawMatrix(t *rapid.T, shape []int64, ranks int) shard.Layout {
	m := shard.Matrix{TensorMap: make([][]int, len(shape)), Rule: rapid.SampledFrom([]shard.Rule{shard.Balanced, shard.Ceil}).Draw(t, "rule")}
	m.Device, m.Ranks = drawMesh(t, ranks)
	for a := range m.Device {
		if d := rapid.IntRange(-1, len(shape)-1).Draw(t, "cut dimension"); d >= 0 {
			m.TensorMap[d] = append(m.TensorMap[d], a)
		}
	}
	return m
}

// drawCuts draws n intervals that together are [0, length).
func drawCuts(t *rapid.T, length int64, n int) [][2]int64 {
	at := append(rapid.SliceOfN(rapid.Int64Range(0, length), n-1, n-1).Draw(t, "cuts"), 0, length)
	slices.Sort(at)
	out := make([][2]int64, n)
	for i := range out {
		out[i] = [2]int64{at[i], at[i+1]}
	}
	return out
}

func drawFlat(t *rapid.T, shape []int64, ranks int) shard.Layout {
	if rapid.Bool().Draw(t, "even") {
		return shard.FlatEven(rapid.IntRange(1, ranks).Draw(t, "members"))
	}
	return shard.Flat{Intervals: drawCuts(t, tensor.Whole(shape).Volume(), ranks)}
}

// drawSlabs draws a layout in which each rank holds several slabs of rows, some of
// them on two ranks.
func drawSlabs(t *rapid.T, shape []int64, ranks int) shard.Layout {
	e := shard.Explicit{ByRank: map[int][]shard.Part{}}
	rows := map[int]int64{} // of each rank so far
	for _, c := range drawCuts(t, shape[0], rapid.IntRange(1, 2*ranks).Draw(t, "slabs")) {
		for _, r := range drawOrder(t, ranks)[:rapid.IntRange(1, min(2, ranks)).Draw(t, "replicas")] {
			p := shard.Part{Box: slab(shape, c[0], c[1]), Local: make([]int64, len(shape))}
			p.Local[0] = rows[r]
			rows[r] += c[1] - c[0]
			e.ByRank[r] = append(e.ByRank[r], p)
		}
	}
	return e
}

// drawHalo draws a layout in which ranks also hold some rows of their neighbours.
func drawHalo(t *rapid.T, shape []int64, ranks int) shard.Layout {
	byRank := map[int]tensor.Box{}
	width := rapid.Int64Range(0, 3).Draw(t, "width")
	for r, c := range drawCuts(t, shape[0], ranks) {
		byRank[r] = slab(shape, max(0, c[0]-width), min(shape[0], c[1]+width))
	}
	return shard.Boxes(byRank)
}

// slab returns the rows from begin to end.
func slab(shape []int64, begin, end int64) tensor.Box {
	b := tensor.Whole(shape)
	b.Sizes = slices.Clone(shape)
	b.Offsets[0], b.Sizes[0] = begin, end-begin
	return b
}

// share returns a rank's share of the tensor, with its elements if filled is set.
func (m *jobMove) share(l shard.Layout, rank int, filled bool) (*shard.Tensor, error) {
	shape := m.whole.Shape()
	local, err := l.LocalShape(shape, rank)
	if err != nil {
		return nil, err
	}
	memory, err := tensor.New(m.whole.DType(), local)
	if _, isFlat := l.(shard.Flat); err == nil && m.turned && len(local) > 1 && !isFlat {
		turned := slices.Clone(local)
		slices.Reverse(turned)
		if memory, err = tensor.New(m.whole.DType(), turned); err == nil {
			for d := range len(local) / 2 {
				if memory, err = memory.Transpose(d, len(local)-1-d); err != nil {
					return nil, err
				}
			}
		}
	}
	if err != nil {
		return nil, err
	}
	out, err := shard.New(l, shape, rank, memory)
	if err != nil || !filled {
		return out, err
	}
	for i, b := range out.Boxes() {
		part, err := out.Part(i)
		if err != nil {
			return nil, err
		}
		from, err := m.whole.Narrow(b)
		if err == nil {
			err = tensor.Copy(part, from)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// least returns how many of the bytes that a rank wants it does not hold, and how many it
// holds, counted element by element.
func (m *jobMove) least(rank int) (missing, own int64, err error) {
	size, shape := int64(m.whole.DType().Size()), m.whole.Shape()
	held := make([]bool, m.whole.NumElements())
	each := func(l shard.Layout, fn func(at int64)) error {
		parts, err := l.Parts(shape, rank)
		for _, p := range parts {
			for i := range p.Box.Volume() {
				var at, stride int64 = 0, 1
				for d := len(shape) - 1; d >= 0; d-- {
					at += (p.Box.Offsets[d] + i%p.Box.Sizes[d]) * stride
					i /= p.Box.Sizes[d]
					stride *= shape[d]
				}
				fn(at)
			}
		}
		return err
	}
	if err := each(m.src, func(at int64) { held[at] = true }); err != nil {
		return 0, 0, err
	}
	err = each(m.dst, func(at int64) {
		if held[at] {
			own += size
		} else {
			missing += size
		}
	})
	return missing, own, err
}

// check redistributes the tensors over ranks and checks the result.
func (j *job) check(t fataler, comms []platform.TensorComm) {
	t.Helper()
	traffic := make([]platform.Traffic, len(comms))
	err := eachRank(comms, func(ctx context.Context, rank int, comm platform.TensorComm) error {
		meter := &meter{TensorComm: comm}
		var moves []platform.Move
		var want []*shard.Tensor
		var least platform.Traffic
		for i := range j.moves {
			m := &j.moves[i]
			src, err1 := m.share(m.src, rank, true)
			dst, err2 := m.share(m.dst, rank, false)
			cut, err3 := m.share(m.dst, rank, true)
			missing, own, err4 := m.least(rank)
			if err := errors.Join(err1, err2, err3, err4); err != nil {
				return err
			}
			least.Received, least.Copied = least.Received+missing, least.Copied+own
			moves, want = append(moves, platform.Move{Dst: dst, Src: src}), append(want, cut)
		}
		var err error
		if traffic[rank], err = platform.Redistribute(ctx, meter, moves...); err != nil {
			return err
		}
		for i, w := range want {
			if !tensor.Equal(moves[i].Dst.Local(), w.Local()) {
				return fmt.Errorf("%v: the parts differ from the whole tensor", moves[i])
			}
		}
		least.Sent = traffic[rank].Sent // compared in sum below
		if got := traffic[rank]; got != least || got != meter.Traffic {
			return fmt.Errorf("%v: traffic %+v, counted %+v; want %+v", moves, got, meter.Traffic, least)
		}
		return nil
	})
	must.Do(t, err)
	var sum platform.Traffic
	for _, n := range traffic {
		sum.Sent, sum.Received = sum.Sent+n.Sent, sum.Received+n.Received
	}
	if sum.Sent != sum.Received {
		t.Fatalf("%d bytes were sent and %d received", sum.Sent, sum.Received)
	}
}

// eachRank runs fn on every rank and returns the errors. The context ends if a rank
// fails, so that no other waits for it.
func eachRank(comms []platform.TensorComm, fn func(ctx context.Context, rank int, comm platform.TensorComm) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	errs := make([]error, len(comms))
	var wg sync.WaitGroup
	for r, c := range comms {
		wg.Go(func() {
			if err := fn(ctx, r, c); err != nil {
				errs[r] = fmt.Errorf("rank %d: %w", r, err)
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// meter counts the bytes that a rank moves.
type meter struct {
	platform.TensorComm
	platform.Traffic
}

func (m *meter) AllToAllParts(ctx context.Context, dst, src [][]*tensor.Tensor) error {
	for r := range src {
		var sent, received int64
		for _, t := range src[r] {
			sent += t.NumBytes()
		}
		for _, t := range dst[r] {
			received += t.NumBytes()
		}
		if r == m.Rank() {
			m.Copied += sent
		} else {
			m.Sent, m.Received = m.Sent+sent, m.Received+received
		}
	}
	return m.TensorComm.AllToAllParts(ctx, dst, src)
}

// Invalid moves, and moves that differ, fail on all ranks with one error.
func TestRedistributeRefuses(t *testing.T) {
	shape := []int64{4, 6}
	of := func(d tensor.DType, l shard.Layout, rank int) *shard.Tensor {
		x, err := shard.Empty(l, d, shape, rank)
		must.Do(t, err)
		return x
	}
	good := func(rank int) platform.Move {
		return platform.Move{Dst: of(tensor.Float32, shard.Columns(3), rank), Src: of(tensor.Float32, shard.Rows(3), rank)}
	}
	with := func(rank int, change func(m *platform.Move)) []platform.Move {
		m := good(rank)
		change(&m)
		return []platform.Move{m}
	}
	around := func(local *tensor.Tensor, err error) *shard.Tensor {
		must.Do(t, err)
		x, err := shard.New(shard.Columns(3), shape, 1, local)
		must.Do(t, err)
		return x
	}
	gap := shard.Flat{Intervals: [][2]int64{{0, 8}, {9, 12}, {12, 24}}}
	for claim, c := range map[string]struct {
		rank1 func() []platform.Move // the call of rank 1
		all   func(rank int) []platform.Move
		want  error
		text  string
	}{
		"another layout": {
			rank1: func() []platform.Move {
				return with(1, func(m *platform.Move) { m.Src = of(tensor.Float32, shard.FlatEven(3), 1) })
			},
			want: group.ErrDisagree, text: "rank 1 called redistribute([float32[4 6] from flat even 3 to",
		},
		"another dtype": {
			rank1: func() []platform.Move {
				return []platform.Move{{Dst: of(tensor.Int32, shard.Columns(3), 1), Src: of(tensor.Int32, shard.Rows(3), 1)}}
			},
			want: group.ErrDisagree, text: "rank 1 called redistribute([int32[4 6]",
		},
		"fewer tensors": {
			rank1: func() []platform.Move { return nil },
			want:  group.ErrDisagree, text: "rank 1 called redistribute([])",
		},
		"two dtypes": {
			rank1: func() []platform.Move {
				return with(1, func(m *platform.Move) { m.Dst = of(tensor.Int32, shard.Columns(3), 1) })
			},
			want: tensor.ErrDType, text: "rank 1: tensor 1 of 1: int32 from float32",
		},
		"two shapes": {
			rank1: func() []platform.Move {
				return with(1, func(m *platform.Move) {
					var err error
					if m.Dst, err = shard.Empty(shard.Columns(3), tensor.Float32, []int64{4, 7}, 1); err != nil {
						t.Fatal(err)
					}
				})
			},
			want: tensor.ErrShape, text: "global shape [4 7] from [4 6]",
		},
		"no tensor": {
			rank1: func() []platform.Move { return with(1, func(m *platform.Move) { m.Src = nil }) },
			want:  group.ErrInvalid, text: "no tensor",
		},
		"the part of another rank": {
			rank1: func() []platform.Move {
				return with(1, func(m *platform.Move) { m.Src = of(tensor.Float32, shard.Rows(3), 2) })
			},
			want: group.ErrInvalid, text: "the part of rank 2",
		},
		"a placeholder": {
			rank1: func() []platform.Move {
				return with(1, func(m *platform.Move) { m.Dst = around(tensor.Placeholder(tensor.Float32, []int64{4, 2})) })
			},
			want: tensor.ErrPlaceholder,
		},
		"an expanded destination": {
			rank1: func() []platform.Move {
				return with(1, func(m *platform.Move) {
					m.Dst = around(random(t, tensor.Float32, []int64{1, 2}).Expand([]int64{4, 2}))
				})
			},
			want: tensor.ErrLayout,
		},
		"a source without some elements": {
			all: func(rank int) []platform.Move {
				return with(rank, func(m *platform.Move) { m.Src = of(tensor.Float32, gap, rank) })
			},
			want: plan.ErrSource, text: "hold 7 of the 8 elements",
		},
	} {
		t.Run(claim, func(t *testing.T) {
			comms := commsOf(t, inprocGroups(3))
			texts := make([]string, 3)
			err := eachRank(comms, func(ctx context.Context, rank int, comm platform.TensorComm) error {
				moves := []platform.Move{good(rank)}
				if c.all != nil {
					moves = c.all(rank)
				} else if rank == 1 {
					moves = c.rank1()
				}
				_, err := platform.Redistribute(ctx, comm, moves...)
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
					return fmt.Errorf("Redistribute = %v; want %v with %q", err, c.want, c.text)
				}
				texts[rank] = err.Error()
				_, err = platform.Redistribute(ctx, comm, good(rank)) // the communicator can be used on
				return err
			})
			if err != nil || texts[0] != texts[1] || texts[0] != texts[2] {
				t.Errorf("%v; errors %q; want one error", err, texts)
			}
		})
	}
}

// A tensor with an outstanding reduction has no parts that could be moved.
func TestPartialTensorsCannotBeRedistributed(t *testing.T) {
	l := shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Partial("sum")}}
	if _, err := shard.Empty(l, tensor.Float32, []int64{4}, 0); !errors.Is(err, shard.ErrPartial) {
		t.Errorf("a tensor in the layout %v = %v; want ErrPartial", l, err)
	}
}

// If the context of a rank ends after the ranks have agreed, no rank waits for it.
func TestRedistributeIsInterrupted(t *testing.T) {
	comms := commsOf(t, inprocGroups(3))
	m := jobMove{whole: random(t, tensor.Float32, []int64{30, 30}), src: shard.Rows(3), dst: shard.Columns(3)}
	err := eachRank(comms, func(ctx context.Context, rank int, comm platform.TensorComm) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		src, err1 := m.share(m.src, rank, true)
		dst, err2 := m.share(m.dst, rank, false)
		if rank == 1 {
			comm = quitter{comm, cancel}
		}
		_, err := platform.Redistribute(ctx, comm, platform.Move{Dst: dst, Src: src})
		if !errors.Is(err, collective.ErrBroken) {
			return fmt.Errorf("Redistribute = %v; want ErrBroken", err)
		}
		return errors.Join(err1, err2)
	})
	if err != nil {
		t.Error(err)
	}
}

// quitter ends the context of its rank before the exchange.
type quitter struct {
	platform.TensorComm
	quit func()
}

func (q quitter) AllToAllParts(ctx context.Context, dst, src [][]*tensor.Tensor) error {
	q.quit()
	return q.TensorComm.AllToAllParts(ctx, dst, src)
}
