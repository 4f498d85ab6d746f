package etcd_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Processes without a rank meet through etcd, which gives out the ranks, and verify a
// checkpoint as one job.
func TestProgramMeetsThroughEtcd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	program, src := filepath.Join(dir, "cairn"), filepath.Join(dir, "src")
	build := exec.CommandContext(ctx, "go", "build", "-tags", "etcd,nocloud,disable_grpc_modules", "-buildvcs=false", "-o", program, "github.com/cairn-ckpt/cairn/cmd/cairn")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	x := must.Get(tensor.New(tensor.Float32, []int64{1 << 10}))(t)
	must.Get(cairn.Save(ctx, must.Get(cairn.OpenStore(src))(t), cairn.State{"x": x, "y": x}, nil))(t)
	address := fmt.Sprintf("etcd://%s/%s?size=3", cluster(), url.PathEscape(newJob(t)))
	outs := make([]string, 3)
	var wg sync.WaitGroup
	for i := range outs {
		wg.Go(func() {
			cmd := exec.CommandContext(ctx, program, "verify", src, "--rendezvous", address, "--join-timeout", "1m")
			cmd.Env = append(os.Environ(), tcp.SecretVariable+"=of a test")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("process %d: %v: %s", i, err, out)
			}
			outs[i] = string(out)
		})
	}
	wg.Wait()
	slices.Sort(outs)
	if !strings.Contains(outs[2], "src: ok: 2 chunks") || outs[0]+outs[1] != "" {
		t.Errorf("the processes printed %q; want one verdict", outs)
	}
}
