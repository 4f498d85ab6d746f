package convert

import (
	"github.com/cairn-ckpt/cairn/tensor"
)

// caster says which dtype a tensor has in the target.
type caster []*rule[tensor.DType]

func parseCasts(texts []string) (caster, error) {
	var out caster
	for _, t := range texts {
		r, err := parseRule(t, tensor.LookupDType)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// dtype returns the type of the tensor of that name and type in the target.
func (c caster) dtype(name string, from tensor.DType) tensor.DType {
	to := from
	for _, r := range c {
		switch {
		case r.match == nil && from.IsFloat():
			to = r.value
		case r.match != nil && r.matches(name):
			to = r.value
		}
	}
	return to
}

// check refuses rules that matched nothing.
func (c caster) check() error {
	var ps []*pattern
	for _, r := range c {
		if r.match != nil {
			ps = append(ps, &r.pattern)
		}
	}
	return allUsed(ps)
}
