//go:build !linux

package convert

import "errors"

// exchange swaps two names in one step, which is only known to be possible on
// Linux.
func exchange(_, _ string) error { return errors.ErrUnsupported }
