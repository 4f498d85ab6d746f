package convert

import (
	"testing"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// A tensor counts once for each reference to it, because it is written each time.
func TestTensorsInsideAnObjectAreCountedEachTime(t *testing.T) {
	shape := []int64{maxInline / 3}
	j := &Job{md: &meta.Metadata{Entries: []meta.Entry{{
		FQN: "t", Tensor: &meta.Tensor{Properties: meta.Properties{DType: tensor.Uint8}, Shape: shape, Chunks: []tensor.Box{tensor.Whole(shape)}},
	}}}}
	ref := value.Ref{FQN: "t"}
	for _, c := range []struct {
		name string
		v    any
		want bool
	}{
		{"once", ref, true},
		{"three times", []any{ref, []any{ref, ref}}, true},
		{"four times", []any{ref, ref, ref, ref}, false},
		{"a tensor that is missing", value.Ref{FQN: "x"}, false},
		{"no tensor", []any{1, "a"}, true},
	} {
		if got := j.fits(c.v); got != c.want {
			t.Errorf("%s: fits = %v; want %v", c.name, got, c.want)
		}
	}
}
