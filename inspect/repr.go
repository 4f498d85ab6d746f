package inspect

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// TypeName returns Python's name for the type of a value that value.Decode returned, like
// type(x).__name__. It is "global" for a name of unknown meaning.
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
		if !v.Call {
			return nameType(v)
		}
		return v.Name[strings.LastIndexByte(v.Name, '.')+1:]
	case *tensor.Tensor, value.Ref:
		return "Tensor"
	}
	return fmt.Sprintf("%T", v)
}

var builtinTypes = []string{
	"bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "object", "range", "set",
	"slice", "str", "tuple", "type",
}

var (
	layouts       = []string{"strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "_mkldnn", "jagged"}
	memoryFormats = []string{"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"}
)

// nameType returns the type of the object that has this name.
func nameType(o *value.Object) string {
	if o.Module == "builtins" && slices.Contains(builtinTypes, o.Name) {
		return "type"
	}
	if o.Module != "torch" {
		return "global"
	}

	d, err := tensor.ParseDType(o.Name)
	switch {
	case err == nil && d.String() == o.Name:
		return "dtype"
	case slices.Contains(layouts, o.Name):
		return "layout"
	case slices.Contains(memoryFormats, o.Name):
		return "memory_format"
	}

	return "global"
}

func choose(cond bool, yes, no string) string {
	if cond {
		return yes
	}
	return no
}

// MaxRepr is the limit, in bytes, of the reprs in items and digests.
const MaxRepr = 4096

// Repr returns a value that value.Decode returned as a Python expression. It is the result of
// Python's repr, except that
//   - the keys of a map are sorted, and a set keeps the order in which it was stored;
//   - a tensor and a *meta.Tensor show dtype and shape, and a reference to a tensor
//     shows the tensor's name;
//   - an array of numpy is on one line and names its dtype;
//   - an object of a known class is the call that makes it, Decimal('1.50');
//   - an object of any other class shows its stored parts,
//     <mypkg.Config object: {'a': 1}>.
//
// A longer text is cut after limit bytes and ends with an ellipsis. Repr stops at
// the limit, so time and memory do not grow with the value, except for reading
// long strings and the keys of large maps once.
func Repr(v any, limit int) string {
	r := reprer{limit: limit}
	r.value(v)
	if len(r.b) <= limit {
		return string(r.b)
	}
	return strings.ToValidUTF8(string(r.b[:limit]), "") + "…"
}

// reprer builds a repr. It may stop once it has more than limit bytes.
type reprer struct {
	b     []byte
	limit int
}

func (r *reprer) full() bool { return len(r.b) > r.limit }

// text adds s up to the limit.
func (r *reprer) text(s string) {
	r.b = append(r.b, s[:min(len(s), max(r.limit+1-len(r.b), 0))]...)
}

func (r *reprer) value(v any) {
	if r.full() {
		return // a shared part may occur very often
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
		r.b = appendComplex(r.b, v, 64)
	case string:
		r.quoted("", v)
	case []byte:
		r.quoted("b", string(v))
	case []any:
		r.seq("[", v, "]")
	case value.Tuple:
		r.tuple(v)
	case map[string]any:
		pairs, _, _ := dictPairs(v)
		r.pairs("{", pairs, "}")
	case *value.Dict:
		r.dict(v)
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

func (r *reprer) tensor(d tensor.DType, shape []int64) {
	r.text("tensor(dtype=" + d.String() + ", shape=[")
	r.each(len(shape), func(i int) { r.b = strconv.AppendInt(r.b, shape[i], 10) })
	r.text("])")
}

// maxBits is the size of the largest integer that is printed in decimal: the
// conversion takes more than linear time.
const maxBits = 40_000

func (r *reprer) big(n *big.Int) {
	if n.BitLen() > maxBits {
		r.text("<int of " + strconv.Itoa(n.BitLen()) + " bits>")
		return
	}
	r.b = n.Append(r.b, 10)
}

// quoted adds a string, or bytes if prefix is "b". Like Python, it uses double quotes
// if the text has single quotes only.
func (r *reprer) quoted(prefix, s string) {
	q := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	r.text(prefix + string(q))

	for len(s) > 0 && !r.full() {
		c, n := rune(s[0]), 1
		if prefix == "" {
			c, n = utf8.DecodeRuneInString(s)
		}
		if c == utf8.RuneError && n == 1 {
			c, n = surrogate(s)
		}
		s = s[n:]

		switch {
		case c == q || c == '\\':
			r.b = append(r.b, '\\', byte(c))
		case c == '\n':
			r.text(`\n`)
		case c == '\r':
			r.text(`\r`)
		case c == '\t':
			r.text(`\t`)
		case unicode.IsPrint(c) && (c < utf8.RuneSelf || prefix == ""):
			r.b = utf8.AppendRune(r.b, c)
		case c <= 0xff:
			r.b = fmt.Appendf(r.b, `\x%02x`, c)
		case c <= 0xffff:
			r.b = fmt.Appendf(r.b, `\u%04x`, c)
		default:
			r.b = fmt.Appendf(r.b, `\U%08x`, c)
		}
	}

	r.text(string(q))
}

// surrogate returns the surrogate at the start of s and its length. For any other byte it
// returns the surrogate of Python's error handler "surrogateescape".
func surrogate(s string) (c rune, n int) {
	if len(s) >= 3 && s[0] == 0xed && s[1]&0xe0 == 0xa0 && s[2]&0xc0 == 0x80 {
		return 0xd000 | rune(s[1]&0x3f)<<6 | rune(s[2]&0x3f), 3
	}
	return 0xdc00 | rune(s[0]), 1
}

// each calls add for 0 to n-1 and adds commas between, until the limit.
func (r *reprer) each(n int, add func(i int)) {
	for i := range n {
		if r.full() {
			return
		}
		if i > 0 {
			r.text(", ")
		}
		add(i)
	}
}

func (r *reprer) seq(open string, v []any, end string) {
	r.text(open)
	r.each(len(v), func(i int) { r.value(v[i]) })
	r.text(end)
}

func (r *reprer) tuple(v value.Tuple) {
	r.seq("(", v, choose(len(v) == 1, ",)", ")"))
}

func (r *reprer) pairs(open string, v []value.Pair, end string) {
	r.text(open)
	r.each(len(v), func(i int) {
		r.value(v[i].Key)
		r.text(": ")
		r.value(v[i].Value)
	})
	r.text(end)
}

func (r *reprer) dict(v *value.Dict) {
	switch {
	case !v.Ordered:
		r.pairs("{", v.Pairs, "}")
	case len(v.Pairs) == 0:
		r.text("OrderedDict()")
	default:
		r.pairs("OrderedDict({", v.Pairs, "})")
	}
}

func (r *reprer) set(v *value.Set) {
	switch {
	case len(v.Items) == 0:
		r.text(choose(v.Frozen, "frozenset()", "set()"))
	case v.Frozen:
		r.seq("frozenset({", v.Items, "})")
	default:
		r.seq("{", v.Items, "}")
	}
}

// object adds an object: a name, a call of a known class, or its stored parts.
func (r *reprer) object(o *value.Object) {
	if !o.Call {
		r.name(o)
		return
	}
	switch name := o.QualifiedName(); {
	case name == "collections.defaultdict" && len(o.Args) <= 1 && len(o.Kwargs) == 0 && o.State == nil && len(o.Items) == 0:
		r.text("defaultdict(")
		r.value(append(slices.Clone(o.Args), nil)[0])
		r.pairs(", {", o.Pairs, "})")
	case name == "collections.deque" && len(o.Kwargs) == 0 && o.State == nil && len(o.Pairs) == 0 && len(o.Args) != 1:
		r.seq("deque([", o.Items, "]")
		if len(o.Args) == 2 {
			r.text(", maxlen=")
			r.value(o.Args[1])
		}
		r.text(")")
	case o.State != nil || len(o.Items) > 0 || len(o.Pairs) > 0:
		r.parts(o)
	default:
		r.made(o, name)
	}
}

// classes are the classes of objects that are shown as a call, and the names that Python's
// repr uses for them. numpy's scalars are added to them.
var classes = map[string]string{
	"builtins.bytearray": "bytearray", "builtins.range": "range", "builtins.slice": "slice",
	"collections.Counter": "Counter",
	"datetime.date":       "datetime.date", "datetime.time": "datetime.time", "datetime.datetime": "datetime.datetime",
	"datetime.timedelta": "datetime.timedelta", "datetime.timezone": "datetime.timezone",
	"decimal.Decimal": "Decimal", "fractions.Fraction": "Fraction", "uuid.UUID": "UUID",
	"pathlib.PosixPath": "PosixPath", "pathlib.PurePosixPath": "PurePosixPath",
	"pathlib.WindowsPath": "WindowsPath", "pathlib.PureWindowsPath": "PureWindowsPath",
	"numpy.dtype": "dtype",
}

func (r *reprer) made(o *value.Object, name string) {
	class, known := classes[name]
	switch a := shownArray(o); {
	case a != nil:
		r.text("array(")
		r.elements(a.DType(), a.Shape(), a.Contents())
		r.text(", dtype=" + a.DType().String() + ")")
	case name == "torch.Size" && len(o.Args) == 1:
		if t, ok := o.Args[0].(value.Tuple); ok {
			r.seq("torch.Size([", t, "])")
			return
		}
		r.parts(o)
	case name == "torch.device" && len(o.Args) > 0 && len(o.Args) <= 2:
		fields := []string{"type=", "index="}
		r.text("device(")
		r.each(len(o.Args), func(i int) {
			r.text(fields[i])
			r.value(o.Args[i])
		})
		r.text(")")
	case o.Module == "numpy" && len(o.Args) == 1 && isNumber(o.Args[0]):
		r.numpyScalar(o)
	case name == "datetime.timezone" && isUTC(o):
		r.text("datetime.timezone.utc")
	case known && len(o.Args)+len(o.Kwargs) > 0:
		r.call(class, o)
	default:
		r.parts(o)
	}
}

// argNames are the named arguments of the known classes, in Python's order.
var argNames = []string{"days", "seconds", "microseconds", "fold", "tzinfo"}

func (r *reprer) call(class string, o *value.Object) {
	r.seq(class+"(", o.Args, choose(len(o.Args) > 0 && len(o.Kwargs) > 0, ", ", ""))
	names := slices.SortedFunc(maps.Keys(o.Kwargs), func(a, b string) int {
		return cmp.Or(cmp.Compare(slices.Index(argNames, a), slices.Index(argNames, b)), cmp.Compare(a, b))
	})
	r.each(len(names), func(i int) {
		r.text(names[i] + "=")
		r.value(o.Kwargs[names[i]])
	})
	r.text(")")
}

// isUTC reports whether a time zone is Python's datetime.timezone.utc.
func isUTC(o *value.Object) bool {
	if len(o.Args) != 1 {
		return false
	}
	d, ok := o.Args[0].(*value.Object)
	return ok && len(d.Args) == 1 && d.Args[0] == any(int64(0))
}

func isNumber(v any) bool {
	switch v.(type) {
	case bool, int64, uint64, float64, complex128:
		return true
	}
	return false
}

// numpyScalar adds a scalar of numpy, with as many digits as its type has.
func (r *reprer) numpyScalar(o *value.Object) {
	if v, ok := o.Args[0].(bool); ok {
		r.text(choose(v, "np.True_", "np.False_"))
		return
	}

	r.text("np." + o.Name + "(")
	bits, _ := strconv.Atoi(strings.TrimLeft(o.Name, "abcdefghijklmnopqrstuvwxyz_"))
	switch v := o.Args[0].(type) {
	case float64:
		r.b = appendFloat(r.b, v, bits)
	case complex128:
		r.b = appendParts(r.b, v, bits/2)
	default:
		r.value(v)
	}

	r.text(")")
}

func (r *reprer) parts(o *value.Object) {
	var parts []any
	for _, p := range []struct {
		has bool
		v   any
	}{
		{len(o.Args) > 0, o.Args}, {len(o.Kwargs) > 0, o.Kwargs}, {o.State != nil, o.State}, {len(o.Items) > 0, o.Items},
		{len(o.Pairs) > 0, &value.Dict{Pairs: o.Pairs}},
	} {
		if p.has {
			parts = append(parts, p.v)
		}
	}

	r.text("<" + o.QualifiedName() + " object")
	r.seq(choose(len(parts) > 0, ": ", ""), parts, ">")
}

func (r *reprer) name(o *value.Object) {
	switch nameType(o) {
	case "type":
		r.text("<class '" + o.Name + "'>")
	case "global":
		r.text("<" + o.QualifiedName() + ">")
	default:
		r.text(o.QualifiedName())
	}
}

// shownArray returns an array of NumPy if its elements are shown, or nil.
func shownArray(o *value.Object) *tensor.Tensor {
	if o.Module != "numpy" || o.Name != "ndarray" {
		return nil
	}
	t, _ := numpyArray(o) // the parts of other arrays are shown
	return t
}

// elements adds elements as nested lists.
func (r *reprer) elements(d tensor.DType, shape []int64, p []byte) {
	if len(shape) == 0 {
		r.b = ElementFormat(d)(r.b, p)
		return
	}
	r.text("[")
	step := len(p) / int(max(1, shape[0]))
	r.each(int(shape[0]), func(i int) { r.elements(d, shape[1:], p[i*step:(i+1)*step]) })
	r.text("]")
}

// appendFloat prints f, a float of 16, 32 or 64 bits, with as few digits as
// identify it. Like Python it uses an exponent below 1e-4 and from 1e16 on.
func appendFloat(b []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "nan"...)
	case math.IsInf(f, 1):
		return append(b, "inf"...)
	case math.IsInf(f, -1):
		return append(b, "-inf"...)
	}

	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		format = 'e'
	}
	if bits == 16 {
		f, bits = rounded(f, digits[tensor.Float16]), 64
	}

	n := len(b)
	b = strconv.AppendFloat(b, f, format, -1, bits)
	if !bytes.ContainsAny(b[n:], ".e") {
		b = append(b, ".0"...)
	}
	return b
}

