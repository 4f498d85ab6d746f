// Package guard keeps panics in goroutines from ending the process. It knows
// nothing of what the goroutines do. The contract is at Func.
package guard

import (
	"fmt"
	"runtime/debug"
)

// Func returns fn with its panics as errors. Goroutines of ours call stores and
// callbacks of the caller's: a panic there would end the process, and leave the
// other ranks waiting.
func Func(fn func() error) func() error {
	return func() (err error) {
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		return fn()
	}
}
