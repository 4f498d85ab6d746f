// Package jobtest makes the tensors, ranks, stores and saver processes of the tests in the
// folders beside it, which test the whole through the public API.
package jobtest

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/background/saver"
)

// Main runs the tests of a package. If a test has started this program as a saver, or for
// one of the works, it runs that instead, and the process ends.
func Main(m *testing.M, works ...func()) {
	saver.Main()
	for _, work := range works {
		work()
	}
	// With the race detector, every process that a test starts would end a second late.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	os.Setenv("XDG_CONFIG_HOME", filepath.Join(os.TempDir(), "cairn-tests")) // not the configuration of the user
	goleak.VerifyTestMain(m)
}