// isImaginary reports whether Python omits the real part of c.
func isImaginary(c complex128) bool { return real(c) == 0 && !math.Signbit(real(c)) }

// appendComplex prints c in parentheses, which Python omits if there is no real part.
func appendComplex(b []byte, c complex128, bits int) []byte {
	if isImaginary(c) {
		return appendParts(b, c, bits)
	}
	return append(appendParts(append(b, '('), c, bits), ')')
}

// appendParts prints the parts of c without zeros after the point, as Python does.
func appendParts(b []byte, c complex128, bits int) []byte {
	short := func(f float64) []byte { return bytes.TrimSuffix(appendFloat(nil, f, bits), []byte(".0")) }
	if !isImaginary(c) {
		b = append(b, short(real(c))...)
		if im := imag(c); math.IsNaN(im) || !math.Signbit(im) {
			b = append(b, '+')
		}
	}
	return append(append(b, short(imag(c))...), 'j')
}

// digits has the number of decimal digits that identify a value of each small float.
var digits = map[tensor.DType]int{
	tensor.Float16: 5, tensor.BFloat16: 4,
	tensor.Float8E4M3FN: 3, tensor.Float8E4M3FNUZ: 3, tensor.Float8E5M2: 2, tensor.Float8E5M2FNUZ: 2,
	tensor.Float8E8M0FNU: 17, // only powers of two: print all digits
}

