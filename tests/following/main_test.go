// Package following tests programs that follow the versions that another program publishes.
package following

import (
	"testing"

	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m) }
