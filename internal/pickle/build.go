package pickle

import (
	"fmt"
	"math/big"

	"github.com/cairn-ckpt/cairn/value"
)

// builder builds the Go values of the cells of a graph.
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

// cellCost is the cost of a value in addition to the bytes of a string.
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

// shared returns the value of a cell that may occur several times.
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

// emptyList is used for all empty lists, which cannot be told apart.
var emptyList any = []any{}

// values returns the values of cells and their total cost.
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
	return fmt.Errorf("%w: more than %d bytes if every shared part is copied", ErrLimit, b.lim.Bytes)
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

// anyDict returns a dict whose keys are not all strings in the pickle. The
// caller's functions may turn them into strings.
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
		return nil, 0, fmt.Errorf("%w: there is no resolver for it", ErrPersistent)
	}
	if err := b.charge(foreign); err != nil {
		return nil, 0, err
	}
	if v, err = b.o.Persistent(v); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrPersistent, err)
	}
	return v, cost, nil
}

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

// object returns the result of a call: the value that the caller's function
// returns, a plain value, or an inert object.
func (b *builder) object(n *object, depth int) (any, int64, error) {
	g := &b.globals[n.global]
	o := &value.Object{Module: g.module, Name: g.name, Call: true, New: n.isNew}
	if err := b.charge(valueObject); err != nil {
		return nil, 0, err
	}
	cost, err := b.arguments(o, n, depth)
	if err != nil {
		return nil, 0, err
	}
	redirect(o)
	f, err := b.constructOf(o, n.global)
	if err != nil {
		return nil, 0, err
	}
	if f != nil {
		v, err := b.construct(f, o, n)
		b.refund(valueObject)
		return v, cost, err
	}
	more, err := b.contents(o, n, depth)
	if err != nil {
		return nil, 0, err
	}
	if cost += more; cost > b.lim.Bytes {
		return nil, 0, b.tooLarge()
	}
	v, err := b.normal(o)
	if v != any(o) {
		b.refund(valueObject)
	}
	return v, cost, err
}

// constructOf returns the caller's function for calls of the name global, or nil.
func (b *builder) constructOf(o *value.Object, global int32) (Construct, error) {
	if g := &b.globals[global]; o.Module != g.module || o.Name != g.name {
		return b.o.Construct[o.QualifiedName()], b.charge(len(o.Module) + len(o.Name))
	}
	f, ok := b.constructs[global]
	if !ok {
		f = b.o.Construct[o.QualifiedName()]
		b.constructs[global] = f
	}
	return f, nil
}

func (b *builder) construct(f Construct, o *value.Object, n *object) (any, error) {
	if n.more != nil || n.built && n.state != cellNone {
		return nil, fmt.Errorf("%w: %s with a state of its own", ErrUnsupported, o.QualifiedName())
	}
	if err := b.charge(foreign); err != nil {
		return nil, err
	}
	v, err := f(o.Args, o.Kwargs)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.QualifiedName(), err)
	}
	return v, nil
}

// arguments sets the arguments of o and returns their cost.
func (b *builder) arguments(o *value.Object, n *object, depth int) (int64, error) {
	args, cost, err := b.value(n.args, depth)
	if err != nil {
		return 0, err
	}
	if t := args.(value.Tuple); len(t) > 0 {
		o.Args = t
	}
	if n.kwargs == cellNone {
		return cost, nil
	}
	kw, more, err := b.value(n.kwargs, depth)
	if err != nil {
		return 0, err
	}
	m, ok := kw.(map[string]any)
	if !ok {
		return 0, fmt.Errorf("%w: %s called with argument names that are not strings", ErrMalformed, o.QualifiedName())
	}
	if len(m) > 0 {
		o.Kwargs = m
	}
	return cost + more, nil
}

// contents sets the state and the items that o received after the call, and
// returns their cost.
func (b *builder) contents(o *value.Object, n *object, depth int) (int64, error) {
	var total int64
	if n.built {
		v, cost, err := b.value(n.state, depth)
		if err != nil {
			return 0, err
		}
		o.State, total = v, cost
	}
	if n.more == nil {
		return total, nil
	}
	if n.more.items != nil {
		v, cost, err := b.values(n.more.items, depth)
		if err != nil {
			return 0, err
		}
		o.Items, total = v, total+cost
	}
	if n.more.pairs != nil {
		v, cost, err := b.values(n.more.pairs, depth)
		if err != nil {
			return 0, err
		}
		if o.Pairs, err = b.keys.pairs(v); err != nil {
			return 0, err
		}
		total += cost
	}
	return total, nil
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
