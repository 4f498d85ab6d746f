package tensor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// convert returns src's elements as dtype d.
func convert(t testing.TB, src *Tensor, d DType) *Tensor {
	t.Helper()
	dst := must.Value(New(d, src.Shape()))
	must.Do(t, Convert(dst, src, CastAny))
	return dst
}

// checkAgainstReference converts p's elements and compares each one with the
// reference.
func checkAgainstReference(t *testing.T, from, to DType, p []byte) {
	t.Helper()
	n := int64(len(p) / from.Size())
	got := convert(t, must.Value(FromBytes(from, []int64{n}, p)), to).Contents()
	for len(p) > 0 {
		in, out := p[:from.Size()], got[:to.Size()]
		p, got = p[from.Size():], got[to.Size():]
		parts := refDecode(from, in)
		want, ok := refEncode(to, parts, from >= Int64 && from <= Bool)
		if ok && !bytes.Equal(out, want) {
			t.Fatalf("%v to %v: %x (%v) = %x; want %x", from, to, in, parts, out, want)
		}
		if !ok && !hasNaN(to, out) {
			t.Fatalf("%v to %v: %x (%v) = %x; want NaN", from, to, in, parts, out)
		}
	}
}

func hasNaN(d DType, p []byte) bool {
	return slices.Contains(refDecode(d, p), nil)
}

// everyElement returns all the elements of a short dtype.
func everyElement(d DType) []byte {
	var out []byte
	for u := range uint64(1) << (8 * d.Size()) {
		out = append(out, binary.LittleEndian.AppendUint64(nil, u)[:d.Size()]...)
	}
	if d == Bool {
		return out[:2]
	}
	return out
}

// sampleBits returns elements that casts could get wrong: every one of eight
// bits, noise, small numbers, powers of two and their neighbours otherwise.
func sampleBits(d DType) []byte {
	if d.Size() == 1 {
		return everyElement(d)
	}
	var out []byte
	add := func(u uint64) {
		out = append(out, binary.LittleEndian.AppendUint64(nil, u)[:min(d.Size(), 8)]...)
	}
	noise := rand.New(rand.NewPCG(1, uint64(d)))
	for range 500 {
		add(noise.Uint64())
		add(noise.Uint64() >> noise.IntN(64))
	}
	toBits := func(v float64) uint64 { return math.Float64bits(v) }
	switch d {
	case Float32, Complex64:
		toBits = func(v float64) uint64 { return uint64(math.Float32bits(float32(v))) }
	case Float16, BFloat16:
		toBits = func(v float64) uint64 { return uint64(math.Float32bits(float32(v)) >> 16) }
	case Int64, Int32, Int16, Uint64, Uint32, Uint16:
		toBits = func(v float64) uint64 { return uint64(int64(max(min(v, 1<<62), -1<<62))) }
	}
	for exp := -160; exp <= 140; exp++ {
		for _, m := range []float64{1, -1.75} {
			b := toBits(math.Ldexp(m, exp))
			add(b - 1)
			add(b)
			add(b + 1)
		}
	}
	for _, v := range []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN()} {
		add(toBits(v))
	}
	return out[:len(out)/(2*d.Size())*2*d.Size()]
}

func TestEveryCastAgreesWithTheReference(t *testing.T) {
	for _, from := range DTypes() {
		samples := sampleBits(from)
		for _, to := range DTypes() {
			if from != to {
				t.Run(fmt.Sprintf("%v to %v", from, to), func(t *testing.T) {
					checkAgainstReference(t, from, to, samples)
				})
			}
		}
	}
}

// A cast between any layouts gives the same elements as between contiguous tensors, and
// changes no other byte.
func TestConvertDoesNotDependOnLayout(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		from := rapid.SampledFrom([]DType{Float32, BFloat16, Float64, Int64, Uint8, Complex64}).Draw(t, "from")
		to := rapid.SampledFrom([]DType{Float32, Float16, Float8E5M2, Bool, Int32, Complex128}).Draw(t, "to")
		shape := drawSizes(t)
		dst, src := drawLayout(t, to, shape), drawLayout(t, from, shape)
		flat := must.Value(New(to, shape))
		must.Do(t, Convert(flat, src.Clone(), CastAny))
		want := bytes.Clone(dst.data)
		setEach(dst, flat, want)
		must.Do(t, Convert(dst, src, CastAny))
		if !bytes.Equal(dst.data, want) {
			t.Errorf("Convert of %v, strides %v to %v, strides %v: wrong bytes", src, src.strides, dst, dst.strides)
		}
	})
}

