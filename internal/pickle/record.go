package pickle

// record is the place of a record: its class, and its number among those of the
// class.
type record struct{ class, pos int }

// newRecord pushes a record without fields. The dict that follows it in every
// pickle that Python writes is its state, and nothing else: there is no need to
// build it.
func (m *machine) newRecord(class int) error {
	n := len(m.schema.classes[class].Fields)
	if err := m.charge(cellBytes * n); err != nil {
		return err
	}
	pos, fields := m.records[class].alloc(n)
	for i := range fields {
		fields[i] = Unset
	}
	m.push(at(Record+Kind(class), pos))
	if err := m.memoizeNext(); err != nil {
		return err
	}
	if n == 0 || m.pos >= len(m.data) || m.data[m.pos] != opEmptyDict {
		return nil
	}
	m.pos++
	m.push(stateOf(record{class, pos}))
	if err := m.memoizeNext(); err != nil {
		return err
	}
	return m.quickState(class, fields)
}

// stateOf returns the cell for the state of r; see recordOf.
func stateOf(r record) Cell { return at(State, 1+r.pos*maxClasses+r.class) }

// recordOf returns the record whose state c is. That of a state which came out
// of the memo has no position.
func recordOf(c Cell) record {
	p := c.pos() - 1
	if p < 0 {
		return record{-1, -1}
	}
	return record{p % maxClasses, p / maxClasses}
}

func (m *machine) buildRecord(r record, state Cell) error {
	switch state.Kind() {
	case State:
		if recordOf(state) != r {
			return m.unsupported("two objects with one state")
		}
		return nil
	case Dict:
		pairs, _ := m.Dict(state)
		return m.setFields(r, pairs)
	case Tuple, Ints, IntsTuple:
		items := m.items(state)
		if err := m.charge(cellBytes * len(items)); err != nil { // it may be the state of many
			return err
		}
		return m.setByPosition(r, items)
	}
	return m.malformed("%s with a state that is neither a dict nor a tuple", m.className(r))
}

// setByPosition sets the fields in the order of the class.
func (m *machine) setByPosition(r record, values []Cell) error {
	fields := m.fields(r)
	if len(values) > len(fields) && m.schema.classes[r.class].Open {
		values = values[:len(fields)]
	}
	if len(values) != len(fields) {
		return m.unsupported("%s with a state of %d values, %d expected", m.className(r), len(values), len(fields))
	}
	copy(fields, values)
	return nil
}

// setFields sets fields by their names.
func (m *machine) setFields(r record, pairs []Cell) error {
	if r.class < 0 {
		return m.unsupported("the state of an object that is shared")
	}
	if err := m.charge(len(pairs)); err != nil { // they may be those of many
		return err
	}
	row := m.schema.fields[r.class]
	fields := m.fields(r)
	for i := 0; i+1 < len(pairs); i += 2 {
		sym, err := m.symbol(pairs[i])
		if err != nil {
			return err
		}
		if sym >= 0 && row[sym] >= 0 {
			fields[row[sym]] = pairs[i+1]
			continue
		}
		if pairs[i+1] != cellNone && !m.schema.classes[r.class].Open {
			name, _ := m.Str(pairs[i])
			return m.unsupported("%s has a field %.100q", m.className(r), name)
		}
	}
	return nil
}

// symbol returns the number of the schema's field of that name, or -1.
func (m *machine) symbol(key Cell) (int32, error) {
	if key.Kind() != Str {
		return 0, m.malformed("a field whose name is no string")
	}
	s := &m.strs[key.pos()]
	if s.sym == 0 {
		s.sym = -1
		if i, ok := m.schema.syms[string(m.text(*s))]; ok {
			s.sym = i + 1
		}
	}
	if s.sym < 0 {
		return -1, nil
	}
	return s.sym - 1, nil
}

func (m *machine) fields(r record) []Cell {
	n := len(m.schema.classes[r.class].Fields)
	return m.records[r.class].at(r.pos)[:n:n]
}

func (m *machine) className(r record) string { return m.schema.classes[r.class].Names[0] }
