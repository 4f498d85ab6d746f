package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/tensor"
)

// TinyOptions configure a checkpoint of many small tensors.
type TinyOptions struct {
	// Dir is an existing directory on the medium to measure.
	Dir     string
	Tensors int
	// Program is the command cairn, to which arguments are added.
	Program []string
	Log     logFunc
}

// TinyResult has a figure for each step.
type TinyResult struct {
	Tensors int        `json:"tensors"`
	Steps   []tinyStep `json:"steps"`
}

// tinyStep is the time and memory of one step.
type tinyStep struct {
	Step string `json:"step"`
	// Seconds is the elapsed time, CPUSeconds the processor time.
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpu_seconds"`
	PeakRSS    int64   `json:"peak_rss_bytes"`
}

// Tiny measures a checkpoint of many small tensors, whose cost is the work for
// each name rather than the bytes. The save runs in this process, and every other
// step is a process of its own.
func Tiny(ctx context.Context, o TinyOptions) (*TinyResult, error) {
	if len(o.Program) == 0 || o.Tensors < 1 {
		return nil, fmt.Errorf("program %q, %d tensors: want the command cairn and at least one tensor", o.Program, o.Tensors)
	}
	dir, err := os.MkdirTemp(o.Dir, "cairn-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	native, dcp := filepath.Join(dir, "native"), filepath.Join(dir, "torchdcp")
	o.Log.printf("save")
	save, err := saveTiny(ctx, native, o.Tensors)
	if err != nil {
		return nil, fmt.Errorf("save: %w", err)
	}
	r := &TinyResult{Tensors: o.Tensors, Steps: []tinyStep{*save}}
	for _, s := range []struct {
		name string
		args []string
	}{
		{"ls", []string{"ls", native}},
		{"digest", []string{"digest", native}},
		{"verify", []string{"verify", native}},
		{"convert to torchdcp", []string{"convert", "--quiet", "--to", "torchdcp", native, dcp}},
		{"ls of that", []string{"ls", dcp}},
		{"digest of that", []string{"digest", dcp}},
		{"verify of that", []string{"verify", dcp}},
	} {
		o.Log.printf("%s", s.name)
		args := slices.Concat(o.Program, s.args)
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Stderr = os.Stderr
		took, err := timed(cmd.Run)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		p := cmd.ProcessState
		r.Steps = append(r.Steps, tinyStep{s.name, took.Seconds(), (p.UserTime() + p.SystemTime()).Seconds(), maxRSS(p)})
	}
	return r, nil
}

// saveTiny saves a checkpoint of small tensors. The times do not include the time for
// making the state.
func saveTiny(ctx context.Context, dir string, tensors int) (*tinyStep, error) {
	state := cairn.State{}
	for i := range tensors {
		t, err := tensor.New(tensor.Float32, []int64{4})
		if err != nil {
			return nil, err
		}
		fillRandom(t, uint64(i))
		state[fmt.Sprintf("model.layers.%d.block.%d.weight", i/100, i%100)] = t
	}
	s, err := file.Open(dir, nil)
	if err != nil {
		return nil, err
	}
	before := cpuTime()
	took, err := timed(func() error {
		_, err := cairn.Save(ctx, s, state, nil)
		return err
	})
	return &tinyStep{"save", took.Seconds(), (cpuTime() - before).Seconds(), peakRSS()}, err
}
