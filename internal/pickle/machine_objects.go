package pickle

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// tupleOp replaces the topmost values by a tuple.
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

// container pushes a list, dict or set: an empty one, or one of the values above
// the mark.
func (m *machine) container(op byte) error {
	var items []Cell
	if op == opList || op == opDict || op == opFrozenSet {
		top, err := m.popTo()
		if err != nil {
			return err
		}
		if op == opDict && len(top)%2 != 0 {
			return m.malformed("a dict with a key without a value")
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

// fill adds the topmost values to the container below them.
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
	return m.malformed("an append to a value that is not a list")
}

func (m *machine) addTo(c Cell, items []Cell) error {
	if c.Kind() != Set || m.seqs.ptr(c.pos()).frozen {
		return m.malformed("an addition to a value that is not a set")
	}
	return m.extend(m.seqs.ptr(c.pos()), items)
}

func (m *machine) extend(s *seq, items []Cell) error {
	h, err := m.above(items)
	if err != nil {
		return err
	}
	s.height = max(s.height, int32(h))
	s.items, err = m.grown(s.items, items)
	return err
}

// grown returns s with the items appended.
func (m *machine) grown(s, items []Cell) ([]Cell, error) {
	before := cap(s)
	s = append(room(s, len(items)), items...)
	return s, m.charge(cellBytes * (cap(s) - before))
}

// contents returns the contents of an object, for adding items.
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
	return m.malformed("an item set in a value that is not a dict")
}

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
			return m.malformed("a name that is not UTF-8")
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
			return m.malformed("a name that is not a string")
		}
	}
	c, err := m.global(module, name)
	if err != nil {
		return err
	}
	m.push(c)
	return m.memoizeNext()
}

