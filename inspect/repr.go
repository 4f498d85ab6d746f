package inspect

import (
	"bytes"
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

// MaxRepr bounds, in bytes, what items and digests show of a value.
const MaxRepr = 4096

// Repr returns what Python's repr says of a value that value.Decode returned.
// Maps have their keys in order. What is longer than limit bytes is cut, with an
// ellipsis at its end, and takes no more time and memory than that.
func Repr(v any, limit int) string {
	r := reprer{limit: limit}
	r.value(v)
	if len(r.b) <= limit {
		return string(r.b)
	}
	return strings.ToValidUTF8(string(r.b[:limit]), "") + "…"
}

// reprer puts a repr together. It may stop once it has more than limit bytes.
type reprer struct {
	b     []byte
	limit int
}

func (r *reprer) full() bool { return len(r.b) > r.limit }

func (r *reprer) text(s string) { r.b = append(r.b, s...) }

func (r *reprer) value(v any) {
	switch v := v.(type) {
	case nil:
		r.text("None")
	case bool:
		r.text(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		r.b = strconv.AppendInt(r.b, v, 10)
	case uint64:
		r.b = strconv.AppendUint(r.b, v, 10)
	case *big.Int:
		r.b = v.Append(r.b, 10)
	case float64:
		r.b = appendFloat(r.b, v)
	case string:
		r.str(v)
	case []byte:
		r.bytes(v)
	case []any:
		r.list(v)
	case map[string]any:
		r.dict(v)
	default:
		r.b = fmt.Append(r.b, v)
	}
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
func quoteFor(single, double bool) byte {
	if single && !double {
		return '"'
	}
	return '\''
}

func (r *reprer) str(s string) {
	q := quoteFor(strings.Contains(s, "'"), strings.Contains(s, `"`))
	r.b = append(r.b, q)
	for _, c := range s {
		switch {
		case r.full():
			return
		case c < utf8.RuneSelf:
			r.ascii(byte(c), q)
		case unicode.IsPrint(c):
			r.b = utf8.AppendRune(r.b, c)
		case c <= 0xff:
			r.b = fmt.Appendf(r.b, `\x%02x`, c)
		case c <= 0xffff:
			r.b = fmt.Appendf(r.b, `\u%04x`, c)
		default:
			r.b = fmt.Appendf(r.b, `\U%08x`, c)
		}
	}
	r.b = append(r.b, q)
}

func (r *reprer) bytes(v []byte) {
	q := quoteFor(bytes.Contains(v, []byte("'")), bytes.Contains(v, []byte(`"`)))
	r.b = append(r.b, 'b', q)
	for _, c := range v {
		if r.full() {
			return
		}
		r.ascii(c, q)
	}
	r.b = append(r.b, q)
}

// ascii adds one character inside of quotes q, escaped where it must be.
func (r *reprer) ascii(c, q byte) {
	switch {
	case c == q || c == '\\':
		r.b = append(r.b, '\\', c)
	case c == '\n':
		r.text(`\n`)
	case c == '\r':
		r.text(`\r`)
	case c == '\t':
		r.text(`\t`)
	case c < ' ' || c >= 0x7f:
		r.b = fmt.Appendf(r.b, `\x%02x`, c)
	default:
		r.b = append(r.b, c)
	}
}

func (r *reprer) list(v []any) {
	r.text("[")
	for i, e := range v {
		if r.full() {
			return
		}
		if i > 0 {
			r.text(", ")
		}
		r.value(e)
	}
	r.text("]")
}

func (r *reprer) dict(v map[string]any) {
	r.text("{")
	for i, k := range slices.Sorted(maps.Keys(v)) {
		if r.full() {
			return
		}
		if i > 0 {
			r.text(", ")
		}
		r.str(k)
		r.text(": ")
		r.value(v[k])
	}
	r.text("}")
}
