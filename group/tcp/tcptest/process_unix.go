//go:build unix

package tcptest

import (
	"syscall"
	"testing"
)

// Stop keeps the process from running.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
}

// Continue lets a process go on that was stopped.
func (p *Process) Continue(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGCONT)
}

func (p *Process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.os.Signal(s); err != nil {
		t.Fatal(err)
	}
}
