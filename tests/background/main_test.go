// Package background tests saves that go on while training does, in goroutines and in saver
// processes. It kills, stops and pre-empts their trainers and savers.
package background

import (
	"testing"

	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m, works...) }

// works are the jobs of this program if a test has started it as a trainer.
var works []func()
