package inspect

import (
	"slices"
	"strconv"
	"unicode/utf8"
)

// appendList appends a list. one appends an element.
func appendList[E any](b []byte, v []E, one func(b []byte, e E) []byte) []byte {
	b = append(b, '[')
	for i, e := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = one(b, e)
	}
	return append(b, ']')
}

func appendInts[E ~int32 | int64](b []byte, v []E) []byte {
	return appendList(b, v, func(b []byte, e E) []byte { return strconv.AppendInt(b, int64(e), 10) })
}

// appendMap appends a map in the order of its keys.
func appendMap(b []byte, m map[int]string) []byte {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}

	slices.Sort(keys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strconv.AppendInt(append(b, '"'), int64(k), 10), `":`...)
		b = appendJSONString(b, m[k])
	}

	return append(b, '}')
}

// appendJSONString appends s as a string of JSON. It escapes the same characters as
// encoding/json.
func appendJSONString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0 // of the bytes that are not yet appended
	for i := 0; i < len(s); {
		c, n := rune(s[i]), 1
		if c >= utf8.RuneSelf {
			c, n = utf8.DecodeRuneInString(s[i:])
		}

		i += n
		var escaped string
		switch {
		case c == '"':
			escaped = `\"`
		case c == '\\':
			escaped = `\\`
		case c == utf8.RuneError && n == 1:
			escaped = `\ufffd`
		case c < ' ' || c == '<' || c == '>' || c == '&':
			escaped = `\u00` + string(hex[c>>4]) + string(hex[c&15])
		case c == '\u2028' || c == '\u2029':
			escaped = `\u202` + string(hex[c&15])
		default:
			continue
		}

		b = append(append(b, s[start:i-n]...), escaped...)
		start = i
	}

	return append(append(b, s[start:]...), '"')
}
