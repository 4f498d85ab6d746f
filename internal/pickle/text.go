package pickle

import (
	"strconv"
	"unicode/utf8"
)

// validWTF8 reports whether b is UTF-8 that may contain surrogates of three bytes
// each, which Python writes. Such strings are kept so that they are written back
// unchanged.
func validWTF8(b []byte) bool {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			if !surrogate(b) {
				return false
			}
			n = 3
		}
		b = b[n:]
	}
	return true
}

// surrogate reports whether b begins with one of U+D800 to U+DFFF.
func surrogate(b []byte) bool {
	return len(b) >= 3 && b[0] == 0xed && b[1] >= 0xa0 && b[1] <= 0xbf && b[2] >= 0x80 && b[2] <= 0xbf
}

// appendRune appends r, which may be a surrogate.
func appendRune(b []byte, r rune) []byte {
	if r >= 0xd800 && r <= 0xdfff {
		return append(b, 0xed, byte(0x80|r>>6&0x3f), byte(0x80|r&0x3f))
	}
	return utf8.AppendRune(b, r)
}

// rawUnicodeEscape decodes a string of protocol 0: Latin-1 with the escapes
// \uxxxx and \Uxxxxxxxx.
func rawUnicodeEscape(l []byte) ([]byte, bool) {
	out := make([]byte, 0, len(l))
	for i := 0; i < len(l); i++ {
		digits := 0
		if l[i] == '\\' && i+1 < len(l) {
			switch l[i+1] {
			case 'u':
				digits = 4
			case 'U':
				digits = 8
			}
		}
		if digits == 0 {
			out = utf8.AppendRune(out, rune(l[i]))
			continue
		}
		if i+2+digits > len(l) {
			return nil, false
		}
		r, err := strconv.ParseUint(string(l[i+2:i+2+digits]), 16, 32)
		if err != nil || r > utf8.MaxRune {
			return nil, false
		}
		out = appendRune(out, rune(r))
		i += 1 + digits
	}
	return out, true
}

// quoted decodes a string of protocol 0, which is written as its repr.
func quoted(l []byte) ([]byte, bool) {
	if len(l) < 2 || l[0] != l[len(l)-1] || l[0] != '\'' && l[0] != '"' {
		return nil, false
	}
	s := string(l[1 : len(l)-1])
	out := make([]byte, 0, len(s))
	for len(s) > 0 {
		if s[0] != '\\' {
			out, s = append(out, s[0]), s[1:]
			continue
		}
		b, n, ok := escape(s)
		if !ok {
			return nil, false
		}
		out, s = append(out, b), s[n:]
	}
	return out, true
}

// escape decodes the escape sequence at the start of s and returns its length.
func escape(s string) (byte, int, bool) {
	if len(s) < 2 {
		return 0, 0, false
	}
	switch c := s[1]; c {
	case '\\', '\'', '"':
		return c, 2, true
	case 'n':
		return '\n', 2, true
	case 'r':
		return '\r', 2, true
	case 't':
		return '\t', 2, true
	case 'x':
		if len(s) < 4 {
			return 0, 0, false
		}
		v, err := strconv.ParseUint(s[2:4], 16, 8)
		return byte(v), 4, err == nil
	}
	return 0, 0, false
}
