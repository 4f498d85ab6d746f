package tensor

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

var smallFloats = []DType{Float16, BFloat16, Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ, Float8E8M0FNU}

// Every small float becomes the float32 of the same value, and comes back as it was, except
// for the payload of a NaN.
func TestSmallFloatsSurviveFloat32(t *testing.T) {
	for _, d := range smallFloats {
		t.Run(d.String(), func(t *testing.T) {
			all := everyElement(d)
			src := must.Value(FromBytes(d, []int64{int64(len(all) / d.Size())}, all))
			wide := convert(t, src, Float32)
			back := convert(t, wide, d)
			for i, v := range must.Value(Values[float32](wide)) {
				in, out := src.element(int64(i)), back.element(int64(i))
				want := refSmallValue(d, i)
				if math.IsNaN(want) {
					if v == v || !hasNaN(d, out) {
						t.Errorf("%x = %v, and back %x; want NaN", in, v, out)
					}
					continue
				}
				if math.Float64bits(float64(v)) != math.Float64bits(want) || string(in) != string(out) {
					t.Errorf("%x = %v, and back %x; want %v, and back the same", in, v, out, want)
				}
			}
		})
	}
}

// neighbourhood returns the numbers at and around every place where rounding to d
// changes its mind, in float32, with both signs or, where there are many, with
// either in turn.
func neighbourhood(d DType) []float32 {
	row := refTableOf(d)
	points := []float64{0, row[len(row)-1], math.MaxFloat32, math.Inf(1)}
	for i := range len(row) - 1 {
		points = append(points, row[i], row[i]/2+row[i+1]/2)
	}
	var out []float32
	for i, p := range points {
		v := float32(p)
		for _, near := range []float32{math.Nextafter32(v, -1), v, math.Nextafter32(v, float32(math.Inf(1)))} {
			if d.Size() == 1 || i/2%2 == 0 || i < 4 {
				out = append(out, near)
			}
			if d.Size() == 1 || i/2%2 == 1 || i < 4 {
				out = append(out, -near)
			}
		}
	}
	return out
}

// refTableOf is refTable with the powers of two of float8_e8m0fnu.
func refTableOf(d DType) []float64 {
	if d != Float8E8M0FNU {
		return refTable(d)
	}
	var row []float64
	for exp := -127; exp <= 128; exp++ {
		row = append(row, math.Ldexp(1, exp))
	}
	return row
}

func TestRoundingAtEveryMidpoint(t *testing.T) {
	for _, d := range smallFloats {
		t.Run(d.String(), func(t *testing.T) {
			checkAgainstReference(t, Float32, d, bytesOf(neighbourhood(d)))
		})
	}
}

// Just beside a midpoint, float64 is closer to it than float32 can say: rounding
// twice would lose the difference.
func TestFloat64IsRoundedOnce(t *testing.T) {
	for _, d := range smallFloats {
		t.Run(d.String(), func(t *testing.T) {
			var points []float64
			for i, v := range neighbourhood(d) {
				if d.Size() > 1 && i%7 != 0 {
					continue // a sample is enough
				}
				points = append(points, math.Nextafter(float64(v), math.Inf(-1)), math.Nextafter(float64(v), math.Inf(1)))
			}
			points = append(points, math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64, math.MaxFloat64, -math.MaxFloat64)
			checkAgainstReference(t, Float64, d, bytesOf(points))
		})
	}
}

func TestIntegersAreRoundedOnce(t *testing.T) {
	var signedInts []int64
	var unsigned []uint64
	noise := rand.New(rand.NewPCG(2, 3))
	for shift := range 64 {
		for range 50 {
			u := noise.Uint64N(1<<13) >> noise.IntN(13) << shift
			unsigned = append(unsigned, u-1, u, u+1)
			signedInts = append(signedInts, int64(u-1), int64(u), int64(u+1), -int64(u)-1, -int64(u), 1-int64(u))
		}
	}
	for _, to := range append([]DType{Float64, Float32}, smallFloats...) {
		t.Run(to.String(), func(t *testing.T) {
			checkAgainstReference(t, Int64, to, bytesOf(signedInts))
			checkAgainstReference(t, Uint64, to, bytesOf(unsigned))
		})
	}
}

