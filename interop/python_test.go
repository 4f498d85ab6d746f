//go:build interop

package interop

import (
	"bufio"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

//go:embed py/*.py
var scripts embed.FS

// answerLimit is how long a call may take. The worker gives up earlier and says
// why; this is for a worker that says nothing.
const answerLimit = 3 * time.Minute

// about is what py/about.py says.
type about struct {
	Torch       string   `json:"torch"`
	Safetensors string   `json:"safetensors"`
	Numpy       string   `json:"numpy"`
	DTypes      []string `json:"dtypes"`      // that PyTorch saves and loads
	SafeDTypes  []string `json:"safe_dtypes"` // that its safetensors knows
	Features    []string `json:"features"`
}

// python is a running py/worker.py. Its methods are for one goroutine.
type python struct {
	about about
	// dir is the folder that it works in, as this process sees it.
	dir     string
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan []byte
	noise   *noise
}

// start runs the worker of a target, which is an interpreter or the folder of a
// whole system. The package in ../python is there for it to import, with the
// program. It ends with the test.
func start(t *testing.T, target, program string) *python {
	t.Helper()
	p := &python{answers: make(chan []byte, 1), noise: new(noise)}
	p.cmd = p.command(t, target)
	p.cmd.WaitDelay = 5 * time.Second // for ranks that outlive the worker
	copyScripts(t, p.dir)
	copyPackage(t, p.dir, program)
	p.cmd.Env = append(os.Environ(), "PYTHONHASHSEED=0", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "USE_LIBUV=0", "OMP_NUM_THREADS=1")
	if runtime.GOOS == "linux" {
		p.cmd.Env = append(p.cmd.Env, "GLOO_SOCKET_IFNAME=lo")
	}
	p.cmd.Stderr = p.noise
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.in = in
	go p.listen(out)
	t.Cleanup(p.stop)
	if err := p.call("about.versions", nil, 1, &p.about); err != nil {
		t.Fatalf("%s: %v", target, err)
	}
	return p
}

// command returns the command of the worker and makes its folder, which lies in
// the target's own system.
func (p *python) command(t *testing.T, target string) *exec.Cmd {
	t.Helper()
	fi, err := os.Stat(target)
	if err != nil {
		t.Fatal(err)
	}
	if !fi.IsDir() {
		p.dir = t.TempDir()
		cmd := exec.Command(target, filepath.Join("py", "worker.py"))
		cmd.Dir = p.dir
		return cmd
	}
	p.dir, err = os.MkdirTemp(filepath.Join(target, "tmp"), "cairn-interop-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(p.dir) })
	inside := "/tmp/" + filepath.Base(p.dir)
	return exec.Command("./enter", target, "sh", "-c", "cd "+inside+" && exec python3 py/worker.py")
}

func copyScripts(t *testing.T, dir string) {
	t.Helper()
	if err := os.CopyFS(dir, scripts); err != nil {
		t.Fatal(err)
	}
}

// copyPackage copies the Python package beside the scripts, and the program into it.
func copyPackage(t *testing.T, dir, program string) {
	t.Helper()
	into := filepath.Join(dir, "py", "cairn")
	if err := os.CopyFS(into, os.DirFS(filepath.Join("..", "python", "cairn"))); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(into, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "cairn"), b, 0o755); err != nil {
		t.Fatal(err)
	}
}

// listen passes on what the worker answers, and ends with it.
func (p *python) listen(out io.Reader) {
	defer close(p.answers)
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		p.answers <- line
	}
}

// call has so many ranks call a function and decodes what rank 0 returned into
// result. An error holds the tracebacks.
func (p *python) call(function string, args map[string]any, ranks int, result any) error {
	if args == nil {
		args = map[string]any{}
	}
	p.noise.reset()
	request, err := json.Marshal(map[string]any{"call": function, "args": args, "ranks": ranks})
	if err != nil {
		return err
	}
	if _, err := p.in.Write(append(request, '\n')); err != nil {
		return fmt.Errorf("%s: %w\n%s", function, err, p.noise)
	}
	select {
	case line, ok := <-p.answers:
		if !ok {
			return fmt.Errorf("%s: the worker ended\n%s", function, p.noise)
		}
		return decodeAnswer(function, line, result)
	case <-time.After(answerLimit):
		p.stop()
		return fmt.Errorf("%s: no answer for %v\n%s", function, answerLimit, p.noise)
	}
}

func decodeAnswer(function string, line []byte, result any) error {
	var answer struct {
		Result json.RawMessage `json:"result"`
		Error  string          `json:"error"`
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return fmt.Errorf("%s: %w: %.200s", function, err, line)
	}
	if answer.Error != "" {
		return fmt.Errorf("%s: %s", function, answer.Error)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(answer.Result, result)
}

// has reports whether this PyTorch has a feature.
func (p *python) has(feature string) bool { return slices.Contains(p.about.Features, feature) }

// stop ends the worker. Stopping twice is no error.
func (p *python) stop() {
	p.in.Close()
	timer := time.AfterFunc(10*time.Second, func() { p.cmd.Process.Kill() })
	defer timer.Stop()
	p.cmd.Wait() // of what it says there is nothing left to tell
}

// shorten leaves out the middle of a long text.
func shorten(s string, limit int) string {
	s = strings.TrimSpace(s)
	if len(s) <= limit {
		return s
	}
	return s[:limit/3] + "\n  […]\n" + s[len(s)-2*limit/3:]
}
