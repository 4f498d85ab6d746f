package demo

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestContentIsIndependentOfOffset(t *testing.T) {
	c := newContent("a", 1, weightLook)
	whole := make([]byte, 100)
	c.fill(whole, 0)
	for lo := range whole {
		for hi := lo; hi <= len(whole); hi++ {
			p := make([]byte, hi-lo)
			c.fill(p, int64(lo))
			if !bytes.Equal(p, whole[lo:hi]) {
				t.Fatalf("fill of [%d, %d) differs from that of the whole", lo, hi)
			}
		}
	}
	for _, other := range []content{newContent("b", 1, weightLook), newContent("a", 2, weightLook)} {
		p := make([]byte, 100)
		other.fill(p, 0)
		if bytes.Equal(p, whole) {
			t.Errorf("another name or step has the same content")
		}
	}
}

func TestPartsCoverTensor(t *testing.T) {
	s := &spec{path: meta.Path{meta.Key("x")}, dtype: tensor.BFloat16, shape: []int64{7, 3, 5}, look: weightLook}
	want := make([]byte, 7*3*5*2)
	newContent("x", 9, weightLook).fill(want, 0)
	grid := shard.Placed{Mesh: shard.Mesh{Shape: []int{2, 2}}, Placements: []shard.Placement{shard.Shard(0), shard.Shard(2)}}
	for _, l := range []shard.Layout{nil, grid, shard.FlatEven(4)} {
		got, err := tensor.New(s.dtype, s.shape)
		if err != nil {
			t.Fatal(err)
		}
		for rank := range 4 {
			part, err := newPart(s, l, rank)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fillPart(s, part, 9); err != nil {
				t.Fatal(err)
			}
			if _, err := comparePart(s, part, 9); err != nil {
				t.Errorf("layout %v, rank %d: %v", l, rank, err)
			}
			if _, err := comparePart(s, part, 8); !errors.Is(err, ErrWrong) {
				t.Errorf("layout %v, rank %d: compared with another step = %v; want ErrWrong", l, rank, err)
			}
			place(t, got, part)
		}
		if b, _ := got.Bytes(); !bytes.Equal(b, want) {
			t.Errorf("layout %v: the parts are not the whole", l)
		}
	}
}

// place copies the boxes of a part to their positions in whole.
func place(t *testing.T, whole *tensor.Tensor, part plan.Checkpointable) {
	t.Helper()
	for i, box := range part.Boxes() {
		src, err := part.Part(i)
		if err != nil {
			t.Fatal(err)
		}
		dst, err := whole.Narrow(box)
		if err != nil {
			t.Fatal(err)
		}
		if err := tensor.Copy(dst, src); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMeshOf(t *testing.T) {
	for ranks, want := range map[int][2]int{1: {1, 1}, 7: {1, 7}, 8: {2, 4}, 12: {3, 4}, 16: {4, 4}} {
		if got := meshOf(ranks); [2]int(got) != want {
			t.Errorf("meshOf(%d) = %v; want %v", ranks, got, want)
		}
	}
}
