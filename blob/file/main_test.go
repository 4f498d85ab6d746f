package file_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// childEnv names the entry of children that a copy of this test runs instead of its tests.
const childEnv = "CAIRN_BLOB_FILE_CHILD"

// children are functions for copies of this test. They get a directory.
var children = map[string]func(dir string) error{}

func TestMain(m *testing.M) {
	if run := children[os.Getenv(childEnv)]; run != nil {
		if err := run(os.Args[1]); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var errWhy = errors.New("cancelled on purpose")

// cancelledContext returns a context that was cancelled because of errWhy.
func cancelledContext(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errWhy)
	return ctx, func() { cancel(nil) }
}
