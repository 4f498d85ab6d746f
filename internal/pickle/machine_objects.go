package pickle

import "strings"

// tuple replaces the values from a position of the stack on by a tuple.
func (m *machine) tuple(from int) {
	m.need(len(m.stack) - from)
	c := m.newTuple(m.stack[from:])
	m.stack = m.stack[:from]
	if rest := m.data[m.pos:]; c.Kind() == Ints && len(rest) > 1 && rest[0] == opTuple1 && rest[1] == opReduce {
		if callee := m.top(); callee.Kind() == Global && m.globals[callee.pos()].size { // a shortcut: this is frequent
			m.pos += 2
			m.pop()
			c = cellOf(Size, c.payload())
		}
	}
	m.pushMemo(c)
}

func (m *machine) newTuple(items []Cell) Cell {
	if len(items) == 0 {
		return cellEmpty
	}
	m.charge(cellBytes * (1 + len(items)))
	if len(items) == 1 && items[0].Kind() == Ints {
		return cellOf(IntsTuple, items[0].payload())
	}
	for _, c := range items {
		if c.Kind() != Int {
			m.tuples = append(append(m.tuples, Cell(len(items))), items...)
			return at(Tuple, len(m.tuples)-len(items)-1)
		}
	}
	pos, s := m.ints.alloc(1 + len(items))
	s[0] = int64(len(items))
	for i, c := range items {
		s[1+i] = c.payload()
	}
	return at(Ints, pos)
}

// pushSeq pushes a list, dict or set of the items.
func (m *machine) pushSeq(kind Kind, items []Cell, frozen bool) {
	if kind == Dict && len(items)%2 != 0 {
		m.malformed("a dict with a key without a value")
	}
	m.charge(seqBytes + cellBytes*len(items))
	m.pushMemo(at(kind, m.seqs.add(seq{items: append([]Cell(nil), items...), frozen: frozen})))
}

// fill adds the values from a position of the stack on to the container below
// them. kind is the kind of container that the opcode is for.
func (m *machine) fill(kind Kind, from int) {
	m.need(len(m.stack) - from)
	items := m.stack[from:]
	m.stack = m.stack[:from]
	c := m.top()
	if kind == Dict && len(items)%2 != 0 {
		m.malformed("a key without a value")
	}
	switch k := c.Kind(); {
	case k == kind && !(kind == Set && m.seqs.ptr(c.pos()).frozen):
		s := m.seqs.ptr(c.pos())
		s.items = m.grown(s.items, items)
	case kind == Dict && k == State:
		m.setFields(recordOf(c), items)
	case kind == List && k == Object:
		o := m.contents(c)
		o.items = m.grown(o.items, items)
	case kind == Dict && k == Object:
		o := m.contents(c)
		o.pairs = m.grown(o.pairs, items)
	case kind == List:
		m.malformed("an append to a value that is not a list")
	case kind == Dict:
		m.malformed("an item set in a value that is not a dict")
	default:
		m.malformed("an addition to a value that is not a set")
	}
}

// grown returns s with the items appended.
func (m *machine) grown(s, items []Cell) []Cell {
	before := cap(s)
	s = append(room(s, len(items)), items...)
	m.charge(cellBytes * (cap(s) - before))
	return s
}

// contents returns the contents of an object, for adding items.
func (m *machine) contents(c Cell) *contents {
	o := m.objects.ptr(c.pos())
	if o.more == nil {
		o.more = new(contents)
		m.charge(2 * boxBytes)
	}
	return o.more
}

// pushGlobal reads a name as two lines and pushes it.
func (m *machine) pushGlobal() {
	module, name := m.line(), m.line()
	if !validWTF8(module) || !validWTF8(name) {
		m.malformed("a name that is not UTF-8")
	}
	m.pushMemo(m.global(module, name))
}

// global returns the cell of a name. Equal names have the same cell. Names that
// Python has renamed are replaced.
func (m *machine) global(module, name []byte) Cell {
	m.charge(len(module) + len(name)) // the same long name may occur very often
	m.word = append(append(append(m.word[:0], module...), 0), name...)
	if c, ok := m.names[string(m.word)]; ok {
		return c
	}
	m.charge(2*len(m.word) + globalBytes)
	g := global{module: string(module), name: string(name), class: -1}
	if g.module == "__builtin__" && builtins2[g.name] != "" {
		g.name = builtins2[g.name]
	}
	if now, ok := renamed[g.module]; ok {
		g.module = now
	}
	if attr, ok := strings.CutPrefix(g.name, "torch."); ok && g.module == "torch._utils" && memoryFormats[attr] {
		g.module, g.name = "torch", attr
	}
	g.size = g.module == "torch" && g.name == "Size"
	if m.schema != nil {
		if i, ok := m.schema.byName[[2]string{g.module, g.name}]; ok {
			g.class = i
		}
	}
	m.globals = append(m.globals, g)
	c := at(Global, len(m.globals)-1)
	m.names[string(m.word)] = c
	return c
}

// renamed maps the modules of Python 2 and of some releases of Python 3 to their
// current names.
var renamed = map[string]string{
	"__builtin__":    "builtins",
	"copy_reg":       "copyreg",
	"pathlib._local": "pathlib",
}

// builtins2 are the built-in classes that Python 3 renamed.
var builtins2 = map[string]string{"basestring": "str", "long": "int", "unicode": "str", "xrange": "range"}

