package delta

import (
	"slices"
	"sync"
)

// slabSegments is how many segments a slab has room for.
const slabSegments = 128

// memory provides memory for segments. Segments of the usual length come from large slabs,
// which the garbage collector does not count: with a heap of that size it would wait until
// as many bytes of garbage have come together.
type memory struct {
	mu    sync.Mutex
	slabs []*slab // guarded by mu
	free  []block // guarded by mu
}

// slab is memory for slabSegments segments.
type slab struct {
	mem  []byte
	used int // guarded by memory.mu
}

// block is memory for one segment.
type block struct {
	data []byte
	slab *slab // nil: the garbage collector frees it
}

// get returns n bytes.
func (m *memory) get(n int) block {
	if n != SegmentBytes {
		return block{data: make([]byte, n)}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.free) == 0 {
		mem, err := mapSlab(slabSegments * SegmentBytes)
		if err != nil {
			return block{data: make([]byte, n)}
		}
		s := &slab{mem: mem}
		m.slabs = append(m.slabs, s)
		for p := range slices.Chunk(mem, SegmentBytes) {
			m.free = append(m.free, block{p, s})
		}
	}
	b := m.free[len(m.free)-1]
	m.free = m.free[:len(m.free)-1]
	b.slab.used++
	return b
}

// put takes memory back that get has returned.
func (m *memory) put(b block) {
	if b.slab == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free = append(m.free, b)
	if b.slab.used--; b.slab.used > 0 {
		return
	}
	m.free = slices.DeleteFunc(m.free, func(f block) bool { return f.slab == b.slab })
	m.slabs = slices.DeleteFunc(m.slabs, func(s *slab) bool { return s == b.slab })
	unmapSlab(b.slab.mem)
}

// close gives all memory back. The memory must not be used after that.
func (m *memory) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.slabs {
		unmapSlab(s.mem)
	}
	m.slabs, m.free = nil, nil
}
