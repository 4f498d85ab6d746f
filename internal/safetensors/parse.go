package safetensors

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
)

// headerParser reads the one shape of JSON text that a header may have. It has
// no recursion: the grammar is three levels deep, and whatever does not fit it
// is refused where it stands.
type headerParser struct {
	scanner
	header Header
	// dims is what is left of the memory for shapes.
	dims []int64
	// nums takes an array's numbers.
	nums []int64
}

func parse(text string) (*Header, error) {
	p := &headerParser{scanner: scanner{s: text}}
	if text == "" || text[0] != '{' {
		return nil, fmt.Errorf("%w: does not begin with {", ErrHeader)
	}
	p.header.Entries = slices.Grow(p.header.Entries, min(strings.Count(text, `"data_offsets"`), len(text)/minEntry))
	p.object(p.member)
	p.end()
	if p.err == nil {
		p.checkNames()
	}
	if p.err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHeader, p.err)
	}
	return &p.header, nil
}

// minEntry is less than the length of the shortest text of a tensor.
const minEntry = 40

// checkNames fails if two tensors have one name. It compares hashes, because a set
// of millions of names would take more memory than the rest of the header.
func (p *headerParser) checkNames() {
	type hashed struct {
		hash uint64
		name string
	}
	seed := maphash.MakeSeed()
	all := make([]hashed, len(p.header.Entries))
	for i := range all {
		name := p.header.Entries[i].Name
		all[i] = hashed{maphash.String(seed, name), name}
	}
	slices.SortFunc(all, func(a, b hashed) int {
		if a.hash != b.hash {
			return cmp.Compare(a.hash, b.hash)
		}
		return strings.Compare(a.name, b.name)
	})
	for i := 1; i < len(all); i++ {
		if all[i].name == all[i-1].name {
			p.fail("key %q twice", all[i].name)
			return
		}
	}
}

// member reads the value of one key of the header.
func (p *headerParser) member(key string) {
	if key == metadataKey {
		if p.header.Metadata != nil {
			p.fail("key %q twice", metadataKey)
			return
		}
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
		e.Shape = p.keep(p.sizes(tensor.MaxDims))
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

// keep returns a copy of v that is not nil.
func (p *headerParser) keep(v []int64) []int64 {
	if len(v) > len(p.dims) || p.dims == nil {
		p.dims = make([]int64, max(len(v), min(8<<10, 2*len(p.header.Entries)+16)))
	}
	out := p.dims[:len(v):len(v)]
	copy(out, v)
	p.dims = p.dims[len(v):]
	return out
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
