package pickle

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// machine runs the opcodes of one pickle. What they ask for is written down in
// the graph; the machine itself builds, imports and calls nothing.
type machine struct {
	*Graph
	pos   int
	stack []Cell
	marks []int
	memo  memo
	wides []Cell
	lim   Limits
	names map[string]Cell // globals by their words
	word  []byte          // for a look into names
}

// Parse returns the graph of the pickle that data begins with, and how many
// bytes the pickle takes. Instances of the classes become records. The graph
// keeps data, which must not change any more.
func Parse(data []byte, classes []Class, l *Limits) (*Graph, int, error) {
	lim := l.withDefaults(len(data))
	g := &Graph{data: data, account: newAccount(&lim), shared: map[Cell]struct{}{}}
	g.ints.alloc(1) // the empty tuple
	if len(classes) > 0 {
		g.schema = newSchema(classes)
		g.records = make([]arena[Cell], len(classes))
		g.shared = nil
	}
	m := &machine{Graph: g, lim: lim, names: map[string]Cell{}}
	if err := m.run(); err != nil {
		return nil, 0, err
	}
	return g, m.pos, nil
}

// run executes opcodes up to the end of the pickle. The frequent ones are here,
// the others in exec.
func (m *machine) run() error {
	for {
		if m.pos >= len(m.data) {
			return m.truncated()
		}
		op := m.data[m.pos]
		m.pos++
		switch op {
		case opBinGet:
			if m.pos >= len(m.data) {
				return m.truncated()
			}
			i := uint64(m.data[m.pos])
			m.pos++
			if err := m.get(i); err != nil {
				return err
			}
		case opBinInt1:
			if m.pos >= len(m.data) {
				return m.truncated()
			}
			m.push(cellOf(Int, int64(m.data[m.pos])))
			m.pos++
		case opMark:
			m.marks = append(m.marks, len(m.stack))
		case opEmptyTuple:
			m.push(cellEmpty)
		case opMemoize:
			if err := m.memoize(); err != nil {
				return err
			}
		case opStop:
			return m.stop()
		default:
			if err := m.exec(op); err != nil {
				return err
			}
		}
	}
}

func (m *machine) stop() error {
	if err := m.need(1); err != nil {
		return err
	}
	m.Root = m.pop()
	if len(m.stack) != 0 || len(m.marks) != 0 {
		return m.malformed("%d values and %d marks are left at its end", len(m.stack), len(m.marks))
	}
	return nil
}

func (m *machine) push(c Cell) { m.stack = append(m.stack, c) }

// pop takes the topmost value off. The caller has asked need.
func (m *machine) pop() Cell {
	c := m.stack[len(m.stack)-1]
	m.stack = m.stack[:len(m.stack)-1]
	return c
}

func (m *machine) top() Cell { return m.stack[len(m.stack)-1] }

// need checks that n values lie above the last mark.
func (m *machine) need(n int) error {
	floor := 0
	if len(m.marks) > 0 {
		floor = m.marks[len(m.marks)-1]
	}
	if len(m.stack)-floor < n {
		return m.malformed("%d values on the stack, %d needed", len(m.stack)-floor, n)
	}
	return nil
}

// popMark removes the last mark and returns where the values above it begin.
func (m *machine) popMark() (int, error) {
	if len(m.marks) == 0 {
		return 0, m.malformed("no mark on the stack")
	}
	i := m.marks[len(m.marks)-1]
	m.marks = m.marks[:len(m.marks)-1]
	return i, nil
}

// popTo removes the last mark and the values above it, which it returns. They
// are valid until the next push.
func (m *machine) popTo() ([]Cell, error) {
	i, err := m.popMark()
	if err != nil {
		return nil, err
	}
	items := m.stack[i:]
	m.stack = m.stack[:i]
	return items, nil
}

// take returns the next n bytes of the input.
func (m *machine) take(n int) ([]byte, error) {
	if n < 0 || n > len(m.data)-m.pos {
		return nil, m.malformed("%d bytes wanted, %d left", n, len(m.data)-m.pos)
	}
	b := m.data[m.pos : m.pos+n]
	m.pos += n
	return b, nil
}

// length reads a length of size bytes and checks it against what is left.
func (m *machine) length(size int) (int, error) {
	b, err := m.take(size)
	if err != nil {
		return 0, err
	}
	var n uint64
	switch size {
	case 1:
		n = uint64(b[0])
	case 4:
		n = uint64(binary.LittleEndian.Uint32(b))
	default:
		n = binary.LittleEndian.Uint64(b)
	}
	if n > uint64(len(m.data)-m.pos) {
		return 0, m.malformed("a length of %d, %d bytes are left", n, len(m.data)-m.pos)
	}
	if n > maxSpan {
		return 0, fmt.Errorf("%w: %d bytes in one piece, at most %d", ErrLimit, n, maxSpan)
	}
	return int(n), nil
}

// line returns the next line of the input, without its end.
func (m *machine) line() ([]byte, error) {
	i := bytes.IndexByte(m.data[m.pos:], '\n')
	if i < 0 || i > maxSpan {
		return nil, m.truncated()
	}
	l := m.data[m.pos : m.pos+i]
	m.pos += i + 1
	return l, nil
}

func (m *machine) malformed(format string, args ...any) error {
	return fmt.Errorf("%w: before byte %d: %s", ErrMalformed, m.pos, fmt.Sprintf(format, args...))
}

func (m *machine) unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: before byte %d: %s", ErrUnsupported, m.pos, fmt.Sprintf(format, args...))
}

func (m *machine) truncated() error { return m.malformed("it ends too early") }
