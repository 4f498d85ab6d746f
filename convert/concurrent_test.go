package convert_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// manySmall returns a checkpoint of many small tensors. The seed determines their
// content, but not their names.
func manySmall(t *testing.T, seed byte) blob.Store {
	t.Helper()
	state := plan.State{}
	for i := range 40 {
		state[fmt.Sprintf("layer.%d.w", i)] = storagetest.Filled(t, tensor.Float32, []int64{16, 4}, seed+byte(i))
	}
	s := &mem.Store{Name: "source"}
	save(t, s, state)
	return s
}

// placeAt is a place for checkpoints of a format, which are replaced.
func placeAt(path string) *convert.Place {
	return &convert.Place{Path: path, Overwrite: true, Look: func(path string) ([]string, error) {
		s, err := file.Open(path, nil)
		if err != nil {
			return nil, err
		}
		c, err := formats.Open(context.Background(), s, nil)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		out := []string{"cairn.json"} // the format does not list it
		for _, f := range c.Files() {
			out = append(out, f.Name)
		}
		return out, nil
	}}
}

// convertAt converts src to a folder of small files, as the command does. It
// returns the digests of the checkpoint while it holds the lock.
func convertAt(t *testing.T, src blob.Store, p *convert.Place, format string) (map[string]inspect.Digest, error) {
	if err := p.Lock(); err != nil {
		return nil, err
	}
	defer p.Unlock()
	if err := p.Prepare(); err != nil {
		return nil, err
	}
	staging, err := file.Open(p.Staging(), &file.Options{NoSync: true})
	if err != nil {
		return nil, err
	}
	to := &convert.Target{Format: format, Staging: staging, NewWriter: func(n int64) (storage.Writer, error) {
		f, err := formats.ByName(format, &formats.Options{MaxFileBytes: 1000})
		if err != nil {
			return nil, err
		}
		return f.NewWriter(staging, storage.WriteOptions{BufferBytes: n, FilesPerRank: 4})
	}}
	if _, err := run(context.Background(), open(t, src), &convert.Options{Merge: true, Source: src}, to); err != nil {
		return nil, err
	}
	if err := p.Publish(); err != nil {
		return nil, err
	}
	dst, err := file.Open(p.Path, nil)
	if err != nil {
		return nil, err
	}
	return digests(t, dst), nil
}

// Two conversions to one place run one after the other: the checkpoint is always that
// of one of them.
func TestTwoConversionsDoNotMix(t *testing.T) {
	sources := []blob.Store{manySmall(t, 1), manySmall(t, 101)}
	for _, format := range []string{formats.HF, formats.TorchDCP, formats.Hyper} {
		t.Run(format, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x")
			var wg sync.WaitGroup
			for _, src := range sources {
				want := digests(t, src)
				wg.Go(func() {
					for n := 0; n < 3; {
						got, err := convertAt(t, src, placeAt(path), format)
						if errors.Is(err, convert.ErrBusy) {
							continue
						}
						if d := cmp.Diff(want, got); d != "" || err != nil {
							t.Errorf("converted: %v: -want +got\n%s", err, d)
							return
						}
						n++
					}
				})
			}
			wg.Wait()
			left, err := os.ReadDir(filepath.Dir(path))
			if err != nil || len(left) != 1 {
				t.Errorf("there is %v, %v; want the checkpoint and nothing beside it", left, err)
			}
		})
	}
}

// lockEnv makes the test program hold the lock of a place.
const lockEnv = "CAIRN_TEST_LOCK"

// holdLock holds the lock of a place until it is killed.
func holdLock(path string) {
	if err := (&convert.Place{Path: path}).Lock(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("locked")
	io.Copy(io.Discard, os.Stdin)
}

func TestKilledProcessHoldsNoLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	exe := must.Get(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), lockEnv+"="+path)
	in := must.Get(cmd.StdinPipe())(t)
	defer in.Close()
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "locked\n" {
		t.Errorf("the other process printed %q, %v", line, err)
	}
	p := &convert.Place{Path: path}
	if err := p.Lock(); !errors.Is(err, convert.ErrBusy) {
		t.Errorf("Lock = %v; want %v", err, convert.ErrBusy)
	}
	must.Do(t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		t.Error("the other process ended by itself")
	}
	if err := errors.Join(p.Lock(), p.Unlock()); err != nil {
		t.Errorf("Lock after the kill = %v", err)
	}
}
