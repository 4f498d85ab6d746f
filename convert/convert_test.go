package convert_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

func TestConvertedStateIsTheSame(t *testing.T) {
	src := saved(t, 3)
	for claim, o := range map[string]*convert.Options{
		"as it is":           nil,
		"merged":             {Merge: true},
		"over more ranks":    {WorldSize: 5},
		"over one rank":      {WorldSize: 1},
		"over a mesh":        {Mesh: []int{2, 3}},
		"partly replicated":  {Mesh: []int{2, 2}, Placements: []string{"S(1),R", "*.w=R,S(-1)"}},
		"in little memory":   {Memory: 1},
		"one after another":  {Parallel: 1},
		"from a known place": {Source: src},
	} {
		t.Run(claim, func(t *testing.T) {
			dst, _ := converted(t, src, o)
			if d := cmp.Diff(digests(t, src), digests(t, dst)); d != "" {
				t.Errorf("the content differs: -source +target\n%s", d)
			}
			verify(t, dst)
			for _, n := range storagetest.Names(t, dst) {
				if strings.HasPrefix(n, ".cairn-convert/") {
					t.Errorf("%s is left of the journal", n)
				}
			}
		})
	}
}
