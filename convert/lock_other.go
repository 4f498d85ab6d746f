//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package convert

import (
	"errors"
	"os"
)

// lockFile knows no locks here.
func lockFile(string) (*os.File, error) { return nil, errors.ErrUnsupported }

func unlockFile(f *os.File, _ string) error { return f.Close() }
