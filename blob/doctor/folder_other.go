//go:build !linux

package doctor

import (
	"context"
	"errors"
)

// statFolder returns the kind of the file system of a folder and its free bytes.
func statFolder(string) (kind string, free int64, err error) { return "", 0, errors.ErrUnsupported }

func direct(context.Context, *exam) (string, error) { return "", skip("cairn uses it on Linux only") }
