package inspect

import (
	"bytes"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// TypeName returns Python's name for the type of a value that value.Decode
// returned: what type(x).__name__ says. For an object that is known by its name
// alone, and to nobody here, it is "global", as pickles call such.
func TypeName(v any) string {
	switch v := v.(type) {
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
	case complex128:
		return "complex"
	case value.Tuple:
		return "tuple"
	case *value.Dict:
		return choose(v.Ordered, "OrderedDict", "dict")
	case *value.Set:
		return choose(v.Frozen, "frozenset", "set")
	case *value.Object:
		return objectType(v)
	case *tensor.Tensor, value.Ref:
		return "Tensor"
	}
	return fmt.Sprintf("%T", v)
}

func choose(cond bool, yes, no string) string {
	if cond {
		return yes
	}
	return no
}

// MaxRepr bounds, in bytes, what items and digests show of a value.
const MaxRepr = 4096

// Repr returns what Python's repr says of a value that value.Decode returned,
// with these liberties: maps have their keys in order, sets keep the order in
// which they were stored, a tensor and a *meta.Tensor show dtype and shape, a
// reference to a tensor its name, an array of numpy is on one line with every
// number as short as it can be, and an object of a
// class that is not known here is shown as the record that it is,
// <mypkg.Config object: {'a': 1}>. The spelling is that of Python 3.12 and
// numpy 2.
//
// What is longer than limit bytes is cut, with an ellipsis at its end, and takes
// no more time and memory than that, apart from looking at long strings and at
// the keys of large maps once.
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

// text adds s, or as much of it as there is room for.
func (r *reprer) text(s string) {
	r.b = append(r.b, s[:min(len(s), max(r.limit+1-len(r.b), 0))]...)
}

func (r *reprer) value(v any) {
	if r.full() {
		return // so that parts that are shared a lot are not walked again
	}
	switch v := v.(type) {
	case nil:
		r.text("None")
	case bool:
		r.text(choose(v, "True", "False"))
	case int64:
		r.b = strconv.AppendInt(r.b, v, 10)
	case uint64:
		r.b = strconv.AppendUint(r.b, v, 10)
	case *big.Int:
		r.big(v)
	case float64:
		r.b = appendFloat(r.b, v, 64)
	case complex128:
		r.complex(v)
	case string:
		r.str(v)
	case []byte:
		r.bytes(v)
	case []any:
		r.seq("[", v, "]")
	case map[string]any:
		r.dict(v)
	default:
		r.python(v)
	}
}

// python adds what Go has no type of its own for.
func (r *reprer) python(v any) {
	switch v := v.(type) {
	case value.Tuple:
		r.tuple(v)
	case *value.Dict:
		r.ordered(v)
	case *value.Set:
		r.set(v)
	case *value.Object:
		r.object(v)
	case *tensor.Tensor:
		r.tensor(v.DType(), v.Shape())
	case *meta.Tensor:
		r.tensor(v.DType, v.Shape)
	case value.Ref:
		r.text("<tensor " + v.FQN + ">")
	default:
		r.b = fmt.Append(r.b, v)
	}
}

// tensor adds the description of a tensor.
func (r *reprer) tensor(d tensor.DType, shape []int64) {
	r.text("tensor(dtype=" + d.String() + ", shape=")
	r.ints(shape)
	r.text(")")
}

// maxBits bounds the integers that are printed as such: more takes more than
// linear time, and Python itself refuses it. value.Encode takes no larger ones.
const maxBits = 40_000

func (r *reprer) big(n *big.Int) {
	if n.BitLen() > maxBits {
		r.text("<int of " + strconv.Itoa(n.BitLen()) + " bits>")
		return
	}
	r.b = n.Append(r.b, 10)
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
	for len(s) > 0 {
		if r.full() {
			return
		}
		c, n := utf8.DecodeRuneInString(s)
		if c == utf8.RuneError && n == 1 {
			c, n = surrogate(s)
		}
		r.char(c, q)
		s = s[n:]
	}
	r.b = append(r.b, q)
}

// surrogate returns the surrogate that s begins with, or else its first byte as
// Python's error handler "surrogateescape" reads it, and how long it is.
func surrogate(s string) (c rune, n int) {
	if len(s) >= 3 && s[0] == 0xed && s[1]&0xe0 == 0xa0 && s[2]&0xc0 == 0x80 {
		return 0xd000 | rune(s[1]&0x3f)<<6 | rune(s[2]&0x3f), 3
	}
	return 0xdc00 | rune(s[0]), 1
}

// char adds one character inside of quotes q, escaped where it must be.
func (r *reprer) char(c rune, q byte) {
	switch {
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

func (r *reprer) bytes(v []byte) {
	q := quoteForBytes(v)
	r.byteString(v, q, q)
}

func quoteForBytes(v []byte) byte {
	return quoteFor(bytes.Contains(v, []byte("'")), bytes.Contains(v, []byte(`"`)))
}

// byteString adds v between quotes q, with those escaped that the second is.
func (r *reprer) byteString(v []byte, q, escaped byte) {
	r.b = append(r.b, 'b', q)
	for _, c := range v {
		if r.full() {
			return
		}
		r.ascii(c, escaped)
	}
	r.b = append(r.b, q)
}

// ascii adds one byte inside of quotes q, escaped where it must be.
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
