//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
)

func init() { programs["save-tensors"] = saveTensors }

// BenchmarkTinyTensors measures a checkpoint of 200,000 tensors of 16 bytes: the work for each name.
func BenchmarkTinyTensors(b *testing.B) {
	native, dcp := filepath.Join(b.TempDir(), "native"), filepath.Join(b.TempDir(), "torchdcp")
	for _, step := range []struct { // a step may read the results of steps before it
		name string
		args []string
	}{
		{"save", []string{"save-tensors", native, formats.Native, "200000", "1", "1", "4"}},
		{"ls", []string{"cairn", "ls", native}},
		{"digest", []string{"cairn", "digest", native}},
		{"verify", []string{"cairn", "verify", native}},
		{"convert", []string{"cairn", "convert", "--quiet", "--overwrite", "--to", formats.TorchDCP, native, dcp}},
		{"torchdcp-ls", []string{"cairn", "ls", dcp}},
		{"torchdcp-digest", []string{"cairn", "digest", dcp}},
		{"torchdcp-verify", []string{"cairn", "verify", dcp}},
	} {
		b.Run(step.name, func(b *testing.B) { benchProgram(b, nil, step.args...) })
	}
}

// benchProgram runs a program, each time after prepare, and reports its processor time and the largest
// memory of its processes. Linux counts the memory of this process, too, so this process must be small.
func benchProgram(b *testing.B, prepare func(), args ...string) {
	b.Helper()
	var cpu time.Duration
	var peak int64
	for b.Loop() {
		if prepare != nil {
			b.StopTimer()
			prepare()
			b.StartTimer()
		}
		p := run(b, args...)
		cpu += p.UserTime() + p.SystemTime()
		if u, ok := p.SysUsage().(*syscall.Rusage); ok {
			peak = max(peak, int64(u.Maxrss))
		}
	}

	if runtime.GOOS != "darwin" { // which counts bytes
		peak <<= 10
	}
	b.ReportMetric(cpu.Seconds()/float64(b.N), "cpu-s/op")
	b.ReportMetric(float64(peak)/1e6, "peak-MB")
}

// run runs one of the programs.
func run(b *testing.B, args ...string) *os.ProcessState {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), must.Get(os.Executable())(b))
	cmd.Args, cmd.Stderr = args, os.Stderr // TestMain runs the program of that name
	must.Do(b, cmd.Run())
	return cmd.ProcessState
}

// saveTensors is a program that saves N tensors of float32 from several ranks, cut by rows:
// save-tensors DIR FORMAT N RANKS ROWS COLUMNS. All rows are equal, to save memory.
func saveTensors() {
	dir, format := os.Args[1], os.Args[2]
	var n, ranks int
	var rows, columns int64
	_, err := fmt.Sscan(strings.Join(os.Args[3:], " "), &n, &ranks, &rows, &columns)
	if err == nil {
		err = inproc.Run(context.Background(), ranks, func(ctx context.Context, g group.Group) error {
			row, err := tensor.New(tensor.Float32, []int64{1, columns})
			if err != nil {
				return err
			}
			mem, _ := row.Bytes()
			random := rand.NewPCG(1, 1)
			for i := range mem {
				mem[i] = byte(random.Uint64())
			}
			local, err := row.Expand([]int64{rows / int64(ranks), columns})
			if err != nil {
				return err
			}

			state := cairn.State{}
			for i := range n {
				name := fmt.Sprintf("model.layers.%d.block.%d.weight", i/100, i%100)
				if state[name], err = shard.New(shard.Rows(ranks), []int64{rows, columns}, g.Rank(), local); err != nil {
					return err
				}
			}
			store, err := file.Open(dir, nil)
			if err != nil {
				return err
			}
			f, err := formats.ByName(format, nil)
			if err != nil {
				return err
			}
			_, err = cairn.Save(ctx, store, state, &cairn.SaveOptions{Group: g, Format: f})
			return err
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
