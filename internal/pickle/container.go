package pickle

import "fmt"

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
	c, err := m.newTuple(m.stack[from:])
	if err != nil {
		return err
	}
	m.stack = append(m.stack[:from], c)
	return m.memoizeNext()
}

func (m *machine) newTuple(items []Cell) (Cell, error) {
	if len(items) == 0 {
		return cellEmpty, nil
	}
	if err := m.charge(cellBytes * (1 + len(items))); err != nil {
		return 0, err
	}
	if len(items) == 1 && items[0].Kind() == Ints {
		return cellOf(IntsTuple, items[0].payload()), nil
	}
	for _, c := range items {
		if c.Kind() != Int {
			h, err := m.above(items)
			m.tuples = append(append(m.tuples, Cell(h)<<lenBits|Cell(len(items))), items...)
			return at(Tuple, len(m.tuples)-len(items)-1), err
		}
	}
	pos, s := m.ints.alloc(1 + len(items))
	s[0] = int64(len(items))
	for i, c := range items {
		s[1+i] = c.payload()
	}
	return at(Ints, pos), nil
}

// above returns the height of a container of items.
func (m *machine) above(items []Cell) (int, error) {
	h := 1
	for _, c := range items {
		h = max(h, 1+m.height(c))
	}
	if h > m.lim.Depth {
		return 0, fmt.Errorf("%w: nested deeper than %d", ErrLimit, m.lim.Depth)
	}
	return h, nil
}

// container makes a list, dict or set, empty or of the values above the mark.
func (m *machine) container(op byte) error {
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
	kind := Set
	switch op {
	case opEmptyList, opList:
		kind = List
	case opEmptyDict, opDict:
		kind = Dict
	}
	if err := m.charge(seqBytes + cellBytes*len(items)); err != nil {
		return err
	}
	h, err := m.above(items)
	if err != nil {
		return err
	}
	m.push(at(kind, m.seqs.add(seq{items: items, height: int32(h), frozen: op == opFrozenSet})))
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
		return m.extend(m.seqs.ptr(c.pos()), items)
	case Object:
		o, err := m.contents(c, items)
		if err == nil {
			o.items, err = m.grown(o.items, items)
		}
		return err
	}
	return m.malformed("an append to what is no list")
}

func (m *machine) addTo(c Cell, items []Cell) error {
	if c.Kind() != Set || m.seqs.ptr(c.pos()).frozen {
		return m.malformed("an addition to what is no set")
	}
	return m.extend(m.seqs.ptr(c.pos()), items)
}

// extend puts items at the end of s.
func (m *machine) extend(s *seq, items []Cell) error {
	h, err := m.above(items)
	if err != nil {
		return err
	}
	s.height = max(s.height, int32(h))
	s.items, err = m.grown(s.items, items)
	return err
}

// grown returns s with items at its end.
func (m *machine) grown(s, items []Cell) ([]Cell, error) {
	before := cap(s)
	s = append(room(s, len(items)), items...)
	return s, m.charge(cellBytes * (cap(s) - before))
}

// contents returns the contents of an object that items are put into.
func (m *machine) contents(c Cell, items []Cell) (*contents, error) {
	o := m.objects.ptr(c.pos())
	h, err := m.above(items)
	if err != nil {
		return nil, err
	}
	o.height = max(o.height, int32(h))
	if o.more == nil {
		o.more = new(contents)
		err = m.charge(2 * boxBytes)
	}
	return o.more, err
}

func (m *machine) setIn(c Cell, pairs []Cell) error {
	if len(pairs)%2 != 0 {
		return m.malformed("a key without a value")
	}
	switch c.Kind() {
	case Dict:
		return m.extend(m.seqs.ptr(c.pos()), pairs)
	case State:
		return m.setFields(recordOf(c), pairs)
	case Object:
		o, err := m.contents(c, pairs)
		if err == nil {
			o.pairs, err = m.grown(o.pairs, pairs)
		}
		return err
	}
	return m.malformed("an item set in what is no dict")
}
