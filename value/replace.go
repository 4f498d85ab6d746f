package value

import (
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Replacer copies values and replaces parts of them. A part that stands at several places, in
// one value or in several, is copied once and stays one part, unless Again is set. The copy
// shares small containers without replacements with the value, so neither may be changed. It
// is not safe for concurrent use.
type Replacer struct {
	// With is called for every part that is not a number, a string, bytes, a bool or nil, a
	// container before its contents. If it returns true, its result replaces the part, and With
	// is not called for its contents.
	//
	// at is the path from the value to the place where the part was found first.
	// It is valid during the call. Its steps are keys of dicts and positions of
	// lists, tuples and sets; in an object, they are attributes in its state,
	// names of keyword arguments, keys of its pairs, and positions of its
	// arguments and items. The parameters and buffers of a torch.nn.Module are
	// attributes of the module, as in Python. If two parts of a container have
	// the same step, the later step ends in "#2", "#3" and so on.
	With func(at []string, v any) (any, bool, error)

	// Again allows a container that stands at several places, and in which
	// something is replaced, to be visited and copied at each of its places. It
	// bounds the bytes of the paths to these parts. Beyond it such a container is
	// copied once.
	Again int64

	at       []string
	made     map[any]copied
	replaced int // how many parts were replaced
}

// copied is the copy of a container.
type copied struct {
	copy     any
	replaced bool // something in it, or all of it
}

// maxWalk bounds how deep a Replacer goes. Values of pickles are less deep.
const maxWalk = 2000

// Replace returns a copy of v with parts of it replaced. v is not changed.
func (r *Replacer) Replace(v any) (any, error) {
	if r.made == nil {
		r.made = map[any]copied{}
	}
	r.at = r.at[:0]
	return r.value(v)
}

// Refs returns the names of the tensors that v refers to, each once, in the
// order in which they are found.
func Refs(v any) []string {
	var out []string
	seen := map[string]bool{}
	r := Replacer{With: func(_ []string, v any) (any, bool, error) {
		ref, ok := v.(Ref)
		if ok && !seen[ref.FQN] {
			seen[ref.FQN] = true
			out = append(out, ref.FQN)
		}
		return v, ok, nil
	}}
	_, _ = r.Replace(v) // a value that is nested too deep cannot be encoded either
	return out
}

// listID identifies a list by its memory.
type listID struct {
	first *any
	len   int
	tuple bool
}

// identity returns a key that tells a container from others, or nil for other values and
// empty containers.
func identity(v any) any {
	switch v := v.(type) {
	case *Dict, *Set, *Object:
		return v
	case map[string]any:
		return reflect.ValueOf(v).Pointer()
	case Tuple:
		if len(v) > 0 {
			return listID{&v[0], len(v), true}
		}
	case []any:
		if len(v) > 0 {
			return listID{&v[0], len(v), false}
		}
	}
	return nil
}

// isScalar reports whether v has no parts and cannot be replaced.
func isScalar(v any) bool {
	switch v.(type) {
	case nil, bool, int64, uint64, float64, complex128, string, []byte, *big.Int:
		return true
	}
	return false
}

// isSmall reports whether v is a container of a few parts that have no parts.
func isSmall(v any) bool {
	const few = 8
	switch v := v.(type) {
	case []any:
		return len(v) <= few && !slices.ContainsFunc(v, hasParts)
	case Tuple:
		return len(v) <= few && !slices.ContainsFunc(v, hasParts)
	case *Set:
		return len(v.Items) <= few && !slices.ContainsFunc(v.Items, hasParts)
	case *Dict:
		return len(v.Pairs) <= few && !slices.ContainsFunc(v.Pairs, func(p Pair) bool { return hasParts(p.Key) || hasParts(p.Value) })
	case map[string]any:
		for _, e := range v {
			if hasParts(e) {
				return false
			}
		}
		return len(v) <= few
	}

	return false
}

func hasParts(v any) bool { return !isScalar(v) }

func (r *Replacer) value(v any) (any, error) {
	if isScalar(v) {
		return v, nil
	}
	if len(r.at) > maxWalk {
		return nil, fmt.Errorf("%w: nested deeper than %d", ErrValue, maxWalk)
	}

	return r.once(v, func() (any, bool, error) {
		out, replaced, err := r.With(r.at, v)
		if replaced {
			r.replaced++
		} else if err == nil {
			if isSmall(v) { // visiting it again takes less than remembering it
				return v, false, nil
			}
			out, err = r.copy(v, steps{})
		}

		return out, true, err
	})
}

// once returns the copy that make makes of v, or the copy that was made before. It
// remembers the copy of a container if make returns true.
func (r *Replacer) once(v any, make func() (any, bool, error)) (any, error) {
	id, before := identity(v), r.replaced
	if out, ok := r.before(id, v); ok {
		return out, nil
	}
	out, keep, err := make()
	if id != nil && keep && err == nil {
		r.made[id] = copied{out, r.replaced > before}
	}
	return out, err
}

// before returns the copy of a container that was visited before, unless the
// container must be visited again.
func (r *Replacer) before(id, v any) (any, bool) {
	p, ok := r.made[id]
	if id == nil || !ok {
		return nil, false
	}

	if p.replaced {
		r.replaced++
		const each = 32 // bytes of a step beside its text
		way := int64(each)
		for _, s := range r.at {
			way += each + int64(len(s))
		}

		if n := int64(1 + size(v)); way <= r.Again/n {
			r.Again -= way * n
			return nil, false
		}
	}

	return p.copy, true
}

// size returns how many parts a container has. The state of an object is not among
// them.
func size(v any) int {
	switch v := v.(type) {
	case map[string]any:
		return len(v)
	case []any:
		return len(v)
	case Tuple:
		return len(v)
	case *Dict:
		return len(v.Pairs)
	case *Set:
		return len(v.Items)
	case *Object:
		return len(v.Args) + len(v.Kwargs) + len(v.Items) + len(v.Pairs)
	}
	return 0
}

// copy returns a copy of a container. taken are the steps that the surrounding
// object has used already.
func (r *Replacer) copy(v any, taken steps) (any, error) {
	switch v := v.(type) {
	case map[string]any:
		return r.dict(v, taken)
	case []any:
		return r.list(v, nil)
	case Tuple:
		l, err := r.list(v, nil)
		return Tuple(l), err
	case *Dict:
		pairs, err := r.pairs(v.Pairs, taken)
		return &Dict{Pairs: pairs, Ordered: v.Ordered}, err
	case *Set:
		items, err := r.list(v.Items, nil)
		return &Set{Items: items, Frozen: v.Frozen}, err
	case *Object:
		return r.object(v)
	}
	return v, nil
}

// steps counts the parts of a container by their steps.
type steps map[string]int

// below replaces a part that is one step further. taken makes the step unique.
func (r *Replacer) below(step string, taken steps, v any) (any, error) {
	if isScalar(v) {
		return v, nil
	}

	if taken != nil {
		if taken[step]++; taken[step] > 1 {
			step += "#" + strconv.Itoa(taken[step])
		}
	}

	r.at = append(r.at, step)
	out, err := r.value(v)
	r.at = r.at[:len(r.at)-1]
	return out, err
}

func (r *Replacer) list(v []any, taken steps) (_ []any, err error) {
	if v == nil {
		return nil, nil
	}

	out := make([]any, len(v))
	for i, e := range v {
		if isScalar(e) {
			out[i] = e
		} else if out[i], err = r.below(strconv.Itoa(i), taken, e); err != nil {
			return nil, err
		}
	}

	return out, nil
}

// dict copies a map. The values of the keys in members are dicts of attributes.
func (r *Replacer) dict(v map[string]any, taken steps, members ...string) (_ map[string]any, err error) {
	if v == nil {
		return nil, nil
	}

	out := make(map[string]any, len(v))
	for _, k := range slices.Sorted(maps.Keys(v)) {
		if slices.Contains(members, k) {
			out[k], err = r.attributes(k, v[k], taken)
		} else {
			out[k], err = r.below(k, taken, v[k])
		}
		if err != nil {
			return nil, err
		}
	}

	return out, nil
}

func (r *Replacer) pairs(v []Pair, taken steps) (_ []Pair, err error) {
	if v == nil {
		return nil, nil
	}

	out := make([]Pair, len(v))
	for i, p := range v {
		if out[i].Key, err = r.below("key", taken, p.Key); err != nil {
			return nil, err
		}
		if isScalar(p.Value) {
			out[i].Value = p.Value
		} else if out[i].Value, err = r.below(keyStep(p.Key, i), taken, p.Value); err != nil {
			return nil, err
		}
	}

	return out, nil
}

// object copies an object, its attributes first, so that they keep their names if
// another part has the same step.
func (r *Replacer) object(v *Object) (_ *Object, err error) {
	out, taken := *v, steps{}
	if out.State, err = r.state(v.State, taken); err != nil {
		return nil, err
	}
	if out.Kwargs, err = r.dict(v.Kwargs, taken); err != nil {
		return nil, err
	}

	if out.Pairs, err = r.pairs(v.Pairs, taken); err != nil {
		return nil, err
	}
	if out.Args, err = r.list(v.Args, taken); err != nil {
		return nil, err
	}

	out.Items, err = r.list(v.Items, taken)
	return &out, err
}

// state copies the state of an object: a dict of attributes, or a tuple of two
// such dicts if the class has slots, or anything else.
func (r *Replacer) state(v any, taken steps) (any, error) {
	t, ok := v.(Tuple)
	if !ok || len(t) != 2 {
		return r.attributes("state", v, taken)
	}

	out := make(Tuple, len(t))
	for i := range t {
		var err error
		if out[i], err = r.attributes("state", t[i], taken); err != nil {
			return nil, err
		}
	}

	return out, nil
}

// attributes copies a dict of attributes of the surrounding object, so that the dict itself
// is not a step. Another value is, by the given name.
func (r *Replacer) attributes(step string, v any, taken steps) (any, error) {
	attrs, isMap := v.(map[string]any)
	if _, isDict := v.(*Dict); !isMap && !isDict {
		return r.below(step, taken, v)
	}

	return r.once(v, func() (any, bool, error) {
		if !isMap {
			out, err := r.copy(v, taken)
			return out, true, err
		}

		_, hasModules := attrs["_modules"]
		_, hasParameters := attrs["_parameters"]
		var members []string
		if hasModules && hasParameters { // a torch.nn.Module
			members = []string{"_parameters", "_buffers"}
		}
		out, err := r.dict(attrs, taken, members...)
		return out, true, err
	})
}

// keyStep returns the step to a key of a dict, the key at position i.
func keyStep(k any, i int) string {
	switch k := k.(type) {
	case string:
		return k
	case nil:
		return "None"
	case bool:
		if k {
			return "True"
		}
		return "False"
	case int64, uint64:
		return fmt.Sprint(k)
	case float64:
		return string(appendFloat(nil, k))
	case Tuple:
		parts := make([]string, len(k))
		for j, e := range k {
			parts[j] = keyStep(e, j)
		}
		return "(" + strings.Join(parts, ", ") + ")"
	}
	return strconv.Itoa(i)
}