// The numbers at the ends of each format, by its definition.
func TestSmallFloatExtremes(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct {
		dtype DType
		value float64
		want  uint16
	}{
		{Float16, 65504, 0x7bff}, {Float16, 65519.99, 0x7bff}, {Float16, 65520, 0x7c00}, {Float16, -inf, 0xfc00},
		{Float16, 0x1p-24, 1}, {Float16, 0x1p-25, 0}, {Float16, 0x1.000001p-25, 1}, {Float16, -0x1p-26, 0x8000},
		{Float16, 0x1p-14, 0x0400}, {Float16, nan, 0x7e00},
		{BFloat16, 0x1.fep127, 0x7f7f}, {BFloat16, 0x1.ffp127, 0x7f80}, {BFloat16, 1e300, 0x7f80},
		{BFloat16, 0x1p-133, 1}, {BFloat16, 0x1p-134, 0}, {BFloat16, -1e-300, 0x8000},
		{Float8E4M3FN, 448, 0x7e}, {Float8E4M3FN, 464, 0x7e}, {Float8E4M3FN, 464.1, 0x7e}, {Float8E4M3FN, -480, 0xfe},
		{Float8E4M3FN, inf, 0x7e}, {Float8E4M3FN, -inf, 0xfe}, {Float8E4M3FN, nan, 0x7f}, {Float8E4M3FN, 0x1p-9, 1}, {Float8E4M3FN, -0x1p-10, 0x80},
		{Float8E5M2, 57344, 0x7b}, {Float8E5M2, 61439, 0x7b}, {Float8E5M2, 61440, 0x7c}, {Float8E5M2, -inf, 0xfc},
		{Float8E5M2, nan, 0x7f}, {Float8E5M2, 0x1p-16, 1},
		{Float8E4M3FNUZ, 240, 0x7f}, {Float8E4M3FNUZ, 247.9, 0x7f}, {Float8E4M3FNUZ, 248, 0x80}, {Float8E4M3FNUZ, -248, 0x80},
		{Float8E4M3FNUZ, -inf, 0x80}, {Float8E4M3FNUZ, nan, 0x80}, {Float8E4M3FNUZ, math.Copysign(0, -1), 0}, {Float8E4M3FNUZ, -1e-9, 0},
		{Float8E5M2FNUZ, 57344, 0x7f}, {Float8E5M2FNUZ, 61440, 0x80}, {Float8E5M2FNUZ, inf, 0x80}, {Float8E5M2FNUZ, -0x1p-17, 0x81},
		{Float8E8M0FNU, 1, 127}, {Float8E8M0FNU, 1.4999, 127}, {Float8E8M0FNU, 1.5, 128}, {Float8E8M0FNU, 2, 128}, {Float8E8M0FNU, 3, 129},
		{Float8E8M0FNU, 0, 0}, {Float8E8M0FNU, math.Copysign(0, -1), 0}, {Float8E8M0FNU, 0x1p-127, 0}, {Float8E8M0FNU, 0x1.01p-127, 1},
		{Float8E8M0FNU, 0x1p127, 254}, {Float8E8M0FNU, 0x1.8p127, 255}, {Float8E8M0FNU, inf, 255}, {Float8E8M0FNU, nan, 255},
		{Float8E8M0FNU, -1, 127}, {Float8E8M0FNU, -1.5, 128}, {Float8E8M0FNU, -1e-300, 0}, {Float8E8M0FNU, -inf, 255},
	} {
		for _, from := range []DType{Float64, Float32} {
			if from == Float32 && float64(float32(c.value)) != c.value && c.value == c.value {
				continue
			}
			p := convert(t, convert(t, f64(c.value), from), c.dtype).Contents()
			if got := binary.LittleEndian.Uint16(append(p[:len(p):len(p)], 0)); got != c.want {
				t.Errorf("%v %v to %v = %#x; want %#x", from, c.value, c.dtype, got, c.want)
			}
		}
	}
}

// A NaN keeps its sign and becomes quiet, if the target has signs and quiet NaNs.
func TestNaNsBecomeQuiet(t *testing.T) {
	signalling := []uint32{0x7f800001, 0xff800001, 0x7fbfffff}
	src := must.Value(FromBytes(Float32, []int64{3}, bytesOf(signalling)))
	for d, want := range map[DType][3]uint16{
		Float16:      {0x7e00, 0xfe00, 0x7fff},
		BFloat16:     {0x7fc0, 0xffc0, 0x7fff},
		Float8E4M3FN: {0x7f, 0xff, 0x7f},
		Float8E5M2:   {0x7f, 0xff, 0x7f},
	} {
		got := convert(t, src, d)
		for i := range want {
			p := got.element(int64(i))
			if code := binary.LittleEndian.Uint16(append(p[:len(p):len(p)], 0)); code != want[i] {
				t.Errorf("%#x to %v = %#x; want %#x", signalling[i], d, code, want[i])
			}
		}
	}
}
