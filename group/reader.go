package group

import (
	"encoding/binary"
	"fmt"
)

// reader takes a message apart. The first mistake sticks, and every later read
// returns nothing; no length is believed that the rest of the message lacks.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %w", what, errMalformed)
	}
	r.rest = nil
}

// end returns the first mistake; bytes that are left over are one.
func (r *reader) end() error {
	if len(r.rest) > 0 {
		r.fail("bytes after the end")
	}
	return r.err
}

// uint reads a number of at most limit.
func (r *reader) uint(what string, limit int) int {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || v > uint64(limit) {
		r.fail(what)
		return 0
	}
	r.rest = r.rest[n:]
	return int(v)
}

// string reads a string of at most limit bytes.
func (r *reader) string(what string, limit int) string {
	n := r.uint(what, min(limit, len(r.rest)))
	if n > len(r.rest) {
		r.fail(what)
		return ""
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

func (r *reader) remoteError() *RemoteError {
	e := &RemoteError{Text: r.string("text", maxText)}
	for range r.uint("codes", maxCodes) {
		e.Codes = append(e.Codes, r.string("code", maxCode))
	}
	return e
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
