package dcpmeta

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/value"
)

// readPlanner reads the planner data: the mapping of names to paths that the
// default planners keep, or whatever else a planner kept.
func (d *decoder) readPlanner(c pickle.Cell) error {
	if isNone(c) {
		return nil
	}
	paths, ok, err := d.paths(c)
	if err != nil {
		return err
	}
	if ok {
		for name, p := range paths {
			if i, ok := d.byName[name]; ok {
				d.entries[i].Path = p
			}
		}
		return nil
	}
	v, err := d.Value(c, nil)
	if err != nil {
		return fmt.Errorf("planner_data: %w", err)
	}
	// In a list, so that bytes too are encoded as JSON.
	_, b, err := value.Encode([]any{v})
	if err != nil {
		return fmt.Errorf("planner_data: %w", err)
	}
	d.doc.Meta.PlannerData = b[1 : len(b)-1]
	return nil
}

// paths returns the mapping, or false if the planner data is something else.
func (d *decoder) paths(c pickle.Cell) (map[string]meta.Path, bool, error) {
	pairs, ok := d.Dict(c)
	if !ok {
		return nil, false, nil
	}
	out := make(map[string]meta.Path, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		name, ok, err := d.str(pairs[i], stringBytes)
		if !ok || err != nil {
			return nil, false, err
		}
		if out[name], ok, err = d.nested(pairs[i+1]); !ok || err != nil {
			return nil, false, err
		}
	}
	return out, true, nil
}

// nested returns a path: a tuple of keys and positions.
func (d *decoder) nested(c pickle.Cell) (meta.Path, bool, error) {
	list, ok := d.List(c)
	ints, isInts := d.Ints(c)
	if c.Kind() != pickle.Tuple && c.Kind() != pickle.Ints || !ok && !isInts {
		return nil, false, nil
	}
	if err := d.Charge(stringBytes * (len(list) + len(ints))); err != nil { // many names may have one path
		return nil, false, err
	}
	p := make(meta.Path, len(list)+len(ints))
	for i, n := range ints {
		if n < 0 {
			return nil, false, nil
		}
		p[i] = meta.Pos(int(n))
	}
	for i, e := range list {
		s, ok, err := d.str(e, 0)
		if err != nil {
			return nil, false, err
		}
		if ok {
			p[i] = meta.Key(s)
			continue
		}
		n, ok := e.Int()
		if !ok || n < 0 {
			return nil, false, nil
		}
		p[i] = meta.Pos(int(n))
	}
	return p, len(p) > 0, nil
}
