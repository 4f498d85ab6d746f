//go:build !unix

package stage

import "os"

// MapFile maps the file of a shared arena, which only Unix systems have.
func MapFile(*os.File) ([]byte, error) {
	_, _, err := mapShared(0)
	return nil, err
}

// Unmap ends the use of the memory that MapFile returned.
func Unmap([]byte) error { return nil }
