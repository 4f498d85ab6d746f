package protocol

import (
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Parts that overlap in memory are found, in every position; neighbours do not overlap.
func TestMarkOverlaps(t *testing.T) {
	mem := make([]byte, 100)
	over := func(from, n int64) *piece {
		x := must.Get(tensor.FromBytes(tensor.Uint8, []int64{n}, mem[from:from+n]))(t)
		return &piece{to: x, direct: true}
	}
	spread := func(from, n, stride int64) *piece {
		x := must.Get(tensor.FromStrided(tensor.Uint8, []int64{n, 1}, []int64{stride, 1}, from, mem))(t)
		return &piece{to: x}
	}
	for name, c := range map[string]struct {
		parts []*piece
		want  []bool
	}{
		"neighbours":                  {[]*piece{over(10, 10), over(0, 10), over(20, 10)}, []bool{false, false, false}},
		"the same":                    {[]*piece{over(10, 10), over(10, 10)}, []bool{true, true}},
		"one byte":                    {[]*piece{over(9, 10), over(0, 10), over(19, 5)}, []bool{true, true, false}},
		"one inside of another":       {[]*piece{over(0, 50), over(10, 5), over(20, 5), over(50, 5)}, []bool{true, true, true, false}},
		"a chain":                     {[]*piece{over(0, 10), over(5, 10), over(12, 10), over(22, 3)}, []bool{true, true, true, false}},
		"none of it":                  {[]*piece{over(5, 0), over(0, 10)}, []bool{false, false}},
		"with holes":                  {[]*piece{spread(0, 5, 10), over(41, 5), over(35, 6)}, []bool{true, false, true}},
		"memory elsewhere altogether": {[]*piece{over(0, 10), {to: must.Get(tensor.New(tensor.Uint8, []int64{10}))(t)}}, []bool{false, false}},
	} {
		must.Do(t, markOverlaps(c.parts))
		var got []bool
		for _, p := range c.parts {
			got = append(got, p.common)
			if p.common && p.direct {
				t.Errorf("%s: a part of common memory is filled directly", name)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v; want %v", name, got, c.want)
		}
	}
}
