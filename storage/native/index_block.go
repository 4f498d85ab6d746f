package native

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/internal/wire"
)

// maxShared bounds what a name takes over from the one before, which fits a
// byte then, and a few bytes cannot stand for ever more and longer names.
const maxShared = 255

// putFrontCoded writes s as the number of bytes it shares with prev, and the
// rest.
func putFrontCoded(w *wire.Writer, prev, s string) {
	n := 0
	for n < min(len(prev), len(s), maxShared) && prev[n] == s[n] {
		n++
	}
	w.Byte(byte(n))
	w.String(s[n:])
}

// frontCoded takes names off a reader that putFrontCoded wrote in ascending
// order.
type frontCoded struct{ s []byte }

// next reads the next name into s. It fails unless the name is greater than the
// one before; without one before, it must share nothing.
func (f *frontCoded) next(r *wire.Reader, follows bool) bool {
	n := int(r.Byte())
	rest := r.Bytes()
	if r.Err() != nil {
		return false
	}
	if n > len(f.s) {
		r.Fail("a name shares %d bytes with one of %d", n, len(f.s))
		return false
	}
	if follows && bytes.Compare(rest, f.s[n:]) <= 0 {
		r.Fail("a name that does not follow %q", f.s)
		return false
	}
	f.s = append(f.s[:n], rest...)
	return true
}

// blockScanner walks the entries of a block and checks what the directory says
// of it.
type blockScanner struct {
	r     wire.Reader
	block *indexBlock
	count int
	err   error
	name  frontCoded

	fqn  []byte // of the entry, valid until the next call
	body []byte // of the entry
}

func newBlockScanner(payload []byte, b *indexBlock) *blockScanner {
	s := &blockScanner{block: b}
	s.r.Reset(payload)
	return s
}

// next goes to the next entry. It returns false at the block's end and after an
// error, which is then in err.
func (s *blockScanner) next() bool {
	if s.count == s.block.entries {
		s.err = s.r.Done()
		return false
	}
	if !s.name.next(&s.r, s.count > 0) {
		s.err = s.r.Err()
		return false
	}
	s.fqn, s.body = s.name.s, s.r.Bytes()
	if s.err = s.r.Err(); s.err != nil {
		return false
	}
	if s.count == 0 && string(s.fqn) != s.block.first {
		s.err = fmt.Errorf("it begins with %q, the directory says %q", s.fqn, s.block.first)
		return false
	}
	if !utf8.Valid(s.fqn) {
		s.err = fmt.Errorf("the name %q is not UTF-8", s.fqn)
		return false
	}
	s.count++
	return true
}
