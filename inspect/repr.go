package inspect

import (
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// TypeName returns Python's name for the type of a value that value.Decode
// returned.
func TypeName(v any) string {
	switch v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, uint64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case []byte:
		return "bytes"
	case []any:
		return "list"
	case map[string]any:
		return "dict"
	}
	return fmt.Sprintf("%T", v)
}

// Repr returns what Python's repr says of a value that value.Decode returned.
// Maps have their keys in order.
func Repr(v any) string { return string(appendRepr(nil, v)) }

func appendRepr(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "None"...)
	case bool:
		if v {
			return append(b, "True"...)
		}
		return append(b, "False"...)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case uint64:
		return strconv.AppendUint(b, v, 10)
	case *big.Int:
		return v.Append(b, 10)
	case float64:
		return appendFloat(b, v)
	case string:
		return appendString(b, v)
	case []byte:
		return appendBytes(b, v)
	case []any:
		return appendList(b, v)
	case map[string]any:
		return appendMap(b, v)
	}
	return fmt.Append(b, v)
}

// appendFloat prints the shortest digits that give f back: plain between 1e-4
// and 1e16, as Python does, with an exponent of two digits elsewhere.
func appendFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "nan"...)
	case math.IsInf(f, 1):
		return append(b, "inf"...)
	case math.IsInf(f, -1):
		return append(b, "-inf"...)
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	n := len(b)
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	if !slices.Contains(b[n:], '.') {
		b = append(b, ".0"...)
	}
	return b
}

// quoteFor returns the quote that Python takes: a single one, unless the text
// has such and no double ones.
func quoteFor(s string) byte {
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		return '"'
	}
	return '\''
}

func appendString(b []byte, s string) []byte {
	q := quoteFor(s)
	b = append(b, q)
	for _, r := range s {
		switch {
		case r < utf8.RuneSelf:
			b = appendASCII(b, byte(r), q)
		case unicode.IsPrint(r):
			b = utf8.AppendRune(b, r)
		case r <= 0xff:
			b = fmt.Appendf(b, `\x%02x`, r)
		case r <= 0xffff:
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = fmt.Appendf(b, `\U%08x`, r)
		}
	}
	return append(b, q)
}

func appendBytes(b, v []byte) []byte {
	q := quoteFor(string(v))
	b = append(b, 'b', q)
	for _, c := range v {
		b = appendASCII(b, c, q)
	}
	return append(b, q)
}

// appendASCII appends one character inside of quotes q, escaped where it must
// be.
func appendASCII(b []byte, c, q byte) []byte {
	switch {
	case c == q || c == '\\':
		return append(b, '\\', c)
	case c == '\n':
		return append(b, `\n`...)
	case c == '\r':
		return append(b, `\r`...)
	case c == '\t':
		return append(b, `\t`...)
	case c < ' ' || c >= 0x7f:
		return fmt.Appendf(b, `\x%02x`, c)
	}
	return append(b, c)
}

func appendList(b []byte, v []any) []byte {
	b = append(b, '[')
	for i, e := range v {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = appendRepr(b, e)
	}
	return append(b, ']')
}

func appendMap(b []byte, v map[string]any) []byte {
	b = append(b, '{')
	for i, k := range slices.Sorted(maps.Keys(v)) {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(appendString(b, k), ": "...)
		b = appendRepr(b, v[k])
	}
	return append(b, '}')
}
