package tensor

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// The dtypes that each dtype widens to, besides itself.
var widens = map[DType]string{
	Float64:        "complex128",
	Float32:        "float64 complex64 complex128",
	Float16:        "float64 float32 complex64 complex128",
	BFloat16:       "float64 float32 complex64 complex128",
	Float8E4M3FN:   "float64 float32 float16 bfloat16 complex64 complex128",
	Float8E4M3FNUZ: "float64 float32 float16 bfloat16 complex64 complex128",
	Float8E5M2:     "float64 float32 float16 bfloat16 complex64 complex128",
	Float8E5M2FNUZ: "float64 float32 float16 bfloat16 complex64 complex128",
	Float8E8M0FNU:  "float64 float32 bfloat16 complex64 complex128",
	Int64:          "",
	Int32:          "float64 int64 complex128",
	Int16:          "float64 float32 int64 int32 complex64 complex128",
	Int8:           "float64 float32 float16 bfloat16 int64 int32 int16 complex64 complex128",
	Uint64:         "",
	Uint32:         "float64 int64 uint64 complex128",
	Uint16:         "float64 float32 int64 int32 uint64 uint32 complex64 complex128",
	Uint8:          "float64 float32 float16 bfloat16 int64 int32 int16 uint64 uint32 uint16 complex64 complex128",
	Bool: "float64 float32 float16 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz " +
		"int64 int32 int16 int8 uint64 uint32 uint16 uint8 complex64 complex128",
	Complex64:  "complex128",
	Complex128: "",
}

func TestCanWiden(t *testing.T) {
	for _, from := range DTypes() {
		var got []string
		for _, to := range DTypes() {
			if from != to && CanWiden(from, to) {
				got = append(got, to.String())
			}
		}
		if s := strings.Join(got, " "); s != widens[from] {
			t.Errorf("%v widens to %q; want %q", from, s, widens[from])
		}
		if !CanWiden(from, from) || CanWiden(from, Invalid) || CanWiden(Invalid, from) {
			t.Errorf("%v: itself %v, to and from invalid %v, %v; want true, false, false",
				from, CanWiden(from, from), CanWiden(from, Invalid), CanWiden(Invalid, from))
		}
	}
}

// CanWiden is neither too lax nor too strict: of the dtypes that are short enough
// to try every value, exactly those widen that keep each one.
func TestCanWidenIfAndOnlyIfEveryValueIsKept(t *testing.T) {
	for _, from := range DTypes() {
		if from.Size() > 2 {
			continue
		}
		all := everyElement(from)
		src := must.Value(FromBytes(from, []int64{int64(len(all) / from.Size())}, all))
		for _, to := range DTypes() {
			if kept := keepsAll(src, convert(t, src, to)); kept != CanWiden(from, to) {
				t.Errorf("CanWiden(%v, %v) = %v, but every value is kept: %v", from, to, CanWiden(from, to), kept)
			}
		}
	}
}

// keepsAll compares the values of two tensors, real parts and signs of zero.
func keepsAll(a, b *Tensor) bool {
	p, q := a.Contents(), b.Contents()
	for ; len(p) > 0; p, q = p[a.size():], q[b.size():] {
		x, y := refReal(a.dtype, p[:a.size()]), refReal(b.dtype, q[:b.size()])
		if math.IsNaN(x) && math.IsNaN(y) {
			continue
		}
		if x != y || math.Signbit(x) != math.Signbit(y) {
			return false
		}
	}
	return true
}

// A widened number comes back the same.
func TestWideningIsUndone(t *testing.T) {
	for _, from := range DTypes() {
		all := sampleBits(from)
		src := must.Value(FromBytes(from, []int64{int64(len(all) / from.Size())}, all))
		for _, to := range DTypes() {
			if !CanWiden(from, to) {
				continue
			}
			back := convert(t, convert(t, src, to), from)
			for i := range src.NumElements() {
				in, out := src.element(i), back.element(i)
				if !bytes.Equal(in, out) && !slices.Contains(refDecode(from, in), nil) {
					t.Fatalf("%v by way of %v: %x comes back as %x", from, to, in, out)
				}
			}
		}
	}
}
