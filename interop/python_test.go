//go:build interop

package interop

import (
	"bufio"
	"context"
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

	"github.com/cairn-ckpt/cairn/internal/must"
)

//go:embed py/*.py
var scripts embed.FS

// pythonDir is the Python package, with its tests.
var pythonDir = filepath.Join("..", "python")

// answerLimit is how long a call may take. The worker gives up earlier and gives the reason;
// this limit is for a silent worker.
const answerLimit = 5 * time.Minute

// about is the output of py/about.py.
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
	// target is an interpreter, or the folder of a whole system.
	target string
	// name is the name of the interpreter in a whole system.
	name string
	// dir is the folder that it works in, as this process sees it.
	dir     string
	env     []string
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan []byte
	noise   *noise
	// others are workers with other packages that cases have asked for, by their names.
	others map[string]*python
}

// start runs the worker of a target. The package in ../python is there for it to import, with the
// program. It ends with the test.
func start(t *testing.T, target, program string) *python {
	t.Helper()
	p := &python{target: target, name: "python3"}
	p.makeDir(t)
	copyScripts(t, p.dir)
	copyPackage(t, p.dir, program)
	p.env = append(os.Environ(), "PYTHONHASHSEED=0", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "USE_LIBUV=0", "OMP_NUM_THREADS=1")
	if runtime.GOOS == "linux" {
		p.env = append(p.env, "GLOO_SOCKET_IFNAME=lo")
	}
	p.run(t)
	t.Cleanup(p.stop)
	if err := p.call("about.versions", nil, 1, &p.about); err != nil {
		t.Fatalf("%s: %v", target, err)
	}
	return p
}

// run starts the worker, which imports these modules once. It ends with stop.
func (p *python) run(t *testing.T, modules ...string) {
	t.Helper()
	p.answers, p.noise = make(chan []byte, 1), new(noise)
	p.cmd = p.command(context.Background(), append([]string{filepath.Join("py", "worker.py")}, modules...)...)
	p.cmd.WaitDelay = 5 * time.Second // for ranks that outlive the worker
	p.cmd.Stderr = p.noise
	in := must.Get(p.cmd.StdinPipe())(t)
	out := must.Get(p.cmd.StdoutPipe())(t)
	must.Do(t, p.cmd.Start())
	p.in = in
	go p.listen(out)
}

// frameworks returns a worker with Lightning and transformers, in the same folder. In a
// whole system, setup has installed them beside its own packages.
func (p *python) frameworks(t *testing.T) *python {
	t.Helper()
	return p.other(t, "frameworks", "/opt/frameworks/bin/python", nil, "lightning.pytorch", "accelerate", "transformers.trainer")
}

// vllm returns a worker with vLLM, which interop/serving has installed.
func (p *python) vllm(t *testing.T) *python {
	t.Helper()
	return p.other(t, "vllm", "/opt/serving/bin/python", nil, "with_vllm")
}

// sglang returns a worker with SGLang, which interop/serving has installed.
func (p *python) sglang(t *testing.T) *python {
	t.Helper()
	return p.other(t, "sglang", "/opt/serving/bin/python", []string{"PYTHONPATH=/opt/serving/sglang:/opt/serving/triton"}, "with_sglang")
}

// beside returns a worker with a framework that interop/beside has installed. It also has Lightning
// and transformers, and imports modules once.
func (p *python) beside(t *testing.T, name string, modules ...string) *python {
	t.Helper()
	return p.other(t, name, "/opt/frameworks/bin/python", []string{"PYTHONPATH=/opt/" + name}, modules...)
}

// other returns another worker in the same folder. name is its name, interpreter the one
// that it has in a whole system, env is added to its environment, and it imports modules once.
func (p *python) other(t *testing.T, name, interpreter string, env []string, modules ...string) *python {
	t.Helper()
	if p.others[name] == nil {
		o := &python{about: p.about, target: p.target, name: interpreter, dir: p.dir, env: append(slices.Clone(p.env), env...)}
		o.run(t, modules...)
		if p.others == nil {
			p.others = map[string]*python{}
		}
		p.others[name] = o
	}
	return p.others[name]
}

// makeDir makes the folder of the worker, which lies in the target's own system.
func (p *python) makeDir(t *testing.T) {
	t.Helper()
	fi, err := os.Stat(p.target)
	if err != nil {
		t.Fatal(err)
	}
	if !fi.IsDir() {
		p.dir = t.TempDir()
		return
	}
	p.dir, err = os.MkdirTemp(filepath.Join(p.target, "tmp"), "cairn-interop-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(p.dir) })
}

// command returns a command that runs Python in the worker's folder.
func (p *python) command(ctx context.Context, words ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.target, words...)
	cmd.Dir = p.dir
	if inside, err := filepath.Rel(p.target, p.dir); err == nil && filepath.IsLocal(inside) {
		enter := []string{p.target, "sh", "-c", `cd "/$0" && exec "$@"`, filepath.ToSlash(inside), p.name}
		cmd = exec.CommandContext(ctx, "./enter", append(enter, words...)...)
	}
	cmd.Env = p.env
	return cmd
}

func copyScripts(t *testing.T, dir string) {
	t.Helper()
	must.Do(t, os.CopyFS(dir, scripts))
}

// copyPackage copies the Python package and its tests with PyTorch beside the scripts, and the
// program into it.
func copyPackage(t *testing.T, dir, program string) {
	t.Helper()
	into := filepath.Join(dir, "py", "cairn")
	must.Do(t, os.CopyFS(into, os.DirFS(filepath.Join(pythonDir, "cairn"))))
	for name, from := range map[string]string{"with_torch": withTorch, "examples": filepath.Join(pythonDir, "examples")} {
		must.Do(t, os.CopyFS(filepath.Join(dir, "py", name), os.DirFS(from)))
	}
	for _, fixtures := range []string{"deepspeed-0.19", "fsdp"} { // of test_deepspeed.py and test_fsdp.py
		must.Do(t, os.CopyFS(filepath.Join(dir, "py", "with_torch", fixtures), os.DirFS(filepath.Join("..", "testdata", "fixtures", fixtures))))
	}
	due := must.Get(os.ReadFile(filepath.Join("..", "run", "testdata", "due.json")))(t) // of test_overwrite.py
	must.Do(t, os.WriteFile(filepath.Join(dir, "py", "with_torch", "due.json"), due, 0o644))
	config := must.Get(os.ReadFile(filepath.Join(pythonDir, "pyproject.toml")))(t)
	must.Do(t, os.WriteFile(filepath.Join(dir, "py", "pyproject.toml"), config, 0o644))
	b := must.Get(os.ReadFile(program))(t)
	bin := filepath.Join(into, "bin")
	must.Do(t, os.MkdirAll(bin, 0o755))
	must.Do(t, os.WriteFile(filepath.Join(bin, "cairn"), b, 0o755))
}

// listen passes on the answers of the worker, and ends with it.
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

// call has a number of ranks call a function and decodes the result of rank 0 into result. An
// error holds the tracebacks.
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
	for _, o := range p.others {
		o.stop()
	}
	p.in.Close()
	timer := time.AfterFunc(10*time.Second, func() { p.cmd.Process.Kill() })
	defer timer.Stop()
	p.cmd.Wait() // its error adds no news
}

// shorten leaves out the middle of a long text.
func shorten(s string, limit int) string {
	s = strings.TrimSpace(s)
	if len(s) <= limit {
		return s
	}
	return s[:limit/3] + "\n  […]\n" + s[len(s)-2*limit/3:]
}
