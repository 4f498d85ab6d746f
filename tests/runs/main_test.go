// Package runs tests runs: checkpoints in steps, in one place or two, with uploads to the second.
package runs

import (
	"testing"

	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m) }
