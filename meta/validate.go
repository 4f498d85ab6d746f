package meta

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Validate returns an error that wraps [ErrInvalid] and tells everything that is
// wrong with m, or nil: names that are out of order, twice there or no names;
// entries that are not one of tensor and value; dtypes, shapes, paths, sizes and
// places that cannot be; chunks that leave their tensor; a wrong number of
// places. Whether the chunks together are the whole tensor is for package plan
// to say.
func (m *Metadata) Validate() error {
	var p problems
	if m.PlannerData != nil && !json.Valid(m.PlannerData) {
		p.add("planner data is no JSON")
	}
	for i := range m.Entries {
		e := &m.Entries[i]
		if err := CheckFQN(e.FQN); err != nil {
			p.add("entry %d: %v", i, err)
		}
		if i > 0 {
			p.checkOrder(m.Entries[i-1].FQN, e.FQN)
		}
		p.checkEntry(e)
	}
	if len(p) == 0 {
		return nil
	}
	return p
}

// problems is all that is wrong with some metadata.
type problems []string

// maxSpelled bounds how many problems an error message spells out.
const maxSpelled = 20

// Error lists the problems.
func (p problems) Error() string {
	text := strings.Join(p[:min(len(p), maxSpelled)], "; ")
	if n := len(p) - maxSpelled; n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	return fmt.Sprintf("%v: %s", ErrInvalid, text)
}

// Unwrap returns ErrInvalid.
func (p problems) Unwrap() error { return ErrInvalid }

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

func (p *problems) checkOrder(a, b string) {
	switch {
	case a == b:
		p.add("%q is there twice", b)
	case a > b:
		p.add("%q comes after %q", b, a)
	}
}

func (p *problems) checkEntry(e *Entry) {
	for _, s := range e.Path {
		if text := s.problem(); text != "" {
			p.add("%q: %s", e.FQN, text)
		}
	}
	if (e.Tensor == nil) == (e.Bytes == nil) {
		p.add("%q: not one of tensor and value", e.FQN)
	}
	if e.Tensor != nil {
		p.checkTensor(e.FQN, e.Tensor)
	}
	if e.Bytes != nil {
		p.checkBytes(e.FQN, e.Bytes)
	}
}

func (p *problems) checkTensor(fqn string, t *Tensor) {
	if _, err := tensor.NumBytes(t.DType, t.Shape); err != nil {
		p.add("%q: %v", fqn, err)
		return
	}
	for _, c := range t.Chunks {
		if err := c.Check(t.Shape); err != nil {
			p.add("%q: %v", fqn, err)
		}
	}
	if t.Locs != nil && len(t.Locs) != len(t.Chunks) {
		p.add("%q: %d places for %d chunks", fqn, len(t.Locs), len(t.Chunks))
	}
	for i := range t.Locs {
		p.checkLocation(fqn, &t.Locs[i])
	}
}

func (p *problems) checkBytes(fqn string, b *Bytes) {
	if b.Size < 0 || b.Inline != nil && int64(len(b.Inline)) != b.Size {
		p.add("%q: %d bytes, %d of them inline", fqn, b.Size, len(b.Inline))
	}
	p.checkLocation(fqn, &b.Loc)
}

func (p *problems) checkLocation(fqn string, l *Location) {
	if l.Offset < 0 || l.Length < 0 || l.Offset+l.Length < 0 {
		p.add("%q: at %d+%d in %q", fqn, l.Offset, l.Length, l.File)
	}
}
