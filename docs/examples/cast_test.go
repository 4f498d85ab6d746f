package examples

import (
	"context"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// halved saves float32 tensors as bfloat16.
type halved struct{ plan.DefaultSave }

// LocalPlan announces the dtype that Resolve will deliver. It changes copies: of
// the plan, of its items, and of the Info that the items of one name share.
func (h *halved) LocalPlan() (*plan.SavePlan, error) {
	given, err := h.DefaultSave.LocalPlan()
	if err != nil {
		return nil, err
	}
	p := *given
	p.Items = slices.Clone(given.Items)
	clones := map[*plan.Info]*plan.Info{}
	for i := range p.Items {
		in := p.Items[i].Info
		if in.DType != tensor.Float32 {
			continue
		}
		if clones[in] == nil {
			clones[in] = in.Clone()
			clones[in].DType = tensor.BFloat16
		}
		p.Items[i].Info = clones[in]
	}
	return &p, nil
}

// Resolve may be called from several goroutines at once and more than once: it
// makes a new tensor each time and changes nothing.
func (h *halved) Resolve(it *plan.WriteItem) (plan.Data, error) {
	d, err := h.DefaultSave.Resolve(it)
	if err != nil || d.Tensor == nil || d.Tensor.DType() == it.Info.DType {
		return d, err
	}
	small, err := tensor.New(it.Info.DType, d.Tensor.Shape())
	if err != nil {
		return plan.Data{}, err
	}
	return plan.Data{Tensor: small}, tensor.Convert(small, d.Tensor, tensor.CastAny)
}

func Example_castOnSave() {
	ctx := context.Background()
	store := new(mem.Store)
	state := cairn.State{"w": floats([]int64{2}, 1.5, 3.14159), "steps": 7}
	_, err := cairn.Save(ctx, store, state, &cairn.SaveOptions{Planner: &halved{}})
	check(err)

	c, err := cairn.Open(ctx, store)
	check(err)
	defer c.Close()
	e, err := c.Entry(ctx, "w")
	check(err)
	fmt.Println("in the checkpoint:", e.Tensor.DType, e.NumBytes(), "bytes")

	w := floats([]int64{2}, 0, 0)
	_, err = cairn.Load(ctx, store, cairn.State{"w": w}, nil)
	check(err)
	fmt.Println("in the state:", values(w))
	// Output:
	// in the checkpoint: bfloat16 4 bytes
	// in the state: [1.5 3.140625]
}
