//go:build unix

package tcptest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Stop keeps the process from running.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	Stop(t, p.os.Pid)
}

// Signal sends a signal to the process.
func (p *Process) Signal(t testing.TB, s os.Signal) {
	t.Helper()
	if err := p.os.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// Continue lets a process go on that was stopped.
func (p *Process) Continue(t testing.TB) {
	t.Helper()
	p.Signal(t, syscall.SIGCONT)
}

// Stop keeps a process from running. When it returns, no thread of the process runs: the
// signal alone takes effect some time later.
func Stop(t testing.TB, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Minute); !stopped(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d runs five minutes after SIGSTOP", pid)
		}
	}
}

// stopped reports whether no thread of a process runs. It is true where there is no /proc.
func stopped(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is valid
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		// The state follows the name of the program.
		if _, state, _ := bytes.Cut(b[bytes.LastIndexByte(b, ')')+1:], []byte(" ")); !bytes.ContainsAny(state[:1], "TtZX") {
			return false
		}
	}
	return true
}
