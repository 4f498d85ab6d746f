package pickle

import "strings"

// globalOp pushes a name.
func (m *machine) globalOp(op byte) error {
	var module, name []byte
	if op == opGlobal {
		a, err := m.line()
		if err != nil {
			return err
		}
		b, err := m.line()
		if err != nil {
			return err
		}
		if !validWTF8(a) || !validWTF8(b) {
			return m.malformed("a name that is no UTF-8")
		}
		module, name = a, b
	} else {
		if err := m.need(2); err != nil {
			return err
		}
		var ok, ok2 bool
		name, ok = m.Text(m.pop())
		module, ok2 = m.Text(m.pop())
		if !ok || !ok2 {
			return m.malformed("a name that is no string")
		}
	}
	c, err := m.global(module, name)
	if err != nil {
		return err
	}
	m.push(c)
	return m.memoizeNext()
}

// global returns a name, the same one for the same words.
func (m *machine) global(module, name []byte) (Cell, error) {
	if err := m.charge(len(module) + len(name)); err != nil { // which may be the same long words again
		return 0, err
	}
	m.word = append(append(append(m.word[:0], module...), 0), name...)
	if c, ok := m.names[string(m.word)]; ok {
		return c, nil
	}
	if err := m.charge(2*len(m.word) + globalBytes); err != nil {
		return 0, err
	}
	c := m.newGlobal(string(module), string(name))
	m.names[string(m.word)] = c
	return c, nil
}

// newGlobal makes a name. Names that Python moved get the one they have now.
func (m *machine) newGlobal(module, name string) Cell {
	if module == "__builtin__" && builtins2[name] != "" {
		name = builtins2[name]
	}
	if now, ok := renamed[module]; ok {
		module = now
	}
	if attr, ok := strings.CutPrefix(name, "torch."); ok && module == "torch._utils" && memoryFormats[attr] {
		module, name = "torch", attr
	}
	g := global{module: module, name: name, class: -1, size: module == "torch" && name == "Size"}
	if m.schema != nil {
		g.class = m.schema.class(module, name)
	}
	m.globals = append(m.globals, g)
	return at(Global, len(m.globals)-1)
}

// renamed are modules under the names that Python 2 and some releases of
// Python 3 have for them.
var renamed = map[string]string{
	"__builtin__":    "builtins",
	"copy_reg":       "copyreg",
	"pathlib._local": "pathlib",
}

// builtins2 are the built-in classes that have another name in Python 3.
var builtins2 = map[string]string{"basestring": "str", "long": "int", "unicode": "str", "xrange": "range"}

// call executes the opcodes that would make an object of a class.
func (m *machine) call(op byte) error {
	switch op {
	case opInst:
		return m.inst()
	case opObj:
		items, err := m.popTo()
		if err != nil {
			return err
		}
		if len(items) == 0 {
			return m.malformed("an object without a class")
		}
		return m.makeOf(items[0], items[1:])
	}
	kwargs := cellNone
	n := 2
	if op == opNewObjEx {
		n = 3
	}
	if err := m.need(n); err != nil {
		return err
	}
	if op == opNewObjEx {
		if kwargs = m.pop(); kwargs.Kind() != Dict {
			return m.malformed("named arguments that are no dict")
		}
	}
	args := m.pop()
	return m.make(m.pop(), args, kwargs, op != opReduce)
}

func (m *machine) inst() error {
	if err := m.globalOp(opGlobal); err != nil {
		return err
	}
	callee := m.pop()
	items, err := m.popTo()
	if err != nil {
		return err
	}
	return m.makeOf(callee, items)
}

// makeOf pushes the object that calling callee with the arguments would give.
func (m *machine) makeOf(callee Cell, args []Cell) error {
	t, err := m.newTuple(args)
	if err != nil {
		return err
	}
	return m.make(callee, t, cellNone, false)
}

// make pushes the object that calling callee would give.
func (m *machine) make(callee, args, kwargs Cell, isNew bool) error {
	if callee.Kind() != Global {
		return m.unsupported("a call of what is no name")
	}
	if !isTuple(args) {
		return m.malformed("arguments that are no tuple")
	}
	g := &m.globals[callee.pos()]
	if g.class >= 0 {
		if !isNew || args != cellEmpty || kwargs != cellNone {
			return m.unsupported("%s.%s made with arguments", g.module, g.name)
		}
		return m.newRecord(g.class)
	}
	if g.size && args.Kind() == IntsTuple && !isNew {
		m.push(cellOf(Size, args.payload()))
	} else {
		if err := m.charge(objectBytes); err != nil {
			return err
		}
		h, err := m.above([]Cell{args, kwargs})
		if err != nil {
			return err
		}
		o := object{global: int32(callee.pos()), isNew: isNew, args: args, kwargs: kwargs, height: int32(h)}
		m.push(at(Object, m.objects.add(o)))
	}
	return m.memoizeNext()
}

// build gives the object below the topmost value that value as its state.
func (m *machine) build() error {
	if err := m.need(2); err != nil {
		return err
	}
	state := m.pop()
	target := m.top()
	if class, ok := target.Class(); ok {
		return m.buildRecord(record{class, target.pos()}, state)
	}
	if target.Kind() != Object {
		return m.malformed("a state for what is no object")
	}
	o := m.objects.ptr(target.pos())
	if o.built {
		return m.unsupported("an object with two states")
	}
	o.state, o.built = state, true
	h, err := m.above([]Cell{state})
	o.height = max(o.height, int32(h))
	return err
}
