package native

import (
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestEveryTensorBeginsAtAMultipleOfItsElement(t *testing.T) {
	var items []*plan.WriteItem
	for i, d := range tensor.DTypes() {
		for range 3 {
			in := &plan.Info{FQN: d.String() + string(rune('a'+len(items)%26)), Shape: []int64{int64(2*i + 1)}}
			in.DType = d
			items = append(items, &plan.WriteItem{Info: in, Kind: plan.KindTensor, Box: tensor.Whole(in.Shape)})
		}
		value := &plan.Info{FQN: "value of " + d.String(), Codec: "raw"}
		items = append(items, &plan.WriteItem{Info: value, Kind: plan.KindBytes, Size: int64(2*i + 1)})
	}
	for _, n := range []int{1, 3} {
		for _, part := range spread(items, n, nil) {
			f := must.Get(lay("f", part, nil, &selfDescription{}))(t)
			for _, p := range f.items {
				if size := int64(max(1, elementSize(p.item))); p.offset%size != 0 {
					t.Errorf("%d files: %q begins at %d; want a multiple of %d", n, p.item.FQN(), p.offset, size)
				}
			}
		}
	}
}
