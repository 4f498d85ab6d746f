package plan

import (
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/value"
)

// PutInside completes a state that [Rebuild] made, once it is loaded: tensors
// that values refer to, by a value.Ref, take the places of the references. A
// tensor that was inside of a value is then nowhere else in the state. A
// reference to a tensor that was not loaded stays.
func PutInside(s State, md *meta.Metadata) {
	inside, used := md.Inside(), map[string]bool{}
	r := value.Replacer{With: func(_ []string, v any) (any, bool, error) {
		ref, ok := v.(value.Ref)
		if !ok {
			return nil, false, nil
		}
		if e, found := md.Find(ref.FQN); found && e.Tensor != nil {
			path := pathOf(e)
			if _, ok := inside[e.FQN]; ok {
				path = meta.Path{meta.Key(e.FQN)}
			}
			if at := lookup(s, path); at.value != nil {
				used[e.FQN] = true
				return at.value, true, nil
			}
		}
		return v, true, nil
	}}
	for i := range md.Entries {
		e := &md.Entries[i]
		if e.Bytes == nil {
			continue
		}
		if at := lookup(s, pathOf(e)); len(value.Refs(at.value)) > 0 {
			if v, err := r.Replace(at.value); err == nil { // it was encoded, so it is not too deep
				at.set(v)
			}
		}
	}
	for fqn := range inside {
		if used[fqn] {
			delete(s, fqn)
		}
	}
}

// slot is a place in a state.
type slot struct {
	value any
	set   func(v any)
}

// lookup returns the place at a path. It has no value if the state has no such path.
func lookup(s State, path meta.Path) slot {
	out := slot{value: map[string]any(s)}
	for _, st := range path {
		switch c := out.value.(type) {
		case map[string]any:
			if st.List {
				return slot{}
			}
			out = slot{c[st.Key], func(v any) { c[st.Key] = v }}
		case []any:
			if !st.List || st.Pos >= len(c) {
				return slot{}
			}
			out = slot{c[st.Pos], func(v any) { c[st.Pos] = v }}
		default:
			return slot{}
		}
	}
	return out
}