// Views that are larger than the staging buffer are converted completely.
func TestConvertOfLargeViews(t *testing.T) {
	base := must.Value(New(Int32, []int64{3, 50_001}))
	values := must.Value(Values[int32](base))
	for i := range values {
		values[i] = int32(i)
	}
	src := must.Value(base.Transpose(0, 1))
	dst := convert(t, src, Int64)
	if want := convert(t, src.Clone(), Int64); !Equal(dst, want) {
		t.Error("a transposed source gives other values than its copy")
	}
}

func TestEqualDTypesAreCopiedBitByBit(t *testing.T) {
	p := []byte{0, 1, 2, 0xff}
	for _, policy := range []CastPolicy{CastInRange, CastAny, CastWiden, CastNone} {
		src := must.Value(FromBytes(Bool, []int64{4}, p))
		dst := must.Value(New(Bool, []int64{4}))
		if err := Convert(dst, src, policy); err != nil || !bytes.Equal(dst.data, p) {
			t.Errorf("Convert(bool, bool, %d) = %v, %v; want %v", policy, dst.data, err, p)
		}
	}
}

func TestForbiddenCasts(t *testing.T) {
	for _, c := range []struct {
		policy   CastPolicy
		from, to DType
		want     error
	}{
		{CastInRange, Float64, Float16, nil},
		{CastInRange, Complex128, Complex64, nil},
		{CastInRange, Float64, Complex64, nil},
		{CastInRange, Int64, Int8, nil},
		{CastInRange, Int64, Bool, nil},
		{CastInRange, Bool, Float8E4M3FN, nil},
		{CastInRange, Float8E8M0FNU, BFloat16, nil},
		{CastInRange, Float32, Int64, ErrCast},
		{CastInRange, BFloat16, Bool, ErrCast},
		{CastInRange, Complex64, Float64, ErrCast},
		{CastInRange, Complex64, Int8, ErrCast},
		{CastInRange, Float32, Float8E8M0FNU, ErrCast},
		{CastInRange, Bool, Float8E8M0FNU, ErrCast},
		{CastAny, Float64, Uint8, nil},
		{CastAny, Complex128, Bool, nil},
		{CastWiden, Float16, Float32, nil},
		{CastWiden, Float32, Float16, ErrCast},
		{CastWiden, Int64, Float64, ErrCast},
		{CastNone, Float32, Float32, nil},
		{CastNone, Float16, Float32, ErrCast},
		{CastPolicy(9), Float16, Float32, ErrCast},
	} {
		dst, src := must.Value(New(c.to, []int64{2})), must.Value(New(c.from, []int64{2}))
		if err := Convert(dst, src, c.policy); !errors.Is(err, c.want) {
			t.Errorf("Convert(%v, %v, %d): %v; want %v", c.to, c.from, c.policy, err, c.want)
		}
		if err := c.policy.Check(c.from, c.to); !errors.Is(err, c.want) {
			t.Errorf("CastPolicy(%d).Check(%v, %v): %v; want %v", c.policy, c.from, c.to, err, c.want)
		}
	}
	if err := CastAny.Check(Invalid, Float32); !errors.Is(err, ErrDType) {
		t.Errorf("Check(Invalid, Float32): %v; want %v", err, ErrDType)
	}
}

// Integers at the edges of the range of each type. The smaller types are first.
func TestIntegersOutOfRange(t *testing.T) {
	for _, c := range []struct {
		to        DType
		low, high int64
	}{
		{Bool, 0, 1}, {Int8, -1 << 7, 1<<7 - 1}, {Uint8, 0, 1<<8 - 1}, {Int16, -1 << 15, 1<<15 - 1}, {Uint16, 0, 1<<16 - 1},
		{Int32, -1 << 31, 1<<31 - 1}, {Uint32, 0, 1<<32 - 1}, {Uint64, 0, math.MaxInt64},
		{Float8E4M3FN, -448, 448}, {Float8E4M3FNUZ, -240, 240}, {Float8E5M2, -57344, 57344}, {Float16, -65504, 65504},
		{BFloat16, math.MinInt64, math.MaxInt64}, {Float32, math.MinInt64, math.MaxInt64}, {Complex64, math.MinInt64, math.MaxInt64},
	} {
		for _, v := range []int64{0, 1, c.low, c.low - 1, c.high, c.high + 1, -1, -129, 128, 300, 1 << 20, math.MinInt64, math.MaxInt64} {
			src := must.Value(Of([]int64{3}, []int64{1, v, 0}))
			for _, from := range []DType{Int64, Int32, Int16} {
				small := must.Value(Cast(src, from))
				if !Equal(must.Value(Cast(small, Int64)), src) {
					continue // this type does not have the number
				}
				dst := must.Value(New(c.to, []int64{3}))
				err := Convert(dst, small, CastInRange)
				if in := c.low <= v && v <= c.high; in != (err == nil) || !in && !errors.Is(err, ErrCast) {
					t.Errorf("Convert(%v, %v, CastInRange) of %d = %v; it is in the range: %v", c.to, from, v, err, in)
				}
				if err != nil && !strings.Contains(err.Error(), fmt.Sprint(v)) {
					t.Errorf("the error does not name %d: %v", v, err)
				}
				if want := must.Value(Cast(small, c.to)); err == nil && !Equal(dst, want) {
					t.Errorf("Convert(%v, %v, CastInRange) of %d: %x; want %x", c.to, from, v, dst.data, want.data)
				}
				if err := Convert(dst.Lossy(), small, CastInRange); err != nil || !Equal(dst, must.Value(Cast(small, c.to))) {
					t.Errorf("Convert of %v %d to a lossy %v = %v, %x", from, v, c.to, err, dst.data)
				}
			}
		}
	}
}

