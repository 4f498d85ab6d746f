package demo

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
)

// compare compares what every rank has loaded with what was saved and returns
// how many bytes of tensors that were.
func (p *play) compare(ctx context.Context, states []cairn.State) (int64, error) {
	var total atomic.Int64
	err := inproc.Run(ctx, len(states), func(_ context.Context, g group.Group) error {
		n, err := p.model.compare(states[g.Rank()], p.step, p.Watch.Moved)
		total.Add(n)
		return err
	})
	return total.Load(), err
}

// compare compares what one rank has loaded with what was saved at a step and
// returns how many bytes of tensors that were.
func (m model) compare(state cairn.State, step int64, moved func(int64)) (total int64, err error) {
	parts := map[string]any{}
	want, err := m.state(step, func(s *spec) (any, error) { return s, nil })
	if err != nil {
		return 0, err
	}
	if err := compareValues("", want, state, parts); err != nil {
		return 0, err
	}
	for fqn, s := range m.specs() {
		n, err := comparePart(s, parts[fqn], step)
		if err != nil {
			return total, err
		}
		total += n
		moved(n)
	}
	return total, nil
}

// compareValues compares the values of two states. Where want has a spec, what
// got has there is added to parts under the spec's name.
func compareValues(at string, want, got any, parts map[string]any) error {
	switch w := want.(type) {
	case *spec:
		parts[w.fqn] = got
		return nil
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%w: %s: loaded %v", ErrWrong, at, got)
		}
		for k := range w {
			if err := compareValues(at+"."+k, w[k], g[k], parts); err != nil {
				return err
			}
		}
		return nil
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%w: %s: loaded %v", ErrWrong, at, got)
		}
		for i := range w {
			if err := compareValues(fmt.Sprintf("%s.%d", at, i), w[i], g[i], parts); err != nil {
				return err
			}
		}
		return nil
	}
	if !reflect.DeepEqual(want, got) {
		return fmt.Errorf("%w: %s: loaded %v, saved %v", ErrWrong, at, got, want)
	}
	return nil
}
