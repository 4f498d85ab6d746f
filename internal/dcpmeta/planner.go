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
	if paths, ok := d.paths(c); ok {
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

// paths returns the mapping, or false if the planner data is none.
func (d *decoder) paths(c pickle.Cell) (map[string]meta.Path, bool) {
	pairs, ok := d.Dict(c)
	if !ok {
		return nil, false
	}
	out := make(map[string]meta.Path, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		name, ok := d.Str(pairs[i])
		if !ok {
			return nil, false
		}
		if out[name], ok = d.nested(pairs[i+1]); !ok {
			return nil, false
		}
	}
	return out, true
}

// nested returns a path: a tuple of keys and positions.
func (d *decoder) nested(c pickle.Cell) (meta.Path, bool) {
	if c.Kind() != pickle.Tuple && c.Kind() != pickle.Ints {
		return nil, false
	}
	if ints, ok := d.Ints(c); ok {
		p := make(meta.Path, len(ints))
		for i, n := range ints {
			if n < 0 {
				return nil, false
			}
			p[i] = meta.Pos(int(n))
		}
		return p, len(ints) > 0
	}
	list, _ := d.List(c)
	p := make(meta.Path, len(list))
	for i, e := range list {
		if s, ok := d.Str(e); ok {
			p[i] = meta.Key(s)
			continue
		}
		n, ok := e.Int()
		if !ok || n < 0 {
			return nil, false
		}
		p[i] = meta.Pos(int(n))
	}
	return p, true
}