// The one element that is out of range is not among the first that are staged, and not in a row
// with its neighbours.
func TestOutOfRangeInAView(t *testing.T) {
	x := must.Value(New(Uint64, []int64{300, 500}))
	must.Value(Values[uint64](x))[299*500+77] = math.MaxUint64
	view := must.Value(x.Transpose(0, 1))
	dst := must.Value(New(Int64, view.Shape()))
	if err := Convert(dst, view, CastInRange); !errors.Is(err, ErrCast) || !strings.Contains(err.Error(), "18446744073709551615") {
		t.Errorf("Convert = %v; want %v with the number", err, ErrCast)
	}
	if err := Convert(dst, view, CastAny); err != nil {
		t.Errorf("Convert with CastAny = %v", err)
	}
}

func TestNamesOfCastPolicies(t *testing.T) {
	for _, p := range []CastPolicy{CastInRange, CastAny, CastWiden, CastNone} {
		var got CastPolicy = 9
		if err := got.UnmarshalText(must.Value(p.MarshalText())); err != nil || got != p {
			t.Errorf("UnmarshalText(%q) = %v, %v", p, got, err)
		}
	}
	if err := new(CastPolicy).UnmarshalText([]byte("all")); err == nil {
		t.Error("UnmarshalText accepts a policy that does not exist")
	}
}

// The promises that are easiest to break, in numbers.
func TestCastValues(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct {
		name     string
		src      *Tensor
		to, back DType // compared as this dtype
		want     any
	}{
		{"floats lose their fraction", f64(1.9, -1.9, 0.5), Int32, Int64, []int64{1, -1, 0}},
		{"floats stop at the range", f64(300, -300, inf, -inf, nan), Int8, Int64, []int64{127, -128, 127, -128, 0}},
		{"unsigned numbers are not below zero", f64(-1, -0.5, 256, inf), Uint8, Int64, []int64{0, 0, 255, 255}},
		{"floats stop at the range of int64", f64(math.Ldexp(1, 63), -math.Ldexp(1, 70)), Int64, Int64, []int64{math.MaxInt64, math.MinInt64}},
		{"integers wrap", must.Value(Of([]int64{3}, []int64{300, -1, 1 << 40})), Uint8, Int64, []int64{44, 255, 0}},
		{"all but zero is true", f64(0.1, nan, 0, math.Copysign(0, -1)), Bool, Int64, []int64{1, 1, 0, 0}},
		{"a bool is one at most", must.Value(FromBytes(Bool, []int64{3}, []byte{0, 1, 7})), Int64, Int64, []int64{0, 1, 1}},
		{"imaginary parts go", must.Value(Of([]int64{2}, []complex64{3 + 4i, -1i})), Float64, Float64, []float64{3, 0}},
		{"imaginary parts make true", must.Value(Of([]int64{2}, []complex64{-1i, 0})), Bool, Int64, []int64{1, 0}},
		{"real becomes complex", f64(2.5), Complex64, Complex128, []complex128{2.5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := convert(t, c.src, c.to)
			if c.back != c.to {
				got = convert(t, got, c.back)
			}
			var values any
			switch c.back {
			case Int64:
				values = must.Value(Values[int64](got))
			case Float64:
				values = must.Value(Values[float64](got))
			case Complex128:
				values = must.Value(Values[complex128](got))
			}
			if fmt.Sprint(values) != fmt.Sprint(c.want) {
				t.Errorf("= %v; want %v", values, c.want)
			}
		})
	}
}

func f64(values ...float64) *Tensor {
	return must.Value(Of([]int64{int64(len(values))}, values))
}
