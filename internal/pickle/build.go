package pickle

import (
	"math/big"

	"github.com/cairn-ckpt/cairn/value"
)

// builder builds the Go values of the cells of a graph. Its methods panic with a
// failure if there is no such value.
type builder struct {
	*Graph
	o    *DecodeOptions
	lim  Limits
	strs []any // by number of the string; nil if not built yet
	ints []any // by number of the big integer; nil if not built yet
	made map[Cell]made
	// names has the objects of the globals, and constructs the functions that
	// build the results of their calls; both are filled when first used.
	names      []any
	constructs map[int32]Construct
	keys       keyer
	ordered    int // from this depth on, dicts keep the order of their keys; zero: none do
}

// made is the result of building a cell. It is zero while the cell is being
// built.
type made struct {
	v    any
	cost int64 // bytes of the value if shared parts are copied; see Limits.Bytes
	done bool
}

// Value returns the value of c, like Decode. o may be nil. Only the limits Depth
// and Bytes of o count: all calls share the memory limit of Parse.
func (g *Graph) Value(c Cell, o *DecodeOptions) (v any, err error) {
	defer Catch(&err)
	if o == nil {
		o = new(DecodeOptions)
	}
	g.charge(anyBytes * (len(g.strs) + len(g.bigs) + len(g.globals)))
	b := &builder{
		Graph: g, o: o, lim: o.Limits.withDefaults(len(g.data)), made: map[Cell]made{}, constructs: map[int32]Construct{},
		strs: make([]any, len(g.strs)), ints: make([]any, len(g.bigs)), names: make([]any, len(g.globals)),
		keys: keyer{account: &g.account},
	}
	v, _ = b.value(c, 0)
	return v, nil
}

// cellCost is the cost of a value in addition to the bytes of a string.
const cellCost = 16

// value returns the value of c and its cost.
func (b *builder) value(c Cell, depth int) (any, int64) {
	switch c.Kind() {
	case None:
		return nil, cellCost
	case Bool:
		return c.payload() != 0, cellCost
	case Int:
		b.charge(cellBytes)
		return c.payload(), cellCost
	case Float:
		b.charge(cellBytes)
		return b.floats[c.pos()], cellCost
	case Big:
		return b.bigInt(c.pos()), cellCost
	case Str:
		return b.str(c.pos())
	case Variable:
		x := b.varying[c.pos()]
		s, _ := x.Value.(string)
		return x, cellCost + int64(len(s))
	}
	if depth >= b.lim.Depth {
		Fail("%w: nested deeper than %d", ErrLimit, b.lim.Depth)
	}
	if c.Kind() == Global {
		g := &b.globals[c.pos()]
		if b.names[c.pos()] == nil {
			b.names[c.pos()] = &value.Object{Module: g.module, Name: g.name}
		}
		return b.names[c.pos()], cellCost + int64(len(g.module)+len(g.name))
	}
	if _, ok := b.Graph.shared[c]; !ok && b.Graph.shared != nil {
		return b.container(c, depth+1)
	}
	return b.shared(c, depth)
}

func (b *builder) str(p int) (any, int64) {
	s := b.Graph.strs[p]
	if b.strs[p] == nil {
		b.charge(anyBytes + int(s.len))
		b.strs[p] = string(b.text(s))
	}
	return b.strs[p], cellCost + int64(s.len)
}

