package tcptest

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Process is a process of the test's own program. Its methods are for one
// goroutine.
type Process struct {
	// In is the standard input of the process.
	In  io.WriteCloser
	os  *os.Process
	out *bufio.Scanner
}

// Start starts the test's own program again, with variables ("NAME=value") by which it knows
// that it is to do something else than run tests. Its standard error is the standard error of
// the test. It is killed at the end of the test.
func Start(t testing.TB, env ...string) *Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.Command(self)
	// With the race detector, the process would end a second late.
	cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), env...)
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
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // says that it was killed
	})
	return &Process{in, cmd.Process, bufio.NewScanner(out)}
}

// Line returns the next line that the process prints. False: it has ended. A process that is
// silent for a few minutes is killed.
func (p *Process) Line() (string, bool) {
	defer time.AfterFunc(3*limit, func() { _ = p.os.Kill() }).Stop() // it may have ended
	ok := p.out.Scan()
	return p.out.Text(), ok
}

// Want fails the test unless the next line is want.
func (p *Process) Want(t testing.TB, want string) {
	t.Helper()
	if got, ok := p.Line(); got != want {
		t.Fatalf("the process printed %q (ended: %v); want %q", got, !ok, want)
	}
}

// Kill ends the process without a word.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	if err := p.os.Kill(); err != nil {
		t.Fatal(err)
	}
}
