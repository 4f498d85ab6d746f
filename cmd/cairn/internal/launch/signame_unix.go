//go:build unix

package launch

import (
	"fmt"
	"os"
	"syscall"
)

// names are those of the signals that end processes everywhere.
var names = map[os.Signal]string{
	syscall.SIGABRT: "SIGABRT", syscall.SIGALRM: "SIGALRM", syscall.SIGBUS: "SIGBUS", syscall.SIGFPE: "SIGFPE",
	syscall.SIGHUP: "SIGHUP", syscall.SIGILL: "SIGILL", syscall.SIGINT: "SIGINT", syscall.SIGKILL: "SIGKILL",
	syscall.SIGPIPE: "SIGPIPE", syscall.SIGPROF: "SIGPROF", syscall.SIGQUIT: "SIGQUIT", syscall.SIGSEGV: "SIGSEGV",
	syscall.SIGSYS: "SIGSYS", syscall.SIGTERM: "SIGTERM", syscall.SIGTRAP: "SIGTRAP", syscall.SIGUSR1: "SIGUSR1",
	syscall.SIGUSR2: "SIGUSR2", syscall.SIGVTALRM: "SIGVTALRM", syscall.SIGXCPU: "SIGXCPU", syscall.SIGXFSZ: "SIGXFSZ",
}

// nameOf returns the name of a signal: "SIGTERM", or "signal 34" of one that has
// none.
func nameOf(s os.Signal) string {
	if name, ok := names[s]; ok {
		return name
	}
	if n, ok := s.(syscall.Signal); ok {
		return fmt.Sprintf("signal %d", int(n))
	}
	return s.String()
}
