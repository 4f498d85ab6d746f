package pickle

// arena holds runs of values in pages, so that it grows without copying. The
// position of a run says its page and its place there.
type arena[T any] struct{ pages [][]T }

const (
	pageBits = 16
	pageSize = 1 << pageBits
)

// alloc returns n consecutive values and their position. They keep what they
// held before, which is zero for a new page.
func (a *arena[T]) alloc(n int) (int, []T) {
	last := len(a.pages) - 1
	if last < 0 || len(a.pages[last])+n > cap(a.pages[last]) {
		last = a.grow(n)
	}
	p := a.pages[last]
	off := len(p)
	p = p[: off+n : cap(p)]
	a.pages[last] = p
	return last<<pageBits | off, p[off : off+n : off+n]
}

// grow makes room for n values in the last page, and returns its number. The
// first page begins small, as most pickles are, and doubles.
func (a *arena[T]) grow(n int) int {
	last := len(a.pages) - 1
	switch {
	case last < 0:
		a.pages = append(a.pages, make([]T, 0, max(n, 64)))
	case last == 0 && len(a.pages[0])+n <= pageSize:
		p := a.pages[0]
		a.pages[0] = append(make([]T, 0, min(pageSize, 2*cap(p)+n)), p...)
	default:
		a.pages = append(a.pages, make([]T, 0, max(n, pageSize)))
	}
	return len(a.pages) - 1
}

// at returns the values from the position on, as far as the page goes.
func (a *arena[T]) at(pos int) []T { return a.pages[pos>>pageBits][pos&(pageSize-1):] }

// ptr returns the value at a position, valid until the next alloc.
func (a *arena[T]) ptr(pos int) *T { return &a.pages[pos>>pageBits][pos&(pageSize-1)] }

// add appends a value and returns its position.
func (a *arena[T]) add(v T) int {
	pos, s := a.alloc(1)
	s[0] = v
	return pos
}

// memo holds the values that a pickle gave numbers, in pages too.
type memo struct {
	pages [][]handle // each as long as its memory
	len   int
}

func (m *memo) append(h handle) {
	p, off := m.len>>pageBits, m.len&(pageSize-1)
	if p >= len(m.pages) || off >= len(m.pages[p]) {
		m.grow()
	}
	m.pages[p][off] = h
	m.len++
}

func (m *memo) grow() {
	switch {
	case len(m.pages) == 0:
		m.pages = append(m.pages, make([]handle, 64))
	case len(m.pages) == 1 && len(m.pages[0]) < pageSize:
		p := make([]handle, 4*len(m.pages[0]))
		copy(p, m.pages[0])
		m.pages[0] = p
	default:
		m.pages = append(m.pages, make([]handle, pageSize))
	}
}

func (m *memo) at(i int) *handle { return &m.pages[i>>pageBits][i&(pageSize-1)] }

// truncate forgets all entries but the first n.
func (m *memo) truncate(n int) { m.len = n }
