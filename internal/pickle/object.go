package pickle

import "strings"

// globalOp pushes a name.
func (m *machine) globalOp(op byte) error {
	var module, name string
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
		module, name = string(a), string(b)
	} else {
		if err := m.need(2); err != nil {
			return err
		}
		var ok, ok2 bool
		name, ok = m.Str(m.pop())
		module, ok2 = m.Str(m.pop())
		if !ok || !ok2 {
			return m.malformed("a name that is no string")
		}
	}
	c, err := m.newGlobal(module, name)
	if err != nil {
		return err
	}
	m.push(c)
	return m.memoizeNext()
}

// newGlobal makes a name. Names that Python moved get the one they have now.
func (m *machine) newGlobal(module, name string) (Cell, error) {
	if err := m.spend(1); err != nil {
		return 0, err
	}
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
	return at(Global, len(m.globals)-1), nil
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
		callee := items[0]
		return m.make(callee, m.newTuple(items[1:]), cellNone, false)
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
	return m.make(callee, m.newTuple(items), cellNone, false)
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
	if err := m.spend(1); err != nil {
		return err
	}
	if g.size && args.Kind() == IntsTuple && !isNew {
		m.push(cellOf(Size, args.payload()))
	} else {
		m.objects = append(m.objects, object{global: callee.pos(), isNew: isNew, args: args, kwargs: kwargs})
		m.push(at(Object, len(m.objects)-1))
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
	o := &m.objects[target.pos()]
	if o.built {
		return m.unsupported("an object with two states")
	}
	o.state, o.built = state, true
	return nil
}
