package main

import (
	"math"

	"github.com/cairn-ckpt/cairn/platform/nn"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// adamw is the optimizer AdamW. It updates this rank's shares of the parameters.
type adamw struct {
	rate, decay float64
	slots       []slot
}

// slot is a parameter with the averages of its gradient and of its gradient's square,
// which are cut like the parameter.
type slot struct {
	name         string
	param        *nn.Param
	mean, square *shard.Tensor
	step         *tensor.Tensor // steps done, as PyTorch keeps it: a float32 for each parameter
}

const beta1, beta2, epsilon = 0.9, 0.999, 1e-8

// newAdamW returns the optimizer of a model. Its parameters have layouts.
func newAdamW(m *model, rate, decay float64) (*adamw, error) {
	o := &adamw{rate: rate, decay: decay}
	for name, p := range m.Params() {
		var err error
		s, like := slot{name: name, param: p}, p.Sharded()
		if s.mean, err = shard.Zeros[float32](like.Layout(), like.GlobalShape(), like.Rank()); err != nil {
			return nil, err
		}
		if s.square, err = shard.Zeros[float32](like.Layout(), like.GlobalShape(), like.Rank()); err != nil {
			return nil, err
		}
		if s.step, err = tensor.New(tensor.Float32, nil); err != nil {
			return nil, err
		}
		o.slots = append(o.slots, s)
	}
	return o, nil
}

// update changes the parameters by their gradients, and clears the gradients.
func (o *adamw) update() error {
	for _, s := range o.slots {
		if s.param.Var().Grad() == nil {
			continue
		}
		var v [5][]float32
		for i, t := range []*tensor.Tensor{s.param.Local(), s.param.Var().Grad(), s.mean.Local(), s.square.Local(), s.step} {
			var err error
			if v[i], err = tensor.Values[float32](t); err != nil {
				return err
			}
		}
		w, grad, mean, square, step := v[0], v[1], v[2], v[3], v[4]
		step[0]++
		fix1 := 1 - math.Pow(beta1, float64(step[0]))
		fix2 := math.Sqrt(1 - math.Pow(beta2, float64(step[0])))
		for i, d := range grad {
			mean[i] += (d - mean[i]) * (1 - beta1)
			square[i] = square[i]*beta2 + d*d*(1-beta2)
			w[i] *= float32(1 - o.rate*o.decay)
			w[i] -= float32(o.rate/fix1) * mean[i] / (float32(math.Sqrt(float64(square[i]))/fix2) + epsilon)
		}
		s.param.Var().SetGrad(nil)
	}
	return nil
}

// State returns the optimizer's state under the names that PyTorch gives it. With LoadState
// it makes the optimizer a cairn.Stateful, which is saved as a part of a state.
func (o *adamw) State() (map[string]any, error) {
	state := map[string]any{}
	for _, s := range o.slots {
		state[s.name] = map[string]any{"exp_avg": s.mean, "exp_avg_sq": s.square, "step": s.step}
	}
	return map[string]any{"state": state}, nil
}

// LoadState does nothing: a load fills the tensors of State in place.
func (o *adamw) LoadState(map[string]any) error { return nil }
