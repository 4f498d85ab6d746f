package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/work"
)

// ConvertOptions configure the measurement of a conversion.
type ConvertOptions struct {
	// Program is the command 'cairn convert', and Args are flags for it.
	Program, Args []string
	// From is the path of the checkpoint to convert.
	From string
	// Dir is an existing folder on the medium to measure.
	Dir string
	// Repeat is the number of rounds. Zero: 3.
	Repeat int
	Log    logFunc
}

// ConvertResult compares a conversion with a plain copy of its result. Rates are in 10^9 bytes of
// the result a second, the best of each.
type ConvertResult struct {
	From   string `json:"from"`
	Bytes  int64  `json:"bytes"` // of the result
	Files  int    `json:"files"`
	Repeat int    `json:"repeat"`

	Copy    float64 `json:"copy_gbs"`
	Convert float64 `json:"convert_gbs"`
	Ratio   float64 `json:"ratio"`
	// CPU is the processor time of the fastest conversion.
	CPU     float64 `json:"cpu_seconds"`
	PeakRSS int64   `json:"peak_rss_bytes"`
}

// Convert converts a checkpoint by a process of its own, and copies the files of the result by plain
// reads and writes: all files at the same time, synced. The files that are read are not in the page cache.
func Convert(ctx context.Context, o ConvertOptions) (*ConvertResult, error) {
	dir, err := os.MkdirTemp(o.Dir, "cairn-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	r := &ConvertResult{From: o.From, Repeat: positive(o.Repeat, 3)}
	best := [2]time.Duration{}
	for round := range r.Repeat {
		o.Log.printf("round %d of %d", round+1, r.Repeat)
		converted, copied := filepath.Join(dir, fmt.Sprint("converted-", round)), filepath.Join(dir, fmt.Sprint("copied-", round))
		if err := cool(ctx, o.From); err != nil {
			return nil, err
		}
		took, state, err := o.convert(ctx, converted)
		if err != nil {
			return nil, err
		}
		if best[0] == 0 || took < best[0] {
			best[0], r.CPU = took, (state.UserTime() + state.SystemTime()).Seconds()
		}
		r.PeakRSS = max(r.PeakRSS, peakOf(state))

		if err := cool(ctx, converted); err != nil {
			return nil, err
		}
		if r.Bytes, r.Files, err = sizeOf(converted); err != nil {
			return nil, err
		}
		took, err = timed(func() error { return copyFiles(ctx, copied, converted) })
		if err != nil {
			return nil, err
		}
		if best[1] == 0 || took < best[1] {
			best[1] = took
		}
		if err := errors.Join(os.RemoveAll(converted), os.RemoveAll(copied)); err != nil {
			return nil, err
		}
	}
	r.Convert, r.Copy = gbs(r.Bytes, best[0]), gbs(r.Bytes, best[1])
	r.Ratio = r.Convert / r.Copy
	return r, nil
}

// convert runs the conversion.
func (o *ConvertOptions) convert(ctx context.Context, to string) (time.Duration, *os.ProcessState, error) {
	args := append(append(append([]string{}, o.Program[1:]...), o.Args...), "--quiet", "--", o.From, to)
	cmd := exec.CommandContext(ctx, o.Program[0], args...)
	var text strings.Builder
	cmd.Stderr = &text
	took, err := timed(cmd.Run)
	if err != nil {
		err = fmt.Errorf("%s", strings.TrimSpace(text.String()+err.Error()))
	}
	return took, cmd.ProcessState, err
}

// cool drops the files at a path from the page cache.
func cool(ctx context.Context, path string) error {
	return walk(path, func(name string, _ fs.FileInfo) error {
		s, err := file.Open(filepath.Dir(name), nil)
		if err != nil {
			return err
		}
		return blob.Cooler(s).Cool(ctx, filepath.Base(name))
	})
}

// walk calls fn for the files at a path, which may be a file.
func walk(path string, fn func(name string, info fs.FileInfo) error) error {
	return filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		return fn(name, info)
	})
}

// sizeOf returns the bytes and the number of files.
func sizeOf(path string) (bytes int64, files int, err error) {
	err = walk(path, func(_ string, info fs.FileInfo) error {
		bytes, files = bytes+info.Size(), files+1
		return nil
	})
	return bytes, files, err
}

// copyFiles copies the files of a folder, several at the same time, and syncs them.
func copyFiles(ctx context.Context, to, from string) error {
	var names []string
	err := walk(from, func(name string, _ fs.FileInfo) error {
		rel, err := filepath.Rel(from, name)
		names = append(names, rel)
		return err
	})
	if err != nil {
		return err
	}
	return work.Each(ctx, len(names), 16, func(_ context.Context, i int) error {
		dst := filepath.Join(to, names[i])
		if err := os.MkdirAll(filepath.Dir(dst), 0o777); err != nil {
			return err
		}
		return copyFile(dst, filepath.Join(from, names[i]))
	})
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
	// Hide the optional methods of both, or the kernel would share the blocks.
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, 8<<20))
	if err == nil {
		err = w.Sync()
	}
	return errors.Join(err, w.Close())
}
