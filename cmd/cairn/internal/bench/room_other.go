//go:build !linux

package bench

import "errors"

// roomAt returns an error: the room is not known on this system.
func roomAt(string) (int64, error) { return 0, errors.ErrUnsupported }
