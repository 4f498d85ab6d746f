package pickle

// tupleOp makes a tuple of the topmost values.
func (m *machine) tupleOp(op byte) error {
	var from int
	if op == opTuple {
		var err error
		if from, err = m.popMark(); err != nil {
			return err
		}
	} else {
		n := int(op) - opTuple1 + 1
		if err := m.need(n); err != nil {
			return err
		}
		from = len(m.stack) - n
	}
	if err := m.spend(1); err != nil {
		return err
	}
	c := m.newTuple(m.stack[from:])
	m.stack = append(m.stack[:from], c)
	return m.memoizeNext()
}

func (m *machine) newTuple(items []Cell) Cell {
	if len(items) == 0 {
		return cellEmpty
	}
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

// container makes a list, dict or set, empty or of the values above the mark.
func (m *machine) container(op byte) error {
	if err := m.spend(1); err != nil {
		return err
	}
	var items []Cell
	if op == opList || op == opDict || op == opFrozenSet {
		top, err := m.popTo()
		if err != nil {
			return err
		}
		if op == opDict && len(top)%2 != 0 {
			return m.malformed("a dict with a key that has no value")
		}
		items = append(items, top...)
	}
	switch op {
	case opEmptyList, opList:
		m.lists = append(m.lists, items)
		m.push(at(List, len(m.lists)-1))
	case opEmptyDict, opDict:
		m.dicts = append(m.dicts, items)
		m.push(at(Dict, len(m.dicts)-1))
	default:
		m.sets = append(m.sets, set{items: items, frozen: op == opFrozenSet})
		m.push(at(Set, len(m.sets)-1))
	}
	return m.memoizeNext()
}

// fill puts the topmost values into what lies below them.
func (m *machine) fill(op byte) error {
	var from int
	switch op {
	case opAppend, opSetItem:
		n := 1
		if op == opSetItem {
			n = 2
		}
		if err := m.need(n + 1); err != nil {
			return err
		}
		from = len(m.stack) - n
	default:
		var err error
		if from, err = m.popMark(); err != nil {
			return err
		}
	}
	items := m.stack[from:]
	m.stack = m.stack[:from]
	if err := m.need(1); err != nil {
		return err
	}
	switch op {
	case opAppend, opAppends:
		return m.appendTo(m.top(), items)
	case opAddItems:
		return m.addTo(m.top(), items)
	}
	return m.setIn(m.top(), items)
}

func (m *machine) appendTo(c Cell, items []Cell) error {
	switch c.Kind() {
	case List:
		l := &m.lists[c.pos()]
		*l = append(room(*l, len(items)), items...)
		return nil
	case Object:
		o := &m.objects[c.pos()]
		o.items = append(o.items, items...)
		return nil
	}
	return m.malformed("an append to what is no list")
}

func (m *machine) addTo(c Cell, items []Cell) error {
	if c.Kind() != Set || m.sets[c.pos()].frozen {
		return m.malformed("an addition to what is no set")
	}
	s := &m.sets[c.pos()]
	s.items = append(s.items, items...)
	return nil
}

func (m *machine) setIn(c Cell, pairs []Cell) error {
	if len(pairs)%2 != 0 {
		return m.malformed("a key without a value")
	}
	switch c.Kind() {
	case Dict:
		d := &m.dicts[c.pos()]
		*d = append(room(*d, len(pairs)), pairs...)
		return nil
	case State:
		return m.setFields(recordOf(c), pairs)
	case Object:
		o := &m.objects[c.pos()]
		o.pairs = append(o.pairs, pairs...)
		return nil
	}
	return m.malformed("an item set in what is no dict")
}
