package safetensors

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/tensor"
)

// headerParser parses JSON text of the form that a header must have. It is not
// recursive: the grammar has three levels, and anything else is an error.
type headerParser struct {
	scanner
	header Header
	// dims is the unused memory for shapes.
	dims []int64
	// nums has the numbers of the current array.
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

// checkNames fails if two tensors have the same name.
func (p *headerParser) checkNames() {
	seen := make(map[string]struct{}, len(p.header.Entries))
	for i := range p.header.Entries {
		name := p.header.Entries[i].Name
		if _, ok := seen[name]; ok {
			p.fail("key %q twice", name)
			return
		}
		seen[name] = struct{}{}
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

// scanner reads tokens of a JSON text that is valid UTF-8. After the first error every method
// returns zero and reads no further.
type scanner struct {
	s   string
	i   int
	err error
}

func (s *scanner) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("byte %d: %s", s.i, fmt.Sprintf(format, args...))
	}
}

// space skips white space and returns the next byte, or zero at the end.
func (s *scanner) space() byte {
	for s.i < len(s.s) {
		switch c := s.s[s.i]; c {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return c
		}
	}
	return 0
}

// accept reads the next byte if it is c.
func (s *scanner) accept(c byte) bool {
	if s.err != nil || s.space() != c {
		return false
	}
	s.i++
	return true
}

// expect reads the next byte, which must be c.
func (s *scanner) expect(c byte) {
	if s.err == nil && !s.accept(c) {
		s.fail("%q is missing", c)
	}
}

// end fails unless only white space is left.
func (s *scanner) end() {
	if s.err == nil && (s.space() != 0 || s.i < len(s.s)) {
		s.fail("text after the end")
	}
}

// object reads an object and calls member at the value of each key.
func (s *scanner) object(member func(key string)) {
	s.expect('{')
	if s.accept('}') {
		return
	}

	for s.err == nil {
		key := s.str()
		s.expect(':')
		if s.err != nil {
			return
		}

		member(key)
		if s.accept('}') {
			return
		}

		s.expect(',')
	}
}

// size reads a non-negative integer of 63 bits without sign, fraction, exponent
// or leading zero.
func (s *scanner) size() int64 {
	if s.err != nil {
		return 0
	}

	s.space()
	start := s.i
	var v int64
	for s.i < len(s.s) && s.s[s.i]-'0' <= 9 {
		d := int64(s.s[s.i] - '0')
		if v > (math.MaxInt64-d)/10 {
			s.fail("a number above 63 bits")
			return 0
		}
		v = v*10 + d
		s.i++
	}

	digits := s.s[start:s.i]
	if digits == "" || (len(digits) > 1 && digits[0] == '0') || s.inNumber() {
		s.fail("not a plain integer")
		return 0
	}
	return v
}

// inNumber reports whether the next byte would continue a number.
func (s *scanner) inNumber() bool {
	return s.i < len(s.s) && strings.IndexByte(".eE+-", s.s[s.i]) >= 0
}

// str reads a string. It is a substring of the text if it has no escapes.
func (s *scanner) str() string {
	s.expect('"')
	if s.err != nil {
		return ""
	}

	start := s.i
	for ; s.i < len(s.s); s.i++ {
		switch c := s.s[s.i]; {
		case c == '"':
			s.i++
			return s.s[start : s.i-1]
		case c == '\\':
			return s.escaped(start)
		case c < ' ':
			s.fail("a control character in a string")
			return ""
		}
	}

	s.fail("the text ends inside a string")
	return ""
}

// escaped reads the rest of a string that begins at start, from its first
// escape on.
func (s *scanner) escaped(start int) string {
	out := []byte(s.s[start:s.i])
	for s.err == nil && s.i < len(s.s) {
		c := s.s[s.i]
		s.i++
		switch {
		case c == '"':
			return string(out)
		case c < ' ':
			s.fail("a control character in a string")
		case c != '\\':
			out = append(out, c)
		default:
			out = s.escape(out)
		}
	}

	s.fail("the text ends inside a string")
	return ""
}

// escape appends the character of an escape sequence, after its backslash.
func (s *scanner) escape(out []byte) []byte {
	if s.i == len(s.s) {
		return out
	}

	c := s.s[s.i]
	s.i++
	if c == 'u' {
		return utf8.AppendRune(out, s.unicode())
	}

	if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
		return append(out, "\"\\/\b\f\n\r\t"[i])
	}

	s.fail("the unknown escape \\%c", c)
	return out
}

// unicode reads the digits of a \u escape, and of a second one if the first is a
// high surrogate. Unpaired surrogates are refused.
func (s *scanner) unicode() rune {
	r := s.hex4()
	if !utf16.IsSurrogate(r) {
		return r
	}

	if !strings.HasPrefix(s.s[s.i:], `\u`) {
		s.fail("half a surrogate pair")
		return 0
	}

	s.i += 2
	r = utf16.DecodeRune(r, s.hex4())
	if r == utf8.RuneError {
		s.fail("half a surrogate pair")
	}
	return r
}

func (s *scanner) hex4() rune {
	if len(s.s)-s.i < 4 {
		s.fail("the text ends inside an escape")
		return 0
	}

	v, err := strconv.ParseUint(s.s[s.i:s.i+4], 16, 16)
	if err != nil {
		s.fail("an escape that is not a number")
		return 0
	}

	s.i += 4
	return rune(v)
}
