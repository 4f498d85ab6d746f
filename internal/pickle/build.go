package pickle

import (
	"fmt"
	"math/big"

	"github.com/cairn-ckpt/cairn/value"
)

// builder makes values of a graph.
type builder struct {
	*Graph
	o    *DecodeOptions
	lim  Limits
	strs []any // of the strings that were used so far
	made map[Cell]made
	keys keyer
}

// made is what became of a cell. Nothing yet: the cell is being built.
type made struct {
	v    any
	cost int64 // what the value takes when it is written out in full
	done bool
}

// Value returns the value of c, as Decode does. o may be nil.
func (g *Graph) Value(c Cell, o *DecodeOptions) (any, error) {
	if o == nil {
		o = new(DecodeOptions)
	}
	b := &builder{Graph: g, o: o, lim: o.Limits.withDefaults(len(g.data)), made: map[Cell]made{}}
	b.strs = make([]any, len(g.strs))
	b.keys.budget = b.lim.Bytes
	v, _, err := b.value(c, 0)
	return v, err
}

// cellCost is what a value takes beside the bytes of a string.
const cellCost = 16

// value returns the value of c and its cost.
func (b *builder) value(c Cell, depth int) (any, int64, error) {
	switch c.Kind() {
	case None:
		return nil, cellCost, nil
	case Bool:
		return c.payload() != 0, cellCost, nil
	case Int:
		return c.payload(), cellCost, nil
	case Float:
		return b.floats[c.pos()], cellCost, nil
	case Big:
		v, err := b.bigInt(b.bigs[c.pos()])
		return v, cellCost, err
	case Str:
		p := c.pos()
		s := b.Graph.strs[p]
		if b.strs[p] == nil {
			b.strs[p] = string(b.text(s))
		}
		return b.strs[p], cellCost + int64(s.len), nil
	}
	return b.shared(c, depth)
}

func (b *builder) bigInt(s span) (any, error) {
	if int(s.len) > maxBig {
		return nil, fmt.Errorf("%w: an integer of %d bytes, at most %d", ErrLimit, s.len, maxBig)
	}
	return integer(b.big(s)), nil
}

// integer returns n in the smallest type that holds it.
func integer(n *big.Int) any {
	switch {
	case n.IsInt64():
		return n.Int64()
	case n.IsUint64():
		return n.Uint64()
	}
	return n
}

// shared returns the value of a cell that several places may share.
func (b *builder) shared(c Cell, depth int) (any, int64, error) {
	if m, ok := b.made[c]; ok {
		if !m.done {
			return nil, 0, ErrCycle
		}
		return m.v, m.cost, nil
	}
	if depth >= b.lim.Depth {
		return nil, 0, fmt.Errorf("%w: nested deeper than %d", ErrLimit, b.lim.Depth)
	}
	b.made[c] = made{}
	v, cost, err := b.container(c, depth+1)
	if err != nil {
		return nil, 0, err
	}
	b.made[c] = made{v, cost, true}
	return v, cost, nil
}

func (b *builder) container(c Cell, depth int) (any, int64, error) {
	switch c.Kind() {
	case Bytes:
		t := b.text(b.bytes[c.pos()])
		return append([]byte{}, t...), cellCost + int64(len(t)), nil
	case Global:
		g := &b.globals[c.pos()]
		o := &value.Object{Module: g.module, Name: g.name}
		return o, cellCost + int64(len(g.module)+len(g.name)), nil
	case Tuple, Ints, IntsTuple:
		l, cost, err := b.values(b.items(c), depth)
		return value.Tuple(l), cost, err
	case Size:
		l, cost, err := b.values(b.items(cellOf(Ints, c.payload())), depth)
		return &value.Object{Module: "torch", Name: "Size", Call: true, Args: value.Tuple{value.Tuple(l)}}, cost, err
	case List:
		l, cost, err := b.values(b.lists[c.pos()], depth)
		return l, cost, err
	case Dict:
		return b.dict(b.dicts[c.pos()], depth)
	case Set:
		return b.set(&b.sets[c.pos()], depth)
	case Object:
		return b.object(&b.objects[c.pos()], depth)
	case Persistent:
		return b.persistent(b.pids[c.pos()], depth)
	case State:
		return nil, 0, fmt.Errorf("%w: the state of an object that is shared", ErrUnsupported)
	}
	return b.record(c, depth)
}

// values returns the values of cells and the cost of all of them together.
func (b *builder) values(cells []Cell, depth int) ([]any, int64, error) {
	out := make([]any, len(cells))
	total := int64(cellCost)
	for i, c := range cells {
		v, cost, err := b.value(c, depth)
		if err != nil {
			return nil, 0, err
		}
		out[i] = v
		if total += cost; total > b.lim.Bytes {
			return nil, 0, fmt.Errorf("%w: more than %d bytes with every shared part written out", ErrLimit, b.lim.Bytes)
		}
	}
	return out, total, nil
}

func (b *builder) dict(cells []Cell, depth int) (any, int64, error) {
	l, cost, err := b.values(cells, depth)
	if err != nil {
		return nil, 0, err
	}
	if m, ok := stringMap(l); ok {
		return m, cost, nil
	}
	p, err := b.keys.pairs(l)
	return &value.Dict{Pairs: p}, cost, err
}

// stringMap returns keys and values as a map if all keys are strings.
func stringMap(l []any) (map[string]any, bool) {
	for i := 0; i < len(l); i += 2 {
		if _, ok := l[i].(string); !ok {
			return nil, false
		}
	}
	m := make(map[string]any, len(l)/2)
	for i := 0; i < len(l); i += 2 {
		m[l[i].(string)] = l[i+1]
	}
	return m, true
}

func (b *builder) set(s *set, depth int) (any, int64, error) {
	l, cost, err := b.values(s.items, depth)
	if err != nil {
		return nil, 0, err
	}
	l, err = b.keys.distinct(l)
	return &value.Set{Items: l, Frozen: s.frozen}, cost, err
}

func (b *builder) persistent(id Cell, depth int) (any, int64, error) {
	v, cost, err := b.value(id, depth)
	if err != nil {
		return nil, 0, err
	}
	if b.o.Persistent == nil {
		return nil, 0, fmt.Errorf("%w: nobody resolves them", ErrPersistent)
	}
	if v, err = b.o.Persistent(v); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrPersistent, err)
	}
	return v, cost, nil
}

// record returns a record as the object that it is.
func (b *builder) record(c Cell, depth int) (any, int64, error) {
	class, _ := c.Class()
	name := splitName(b.schema.classes[class].Names[0])
	o := &value.Object{Module: name[0], Name: name[1], Call: true, New: true}
	fields, _ := b.Fields(c)
	total := int64(cellCost)
	for i, f := range fields {
		if f == Unset {
			continue
		}
		v, cost, err := b.value(f, depth)
		if err != nil {
			return nil, 0, err
		}
		state, ok := o.State.(map[string]any)
		if !ok {
			state = map[string]any{}
			o.State = state
		}
		state[b.schema.classes[class].Fields[i]] = v
		total += cost + cellCost
	}
	return o, total, nil
}
