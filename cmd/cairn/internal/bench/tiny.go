package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	// Self is a program with arguments that passes one more argument to [Child],
	// and Program is the command cairn, to which arguments are added.
	Self, Program []string
	Log           Log
}

// TinyResult has a figure for each step.
type TinyResult struct {
	Tensors int        `json:"tensors"`
	Steps   []TinyStep `json:"steps"`
}

// TinyStep is the time and memory of one command, which is a process of its own.
type TinyStep struct {
	Step string `json:"step"`
	// Seconds is the elapsed time, CPUSeconds the processor time.
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpu_seconds"`
	PeakRSS    int64   `json:"peak_rss_bytes"`
}

// Tiny measures a checkpoint of many small tensors, whose cost is the work for
// each name rather than the bytes.
func Tiny(ctx context.Context, o TinyOptions) (*TinyResult, error) {
	if len(o.Program) == 0 || len(o.Self) == 0 {
		return nil, errNoSelf
	}
	dir, err := os.MkdirTemp(o.Dir, "cairn-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	native, dcp := filepath.Join(dir, "native"), filepath.Join(dir, "torchdcp")
	job, err := childJob{Tiny: &tinyJob{native, o.Tensors}}.argument()
	if err != nil {
		return nil, err
	}
	r := &TinyResult{Tensors: o.Tensors}
	for _, s := range []struct {
		name    string
		program []string
		args    []string
	}{
		{"save", o.Self, []string{job}},
		{"ls", o.Program, []string{"ls", native}},
		{"digest", o.Program, []string{"digest", native}},
		{"verify", o.Program, []string{"verify", native}},
		{"convert to torchdcp", o.Program, []string{"convert", "--quiet", "--to", "torchdcp", native, dcp}},
		{"ls of that", o.Program, []string{"ls", dcp}},
		{"digest of that", o.Program, []string{"digest", dcp}},
		{"verify of that", o.Program, []string{"verify", dcp}},
	} {
		o.Log.printf("%s", s.name)
		step, err := runStep(ctx, s.name, slices.Concat(s.program, s.args))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		r.Steps = append(r.Steps, *step)
	}
	return r, nil
}

// runStep runs a command and returns its time and memory. The process that saves
// prints the times of the save alone, without making the state.
func runStep(ctx context.Context, name string, args []string) (*TinyStep, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	var out bytes.Buffer
	if name == "save" {
		cmd.Stdout = &out
	}
	took, err := timed(cmd.Run)
	if err != nil {
		return nil, err
	}
	p := cmd.ProcessState
	step := &TinyStep{
		Step: name, Seconds: took.Seconds(), CPUSeconds: (p.UserTime() + p.SystemTime()).Seconds(), PeakRSS: maxRSS(p),
	}
	if name == "save" {
		err = json.Unmarshal(out.Bytes(), step)
	}
	return step, err
}

// tinyJob saves a checkpoint of many small tensors.
type tinyJob struct {
	Dir     string `json:"dir"`
	Tensors int    `json:"tensors"`
}

// run saves, and writes a TinyStep for the save alone.
func (j *tinyJob) run(ctx context.Context, out io.Writer) error {
	if j.Tensors < 1 {
		return errors.New("no tensors")
	}
	state := cairn.State{}
	for i := range j.Tensors {
		t, err := tensor.New(tensor.Float32, []int64{4})
		if err != nil {
			return err
		}
		fillRandom(t, uint64(i))
		state[fmt.Sprintf("model.layers.%d.block.%d.weight", i/100, i%100)] = t
	}
	s, err := file.Open(j.Dir, nil)
	if err != nil {
		return err
	}
	before := cpuTime()
	took, err := timed(func() error {
		_, err := cairn.Save(ctx, s, state, nil)
		return err
	})
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(struct {
		Seconds    float64 `json:"seconds"`
		CPUSeconds float64 `json:"cpu_seconds"`
	}{took.Seconds(), (cpuTime() - before).Seconds()})
}
