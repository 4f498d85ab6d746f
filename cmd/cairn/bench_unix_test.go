//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
)

var benchBytes = flag.Int64("bytes", 1<<30, "how many bytes BenchmarkConvert converts")

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

// BenchmarkConvert measures 'cairn convert' beside a plain copy of the same files. The files of the
// source are not in the page cache.
func BenchmarkConvert(b *testing.B) {
	for _, c := range []struct{ from, to string }{{formats.TorchDCP, formats.HF}, {formats.Native, formats.TorchDCP}} {
		b.Run(c.from+"-"+c.to, func(b *testing.B) {
			src := must.Get(file.Open(filepath.Join(b.TempDir(), "src"), nil))(b)
			matrices := fmt.Sprint(max(1, *benchBytes>>25)) // of 32 MiB
			run(b, "save-tensors", src.Dir(), c.from, matrices, "4", "4096", "2048")
			cool := func() {
				for info, err := range src.List(b.Context(), "") {
					must.Do(b, err)
					must.Do(b, blob.Cooler(src).Cool(b.Context(), info.Name))
				}
			}
			copied, converted := filepath.Join(b.TempDir(), "copy"), filepath.Join(b.TempDir(), "converted")
			b.Run("copy", func(b *testing.B) {
				b.SetBytes(*benchBytes)
				for b.Loop() {
					b.StopTimer()
					cool()
					b.StartTimer()
					must.Do(b, copyFiles(copied, src.Dir()))
				}
			})
			b.Run("convert", func(b *testing.B) {
				b.SetBytes(*benchBytes)
				benchProgram(b, cool, "cairn", "convert", "--quiet", "--overwrite", "--to", c.to, src.Dir(), converted)
			})
		})
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

// copyFiles copies the files of a folder at the same time, and syncs them.
func copyFiles(to, from string) error {
	files, err := os.ReadDir(from)
	if err == nil {
		err = os.MkdirAll(to, 0o755)
	}
	if err != nil {
		return err
	}

	var all sync.WaitGroup
	errs := make([]error, len(files))
	for i, f := range files {
		all.Go(func() { errs[i] = copyFile(filepath.Join(to, f.Name()), filepath.Join(from, f.Name())) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func copyFile(to, from string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.Create(to)
	if err != nil {
		return err
	}
	defer w.Close()
	// Hide the optional methods of both, or the kernel would share the blocks.
	if _, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, 8<<20)); err != nil {
		return err
	}
	return w.Sync()
}
