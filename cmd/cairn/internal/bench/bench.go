// Package bench measures cairn and compares it with a floor: the same bytes moved
// by plain system calls in the same run. It asserts nothing and returns figures
// for a command to print. docs/benchmarks.md explains the figures.
package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Log receives a line about each step of a benchmark. It may be nil.
type Log func(format string, args ...any)

func (l Log) printf(format string, args ...any) {
	if l != nil {
		l(format, args...)
	}
}

func timed(fn func() error) (time.Duration, error) {
	start := time.Now()
	err := fn()
	return time.Since(start), err
}

// gbs returns a rate in 10^9 bytes a second.
func gbs(bytes int64, d time.Duration) float64 {
	return float64(bytes) / 1e9 / d.Seconds()
}

// resetPeakRSS makes PeakRSS start again, if the system supports it.
func resetPeakRSS() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// PeakRSS returns the largest resident memory of this process, or 0 if it is
// unknown.
func PeakRSS() int64 {
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

// childJob is the job of a process that a benchmark starts. Exactly one field is
// set.
type childJob struct {
	Tree *treeJob `json:"tree,omitempty"`
	Rank *rankJob `json:"rank,omitempty"`
	Tiny *tinyJob `json:"tiny,omitempty"`
}

// Child runs the job of a process that a benchmark started with Options.Self. The
// argument is the encoded job.
func Child(ctx context.Context, job string, out io.Writer) error {
	var j childJob
	if err := json.Unmarshal([]byte(job), &j); err != nil {
		return fmt.Errorf("job of a process of a benchmark: %w", err)
	}
	switch {
	case j.Tree != nil:
		return j.Tree.run(ctx, out)
	case j.Rank != nil:
		return j.Rank.run(ctx, out)
	case j.Tiny != nil:
		return j.Tiny.run(ctx, out)
	}
	return errors.New("job of a process of a benchmark: it is empty")
}

// argument returns the job as an argument for [Child].
func (j childJob) argument() (string, error) {
	b, err := json.Marshal(j)
	return string(b), err
}

var errNoSelf = errors.New("how to start another process is not known")

// child is a process that does a job.
type child struct {
	cmd *exec.Cmd
	in  io.Closer
	out io.Reader
}

// start starts a process that does the job. It ends with ctx.
func (j childJob) start(ctx context.Context, self []string) (*child, error) {
	if len(self) == 0 {
		return nil, errNoSelf
	}
	arg, err := j.argument()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self[0], append(self[1:len(self):len(self)], arg)...)}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if c.out, err = c.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	return c, c.cmd.Start()
}

// answer decodes the result of the process into v, and calls then before it lets
// the process end.
func (c *child) answer(v any, then func()) error {
	err := json.NewDecoder(c.out).Decode(v)
	then()
	c.in.Close()
	if exit := c.cmd.Wait(); exit != nil {
		return exit
	}
	return err
}

// tell sends v to the parent process and waits until the parent has received it.
func tell(out io.Writer, v any) error {
	if err := json.NewEncoder(out).Encode(v); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
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
func alternate(ctx context.Context, bytes int64, repeat int, log Log, pairs ...[2]measurement) error {
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

// ranks runs fn on n ranks of this process.
func ranks(ctx context.Context, n int, fn func(context.Context, group.Group) error) error {
	eg, ctx := errgroup.WithContext(ctx)
	for _, g := range inproc.New(n) {
		eg.Go(func() error { return fn(ctx, g) })
	}
	return eg.Wait()
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
