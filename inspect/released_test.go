package inspect_test

import (
	"testing"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// released has the digest of a checkpoint that each release wrote, by "cairn demo --size
// 64KiB --ranks 4". Every later version reads these checkpoints. They are never written again.
var released = map[string]string{
	"0.1.0": "766585ad26f643604559fef768af2f5d922c123d6ed21b1256b6e05fd9e0eea2",
}

func TestCheckpointsOfReleasesAreRead(t *testing.T) {
	for version, want := range released {
		c, md := open(t, must.Get(file.Open("testdata/released/"+version, nil))(t))
		if rep, err := c.Verify(t.Context(), nil); err != nil || rep.Chunks == 0 {
			t.Errorf("%s: Verify = %+v, %v", version, rep, err)
		}
		digests := must.Get(inspect.Digests(t.Context(), c, inspect.Select(md), nil))(t)
		if got := inspect.Combine(digests); got != want {
			t.Errorf("%s: the digest is %s; want %s", version, got, want)
		}
	}
}
