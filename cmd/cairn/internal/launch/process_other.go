//go:build !unix

package launch

import (
	"os"
	"syscall"
)

// Systems without signals can only kill.
var (
	terminate = os.Kill
	kill      = os.Kill
)

// Passed lists the signals that a launcher passes on.
func Passed() []os.Signal { return []os.Signal{os.Interrupt, syscall.SIGTERM} }

// ends reports whether a signal asks a job to end.
func ends(s os.Signal) bool { return s == os.Interrupt || s == syscall.SIGTERM }

func nameOf(s os.Signal) string {
	if s == os.Interrupt {
		return "SIGINT"
	}
	return "SIGTERM"
}

// codeOf returns the exit code for a signal.
func codeOf(s os.Signal) int {
	if s == os.Interrupt {
		return 130
	}
	return 143
}

// exitCode returns the exit code of a process, and the name of the signal that
// ended it.
func exitCode(s *os.ProcessState) (code int, signal string) { return s.ExitCode(), "" }

// ownGroup returns the attributes of a process.
func ownGroup() *syscall.SysProcAttr { return nil }

// signalGroup kills the process with that number, whatever the signal.
func signalGroup(id int, _ os.Signal) {
	if p, err := os.FindProcess(id); err == nil {
		_ = p.Kill() // it may have ended in the meantime
		_ = p.Release()
	}
}

// isEnding returns false: this system does not report that a process is ending.
func isEnding(int) bool { return false }

// A group is one process here. It has ended when it was waited for.
func groupAlive(int) bool { return false }
func groupHeld(int) bool  { return false }
