//go:build unix

package launch

import (
	"fmt"
	"os"
	"syscall"
)

const (
	terminate = syscall.SIGTERM
	kill      = syscall.SIGKILL
)

// Passed lists the signals that a launcher passes on.
func Passed() []os.Signal {
	return []os.Signal{
		os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	}
}

// ends reports whether a signal asks a job to end.
func ends(s os.Signal) bool { return s == syscall.SIGINT || s == syscall.SIGTERM }

// codeOf returns the exit code for a signal.
func codeOf(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return 1
}

// exitCode returns the exit code of a process, and the name of the signal that
// ended it.
func exitCode(s *os.ProcessState) (code int, signal string) {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return codeOf(ws.Signal()), nameOf(ws.Signal())
	}
	return s.ExitCode(), ""
}

// signalGroup sends a signal to the group with that number.
func signalGroup(id int, s os.Signal) {
	n, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	// The group may have ended in the meantime.
	_ = syscall.Kill(-id, n)
	if ends(s) {
		_ = syscall.Kill(-id, syscall.SIGCONT)
	}
}

// groupHeld reports whether a group has any process, including zombies: until
// then its number is not reused.
func groupHeld(id int) bool { return syscall.Kill(-id, 0) != syscall.ESRCH }

// names are the signals that every unix has.
var names = map[os.Signal]string{
	syscall.SIGABRT: "SIGABRT", syscall.SIGALRM: "SIGALRM", syscall.SIGBUS: "SIGBUS", syscall.SIGFPE: "SIGFPE",
	syscall.SIGHUP: "SIGHUP", syscall.SIGILL: "SIGILL", syscall.SIGINT: "SIGINT", syscall.SIGKILL: "SIGKILL",
	syscall.SIGPIPE: "SIGPIPE", syscall.SIGPROF: "SIGPROF", syscall.SIGQUIT: "SIGQUIT", syscall.SIGSEGV: "SIGSEGV",
	syscall.SIGSYS: "SIGSYS", syscall.SIGTERM: "SIGTERM", syscall.SIGTRAP: "SIGTRAP", syscall.SIGUSR1: "SIGUSR1",
	syscall.SIGUSR2: "SIGUSR2", syscall.SIGVTALRM: "SIGVTALRM", syscall.SIGXCPU: "SIGXCPU", syscall.SIGXFSZ: "SIGXFSZ",
}

// nameOf returns the name of a signal: "SIGTERM", or "signal 34" if it has no
// name.
func nameOf(s os.Signal) string {
	if name, ok := names[s]; ok {
		return name
	}
	if n, ok := s.(syscall.Signal); ok {
		return fmt.Sprintf("signal %d", int(n))
	}
	return s.String()
}
