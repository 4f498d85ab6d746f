package segment

import (
	"bytes"
	"testing"
)

// orders has the order of eight elements in a plane, by width, as in the package comment.
var orders = map[int][8]int{
	1:  {0, 1, 2, 3, 4, 5, 6, 7},
	2:  {0, 4, 1, 5, 2, 6, 3, 7},
	4:  {0, 2, 4, 6, 1, 3, 5, 7},
	8:  {0, 1, 2, 3, 4, 5, 6, 7},
	16: {0, 1, 2, 3, 4, 5, 6, 7},
}

func TestPlanes(t *testing.T) {
	r := random(t)
	for _, width := range widths {
		for n := 1; n <= 40; n++ {
			src := noise(r, n*width)
			var mem [maxWidth][]byte
			planes := cut(&mem, make([]byte, n*width), width, n)
			split(planes, src)
			for i := range n {
				at := i
				if i < n&^7 {
					at = i&^7 + orders[width][i&7]
				}
				for k := range width {
					if planes[k][i] != src[at*width+k] {
						t.Fatalf("width %d: byte %d of plane %d of %d elements is not of element %d", width, i, k, n, at)
					}
				}
			}
			p := make([]byte, len(src))
			if merge(p, planes); !bytes.Equal(p, src) {
				t.Fatalf("width %d: merged planes of %d elements are not the elements", width, n)
			}
		}
	}
}
