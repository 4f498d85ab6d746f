package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// RedistributeOptions configure the measurement of redistributions in memory.
type RedistributeOptions struct {
	// Bytes is the size of the tensors of a case together.
	Bytes int64
	// Ranks is the number of ranks, which are processes.
	Ranks int
	// Repeat is the number of rounds. Medians count.
	Repeat int
	// Self is a program with arguments that passes one more argument to [Child].
	Self []string
	Log  Log
}

// RedistributeResult is the result of Redistribute.
type RedistributeResult struct {
	Ranks  int                `json:"ranks"`
	Repeat int                `json:"repeat"`
	Cases  []RedistributeCase `json:"cases"`
}

// RedistributeCase is a redistribution and the all-to-all of the same bytes. Rates are
// in 10^9 bytes a second.
type RedistributeCase struct {
	Case    string `json:"case"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`
	// Moved are the bytes that cross between ranks.
	Moved int64 `json:"bytes_moved"`
	// Rate is Moved over the time of the redistribution, and Plain over that of the
	// all-to-all.
	Rate  float64 `json:"gbs"`
	Plain float64 `json:"all_to_all_gbs"`
	Ratio float64 `json:"ratio"`
}

// Redistribute measures how fast sharded tensors get another layout over the loopback
// of this machine, and compares it with one all-to-all in which each pair of ranks
// exchanges the same number of bytes.
func Redistribute(ctx context.Context, o RedistributeOptions) (*RedistributeResult, error) {
	if o.Ranks < 2 || o.Repeat < 1 {
		return nil, fmt.Errorf("%d ranks, %d rounds: want at least two ranks and one round", o.Ranks, o.Repeat)
	}
	r := &RedistributeResult{Ranks: o.Ranks, Repeat: o.Repeat}
	o.Log.printf("redistributions by %d processes, %d rounds", o.Ranks, o.Repeat)
	return r, onProcesses(ctx, o.Ranks, o.Self, &rankJob{Redistribute: true, Bytes: o.Bytes, Repeat: o.Repeat}, &r.Cases)
}

// relayout is a case of the benchmark.
type relayout struct {
	name     string
	weights  []weight
	src, dst shard.Layout
}

// relayouts returns the cases for n ranks.
func relayouts(bytes int64, n int) []relayout {
	side := int64(4 * n)
	for side*side*4 < bytes {
		side += int64(4 * n)
	}
	matrix := []weight{{"matrix", tensor.Float32, []int64{side, side}}}
	var model []weight
	for w := range transformer(bytes) {
		model = append(model, w)
	}
	whole := shard.Placed{Mesh: shard.Mesh{Shape: []int{n}}, Placements: []shard.Placement{shard.Replicate()}}
	return []relayout{
		{"rows to columns", matrix, shard.Rows(n), shard.Columns(n)},
		{"rows to replicas", matrix, shard.Rows(n), whole},
		{"flat to columns, a model", model, shard.FlatEven(n), shard.Columns(n)},
	}
}

// redistribute measures all cases. The figures are nearly the same on all ranks.
func redistribute(ctx context.Context, g *tcp.Group, j *rankJob) ([]RedistributeCase, error) {
	p := host.New(g)
	comm, err := p.TensorComm(p.World())
	if err != nil {
		return nil, err
	}
	var out []RedistributeCase
	for _, c := range relayouts(j.Bytes, g.Size()) {
		r, err := c.measure(ctx, g, comm, j.Repeat)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		out = append(out, *r)
	}
	return out, nil
}

