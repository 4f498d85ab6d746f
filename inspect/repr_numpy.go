package inspect

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// numpyClass returns the renderers of numpy. The objects are in the normal
// form of package pickle.
func numpyClass(name string) renderer {
	switch {
	case name == "dtype":
		return (*reprer).numpyDType
	case name == "ndarray":
		return (*reprer).numpyArray
	case isNumpyScalar(name):
		return (*reprer).numpyScalar
	}
	return nil
}

// isNumpyScalar reports whether numpy has a class of scalars of that name.
func isNumpyScalar(name string) bool {
	d, err := tensor.ParseDType(name)
	return name == "bool_" || err == nil && d.String() == name && d != tensor.BFloat16 && !strings.HasPrefix(name, "float8")
}

func (r *reprer) numpyScalar(o *value.Object) bool {
	if len(o.Args) != 1 || !onlyArgs(o) {
		return false
	}
	bits, _ := strconv.Atoi(strings.TrimLeft(o.Name, "abcdefghijklmnopqrstuvwxyz_"))
	switch v := o.Args[0].(type) {
	case bool:
		r.text(choose(v, "np.True_", "np.False_"))
		return true
	case int64, uint64:
		r.seq("np."+o.Name+"(", o.Args, ")")
		return true
	case float64:
		r.text("np." + o.Name + "(")
		r.b = appendFloat(r.b, v, bits)
	case complex128:
		r.text("np." + o.Name + "(")
		r.b = appendPyComplex(r.b, v, bits/2)
	default:
		return false
	}
	r.text(")")
	return true
}

// npType is a dtype of numpy: the letter of its kind, the bytes of an element,
// and whether those are in big-endian order.
type npType struct {
	kind byte
	size int
	big  bool
}

// npKinds are the kinds with what the names of their classes begin with: of
// scalars and of dtypes.
var npKinds = map[byte][2]string{
	'f': {"float", "Float"}, 'i': {"int", "Int"}, 'u': {"uint", "UInt"}, 'c': {"complex", "Complex"},
	'b': {"bool", "Bool"}, 'U': {"str_", "Str"}, 'S': {"bytes_", "Bytes"},
}

// parseNumpyType returns the dtype that is spelled like "<f8", if its elements
// can be shown here.
func parseNumpyType(v any) (npType, bool) {
	s, _ := v.(string)
	d := npType{big: strings.HasPrefix(s, ">")}
	s = strings.TrimLeft(s, "<>|=")
	if s == "" {
		return d, false
	}
	n, err := strconv.ParseUint(s[1:], 10, 20)
	d.kind, d.size = s[0], int(n)
	if d.kind == 'U' {
		d.size *= 4
	}
	return d, err == nil && d.known()
}

func (d npType) known() bool {
	switch d.kind {
	case 'b':
		return d.size == 1
	case 'i', 'u':
		return slices.Contains([]int{1, 2, 4, 8}, d.size)
	case 'f':
		return slices.Contains([]int{2, 4, 8}, d.size)
	case 'c':
		return d.size == 8 || d.size == 16
	case 'U', 'S':
		return d.size > 0
	}
	return false
}

// bits returns the number that the names of d's classes end with.
func (d npType) bits() string {
	if strings.IndexByte("fiuc", d.kind) < 0 {
		return ""
	}
	return strconv.Itoa(8 * d.size)
}

// code returns the dtype as numpy writes it: "float32", or in quotes "'>f4'".
func (d npType) code() string {
	switch {
	case d.kind == 'S':
		return "'S" + strconv.Itoa(d.size) + "'"
	case d.kind == 'U':
		return choose(d.big, "'>U", "'<U") + strconv.Itoa(d.size/4) + "'"
	case d.big && d.size > 1:
		return "'>" + string(d.kind) + strconv.Itoa(d.size) + "'"
	}
	return npKinds[d.kind][0] + d.bits()
}

// numpyType returns the name of the class of an object of numpy where it is not
// the one that it is made by: each dtype has a class of its own.
func numpyType(o *value.Object) (string, bool) {
	if o.QualifiedName() != "numpy.dtype" || len(o.Args) == 0 {
		return "", false
	}
	d, ok := parseNumpyType(o.Args[0])
	return npKinds[d.kind][1] + d.bits() + "DType", ok
}

func (r *reprer) numpyDType(o *value.Object) bool {
	if len(o.Args) != 1 || !onlyArgs(o) {
		return false
	}
	d, ok := parseNumpyType(o.Args[0])
	if ok {
		r.text("dtype('" + strings.Trim(d.code(), "'") + "')")
	}
	return ok
}

// element adds one element of an array, floats by way of float.
func (r *reprer) element(d npType, p []byte, float func(b []byte, f float64, bits int) []byte) {
	if d.big {
		p = swapped(d, p)
	}
	switch d.kind {
	case 'b':
		r.text(choose(p[0] != 0, "True", "False"))
	case 'i':
		r.b = strconv.AppendInt(r.b, int64(uintOf(p)<<(64-8*d.size))>>(64-8*d.size), 10)
	case 'u':
		r.b = strconv.AppendUint(r.b, uintOf(p), 10)
	case 'f':
		r.b = float(r.b, floatOf(p), 8*d.size)
	case 'c':
		half := d.size / 2
		r.b = appendPyComplex(r.b, complex(floatOf(p[:half]), floatOf(p[half:])), 8*half)
	case 'S':
		r.bytes([]byte(strings.TrimRight(string(p), "\x00")))
	case 'U':
		r.str(textOf(p))
	}
}

// swapped returns the element p in little-endian order.
func swapped(d npType, p []byte) []byte {
	word := d.size
	switch d.kind {
	case 'c':
		word /= 2
	case 'U':
		word = 4
	case 'S':
		return p
	}
	out := slices.Clone(p)
	for w := range slices.Chunk(out, word) {
		slices.Reverse(w)
	}
	return out
}

func uintOf(p []byte) uint64 {
	var b [8]byte
	copy(b[:], p)
	return binary.LittleEndian.Uint64(b[:])
}

func floatOf(p []byte) float64 {
	switch len(p) {
	case 8:
		return math.Float64frombits(uintOf(p))
	case 4:
		return float64(math.Float32frombits(uint32(uintOf(p))))
	}
	return halfOf(uint16(uintOf(p)))
}

// halfOf returns the float16 of these bits.
func halfOf(bits uint16) float64 {
	sign, exp, frac := 1-2*float64(bits>>15), int(bits>>10&0x1f), float64(bits&0x3ff)
	switch {
	case exp == 0:
		return sign * math.Ldexp(frac, -24)
	case exp == 31 && frac == 0:
		return math.Inf(int(sign))
	case exp == 31:
		return math.NaN()
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

// textOf returns numpy's text: four bytes a character, zeros at the end.
func textOf(p []byte) string {
	var s []byte
	for c := range slices.Chunk(p, 4) {
		s = utf8.AppendRune(s, rune(binary.LittleEndian.Uint32(c)))
	}
	return strings.TrimRight(string(s), "\x00")
}
