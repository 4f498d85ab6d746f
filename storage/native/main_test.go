package native

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		saveAsChild(dir)
	}
	goleak.VerifyTestMain(m)
}
