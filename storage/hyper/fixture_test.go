package hyper_test

import (
	"testing"

	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

func TestOpenFixtures(t *testing.T) {
	storagetest.RunFixtures(t, hyper.Format{}.Open, "hyper_parallel/*")
}
