//go:build unix

package launch

import (
	"os"
	"syscall"
	"testing"
)

func TestNamesOfSignals(t *testing.T) {
	for s, want := range map[os.Signal]string{
		syscall.SIGSEGV: "SIGSEGV", syscall.SIGTERM: "SIGTERM", os.Interrupt: "SIGINT", syscall.Signal(60): "signal 60",
	} {
		if got := nameOf(s); got != want {
			t.Errorf("nameOf(%v) = %q; want %q", s, got, want)
		}
	}
	for _, s := range Passed() {
		if names[s] == "" {
			t.Errorf("%v is passed on and has no name", s)
		}
	}
}
