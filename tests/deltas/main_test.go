// Package deltas tests saves that refer to the bytes of earlier checkpoints: chains, their
// removal, flattening and damage, and the bounds of runs that make them.
package deltas

import (
	"testing"

	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m) }