func (b *builder) bigInt(p int) any {
	if b.ints[p] != nil {
		return b.ints[p]
	}
	s := b.bigs[p]
	if int(s.len) > maxBig {
		Fail("%w: an integer of %d bytes, at most %d", ErrLimit, s.len, maxBig)
	}
	b.charge(boxBytes + 4*int(s.len))
	b.ints[p] = integer(b.big(s))
	return b.ints[p]
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

// shared returns the value of a cell that may occur several times.
func (b *builder) shared(c Cell, depth int) (any, int64) {
	if m, ok := b.made[c]; ok {
		if !m.done {
			panic(failure{ErrCycle})
		}
		return m.v, m.cost
	}
	b.charge(madeBytes)
	b.made[c] = made{}
	v, cost := b.container(c, depth+1)
	b.made[c] = made{v, cost, true}
	return v, cost
}

func (b *builder) container(c Cell, depth int) (any, int64) {
	switch c.Kind() {
	case Bytes:
		t := b.text(b.bytes[c.pos()])
		b.charge(boxBytes + len(t))
		return append([]byte{}, t...), cellCost + int64(len(t))
	case Tuple, Ints, IntsTuple:
		l, cost := b.values(b.items(c), depth)
		return value.Tuple(l), cost
	case Size:
		l, cost := b.values(b.items(cellOf(Ints, c.payload())), depth)
		b.charge(valueObject + anyBytes + boxBytes)
		return &value.Object{Module: "torch", Name: "Size", Call: true, Args: value.Tuple{value.Tuple(l)}}, cost
	case List:
		items, _ := b.List(c)
		if len(items) == 0 {
			return emptyList, cellCost
		}
		return b.values(items, depth)
	case Dict:
		items, _ := b.Dict(c)
		return b.dict(items, depth)
	case Set:
		s := b.seqs.ptr(c.pos())
		l, cost := b.values(s.items, depth)
		return &value.Set{Items: b.keys.distinct(l), Frozen: s.frozen}, cost
	case Object:
		return b.object(b.Graph.objects.ptr(c.pos()), depth)
	case Persistent:
		return b.persistent(b.pids[c.pos()], depth)
	case State:
		Fail("%w: the state of an object that is shared", ErrUnsupported)
	}
	return b.record(c, depth)
}

// emptyList is used for all empty lists, which cannot be told apart.
var emptyList any = []any{}

// values returns the values of cells and their total cost.
func (b *builder) values(cells []Cell, depth int) ([]any, int64) {
	b.charge(boxBytes + anyBytes*len(cells))
	out := make([]any, len(cells))
	total := int64(cellCost)
	for i, c := range cells {
		v, cost := b.value(c, depth)
		out[i] = v
		total += cost
		b.bound(total)
	}
	return out, total
}

// bound fails if the cost of a value exceeds the limit.
func (b *builder) bound(cost int64) {
	if cost > b.lim.Bytes {
		Fail("%w: more than %d bytes if every shared part is copied", ErrLimit, b.lim.Bytes)
	}
}

func (b *builder) dict(cells []Cell, depth int) (any, int64) {
	l, cost := b.values(cells, depth)
	for i := 0; i < len(l); i += 2 {
		l[i] = Fix(l[i])
	}
	for i := 0; i < len(l); i += 2 {
		if _, ok := l[i].(string); !ok {
			return &value.Dict{Pairs: b.keys.pairs(l)}, cost
		}
	}
	if b.ordered > 0 && depth >= b.ordered && !sortedKeys(l) {
		return &value.Dict{Pairs: b.keys.pairs(l)}, cost
	}
	b.charge(mapBytes(len(l) / 2))
	m := make(map[string]any, len(l)/2)
	for i := 0; i < len(l); i += 2 {
		m[l[i].(string)] = l[i+1]
	}
	b.refund(anyBytes * len(l)) // l is garbage
	return m, cost
}

// sortedKeys reports whether the keys of a dict, every second of l, are sorted strings.
func sortedKeys(l []any) bool {
	for i := 2; i < len(l); i += 2 {
		if l[i].(string) < l[i-2].(string) {
			return false
		}
	}
	return true
}

func (b *builder) persistent(id Cell, depth int) (any, int64) {
	v, cost := b.value(id, depth)
	if b.o.Persistent == nil {
		Fail("%w: there is no resolver for it", ErrPersistent)
	}
	b.charge(foreign)
	v, err := b.o.Persistent(v)
	if err != nil {
		Fail("%w: %w", ErrPersistent, err)
	}
	return v, cost
}

func (b *builder) record(c Cell, depth int) (any, int64) {
	class, _ := c.Class()
	name := splitName(b.schema.classes[class].Names[0])
	o := &value.Object{Module: name[0], Name: name[1], Call: true, New: true}
	fields, _ := b.Fields(c)
	b.charge(valueObject + mapBytes(len(fields)))
	total := int64(cellCost)
	state := map[string]any{}
	for i, f := range fields {
		if f == Unset {
			continue
		}
		v, cost := b.value(f, depth)
		state[b.schema.classes[class].Fields[i]] = v
		total += cost + cellCost
	}
	if len(state) > 0 {
		o.State = state
	}
	return o, total
}

// object returns the result of a call: the value that the caller's function
// returns, a plain value, or an inert object.
func (b *builder) object(n *object, depth int) (any, int64) {
	g := &b.globals[n.global]
	o := &value.Object{Module: g.module, Name: g.name, Call: true, New: n.isNew}
	b.charge(valueObject)
	cost := b.arguments(o, n, depth)
	redirect(o)
	if f := b.constructOf(o, n.global); f != nil {
		v := b.construct(f, o, n)
		b.refund(valueObject)
		return v, cost
	}
	cost += b.contents(o, n, depth)
	b.bound(cost)
	v := b.normal(o)
	if v != any(o) {
		b.refund(valueObject)
	}
	return v, cost
}

// constructOf returns the caller's function for calls of the name global, or nil.
func (b *builder) constructOf(o *value.Object, global int32) Construct {
	if g := &b.globals[global]; o.Module != g.module || o.Name != g.name {
		b.charge(len(o.Module) + len(o.Name))
		return b.o.Construct[o.QualifiedName()]
	}
	f, ok := b.constructs[global]
	if !ok {
		f = b.o.Construct[o.QualifiedName()]
		b.constructs[global] = f
	}
	return f
}

func (b *builder) construct(f Construct, o *value.Object, n *object) any {
	if n.more != nil || n.built && n.state != cellNone {
		Fail("%w: %s with a state of its own", ErrUnsupported, o.QualifiedName())
	}
	b.charge(foreign)
	v, err := f(o.Args, o.Kwargs)
	if err != nil {
		Fail("%s: %w", o.QualifiedName(), err)
	}
	return v
}

// arguments sets the arguments of o and returns their cost.
func (b *builder) arguments(o *value.Object, n *object, depth int) int64 {
	args, cost := b.value(n.args, depth)
	if t := args.(value.Tuple); len(t) > 0 {
		o.Args = t
	}
	if n.kwargs == cellNone {
		return cost
	}
	kw, more := b.value(n.kwargs, depth)
	m, ok := kw.(map[string]any)
	if !ok {
		Fail("%w: %s called with argument names that are not strings", ErrMalformed, o.QualifiedName())
	}
	if len(m) > 0 {
		o.Kwargs = m
	}
	return cost + more
}

// contents sets the state and the items that o received after the call, and
// returns their cost.
func (b *builder) contents(o *value.Object, n *object, depth int) (total int64) {
	var cost int64
	if n.built {
		around := b.ordered
		b.ordered = depth + 2 // the state is at depth+1
		if n.state.Kind() == Tuple {
			b.ordered++ // it may consist of two dicts of attributes: see value.Object.Attributes
		}
		o.State, total = b.value(n.state, depth)
		b.ordered = around
	}
	if n.more != nil && n.more.items != nil {
		o.Items, cost = b.values(n.more.items, depth)
		total += cost
	}
	if n.more != nil && n.more.pairs != nil {
		pairs, cost := b.values(n.more.pairs, depth)
		o.Pairs = b.keys.pairs(pairs)
		total += cost
	}
	return total
}

// redirect replaces a call of a helper function that only creates an object of a
// class by that object.
func redirect(o *value.Object) {
	if o.Module != "copyreg" || o.New || len(o.Args) == 0 {
		return
	}
	class, ok := o.Args[0].(*value.Object)
	if !ok || class.Call {
		return
	}
	switch {
	case o.Name == "__newobj__":
		o.Args = o.Args[1:]
	case o.Name == "__newobj_ex__" && len(o.Args) == 3:
		args, ok := o.Args[1].(value.Tuple)
		kwargs, ok2 := o.Args[2].(map[string]any)
		if !ok || !ok2 {
			return
		}
		o.Args, o.Kwargs = args, kwargs
	case o.Name == "_reconstructor" && len(o.Args) == 3 && isName(o.Args[1], "builtins", "object") && o.Args[2] == nil:
		o.Args = nil
	default:
		return
	}
	o.Module, o.Name, o.New = class.Module, class.Name, true
	if len(o.Args) == 0 {
		o.Args = nil
	}
	if len(o.Kwargs) == 0 {
		o.Kwargs = nil
	}
}

// isName reports whether v is the object of that name.
func isName(v any, module, name string) bool {
	o, ok := v.(*value.Object)
	return ok && !o.Call && o.Module == module && o.Name == name
}
