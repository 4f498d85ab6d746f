// Package saves tests that a state loads as it was saved: layouts, formats, options, planners,
// shared loads, and failures that leave the old checkpoint.
package saves

import (
	"testing"

	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m) }
