package saver

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestMain lets tests start this program as a saver.
func TestMain(m *testing.M) {
	Main()
	goleak.VerifyTestMain(m)
}
