package native

import (
	"fmt"
	"runtime/debug"
)

// guarded returns fn with its panics as errors. Goroutines of ours call stores
// and callbacks of the caller's: a panic there would end the process, and leave
// the other ranks waiting.
func guarded(fn func() error) func() error {
	return func() (err error) {
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		return fn()
	}
}
