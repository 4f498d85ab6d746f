package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// asJob runs a command line as a job of three ranks, and returns the output of each rank.
func asJob(t *testing.T, line ...string) ([]string, []error) {
	t.Helper()
	const ranks = 3
	socket := must.Get(os.MkdirTemp("", "cairn-"))(t) // a short path
	defer os.RemoveAll(socket)
	outs, errs := make([]string, ranks), make([]error, ranks)
	var wg sync.WaitGroup
	for r := range ranks {
		wg.Go(func() {
			outs[r], errs[r] = command(t, []string{
				fmt.Sprint("RANK=", r), fmt.Sprint("WORLD_SIZE=", ranks), "CAIRN_SECRET=of a test",
				"MASTER_ADDR=unix:" + filepath.Join(socket, "0"),
			}, append(line, "--job")...)
		})
	}
	wg.Wait()
	return outs, errs
}

// Several processes convert a checkpoint to S3, copy it there and verify it. The result is
// the result of one.
func TestJobsInS3(t *testing.T) {
	t.Parallel() // it waits for much of its time
	program := buildCairn(t)
	src := filepath.Join(t.TempDir(), "src")
	state := cairn.State{}
	for i := range 6 {
		x := must.Get(tensor.New(tensor.Uint8, []int64{6 << 20}))(t) // two parts of an upload
		b, _ := x.Bytes()
		for k := range b {
			b[k] = byte(k*5 + i)
		}
		state[fmt.Sprint("t", i)] = x
	}
	must.Get(cairn.Save(t.Context(), must.Get(cairn.OpenStore(src))(t), state, nil))(t)
	want := must.Get(command(t, nil, program, "digest", src))(t)
	run := func(only string, line ...string) {
		t.Helper()
		outs, errs := asJob(t, append([]string{program}, line...)...)
		for r, err := range errs {
			if err != nil || r > 0 && outs[r] != "" {
				t.Errorf("%v: rank %d: %v: %s", line, r, err, outs[r])
			}
		}
		if !strings.Contains(outs[0], only) {
			t.Errorf("%v printed %q; want %q", line, outs[0], only)
		}
	}
	for _, to := range []string{"hf", "native", "torchdcp"} {
		converted, copied := place(), place()
		run("complete: 6 tensors", "convert", src, converted, "--to", to, "--max-shard-size", "8MB")
		run(": ok: ", "verify", converted)
		run(strings.TrimSpace(want), "digest", converted)
		run("complete: ", "cp", converted, copied, "--verify", "full")
		run("were there already", "cp", converted, copied)
		if got := must.Get(command(t, nil, program, "digest", copied))(t); got != want {
			t.Errorf("%s: the copy has other digests:\n%s\nwant\n%s", to, got, want)
		}
	}
}

// A job that fails to plan on all ranks leaves no object in S3.
func TestFailedJobInS3(t *testing.T) {
	t.Parallel() // it waits for much of its time
	program := buildCairn(t)
	src := filepath.Join(t.TempDir(), "src")
	x := must.Get(tensor.New(tensor.Float32, []int64{1 << 20}))(t)
	must.Get(cairn.Save(t.Context(), must.Get(cairn.OpenStore(src))(t), cairn.State{"a": x, "b": x, "c": x, "n": 1}, nil))(t)
	address := place()
	outs, errs := asJob(t, program, "convert", src, address, "--to", "hf", "--shards", "3") // hf has no place for n
	for r, err := range errs {
		if err == nil {
			t.Errorf("rank %d succeeded: %s", r, outs[r])
		}
	}
	if !strings.Contains(outs[0], "plan: ranks 0-2: ") {
		t.Errorf("rank 0 printed %q; want that all ranks have failed", outs[0])
	}
	store := must.Get(cairn.OpenStore(address))(t)
	for info, err := range store.List(t.Context(), "") {
		t.Errorf("%s is left (%v)", info.Name, err)
	}
}
