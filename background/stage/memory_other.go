//go:build !linux

package stage

import (
	"errors"
	"fmt"
	"os"
)

func mapPrivate(size int64) ([]byte, *os.File, error) { return make([]byte, size), nil, nil }

func mapShared(int64) ([]byte, *os.File, error) {
	return nil, nil, fmt.Errorf("memory shared with a saver process: %w on this system", errors.ErrUnsupported)
}

func allocate(*os.File, int64, int64) error { return nil }

// MapFile maps the file of a shared arena, which only Linux has.
func MapFile(*os.File) ([]byte, error) {
	_, _, err := mapShared(0)
	return nil, err
}

// Unmap ends the use of what MapFile returned.
func Unmap([]byte) error { return nil }

func unmap([]byte) error { return nil }

// MachineMemory returns an assumption about the memory of the machine.
func MachineMemory() int64 { return fallbackMemory }
