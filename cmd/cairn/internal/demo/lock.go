package demo

import (
	"fmt"
	"os"
)

// lockPlace keeps other demos off a directory until unlock is called, or this
// process ends: each would take what the other writes for leftovers, and that for
// a fault. It does nothing where dir is empty, or the system or the file system has
// no locks.
func lockPlace(dir string) (unlock func(), err error) {
	if dir == "" {
		return func() {}, nil
	}
	for {
		f, err := openPlace(dir)
		if err != nil {
			return nil, err
		}
		if isBusy(f) {
			f.Close()
			return nil, fmt.Errorf("another demo is at work in %s: %w", dir, ErrTaken)
		}
		if isStill(f, dir) {
			return func() { f.Close() }, nil
		}
		f.Close() // whoever had it has removed it since
	}
}

// openPlace opens a directory, which it makes if need be.
func openPlace(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	return os.Open(dir)
}

// isStill reports whether f is what is at path.
func isStill(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(mine, there)
}
