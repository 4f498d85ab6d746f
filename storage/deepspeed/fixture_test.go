package deepspeed_test

import (
	"testing"

	"github.com/cairn-ckpt/cairn/storage/deepspeed"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// Every checkpoint of DeepSpeed has the weights, states, names and dtypes that its own
// tools and the running engine say; testdata/expected.py has compared them.
func TestFixtures(t *testing.T) {
	storagetest.RunFixtures(t, deepspeed.Format{}.Open, "deepspeed-*/*")
}
