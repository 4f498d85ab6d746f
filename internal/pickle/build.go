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
	ints []any // of the big integers that were used so far
	made map[Cell]made
	// names are the objects of the names that were used so far, and constructs
	// the functions that make values of their calls.
	names      []any
	constructs map[int32]Construct
	keys       keyer
}

// made is what became of a cell. Nothing yet: the cell is being built.
type made struct {
	v    any
	cost int64 // what the value takes when it is written out in full
	done bool
}

// Value returns the value of c, as Decode does. o may be nil, and its limits
// other than Depth and Bytes are those of Parse: all calls together keep to them.
func (g *Graph) Value(c Cell, o *DecodeOptions) (any, error) {
	if o == nil {
		o = new(DecodeOptions)
	}
	if err := g.charge(anyBytes * (len(g.strs) + len(g.bigs) + len(g.globals))); err != nil {
		return nil, err
	}
	b := &builder{
		Graph: g, o: o, lim: o.Limits.withDefaults(len(g.data)), made: map[Cell]made{}, constructs: map[int32]Construct{},
		strs: make([]any, len(g.strs)), ints: make([]any, len(g.bigs)), names: make([]any, len(g.globals)),
		keys: keyer{account: &g.account},
	}
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
		return c.payload(), cellCost, b.charge(cellBytes)
	case Float:
		return b.floats[c.pos()], cellCost, b.charge(cellBytes)
	case Big:
		v, err := b.bigInt(c.pos())
		return v, cellCost, err
	case Str:
		return b.str(c.pos())
	case Global:
		g := &b.globals[c.pos()]
		if b.names[c.pos()] == nil {
			b.names[c.pos()] = &value.Object{Module: g.module, Name: g.name}
		}
		return b.names[c.pos()], cellCost + int64(len(g.module)+len(g.name)), b.tooDeep(depth)
	}
	if err := b.tooDeep(depth); err != nil {
		return nil, 0, err
	}
	if _, ok := b.Graph.shared[c]; !ok && b.Graph.shared != nil {
		return b.container(c, depth+1)
	}
	return b.shared(c, depth)
}

func (b *builder) tooDeep(depth int) error {
	if depth >= b.lim.Depth {
		return fmt.Errorf("%w: nested deeper than %d", ErrLimit, b.lim.Depth)
	}
	return nil
}

func (b *builder) str(p int) (any, int64, error) {
	s := b.Graph.strs[p]
	cost := cellCost + int64(s.len)
	if b.strs[p] != nil {
		return b.strs[p], cost, nil
	}
	if err := b.charge(anyBytes + int(s.len)); err != nil {
		return nil, 0, err
	}
	b.strs[p] = string(b.text(s))
	return b.strs[p], cost, nil
}

func (b *builder) bigInt(p int) (any, error) {
	if b.ints[p] != nil {
		return b.ints[p], nil
	}
	s := b.bigs[p]
	if int(s.len) > maxBig {
		return nil, fmt.Errorf("%w: an integer of %d bytes, at most %d", ErrLimit, s.len, maxBig)
	}
	if err := b.charge(boxBytes + 4*int(s.len)); err != nil {
		return nil, err
	}
	b.ints[p] = integer(b.big(s))
	return b.ints[p], nil
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
	if err := b.charge(madeBytes); err != nil {
		return nil, 0, err
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
		if err := b.charge(boxBytes + len(t)); err != nil {
			return nil, 0, err
		}
		return append([]byte{}, t...), cellCost + int64(len(t)), nil
	case Tuple, Ints, IntsTuple:
		l, cost, err := b.values(b.items(c), depth)
		return value.Tuple(l), cost, err
	case Size:
		l, cost, err := b.values(b.items(cellOf(Ints, c.payload())), depth)
		if err == nil {
			err = b.charge(valueObject + anyBytes + boxBytes)
		}
		return &value.Object{Module: "torch", Name: "Size", Call: true, Args: value.Tuple{value.Tuple(l)}}, cost, err
	case List:
		items, _ := b.List(c)
		if len(items) == 0 {
			return emptyList, cellCost, nil
		}
		l, cost, err := b.values(items, depth)
		return l, cost, err
	case Dict:
		items, _ := b.Dict(c)
		return b.dict(items, depth)
	case Set:
		return b.set(b.seqs.ptr(c.pos()), depth)
	case Object:
		return b.object(b.Graph.objects.ptr(c.pos()), depth)
	case Persistent:
		return b.persistent(b.pids[c.pos()], depth)
	case State:
		return nil, 0, fmt.Errorf("%w: the state of an object that is shared", ErrUnsupported)
	}
	return b.record(c, depth)
}

// emptyList is every empty list: empty lists have no memory by which two of them
// could differ.
var emptyList any = []any{}

// values returns the values of cells and the cost of all of them together.
func (b *builder) values(cells []Cell, depth int) ([]any, int64, error) {
	if err := b.charge(boxBytes + anyBytes*len(cells)); err != nil {
		return nil, 0, err
	}
	out := make([]any, len(cells))
	total := int64(cellCost)
	for i, c := range cells {
		v, cost, err := b.value(c, depth)
		if err != nil {
			return nil, 0, err
		}
		out[i] = v
		if total += cost; total > b.lim.Bytes {
			return nil, 0, b.tooLarge()
		}
	}
	return out, total, nil
}

func (b *builder) tooLarge() error {
	return fmt.Errorf("%w: more than %d bytes with every shared part written out", ErrLimit, b.lim.Bytes)
}

func (b *builder) dict(cells []Cell, depth int) (any, int64, error) {
	for i := 0; i < len(cells); i += 2 {
		if cells[i].Kind() != Str {
			return b.anyDict(cells, depth)
		}
	}
	if err := b.charge(mapBytes(len(cells) / 2)); err != nil {
		return nil, 0, err
	}
	m := make(map[string]any, len(cells)/2)
	total := int64(cellCost)
	for i := 0; i < len(cells); i += 2 {
		k, more, err := b.value(cells[i], depth)
		if err != nil {
			return nil, 0, err
		}
		v, cost, err := b.value(cells[i+1], depth)
		if err != nil {
			return nil, 0, err
		}
		m[k.(string)] = v
		if total += more + cost; total > b.lim.Bytes {
			return nil, 0, b.tooLarge()
		}
	}
	return m, total, nil
}

// anyDict returns a dict whose keys are not written as strings. A caller's function
// may still make strings of them.
func (b *builder) anyDict(cells []Cell, depth int) (any, int64, error) {
	l, cost, err := b.values(cells, depth)
	if err != nil {
		return nil, 0, err
	}
	if m, ok := stringMap(l); ok {
		return m, cost, b.charge(mapBytes(len(m)))
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

func (b *builder) set(s *seq, depth int) (any, int64, error) {
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
		return nil, 0, fmt.Errorf("%w: nothing resolves it", ErrPersistent)
	}
	if err := b.charge(foreign); err != nil {
		return nil, 0, err
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
	if err := b.charge(valueObject + mapBytes(len(fields))); err != nil {
		return nil, 0, err
	}
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