// rounded returns f with n significant decimal digits.
func rounded(f float64, n int) float64 {
	if text := strconv.FormatFloat(f, 'e', n-1, 64); isFinite(f) {
		f, _ = strconv.ParseFloat(text, 64) // a text that FormatFloat made
	}
	return f
}

// ElementFormat returns a function that appends the element with the bytes p in
// Python's notation: True, -7, 0.1, 1e-05, nan, (1+2j). Floats have as few
// digits as identify them. Only one goroutine may use the function at a time.
func ElementFormat(d tensor.DType) func(b, p []byte) []byte {
	le := binary.LittleEndian
	switch d {
	case tensor.Float64:
		return func(b, p []byte) []byte { return appendFloat(b, math.Float64frombits(le.Uint64(p)), 64) }
	case tensor.Float32:
		return func(b, p []byte) []byte { return appendFloat(b, float64(math.Float32frombits(le.Uint32(p))), 32) }
	case tensor.Complex64:
		return func(b, p []byte) []byte {
			re, im := math.Float32frombits(le.Uint32(p)), math.Float32frombits(le.Uint32(p[4:]))
			return appendComplex(b, complex(float64(re), float64(im)), 32)
		}
	case tensor.Complex128:
		return func(b, p []byte) []byte {
			return appendComplex(b, complex(math.Float64frombits(le.Uint64(p)), math.Float64frombits(le.Uint64(p[8:]))), 64)
		}
	case tensor.Bool:
		return func(b, p []byte) []byte { return append(b, choose(p[0] != 0, "True", "False")...) }
	}

	if n, small := digits[d]; small {
		one := make([]float32, 1)
		return func(b, p []byte) []byte {
			if _, err := converted(d, p, one); err != nil {
				return append(b, '?') // p does not have the size of an element
			}
			return appendFloat(b, rounded(float64(one[0]), n), 64)
		}
	}
	return integerFormat(d)
}

func integerFormat(d tensor.DType) func(b, p []byte) []byte {
	unused := 64 - 8*d.Size()
	signed := d == tensor.Int64 || d == tensor.Int32 || d == tensor.Int16 || d == tensor.Int8
	return func(b, p []byte) []byte {
		var wide [8]byte
		copy(wide[:], p)
		n := binary.LittleEndian.Uint64(wide[:])
		if signed {
			return strconv.AppendInt(b, int64(n<<unused)>>unused, 10)
		}
		return strconv.AppendUint(b, n, 10)
	}
}
