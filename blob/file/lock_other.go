//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package file

import (
	"errors"
	"os"
)

// lockFile fails: this system has no locks that package file uses.
func lockFile(string, []byte) (*os.File, error) { return nil, errors.ErrUnsupported }

func unlockFile(f *os.File, _ string) error { return f.Close() }

func leaveFile(f *os.File) error { return f.Close() }

func lock(*os.File) error { return errors.ErrUnsupported }

func probe(*os.File) error { return errors.ErrUnsupported }