// call pushes the object of a call.
func (m *machine) call(callee, args, kwargs Cell, isNew bool) {
	if callee.Kind() == Object {
		callee = m.nested(callee)
	}
	if callee.Kind() != Global {
		m.unsupported("a call of a value that is not a name")
	}
	if k := args.Kind(); k != Tuple && k != Ints && k != IntsTuple {
		m.malformed("arguments that are not a tuple")
	}
	switch g := &m.globals[callee.pos()]; {
	case g.class >= 0:
		if !isNew || args != cellEmpty || kwargs != cellNone {
			m.unsupported("%s.%s made with arguments", g.module, g.name)
		}
		m.pushRecord(g.class)
	case g.size && args.Kind() == IntsTuple && !isNew:
		m.pushMemo(cellOf(Size, args.payload()))
	default:
		m.charge(objectBytes)
		m.pushMemo(at(Object, m.objects.add(object{global: int32(callee.pos()), isNew: isNew, args: args, kwargs: kwargs})))
	}
}

// nested returns the name of a class inside of a class, which older protocols look up with
// getattr. It returns other objects unchanged.
func (m *machine) nested(c Cell) Cell {
	o := m.objects.ptr(c.pos())
	if g := &m.globals[o.global]; g.module != "builtins" || g.name != "getattr" || o.built || o.more != nil {
		return c
	}
	args, _ := m.List(o.args)
	if len(args) != 2 || args[0].Kind() != Global {
		return c
	}
	attribute, ok := m.Text(args[1])
	if !ok {
		return c
	}
	outer := &m.globals[args[0].pos()]
	return m.global([]byte(outer.module), append([]byte(outer.name+"."), attribute...))
}

// build sets the topmost value as the state of the object below it.
func (m *machine) build() {
	state := m.pop()
	target := m.top()
	if class, ok := target.Class(); ok {
		m.buildRecord(instanceID{class, target.pos()}, state)
		return
	}
	if target.Kind() != Object {
		m.malformed("a state for a value that is not an object")
	}
	o := m.objects.ptr(target.pos())
	if o.built {
		m.unsupported("an object with two states")
	}
	o.state, o.built = state, true
}

// record identifies a record by its class and its number in that class.
type instanceID struct{ class, pos int }

// pushRecord pushes a record without fields. In every pickle of Python the next
// dict is its state, so that dict is not built: the fields are set directly.
func (m *machine) pushRecord(class int) {
	n := len(m.schema.classes[class].Fields)
	m.charge(cellBytes * n)
	pos, fields := m.records[class].alloc(n)
	for i := range fields {
		fields[i] = Unset
	}
	m.pushMemo(at(Record+Kind(class), pos))
	if n > 0 && m.pos < len(m.data) && m.data[m.pos] == opEmptyDict {
		m.pos++
		m.pushMemo(at(State, 1+pos*maxClasses+class)) // see recordOf
	}
}

// recordOf returns the record with the state c. Its class is negative if the
// state was read from the memo.
func recordOf(c Cell) instanceID {
	p := c.pos() - 1
	if p < 0 {
		return instanceID{-1, -1}
	}
	return instanceID{p % maxClasses, p / maxClasses}
}

func (m *machine) buildRecord(r instanceID, state Cell) {
	switch state.Kind() {
	case State:
		if recordOf(state) != r {
			m.unsupported("two objects with one state")
		}
	case Dict:
		pairs, _ := m.Dict(state)
		m.setFields(r, pairs)
	case Tuple, Ints, IntsTuple: // the fields in the order of the class
		values := m.items(state)
		m.charge(cellBytes * len(values)) // many records may share the state
		class := &m.schema.classes[r.class]
		if n := len(class.Fields); len(values) < n || len(values) > n && !class.Open {
			m.unsupported("%s with a state of %d values, %d expected", class.Names[0], len(values), n)
		}
		copy(m.fields(r), values)
	default:
		m.malformed("%s with a state that is neither a dict nor a tuple", m.schema.classes[r.class].Names[0])
	}
}

func (m *machine) setFields(r instanceID, pairs []Cell) {
	if r.class < 0 {
		m.unsupported("the state of an object that is shared")
	}
	m.charge(len(pairs)) // many records may share the pairs
	row := m.schema.fields[r.class]
	fields := m.fields(r)
	for i := 0; i+1 < len(pairs); i += 2 {
		if sym := m.symbol(pairs[i]); sym >= 0 && row[sym] >= 0 {
			fields[row[sym]] = pairs[i+1]
		} else if class := &m.schema.classes[r.class]; pairs[i+1] != cellNone && !class.Open {
			name, _ := m.Text(pairs[i])
			m.unsupported("%s has a field %.100q", class.Names[0], name)
		}
	}
}

// symbol returns the number of the schema's field with this name, or -1.
func (m *machine) symbol(key Cell) int32 {
	if key.Kind() != Str {
		m.malformed("a field whose name is not a string")
	}
	s := &m.strs[key.pos()]
	if s.sym == 0 {
		s.sym = -1
		if i, ok := m.schema.syms[string(m.text(*s))]; ok {
			s.sym = i + 1
		}
	}
	return max(s.sym-1, -1)
}

func (m *machine) fields(r instanceID) []Cell {
	n := len(m.schema.classes[r.class].Fields)
	return m.records[r.class].at(r.pos)[:n:n]
}
