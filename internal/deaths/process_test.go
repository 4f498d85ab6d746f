//go:build unix

package deaths

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// process is a rank that carries orders out.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// start starts a process, which ends with the test.
func start(t *testing.T) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), rankVariable+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &process{cmd, in, bufio.NewScanner(out)}
}

func (p *process) order(t *testing.T, o order) {
	t.Helper()
	if err := json.NewEncoder(p.in).Encode(o); err != nil {
		t.Fatal(err)
	}
}

// outcome returns what the process says of its order. False: it has ended.
func (p *process) outcome(t *testing.T) (outcome, bool) {
	t.Helper()
	var out outcome
	if !p.out.Scan() {
		return out, false
	}
	if err := json.Unmarshal(p.out.Bytes(), &out); err != nil {
		t.Fatalf("outcome %q: %v", p.out.Text(), err)
	}
	return out, true
}

// goOn lets a process that has stopped itself go on.
func (p *process) goOn(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}
