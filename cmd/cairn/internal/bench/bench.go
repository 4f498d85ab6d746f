// Package bench measures cairn and compares it with a floor: the same bytes moved
// by plain system calls in the same run. It asserts nothing and returns figures
// for a command to print. docs/benchmarks.md explains the figures.
package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// logFunc receives a line about each step of a benchmark. It may be nil.
type logFunc func(format string, args ...any)

func (l logFunc) printf(format string, args ...any) {
	if l != nil {
		l(format, args...)
	}
}

func timed(fn func() error) (time.Duration, error) {
	start := time.Now()
	err := fn()
	return time.Since(start), err
}

// positive returns v, or def if v is not positive.
func positive[T int | int64](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// gbs returns a rate in 10^9 bytes a second.
func gbs(bytes int64, d time.Duration) float64 {
	return float64(bytes) / 1e9 / d.Seconds()
}

// peakRSS returns the largest resident memory of this process, or 0 if it is
// unknown.
func peakRSS() int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kb << 10
		}
	}
	return 0
}

// measurement is one figure: the best rate of several rounds, in 10^9 bytes a
// second. Only run is timed.
type measurement struct {
	best         *float64
	prepare, run func(context.Context) error
}

// alternate takes pairs of measurements that move the given bytes, repeat times. It
// alternates their order, so that both run under the same conditions: many disks
// slow down under load.
func alternate(ctx context.Context, bytes int64, repeat int, log logFunc, pairs ...[2]measurement) error {
	for i := range repeat {
		log.printf("round %d of %d", i+1, repeat)
		for _, p := range pairs {
			for j := range p {
				m := p[(i+j)%2]
				if err := m.prepare(ctx); err != nil {
					return err
				}
				took, err := timed(func() error { return m.run(ctx) })
				if err != nil {
					return err
				}
				*m.best = max(*m.best, gbs(bytes, took))
			}
		}
	}
	return nil
}

// rankState is the part of one rank in a state.
type rankState struct {
	cairn.State
	memory [][]byte // of the tensors, in the order of weights
	bytes  int64    // of the whole state
}

// newState returns the part of a rank. The tensors hold pseudo-random bytes if
// filled is set, and zeros in allocated memory otherwise.
func newState(weights iter.Seq[weight], l shard.Layout, rank int, filled bool) (*rankState, error) {
	s := &rankState{State: cairn.State{}}
	for w := range weights {
		t, err := shard.Empty(l, w.dtype, w.shape, rank)
		if err != nil {
			return nil, err
		}
		mem, _ := t.Local().Bytes()
		touch(mem, filled)
		s.State[w.name] = t
		s.memory = append(s.memory, mem)
		s.bytes += w.bytes()
	}
	return s, nil
}

// hidden is the width of the model.
const hidden = 2048

// weight is one tensor of the model or the optimizer.
type weight struct {
	name  string
	dtype tensor.DType
	shape []int64
}

func (w *weight) bytes() int64 { return tensor.Whole(w.shape).Volume() * int64(w.dtype.Size()) }

// fit removes rows until the tensor has at most the given bytes. If not even one row
// fits, the tensor becomes one of that many single bytes.
func (w *weight) fit(bytes int64) {
	if w.bytes() <= bytes {
		return
	}
	row := w.bytes() / w.shape[0]
	if bytes < row {
		w.dtype, w.shape = tensor.Uint8, []int64{bytes}
		return
	}
	w.shape = slices.Clone(w.shape)
	w.shape[0] = bytes / row
}

// transformer yields the tensors of a job that trains a transformer, of the given bytes
// in all: bf16 weights and two f32 moments. The last ones are smaller than the others.
func transformer(bytes int64) iter.Seq[weight] {
	matrices := []struct {
		name  string
		shape []int64
	}{
		{"q", []int64{hidden, hidden}}, {"k", []int64{hidden, hidden}}, {"v", []int64{hidden, hidden}},
		{"o", []int64{hidden, hidden}}, {"up", []int64{4 * hidden, hidden}}, {"gate", []int64{4 * hidden, hidden}},
		{"down", []int64{hidden, 4 * hidden}}, {"norm1", []int64{hidden}}, {"norm2", []int64{hidden}},
	}
	kinds := []struct {
		prefix string
		dtype  tensor.DType
	}{{"model", tensor.BFloat16}, {"optim.exp_avg", tensor.Float32}, {"optim.exp_avg_sq", tensor.Float32}}

	return func(yield func(weight) bool) {
		left := bytes
		for layer := 0; ; layer++ {
			for _, m := range matrices {
				for _, k := range kinds {
					if left <= 0 {
						return
					}
					w := weight{fmt.Sprintf("%s.layers.%03d.%s.weight", k.prefix, layer, m.name), k.dtype, m.shape}
					w.fit(left)
					if !yield(w) {
						return
					}
					left -= w.bytes()
				}
			}
		}
	}
}

// touch writes to every page of mem so that it is allocated, with random bytes if
// requested.
func touch(mem []byte, random bool) {
	if !random {
		for i := 0; i < len(mem); i += 4096 {
			mem[i] = 0
		}
		return
	}
	r := rand.NewPCG(uint64(len(mem)), 1)
	for i := 0; i+8 <= len(mem); i += 8 {
		binary.LittleEndian.PutUint64(mem[i:], r.Uint64())
	}
}
