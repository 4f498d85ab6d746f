//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package demo

import (
	"errors"
	"os"
	"syscall"
)

// isBusy takes the lock of a directory, and reports whether somebody else has it.
func isBusy(f *os.File) bool {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return errors.Is(err, syscall.EWOULDBLOCK)
		}
	}
}