// measure alternates the measurements of a case and of its all-to-all.
func (c *relayout) measure(ctx context.Context, g group.Group, comm platform.TensorComm, repeat int) (*RedistributeCase, error) {
	moves, err := c.moves(g.Rank())
	if err != nil {
		return nil, err
	}
	out := &RedistributeCase{Case: c.name, Tensors: len(moves)}
	for i := range c.weights {
		out.Bytes += c.weights[i].bytes()
	}
	splits, err := c.warmUp(ctx, comm, moves)
	if err != nil {
		return nil, err
	}
	if out.Moved, err = sumOfRanks(ctx, g, sum(splits.Out)-splits.Out[g.Rank()]); err != nil {
		return nil, err
	}
	dst, err := filled(sum(splits.Out))
	if err != nil {
		return nil, err
	}
	src, err := filled(sum(splits.In))
	if err != nil {
		return nil, err
	}
	runs := []func(context.Context) error{
		func(ctx context.Context) error { _, err := platform.Redistribute(ctx, comm, moves...); return err },
		func(ctx context.Context) error { return comm.AllToAll(ctx, dst, src, splits) },
	}
	took := make([][]time.Duration, len(runs))
	for i := range repeat + 1 {
		for k := range runs {
			turn := (i + k) % len(runs)
			d, err := together(ctx, g, runs[turn])
			if err != nil {
				return nil, err
			}
			if i > 0 { // the first round is a warm-up
				took[turn] = append(took[turn], d)
			}
		}
	}
	out.Rate, out.Plain = gbs(out.Moved, median(took[0])), gbs(out.Moved, median(took[1]))
	out.Ratio = out.Rate / out.Plain
	return out, nil
}

// moves returns the tensors of a rank, of which those of the source are filled.
func (c *relayout) moves(rank int) ([]platform.Move, error) {
	out := make([]platform.Move, len(c.weights))
	for i, w := range c.weights {
		src, err := shard.Empty(c.src, w.dtype, w.shape, rank)
		if err != nil {
			return nil, err
		}
		dst, err := shard.Empty(c.dst, w.dtype, w.shape, rank)
		if err != nil {
			return nil, err
		}
		mem, _ := src.Local().Bytes()
		touch(mem, true)
		out[i] = platform.Move{Dst: dst, Src: src}
	}
	return out, nil
}

// warmUp redistributes the tensors there and back, checks the result, and returns how
// many bytes this rank exchanges with each other rank, and copies itself.
func (c *relayout) warmUp(ctx context.Context, comm platform.TensorComm, moves []platform.Move) (platform.Splits, error) {
	s := platform.Splits{In: make([]int64, comm.Size()), Out: make([]int64, comm.Size())}
	if _, err := platform.Redistribute(ctx, &counting{comm, s}, moves...); err != nil {
		return s, err
	}
	back := make([]platform.Move, len(moves))
	for i, m := range moves {
		dst, err := shard.Empty(c.src, m.Src.DType(), m.Src.GlobalShape(), comm.Rank())
		if err != nil {
			return s, err
		}
		back[i] = platform.Move{Dst: dst, Src: m.Dst}
	}
	if _, err := platform.Redistribute(ctx, comm, back...); err != nil {
		return s, err
	}
	for i, m := range moves {
		if !tensor.Equal(m.Src.Local(), back[i].Dst.Local()) {
			return s, fmt.Errorf("%v and back: the elements have changed", m)
		}
	}
	return s, nil
}

// counting counts the bytes that its rank exchanges with each rank.
type counting struct {
	platform.TensorComm
	platform.Splits
}

func (c *counting) AllToAllParts(ctx context.Context, dst, src [][]*tensor.Tensor) error {
	for r := range src {
		for _, t := range src[r] {
			c.In[r] += t.NumBytes()
		}
		for _, t := range dst[r] {
			c.Out[r] += t.NumBytes()
		}
	}
	return c.TensorComm.AllToAllParts(ctx, dst, src)
}

func sum(v []int64) (n int64) {
	for _, x := range v {
		n += x
	}
	return n
}

// sumOfRanks returns the sum of the values of all ranks.
func sumOfRanks(ctx context.Context, g group.Group, v int64) (int64, error) {
	return group.Decide(ctx, g, "sum", group.JSON[int64](), group.JSON[int64](),
		func(context.Context) (int64, error) { return v, nil },
		func(_ context.Context, all []int64) (int64, error) { return sum(all), nil })
}

// filled returns a tensor of n bytes in allocated memory.
func filled(n int64) (*tensor.Tensor, error) {
	t, err := tensor.New(tensor.Uint8, []int64{n})
	if err != nil {
		return nil, err
	}
	mem, _ := t.Bytes()
	touch(mem, true)
	return t, nil
}
