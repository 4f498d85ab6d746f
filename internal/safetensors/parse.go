package safetensors

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/tensor"
)

// headerParser reads the one shape of JSON text that a header may have. It has
// no recursion: the grammar is three levels deep, and whatever does not fit it
// is refused where it stands.
type headerParser struct {
	scanner
	header Header
	names  map[string]struct{}
	// dims backs the shapes. Growing leaves those already cut from it alone.
	dims []int64
	// nums takes an array's numbers.
	nums []int64
}

func parse(text string) (*Header, error) {
	p := &headerParser{
		scanner: scanner{s: text},
		names:   make(map[string]struct{}),
		dims:    make([]int64, 0, 64),
	}
	if text == "" || text[0] != '{' {
		return nil, fmt.Errorf("%w: does not begin with {", ErrHeader)
	}
	p.object(p.member)
	p.end()
	if p.err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHeader, p.err)
	}
	return &p.header, nil
}

// member reads the value of one key of the header.
func (p *headerParser) member(key string) {
	if _, ok := p.names[key]; ok {
		p.fail("key %q twice", key)
		return
	}
	p.names[key] = struct{}{}
	if key == metadataKey {
		p.metadata()
		return
	}
	p.entry(key)
}

func (p *headerParser) metadata() {
	m := make(map[string]string)
	p.object(func(key string) {
		if _, ok := m[key]; ok {
			p.fail("%s has the key %q twice", metadataKey, key)
			return
		}
		m[key] = p.str()
	})
	p.header.Metadata = m
}

// The fields of an entry, as bits.
const (
	hasDType = 1 << iota
	hasShape
	hasOffsets
	hasAll = hasDType | hasShape | hasOffsets
)

func (p *headerParser) entry(name string) {
	e := Entry{Name: name}
	seen := 0
	p.object(func(key string) {
		field := p.field(key, &e)
		if seen&field != 0 {
			p.fail("tensor %q has the field %q twice", name, key)
		}
		seen |= field
	})
	if seen != hasAll {
		p.fail("tensor %q lacks one of dtype, shape and data_offsets", name)
	}
	p.header.Entries = append(p.header.Entries, e)
}

// field reads one field of an entry and returns its bit.
func (p *headerParser) field(key string, e *Entry) int {
	switch key {
	case "dtype":
		e.DType = p.str()
		return hasDType
	case "shape":
		start := len(p.dims)
		p.dims = append(p.dims, p.sizes(tensor.MaxDims)...)
		e.Shape = p.dims[start:len(p.dims):len(p.dims)]
		return hasShape
	case "data_offsets":
		if at := p.sizes(2); len(at) == 2 {
			e.Begin, e.End = at[0], at[1]
		} else {
			p.fail("tensor %q has %d data_offsets instead of 2", e.Name, len(at))
		}
		return hasOffsets
	}
	p.fail("tensor %q has the unknown field %q", e.Name, key)
	return 0
}

// sizes reads an array of at most limit sizes, valid until the next call.
func (p *headerParser) sizes(limit int) []int64 {
	p.nums = p.nums[:0]
	p.expect('[')
	if p.accept(']') {
		return p.nums
	}
	for p.err == nil {
		if len(p.nums) == limit {
			p.fail("more than %d numbers", limit)
			break
		}
		p.nums = append(p.nums, p.size())
		if p.accept(']') {
			break
		}
		p.expect(',')
	}
	return p.nums
}
