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
	step        *tensor.Tensor // steps done, as PyTorch keeps it: a float32
	slots       []slot
}

// slot is a parameter with the averages of its gradient and of its gradient's square,
// which are cut like the parameter.
type slot struct {
	name         string
	param        *nn.Param
	mean, square *shard.Tensor
}

const beta1, beta2, epsilon = 0.9, 0.999, 1e-8

// newAdamW returns the optimizer of a model whose parameters have layouts.
func newAdamW(m *model, rate, decay float64) (*adamw, error) {
	step, err := tensor.New(tensor.Float32, nil)
	if err != nil {
		return nil, err
	}
	o := &adamw{rate: rate, decay: decay, step: step}
	for name, p := range m.Params() {
		s, like := slot{name: name, param: p}, p.Sharded()
		if s.mean, err = shard.Zeros[float32](like.Layout(), like.GlobalShape(), like.Rank()); err != nil {
			return nil, err
		}
		if s.square, err = shard.Zeros[float32](like.Layout(), like.GlobalShape(), like.Rank()); err != nil {
			return nil, err
		}
		o.slots = append(o.slots, s)
	}
	return o, nil
}

// update changes the parameters by their gradients, and clears the gradients.
func (o *adamw) update() error {
	steps, err := tensor.Values[float32](o.step)
	if err != nil {
		return err
	}
	steps[0]++
	fix1 := 1 - math.Pow(beta1, float64(steps[0]))
	fix2 := math.Sqrt(1 - math.Pow(beta2, float64(steps[0])))
	for _, s := range o.slots {
		if s.param.Var().Grad() == nil {
			continue
		}
		var v [4][]float32
		for i, t := range []*tensor.Tensor{s.param.Local(), s.param.Var().Grad(), s.mean.Local(), s.square.Local()} {
			if v[i], err = tensor.Values[float32](t); err != nil {
				return err
			}
		}
		w, grad, mean, square := v[0], v[1], v[2], v[3]
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
		state[s.name] = map[string]any{"exp_avg": s.mean, "exp_avg_sq": s.square, "step": o.step}
	}
	return map[string]any{"state": state}, nil
}

// LoadState does nothing: a load fills the tensors of State in place.
func (o *adamw) LoadState(map[string]any) error { return nil }
