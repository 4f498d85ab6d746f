//go:build unix

package must

import (
	"os"
	"syscall"
)

// AnyUser makes this process a user that file modes bind, until the test ends. It skips the test if
// such a user has no room for temporary files. The test may not run beside others.
func AnyUser(t interface {
	TB
	Cleanup(f func())
	Skip(args ...any)
}) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	Do(t, syscall.Seteuid(65534))
	t.Cleanup(func() { Do(t, syscall.Seteuid(0)) })
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		t.Skip("another user than root cannot make temporary files:", err)
	}
	Do(t, os.Remove(dir))
}
