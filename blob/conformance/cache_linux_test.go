package conformance

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestS3ThroughACache(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store {
		s := must.Get(cache.New(openS3(t, nil), cache.Options{Dir: t.TempDir()}))(t)
		return s
	}, versitygwGaps...)
}

// meter counts the requests through a proxy.
type meter struct {
	*proxy
	mu       sync.Mutex
	requests int
	data     int64         // bytes of data files
	first    chan struct{} // closed at the first of them
}

func startMeter(t *testing.T) *meter {
	m := &meter{first: make(chan struct{})}
	m.proxy = startProxy(t, 0, 0, func(p *proxy) { p.Answer = m.count })
	return m
}

// count counts an answer.
func (m *meter) count(r *http.Request, a *http.Response) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests++
	if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, ".safetensors") {
		if m.data == 0 {
			close(m.first)
		}
		m.data += a.ContentLength
	}
}

// take returns the counts since the last call.
func (m *meter) take() (requests int, data int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	requests, data = m.requests, m.data
	if data > 0 {
		m.first = make(chan struct{})
	}
	m.requests, m.data = 0, 0
	return requests, data
}

// saveTensors saves a checkpoint of n tensors of 12 MiB and returns their bytes.
func saveTensors(t *testing.T, s blob.Store, n int) int64 {
	t.Helper()
	const size = 3 << 20
	state := cairn.State{}
	for i := range n {
		values := make([]float32, size)
		for j := range values {
			values[j] = float32(i*1000 + j%997)
		}
		x := must.Get(tensor.Of([]int64{size}, values))(t)
		state[fmt.Sprint("layer", i)] = x
	}
	if _, err := cairn.Save(t.Context(), s, state, &cairn.SaveOptions{FilesPerRank: 2}); err != nil {
		t.Fatal(err)
	}
	return int64(n) * size * 4
}

// TestProcessesShareADownload runs commands that read the same checkpoint through a cache.
// Some of them are killed while they download.
func TestProcessesShareADownload(t *testing.T) {
	t.Parallel() // it waits for much of its time
	program, m := buildCairn(t), startMeter(t)
	address := fmt.Sprintf("s3://bucket/%d/x", folders.Add(1))
	s := must.Get(blob.OpenAddress(t.Context(), address+"?endpoint="+endpoint))(t)
	total := saveTensors(t, s, 5)
	env := append(os.Environ(), "AWS_ENDPOINT_URL_S3="+m.URL(), cache.DirEnv+"="+t.TempDir(), cache.BytesEnv+"=1GiB")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	start := func(env []string) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.CommandContext(ctx, program, "digest", address, "--json")
		out := new(bytes.Buffer)
		cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = env, out, out, 10*time.Second
		must.Do(t, cmd.Start())
		return cmd, out
	}
	alone, want := start(append(os.Environ(), "AWS_ENDPOINT_URL_S3="+endpoint))
	if err := alone.Wait(); err != nil {
		t.Fatalf("digest without a cache: %v\n%s", err, want)
	}
	// In the first round the cache is empty and two processes die, in the second it is full.
	for round, most := range []int64{total * 2, 0} {
		var dying []*exec.Cmd
		if round == 0 {
			for range 2 {
				cmd, _ := start(env)
				dying = append(dying, cmd)
			}
			select {
			case <-m.first:
			case <-ctx.Done():
				t.Fatal("no process reads data")
			}
		}
		var wg sync.WaitGroup
		for range 4 {
			cmd, out := start(env)
			wg.Go(func() {
				if err := cmd.Wait(); err != nil || out.String() != want.String() {
					t.Errorf("round %d: digest = %v; want the same as without a cache:\n%s", round, err, out)
				}
			})
		}
		for _, cmd := range dying {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		}
		wg.Wait()
		requests, data := m.take()
		t.Logf("round %d: %d requests, %d bytes of %d", round, requests, data, total)
		// A slow read may be hedged, and blocks that a killed process had begun are read again.
		if data > most {
			t.Errorf("round %d: %d bytes of data files were read; want at most %d", round, data, most)
		}
	}
	python, err := exec.LookPath(cmp.Or(os.Getenv("PYTHON"), "python3"))
	if err != nil {
		t.Skip(err)
	}
	env = append(env, "CAIRN_BINARY="+program, "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+filepath.Join("..", "..", "python"))
	out, err := command(t, env, python, "-c", `import sys, cairn
c = cairn.open(sys.argv[1], framework="memory")
assert c["layer3"][:].cast("B").cast("f")[998] == 3001, c["layer3"][:]`, address)
	if _, data := m.take(); err != nil || data != 0 {
		t.Errorf("a read of Python with a full cache = %v, %d bytes from the service:\n%s", err, data, out)
	}
}

// TestRequestsThroughACache counts the requests of a load of one tensor.
func TestRequestsThroughACache(t *testing.T) {
	address := place()
	s := must.Get(blob.OpenAddress(t.Context(), address))(t)
	saveTensors(t, s, 2)
	t.Setenv(cache.DirEnv, t.TempDir())
	for _, what := range []string{"empty", "full"} {
		s := must.Get(cairn.OpenStore(address))(t)
		x := must.Get(tensor.New(tensor.Float32, []int64{3 << 20}))(t)
		r := must.Get(cairn.Load(t.Context(), s, cairn.State{"layer1": x}, nil))(t)
		t.Logf("with a cache that is %s: %+v", what, *r.Traffic)
		// The tensor lies in two or three blocks. The index is too small to be kept.
		most, read := int64(6), int64(12<<20)
		if what == "full" {
			most, read = 3, 0 // for the record, the index, and the list of files
		}
		if n := r.Traffic; n.Requests-n.Hedges > most || n.Received < read || what == "full" && n.Cached < 12<<20 {
			t.Errorf("with a cache that is %s: %+v; want at most %d requests", what, *n, most)
		}
	}
}
