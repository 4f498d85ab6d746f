//go:build !linux || nomemfd

package stage

import (
	"errors"
	"fmt"
	"os"
)

func mapPrivate(size int64) ([]byte, *os.File, error) { return make([]byte, size), nil, nil }

// mapShared would make the memory of a trainer in Go: its background saves need Linux.
func mapShared(int64) ([]byte, *os.File, error) {
	return nil, nil, fmt.Errorf("memory shared with a saver process: %w on this system", errors.ErrUnsupported)
}

func allocate(*os.File, int64, int64) error { return nil }

func unmap([]byte) error { return nil }

// MachineMemory returns an assumption about the memory of the machine.
func MachineMemory() int64 { return fallbackMemory }
