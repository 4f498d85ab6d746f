package saver

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestMain lets tests start this program as a saver.
func TestMain(m *testing.M) {
	Main()
	// With the race detector, every process that a test starts would end a second late.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	os.Setenv("XDG_CONFIG_HOME", filepath.Join(os.TempDir(), "cairn-tests")) // not the configuration of the user
	goleak.VerifyTestMain(m)
}