// global returns the cell of a name. Equal names have the same cell.
func (m *machine) global(module, name []byte) (Cell, error) {
	if err := m.charge(len(module) + len(name)); err != nil { // the same long name may occur very often
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

// newGlobal adds a name, and replaces names that Python has renamed.
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

// renamed maps the modules of Python 2 and of some releases of Python 3 to their
// current names.
var renamed = map[string]string{
	"__builtin__":    "builtins",
	"copy_reg":       "copyreg",
	"pathlib._local": "pathlib",
}

// builtins2 are the built-in classes that Python 3 renamed.
var builtins2 = map[string]string{"basestring": "str", "long": "int", "unicode": "str", "xrange": "range"}

// call executes the opcodes that create an object.
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
			return m.malformed("named arguments that are not a dict")
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

// makeOf pushes the object of a call with positional arguments.
func (m *machine) makeOf(callee Cell, args []Cell) error {
	t, err := m.newTuple(args)
	if err != nil {
		return err
	}
	return m.make(callee, t, cellNone, false)
}

// make pushes the object of a call.
func (m *machine) make(callee, args, kwargs Cell, isNew bool) error {
	if callee.Kind() != Global {
		return m.unsupported("a call of a value that is not a name")
	}
	if !isTuple(args) {
		return m.malformed("arguments that are not a tuple")
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

// build sets the topmost value as the state of the object below it.
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
		return m.malformed("a state for a value that is not an object")
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

// record identifies a record by its class and its number in that class.
type record struct{ class, pos int }

// newRecord pushes a record without fields. In every pickle of Python the next
// dict is its state, so that dict is not built.
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

// stateOf returns the cell of the state of r; see recordOf.
func stateOf(r record) Cell { return at(State, 1+r.pos*maxClasses+r.class) }

// recordOf returns the record with the state c. Its class is negative if the
// state was read from the memo.
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
		if err := m.charge(cellBytes * len(items)); err != nil { // many records may share the state
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

func (m *machine) setFields(r record, pairs []Cell) error {
	if r.class < 0 {
		return m.unsupported("the state of an object that is shared")
	}
	if err := m.charge(len(pairs)); err != nil { // many records may share the pairs
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

// symbol returns the number of the schema's field with this name, or -1.
func (m *machine) symbol(key Cell) (int32, error) {
	if key.Kind() != Str {
		return 0, m.malformed("a field whose name is not a string")
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

// quick is a fast path for the fields of records. It recognises their usual
// sequences of opcodes and reads the values without the stack. At anything else
// it stops and leaves the machine in the state that it would have without quick.
// A chunk of a checkpoint has about seventy opcodes and a checkpoint may have
// millions of chunks, so decoding metadata spends most of its time here.
type quick struct {
	*machine
	p int // the position in the input
}

const (
	// maxQuick is the largest number of fields and of dimensions that quick
	// reads.
	maxQuick = 8
	// margin is the number of bytes that must be left for quick to read a name or
	// a number without checking for the end.
	margin = 32
)

// quickState reads the fields of a new record up to its BUILD opcode.
func (m *machine) quickState(class int, fields []Cell) error {
	if m.pos >= len(m.data) || m.data[m.pos] != opMark {
		return nil
	}
	q := quick{m, m.pos + 1}
	row := m.schema.fields[class]
	var seen [2 * maxQuick]Cell
	n := 0
	for n < len(seen) && len(q.data)-q.p >= margin {
		start, remembered := q.p, m.memo.len
		if d := q.data[q.p:]; d[0] == opSetItems && d[1] == opBuild {
			for i := 0; i < n; i += 2 {
				fields[seen[i]] = seen[i+1]
			}
			m.pop() // the state
			m.pos = q.p + 2
			return nil
		}
		key, ok := q.reference()
		field := int8(-1)
		if ok && key.Kind() == Str {
			field = m.fieldOf(key, row)
		}
		var v Cell
		if ok = field >= 0; ok {
			v, ok = q.value()
		}
		if !ok {
			q.p = start
			m.memo.truncate(remembered)
			break
		}
		seen[n], seen[n+1] = Cell(field), v
		n += 2
	}
	return m.resume(class, seen[:n], q.p)
}

// resume puts the machine into the state after reading the pairs.
func (m *machine) resume(class int, pairs []Cell, pos int) error {
	m.marks = append(m.marks, len(m.stack))
	for i := 0; i < len(pairs); i += 2 {
		name := m.keep([]byte(m.schema.classes[class].Fields[pairs[i]]))
		m.strs = append(m.strs, name)
		m.push(at(Str, len(m.strs)-1))
		m.push(pairs[i+1])
	}
	m.pos = pos
	return nil
}

// fieldOf returns the position of the field with this name, or -1.
func (m *machine) fieldOf(key Cell, row []int8) int8 {
	s := m.strs[key.pos()].sym
	if s == 0 {
		n, err := m.symbol(key)
		if err != nil {
			return -1
		}
		s = n + 1
	}
	if s <= 0 {
		return -1
	}
	return row[s-1]
}

// reference reads a memo number and returns its value.
func (q *quick) reference() (Cell, bool) {
	d := q.data[q.p:]
	if len(d) < 5 {
		return 0, false
	}
	var i int
	switch d[0] {
	case opBinGet:
		i = int(d[1])
		q.p += 2
	case opLongBinGet:
		i = int(binary.LittleEndian.Uint32(d[1:]))
		q.p += 5
	default:
		return 0, false
	}
	if i >= q.memo.len {
		return 0, false
	}
	h := q.memo.pages[i>>pageBits][i&(pageSize-1)]
	if Cell(h).Kind() == wide || h == free {
		return q.lookup(uint64(i))
	}
	return Cell(h), true
}

// value reads the value of a field.
func (q *quick) value() (Cell, bool) {
	if len(q.data)-q.p < margin {
		return 0, false
	}
	switch q.data[q.p] {
	case opBinGet, opLongBinGet:
		c, ok := q.reference()
		if ok && c.Kind() == Global && q.globals[c.pos()].size {
			return q.size()
		}
		return c, ok
	case opBinInt1, opBinInt2, opBinInt, opLong1, opMark:
		return q.numbers()
	case opNone, opNewTrue, opNewFalse:
		q.p++
		return constant(q.data[q.p-1]), true
	case opEmptyTuple:
		q.p++
		return cellEmpty, true
	case opShortBinUnicode:
		return q.text()
	}
	return 0, false
}

// text reads a short string.
func (q *quick) text() (Cell, bool) {
	n := int(q.data[q.p+1])
	start := q.p + 2
	if start+n >= len(q.data) {
		return 0, false
	}
	c, err := q.newStr(span{off: start, len: uint32(n)}, q.data[start:start+n])
	if err != nil {
		return 0, false
	}
	q.p = start + n
	return c, q.memoized(c)
}

// memoized reads the opcode MEMOIZE if it comes next.
func (q *quick) memoized(c Cell) bool {
	if q.p >= len(q.data) || q.data[q.p] != opMemoize {
		return true
	}
	q.p++
	return q.remember(c) == nil
}

// integers reads consecutive integers into v and returns how many.
func (q *quick) integers(v *[maxQuick]int64) int {
	for n := range v {
		d := q.data[q.p:]
		if len(d) < margin {
			return n
		}
		switch d[0] {
		case opBinInt1:
			v[n] = int64(d[1])
			q.p += 2
		case opBinInt2:
			v[n] = int64(binary.LittleEndian.Uint16(d[1:]))
			q.p += 3
		case opBinInt:
			v[n] = int64(int32(binary.LittleEndian.Uint32(d[1:])))
			q.p += 5
		case opLong1:
			if d[1] > 7 {
				return n
			}
			v[n] = littleEndian(d[2 : 2+d[1]])
			q.p += 2 + int(d[1])
		default:
			return n
		}
	}
	return maxQuick
}

// numbers reads an integer, or a tuple of integers.
func (q *quick) numbers() (Cell, bool) {
	var v [maxQuick]int64
	marked := q.data[q.p] == opMark
	if marked {
		q.p++
	}
	n := q.integers(&v)
	if n == 0 || q.p >= len(q.data) {
		return 0, false
	}
	switch op := q.data[q.p]; {
	case marked && op == opTuple, !marked && n <= 3 && op == opTuple1+byte(n-1):
		q.p++
	case n == 1 && !marked && (op == opBinGet || op == opLongBinGet || op == opSetItems):
		return cellOf(Int, v[0]), true
	default:
		return 0, false
	}
	if q.charge(cellBytes*(1+n)) != nil {
		return 0, false // the machine handles it
	}
	pos, s := q.ints.alloc(1 + n)
	s[0] = int64(n)
	copy(s[1:], v[:n])
	c := at(Ints, pos)
	return c, q.memoized(c)
}

// size reads a torch.Size: a tuple of integers, the tuple around it and the call.
func (q *quick) size() (Cell, bool) {
	c, ok := q.value()
	d := q.data[q.p:]
	if !ok || c.Kind() != Ints || len(d) < 4 || d[0] != opTuple1 {
		return 0, false
	}
	one, size := cellOf(IntsTuple, c.payload()), cellOf(Size, c.payload())
	if d[1] == opMemoize && d[2] == opReduce && d[3] == opMemoize {
		q.p += 4
		return size, q.remember(one) == nil && q.remember(size) == nil
	}
	q.p++
	if !q.memoized(one) || q.p >= len(q.data) || q.data[q.p] != opReduce {
		return 0, false
	}
	q.p++
	return size, q.memoized(size)
}
